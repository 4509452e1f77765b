//go:build vm

package reboot

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/flexd/flexd/test/host"
)

// cutAt cuts the power as soon as now returns true, while a set-up call waits. Data that was written to the
// volume until then is on its disk; for all other data flexd and the filesystems are responsible.
func (l *life) cutAt(p host.Pod, lv string, now func() bool) {
	// The machine's programs start at fixed addresses, which is fast (scripts/vm):
	// an mkfs would be over before it is seen.
	l.must(os.WriteFile("/proc/sys/kernel/randomize_va_space", []byte("2"), 0))
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		l.setUp(p, lv)
	}()
	for !now() {
		select {
		case <-answered:
			l.Fatal("the call was answered before the power could be cut")
		case <-time.After(time.Millisecond):
		}
	}
	l.must(syscall.Kill(l.Pid(), syscall.SIGSTOP))
	l.sync(lv)
	l.must(exec.Command("vm-cut", strconv.Itoa(wasCut)).Run())
	l.Fatal("the power was cut, and the machine runs")
}

// sync writes what the kernel keeps of a device's content.
func (l *life) sync(lv string) {
	f, err := os.Open(l.device(lv))
	l.must(err)
	l.must(f.Sync())
	l.must(f.Close())
}

// stopMkfs stops the volume's mkfs.ext4, if there is one, when it has written something: with backups, also
// all backup superblocks, whose write to the disk takes most of its time.
func (l *life) stopMkfs(lv string, backups bool) bool {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	l.must(err)
	for _, path := range names {
		if name, _ := os.ReadFile(path); !strings.HasPrefix(string(name), "mkfs.") {
			continue
		}
		proc := filepath.Dir(path)
		pid, err := strconv.Atoi(filepath.Base(proc))
		l.must(err)
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, pid, 19)           // so that it does not run on when its slice is over
		for written := 0; written == 0 || backups && !l.hasBackup(lv); { // it writes late and fast, so it runs in slices
			syscall.Kill(pid, syscall.SIGCONT)
			time.Sleep(200 * time.Microsecond)
			if syscall.Kill(pid, syscall.SIGSTOP) != nil {
				return false // it has ended
			}
			text, err := os.ReadFile(proc + "/io")
			if err != nil {
				return false
			}
			_, rest, _ := strings.Cut(string(text), "wchar: ")
			fmt.Sscan(rest, &written)
		}
		return true
	}
	return false
}

// hasBackup reports whether the last backup superblock of an ext4 of just under 512 MiB, in group 49, was written.
func (l *life) hasBackup(lv string) bool {
	magic := make([]byte, 2)
	l.must(l.read(lv, magic, 49*8<<20+1024+56))
	return bytes.Equal(magic, []byte{0x53, 0xef})
}
