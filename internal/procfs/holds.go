package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/sysfs"
)

// HoldsMount describes how a process keeps one of some mounts of a device busy, and returns
// its id; "" = it keeps none. The id is unique across namespaces, unlike a path.
func (p Process) HoldsMount(ids []int, number string) (how string, id int) {
	for _, t := range p.tables() {
		if how, id = t.holdsMount(ids, number); how != "" {
			break
		}
	}
	return how, id
}

func (p Process) holdsMount(ids []int, number string) (how string, id int) {
	for _, l := range []struct{ name, how string }{
		{"cwd", "working directory"},
		{"root", "root directory"},
		{"exe", "running program"},
	} {
		if id := mountID(p.Path(l.name)); slices.Contains(ids, id) {
			return l.how + " " + p.link(l.name), id
		}
	}
	fds, _ := os.ReadDir(p.Path("fd"))
	for _, f := range fds {
		info, _ := os.ReadFile(p.Path("fdinfo/" + f.Name()))
		if id := parseMountID(info); slices.Contains(ids, id) {
			return "open file " + p.link("fd/"+f.Name()), id
		}
	}
	maps, _ := os.ReadFile(p.Path("maps"))
	for line := range strings.Lines(string(maps)) {
		// 7f..-7f.. r-xp 00000000 07:03 12 /path
		f := strings.Fields(line)
		if len(f) < 6 || hexNumber(f[3]) != number {
			continue
		}
		if id := mountID(p.Path("map_files/" + f[0])); slices.Contains(ids, id) {
			return "mapped file " + f[5], id
		}
	}
	return "", 0
}

// HoldsDevice describes how a process has the block device with that number open; "" = it
// does not. The device node may have any path.
func (p Process) HoldsDevice(number string) string {
	for _, t := range p.tables() {
		fd, err := os.Open(t.Path("fd"))
		if err != nil {
			continue
		}
		names, _ := fd.Readdirnames(-1)
		i := slices.IndexFunc(names, func(name string) bool { return isDevice(int(fd.Fd()), name, number) })
		fd.Close()
		if i >= 0 {
			return "has it open as " + t.link("fd/"+names[i])
		}
	}
	return ""
}

// HoldsFileOn says how a process uses a file on the filesystem of the device of that
// number, or "", whatever mount it opened it on. It finds none on a btrfs, whose files
// have other numbers.
func (p Process) HoldsFileOn(number string) string {
	on := func(name string) bool {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, p.Path(name), unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
		return err == nil && sysfs.Number(unix.Mkdev(st.Dev_major, st.Dev_minor)) == number
	}
	for _, name := range []string{"cwd", "root", "exe"} {
		if on(name) {
			return "has its " + name + " in it"
		}
	}
	fds, _ := os.ReadDir(p.Path("fd"))
	for _, f := range fds {
		if name := "fd/" + f.Name(); on(name) {
			return "has " + p.link(name) + " of it open"
		}
	}
	return ""
}

// MapsDevice describes how a process has mapped the block device with that number; "" = it
// has not.
func (p Process) MapsDevice(number string) string {
	for _, t := range p.tables() {
		maps, _ := os.ReadFile(t.Path("maps"))
		seen := map[string]bool{}
		for line := range strings.Lines(string(maps)) {
			// 7f..-7f.. rw-s 00000000 00:06 330 /dev/loop3: the numbers are those of the node
			f := strings.Fields(line)
			if len(f) < 6 || f[4] == "0" || seen[f[3]+" "+f[4]] {
				continue
			}
			seen[f[3]+" "+f[4]] = true
			if isDevice(unix.AT_FDCWD, t.Path("map_files/"+f[0]), number) {
				return "has it mapped as " + f[5]
			}
		}
	}
	return ""
}

// isDevice reports whether a link of procfs leads to the block device with that number.
// Following it resolves no path and reads no attributes from a filesystem.
func isDevice(dir int, link, number string) bool {
	var st unix.Statx_t
	err := unix.Statx(dir, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && sysfs.Number(unix.Mkdev(st.Rdev_major, st.Rdev_minor)) == number
}

// tables returns one thread of the process for each of its descriptor tables and working
// directories; nearly always all threads share them. The first thread may have ended.
func (p Process) tables() []Process {
	found := []Process{p}
	threads, _ := readNames(p.Path("task"))
	for _, name := range threads {
		tid, err := strconv.Atoi(name)
		if err == nil && !slices.ContainsFunc(found, func(t Process) bool { return shares(t, Process(tid)) }) {
			found = append(found, Process(tid))
		}
	}
	return found
}

const (
	kcmpFiles = 2 // KCMP_FILES
	kcmpFS    = 3 // KCMP_FS
)

// shares reports whether two threads share their descriptors and their working directory.
func shares(a, b Process) bool {
	if a == b {
		return true
	}
	for _, what := range []uintptr{kcmpFiles, kcmpFS} {
		order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), what, 0, 0, 0)
		if errno == unix.ENOSYS { // a kernel without it
			return true
		}
		if errno != 0 || order != 0 {
			return false
		}
	}
	return true
}

func (p Process) link(name string) string {
	to, err := os.Readlink(p.Path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return to
}

// mountID returns the id of the mount to which a path of procfs leads, or 0. O_PATH does
// not access the filesystem there.
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
