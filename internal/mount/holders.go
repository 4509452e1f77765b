package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
)

// maxHolders is how many holders are looked for: a message names only a few.
const maxHolders = 8

// mountHolders finds what keeps a mount in use: mounts below it, and processes
// of any mount namespace. It is for children only, since it asks for mapped
// files, which can wait for the process that maps them.
func mountHolders(tab *mounttable.Table, e *mounttable.Entry) []Holder {
	var holders []Holder
	for _, m := range tab.All() {
		if m.Parent == e.ID && m.ID != e.ID {
			holders = append(holders, Holder{How: "mounted on it: " + m.String()})
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		if b, err := os.ReadFile(l); err == nil && strings.HasPrefix(string(b), e.Dir+"/") {
			holders = append(holders, Holder{How: "/dev/" + strings.Split(l, "/")[3] + " is backed by " + strings.TrimSpace(string(b))})
		}
	}
	_ = eachProcess(func(p process) bool {
		if how := p.holdsMount(e); how != "" {
			holders = append(holders, p.holder(how))
		}
		return len(holders) < maxHolders
	})
	return holders
}

// DeviceHolders finds what keeps a block device in use: devices on top of it,
// mounts of any mount namespace, and processes that have it open. It is for
// children only.
func DeviceHolders(number, path string) []Holder {
	var holders []Holder
	if entries, err := os.ReadDir("/sys/dev/block/" + number + "/holders"); err == nil {
		for _, e := range entries {
			above, _ := os.ReadFile("/sys/block/" + e.Name() + "/dev")
			holders = append(holders, Holder{How: "/dev/" + e.Name() + mappedName(strings.TrimSpace(string(above))) + " lies on it"})
		}
	}
	if dev, err := os.Open(path); err == nil {
		loops, _ := loopsOn(dev, number)
		dev.Close()
		for _, l := range loops {
			holders = append(holders, Holder{How: l})
		}
	}
	mounted := false
	seen := map[string]bool{} // mount namespaces
	_ = eachProcess(func(p process) bool {
		if how := p.holdsDevice(number); how != "" {
			holders = append(holders, p.holder(how))
		}
		ns, err := os.Readlink(p.path("ns/mnt"))
		if err == nil && !seen[ns] {
			seen[ns] = true
			if dirs := p.mountsOf(number, path); len(dirs) > 0 {
				holders, mounted = append(holders, p.holder(mountedIn(ns, dirs...))), true
			}
		}
		return len(holders) < maxHolders
	})
	if fsType := liveSuperblock(number); fsType != "" && !mounted && len(holders) < maxHolders {
		holders = append(holders, unmountedSuperblock(fsType, path))
	}
	return holders
}

// A process is one directory of procfs.
type process int

func eachProcess(f func(process) bool) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if !f(process(pid)) {
			break
		}
	}
	return nil
}

func (p process) path(name string) string { return fmt.Sprintf("/proc/%d/%s", int(p), name) }

func (p process) holder(how string) Holder {
	comm, _ := os.ReadFile(p.path("comm"))
	return Holder{Pid: int(p), Comm: strings.TrimSpace(string(comm)), How: how}
}

// mountedIn says where a process has a device: lsns(8) lists namespaces by number.
func mountedIn(ns string, dirs ...string) string {
	return "mounted in its mount namespace " + ns + " at " + strings.Join(dirs, ", ")
}

// holdsMount says how a process keeps the mount busy, or "". A mount is known
// by its id, which no namespace shares: a path would not say whose it is.
func (p process) holdsMount(e *mounttable.Entry) string {
	for _, l := range []struct{ name, how string }{
		{"cwd", "working directory"},
		{"root", "root directory"},
		{"exe", "running program"},
	} {
		if mountID(p.path(l.name)) == e.ID {
			return l.how + " " + p.link(l.name)
		}
	}
	fds, _ := os.ReadDir(p.path("fd"))
	for _, f := range fds {
		if info, err := os.ReadFile(p.path("fdinfo/" + f.Name())); err == nil && parseMountID(info) == e.ID {
			return "open file " + p.link("fd/"+f.Name())
		}
	}
	maps, err := os.ReadFile(p.path("maps"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(maps)) {
		// 7f..-7f.. r-xp 00000000 07:03 12 /path
		f := strings.Fields(line)
		if len(f) >= 6 && hexNumber(f[3]) == e.Number && mountID(p.path("map_files/"+f[0])) == e.ID {
			return "mapped file " + f[5]
		}
	}
	return ""
}

func (p process) holdsDevice(number string) string {
	fds, _ := os.ReadDir(p.path("fd"))
	for _, f := range fds {
		to := p.link("fd/" + f.Name())
		if !strings.HasPrefix(to, "/dev/") {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(p.path("fd/"+f.Name()), &st); err == nil &&
			st.Mode&unix.S_IFMT == unix.S_IFBLK && numberOf(uint64(st.Rdev)) == number {
			return "has it open as " + to
		}
	}
	return ""
}

// mountsOf returns where the device is mounted in the process's namespace.
func (p process) mountsOf(number, path string) []string {
	tab, err := mounttable.ReadFile(p.path("mountinfo"))
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range tab.OfDevice(number, path) {
		dirs = append(dirs, e.Dir)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

func (p process) link(name string) string {
	to, err := os.Readlink(p.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return to
}

// mountID says on which mount a path of procfs leads, or 0. O_PATH does not
// reach the filesystem there.
func mountID(path string) int {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0
	}
	return parseMountID(info)
}

func parseMountID(fdinfo []byte) int {
	for line := range strings.Lines(string(fdinfo)) {
		if v, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			id, _ := strconv.Atoi(strings.TrimSpace(v))
			return id
		}
	}
	return 0
}

// hexNumber turns the "07:03" of a maps file into "7:3".
func hexNumber(s string) string {
	major, minor, _ := strings.Cut(s, ":")
	a, err1 := strconv.ParseUint(major, 16, 32)
	b, err2 := strconv.ParseUint(minor, 16, 32)
	if err1 != nil || err2 != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", a, b)
}
