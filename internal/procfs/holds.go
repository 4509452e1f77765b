package procfs

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/sysfs"
)

// A Search looks for the users of a mount or a device among all processes. It reads a limited
// number of entries of /proc: processes without any privilege can have millions of descriptors,
// and share them.
type Search struct {
	left    int // entries
	cut     bool
	blocked Process
}

// NewSearch begins a search that reads at most so many processes, threads, descriptors and mapped
// ranges.
func NewSearch(entries int) *Search { return &Search{left: entries} }

// Cut reports whether the search has ended before it had seen everything.
func (s *Search) Cut() bool { return s.cut }

// Blocked returns the process whose mappings were not returned in time, or 0: the search has read no
// further ones.
func (s *Search) Blocked() Process { return s.blocked }

// Over counts n more entries, and reports whether the search is over.
func (s *Search) Over(n int) bool {
	s.left -= n
	s.cut = s.cut || s.left < 0
	return s.cut
}

// Each calls f for each process but this one, until f returns false or the search is over.
func (s *Search) Each(f func(Process) bool) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && (s.Over(1) || !f(Process(pid))) {
			break
		}
	}
}

// descriptors calls f with the name of each descriptor of a process, until it returns true.
func (s *Search) descriptors(p Process, f func(dir *os.File, name string) bool) {
	dir, err := os.Open(p.Path("fd"))
	if err != nil {
		return
	}
	defer dir.Close()
	for {
		names, _ := dir.Readdirnames(512)
		if len(names) == 0 {
			return
		}
		for _, name := range names {
			if s.Over(1) || f(dir, name) {
				return
			}
		}
	}
}

// lines calls f with each line of a file of procfs, until it returns true. The file of a process
// without any privilege may have gigabytes.
func (s *Search) lines(path string, f func(line string) bool) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	for r := bufio.NewReaderSize(file, 64<<10); ; {
		line, err := r.ReadSlice('\n')
		if err != nil || s.Over(1+len(line)/256) || f(string(line)) {
			return
		}
	}
}

// mappingsTimeout limits the wait for the mappings of a process; another in tests.
var mappingsTimeout = 5 * time.Second

// mappings calls find, which reads the mappings of a process. They are locked while it changes
// them, which can wait for a filesystem that hangs. The caller must end by exit_group then.
func (s *Search) mappings(p Process, find func(s *Search) (how string, id int)) (string, int) {
	if s.blocked != 0 {
		return "", 0
	}
	type result struct {
		how string
		id  int
		s   Search
	}
	found := make(chan result, 1)
	own := *s // it may continue after the search
	go func() {
		how, id := find(&own)
		found <- result{how, id, own}
	}()
	select {
	case r := <-found:
		*s = r.s
		return r.how, r.id
	case <-time.After(mappingsTimeout):
		s.blocked = p
		return "", 0
	}
}

// HoldsMount describes how a process keeps one of some mounts of a device busy, and returns
// its id; "" = it keeps none. The id is unique across namespaces, unlike a path.
func (s *Search) HoldsMount(p Process, ids []int, number string) (how string, id int) {
	for _, t := range s.tables(p) {
		if how, id = s.holdsMount(t, ids, number); how != "" {
			break
		}
	}
	return how, id
}

func (s *Search) holdsMount(p Process, ids []int, number string) (how string, id int) {
	for _, l := range []struct{ name, how string }{
		{"cwd", "working directory"},
		{"root", "root directory"},
		{"exe", "running program"},
	} {
		if id := mountID(p.Path(l.name)); slices.Contains(ids, id) {
			return l.how + " " + p.link(l.name), id
		}
	}
	s.descriptors(p, func(dir *os.File, name string) bool {
		if id = mountOf(int(dir.Fd()), name); slices.Contains(ids, id) {
			how = "open file " + p.link("fd/"+name)
		}
		return how != ""
	})
	if how != "" {
		return how, id
	}
	return s.mappings(p, func(s *Search) (how string, id int) {
		s.lines(p.Path("maps"), func(line string) bool {
			// 7f..-7f.. r-xp 00000000 07:03 12 /path
			f := strings.Fields(line)
			if len(f) < 6 || hexNumber(f[3]) != number {
				return false
			}
			if at := mountID(p.Path("map_files/" + f[0])); slices.Contains(ids, at) {
				how, id = "mapped file "+f[5], at
			}
			return how != ""
		})
		return how, id
	})
}

