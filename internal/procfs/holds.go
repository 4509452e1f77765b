package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/sysfs"
)

// HoldsMount says how a process keeps a mount busy, or "". A mount is known
// by its id, which no namespace shares: a path would not say whose it is.
func (p Process) HoldsMount(id int, number string) string {
	for _, l := range []struct{ name, how string }{
		{"cwd", "working directory"},
		{"root", "root directory"},
		{"exe", "running program"},
	} {
		if mountID(p.Path(l.name)) == id {
			return l.how + " " + p.link(l.name)
		}
	}
	fds, _ := os.ReadDir(p.Path("fd"))
	for _, f := range fds {
		if info, err := os.ReadFile(p.Path("fdinfo/" + f.Name())); err == nil && parseMountID(info) == id {
			return "open file " + p.link("fd/"+f.Name())
		}
	}
	maps, err := os.ReadFile(p.Path("maps"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(maps)) {
		// 7f..-7f.. r-xp 00000000 07:03 12 /path
		f := strings.Fields(line)
		if len(f) >= 6 && hexNumber(f[3]) == number && mountID(p.Path("map_files/"+f[0])) == id {
			return "mapped file " + f[5]
		}
	}
	return ""
}

// HoldsDevice says how a process has the block device of that number open, or "".
func (p Process) HoldsDevice(number string) string {
	fds, _ := os.ReadDir(p.Path("fd"))
	for _, f := range fds {
		to := p.link("fd/" + f.Name())
		if !strings.HasPrefix(to, "/dev/") {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(p.Path("fd/"+f.Name()), &st); err == nil &&
			st.Mode&unix.S_IFMT == unix.S_IFBLK && sysfs.Number(st.Rdev) == number {
			return "has it open as " + to
		}
	}
	return ""
}

func (p Process) link(name string) string {
	to, err := os.Readlink(p.Path(name))
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
