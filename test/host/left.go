package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Mounts lists the mount points at and below a directory, the last made first.
func Mounts(dir string) []string {
	all, err := MountsOf(os.Getpid(), dir)
	if err != nil {
		panic(err)
	}
	return all
}

// MountsOf lists the mount points that a process sees.
func MountsOf(pid int, dir string) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	var all []string
	for line := range strings.Lines(string(text)) {
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(strings.Fields(line)[4])
		if at == dir || strings.HasPrefix(at, dir+"/") {
			all = append(all, at)
		}
	}
	slices.Reverse(all)
	return all, err
}

// Mounted reports whether a directory is a mount point, as kubelet checks it.
func Mounted(dir string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	if err != nil && !errors.Is(err, unix.ENOENT) { // a mount in error
		return slices.Contains(Mounts(dir), dir)
	}
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// Processes lists the processes that run an executable below a directory, name it in
// their arguments, or are children of its flexd, by pid. This process is not one of them.
func Processes(dir string) map[int]string {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	all := map[int]string{}
	for _, proc := range procs {
		pid, _ := strconv.Atoi(filepath.Base(proc))
		if pid == os.Getpid() {
			continue
		}
		exe, _ := os.Readlink(proc + "/exe")
		in, _ := os.Readlink(proc + "/fd/0") // a child's is its lane's lock
		cmdline, _ := os.ReadFile(proc + "/cmdline")
		if strings.HasPrefix(exe, dir+"/") || strings.HasPrefix(in, dir+"/") || bytes.Contains(cmdline, []byte(dir+"/")) {
			all[pid] = strings.TrimSpace(string(bytes.ReplaceAll(cmdline, []byte{0}, []byte(" "))))
		}
	}
	return all
}

// Processes lists those of the node, without flexd.
func (n *Node) Processes() map[int]string {
	all := Processes(n.Dir)
	delete(all, n.Pid())
	return all
}

// Notes lists the notes of claims and leases.
func (n *Node) Notes() []string {
	files, _ := filepath.Glob(n.Run + "/notes/*")
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	return files
}

// Left returns what flexd must still release: mounts, notes, active volumes, children. It stops at the first
// kind that it finds, since the last two take long.
func (n *Node) Left() string {
	return n.first(func(dir string) bool { return n.Own == nil || !n.Own(dir) }, n.Notes())
}

// first is what it finds first of the node, of its mounts these.
func (n *Node) first(mounts func(dir string) bool, notes []string) string {
	var left []string
	for _, dir := range Mounts(n.Dir) {
		if dir != n.Dir && mounts(dir) {
			left = append(left, dir+" is mounted")
		}
	}
	if left = append(left, notes...); len(left) == 0 {
		for _, name := range n.Volumes.Active() {
			left = append(left, name+" is active")
		}
	}
	if len(left) == 0 {
		for pid, p := range n.Processes() {
			left = append(left, fmt.Sprintf("process %d: %s", pid, p))
		}
	}
	return strings.Join(left, "; ")
}

// Clear ends flexd and all processes, and removes mounts and block devices, whatever has failed. The files
// stay.
func (n *Node) Clear() error {
	err := n.Signal(syscall.SIGKILL)
	for end := time.Now().Add(soon); ; time.Sleep(20 * time.Millisecond) {
		for pid := range n.Processes() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		for _, dir := range Mounts(n.Dir) {
			if dir != n.Dir {
				unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			}
		}
		if len(n.Volumes.Active()) > 0 {
			n.Volumes.Release()
		}
		left := n.first(func(string) bool { return true }, nil)
		if left == "" {
			return err
		}
		if time.Now().After(end) {
			return errors.Join(err, fmt.Errorf("still there: %s", left))
		}
	}
}

// Close is Clear, and also removes the volume group and the files.
func (n *Node) Close() error {
	if err := n.Clear(); err != nil {
		return err
	}
	unix.Unmount(n.Dir, unix.MNT_DETACH)                        // where the place is a mount of its own
	return errors.Join(n.Volumes.Remove(), os.RemoveAll(n.Dir)) // nothing is mounted below it any more
}