// HoldsDevice describes how a process has one of some block devices open; "" = it has none. names has
// the words for each, by number. The device node may have any path.
func (s *Search) HoldsDevice(p Process, names map[string]string) (how string) {
	for _, t := range s.tables(p) {
		s.descriptors(t, func(dir *os.File, name string) bool {
			if device := names[deviceAt(int(dir.Fd()), name)]; device != "" {
				how = "has " + device + " open as " + t.link("fd/"+name)
			}
			return how != ""
		})
		if how != "" {
			break
		}
	}
	return how
}

// HoldsFileOn describes how a process uses a file on the filesystem of the device with that number,
// through any mount; "" = it does not. It finds none on a btrfs, whose files have other numbers.
func (s *Search) HoldsFileOn(p Process, number string) (how string) {
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
	s.descriptors(p, func(_ *os.File, name string) bool {
		if name = "fd/" + name; on(name) {
			how = "has " + p.link(name) + " of it open"
		}
		return how != ""
	})
	return how
}

// MapsDevice describes how a process has mapped one of some block devices, as HoldsDevice; "" = it has none.
func (s *Search) MapsDevice(p Process, names map[string]string) (how string) {
	for _, t := range s.tables(p) {
		how, _ = s.mappings(t, func(s *Search) (how string, _ int) {
			seen := map[string]bool{}
			s.lines(t.Path("maps"), func(line string) bool {
				// 7f..-7f.. rw-s 00000000 00:06 330 /dev/loop3: the numbers are those of the node
				f := strings.Fields(line)
				if len(f) < 6 || f[4] == "0" || seen[f[3]+" "+f[4]] {
					return false
				}
				seen[f[3]+" "+f[4]] = true
				if device := names[deviceAt(unix.AT_FDCWD, t.Path("map_files/"+f[0]))]; device != "" {
					how = "has " + device + " mapped as " + f[5]
				}
				return how != ""
			})
			return how, 0
		})
		if how != "" {
			break
		}
	}
	return how
}

// deviceAt returns the number of the block device to which a link of procfs leads, "" if it leads to none.
// Following it resolves no path and reads no attributes from a filesystem.
func deviceAt(dir int, link string) (number string) {
	var st unix.Statx_t
	err := unix.Statx(dir, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return ""
	}
	return sysfs.Number(unix.Mkdev(st.Rdev_major, st.Rdev_minor))
}

// tables returns one thread of the process for each of its descriptor tables and working
// directories; nearly always all threads share them. The first thread may have ended.
func (s *Search) tables(p Process) []Process {
	found := []Process{p}
	for _, name := range readNames(p.Path("task")) {
		tid, err := strconv.Atoi(name)
		if err == nil && !s.Over(1) && !slices.ContainsFunc(found, func(t Process) bool { return s.Over(1) || shares(t, Process(tid)) }) {
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

// mountID returns the id of the mount to which a path of procfs leads, or 0.
func mountID(path string) int { return mountOf(unix.AT_FDCWD, path) }

// mountOf is mountID of a link in a directory. It does not wait for the filesystem there, and does
// not read fdinfo of the descriptor, which has a line for each file that an epoll watches.
func mountOf(dir int, link string) int {
	var st unix.Statx_t
	err := unix.Statx(dir, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID != 0 {
		return int(st.Mnt_id)
	}
	// An xfs that has shut down fails it. O_PATH does not access the filesystem.
	fd, err := unix.Openat(dir, link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	info, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	for line := range strings.Lines(string(info)) {
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
