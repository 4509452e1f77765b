package host

import (
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

	"github.com/flexd/flexd/internal/mounttable"
)

// Left says what of this node is still there: processes, mounts, block devices.
func (n *Node) Left() ([]string, error) {
	mounts, err := n.mounts()
	if err != nil {
		return nil, err
	}
	devices, err := n.devices()
	if err != nil {
		return nil, err
	}
	var left []string
	for _, pid := range n.processes() {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		left = append(left, fmt.Sprintf("process %d: %s", pid, strings.ReplaceAll(string(cmdline), "\x00", " ")))
	}
	for _, dir := range mounts {
		left = append(left, "mount "+dir)
	}
	for _, d := range devices {
		left = append(left, "device "+d)
	}
	return left, nil
}

// mounts lists the mount points below Dir, the last made first.
func (n *Node) mounts() ([]string, error) {
	table, err := mounttable.Own()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range slices.Backward(table.All()) {
		if strings.HasPrefix(e.Dir, n.Dir+"/") {
			dirs = append(dirs, e.Dir)
		}
	}
	return dirs, nil
}

// processes lists those other than us that run an executable of Dir or have
// anything below Dir open: a child of flexd has its lane's lock.
func (n *Node) processes() []int {
	var pids []int
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		pid, _ := strconv.Atoi(filepath.Base(proc))
		if pid == os.Getpid() {
			continue
		}
		links, _ := filepath.Glob(proc + "/fd/*")
		for _, link := range append(links, proc+"/exe", proc+"/cwd", proc+"/root") {
			if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, n.Dir+"/") {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// Close ends flexd and takes away whatever is left, however the play ended.
func (n *Node) Close() error {
	err := n.Signal(syscall.SIGKILL)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		for _, pid := range n.processes() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		mounts, merr := n.mounts()
		for _, dir := range mounts {
			unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		}
		n.release()
		left, lerr := n.Left()
		if err := errors.Join(merr, lerr); err != nil {
			return err
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
		}
	}
	if n.log != nil {
		n.log.Close()
	}
	return errors.Join(err, n.remove(), os.RemoveAll(n.Dir)) // nothing is mounted below it any more
}
