//go:build vm

package faults

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/test/host"
)

const (
	// deadline is a call's where something hangs: short, so that a test sees what is
	// said at its end.
	deadline = 20 * time.Second
	// soon is how long the machine may take for what is quick.
	soon = time.Minute
)

// patient is a call's deadline elsewhere: flexd's own.
var patient = config.Default().CallDeadline

// soak says that nothing is left out.
var soak = os.Getenv("FLEXD_SOAK") != ""

// A lab is a node with two volume groups. That of host.VG has a disk that fails
// on command, "under" (a linear device on the first disk), and a sound one; the
// group "other" has a third.
type lab struct {
	*testing.T
	*host.Node
	sound   string // the disk of host.VG that never fails
	sectors int64  // of under

	beats atomic.Int64 // reports of flexd's watchdog
}

const (
	under = "/dev/mapper/under"
	// The labels of physical volumes lie before it, so that LVM does not find
	// them on the disk below as well.
	start = 2048
)

// newLab makes the groups, with the volumes that the commands of LVM make, and
// starts flexd.
func newLab(t *testing.T, callDeadline time.Duration, commands ...string) *lab {
	t.Helper()
	disks := host.Disks()
	if len(disks) < 4 || os.Getenv("FLEXD_TEST_BIN") == "" {
		t.Fatal("needs device-mapper, four disks to overwrite, and the executables: make test-vm")
	}
	l := &lab{T: t, sound: disks[1]}
	l.sh("blkdiscard", "-f", "-z", disks[0])
	l.sh("blkdiscard", "-f", "-z", disks[1]) // extents may have been another test's
	l.sectors = l.number("blockdev", "--getsz", disks[0]) - start
	l.sh("dmsetup", "create", "--noudevsync", "under", "--table", l.linear(0, l.sectors))
	l.sh("dmsetup", "mknodes")
	t.Cleanup(func() { l.sh("dmsetup", "remove", "--noudevsync", "--retry", "under") })
	var err error
	l.Node, err = host.New(os.Getenv("FLEXD_TEST_BIN"), 10*time.Minute, under, l.sound)
	l.must(err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("flexd's log:\n%s", l.LogTail(120))
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		l.sh("vgremove", "-q", "-q", "-ff", "-y", "other")
		os.RemoveAll("/dev/other")
		os.RemoveAll("/dev/" + host.VG)
		os.Remove("/run/lvm/hints")
	})
	l.must(l.Configure(host.Settings{
		Lease:  10 * time.Minute,
		Lines:  fmt.Sprintf("callDeadline: %s\nlog: {level: debug}", callDeadline),
		Groups: "  - {name: " + host.VG + ", provider: lvm, create: true, maxSize: 8GiB, namespaces: ['*']}\n  - {name: other, provider: lvm, namespaces: ['*']}\n",
	}))
	l.lvm(append([]string{"vgcreate -q other " + disks[2]}, commands...)...)
	l.watch()
	l.must(l.Start())
	// Also after a failure, nothing hangs when the node is removed.
	t.Cleanup(func() { exec.Command("dmsetup", "resume", "--noudevsync", "under").Run() })
	return l
}

// watch takes systemd's place: flexd's watchdog reports three times a second.
func (l *lab) watch() {
	l.Helper()
	path := l.Dir + "/notify"
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	l.must(err)
	l.Cleanup(func() { conn.Close() })
	l.Setenv("NOTIFY_SOCKET", path)
	l.Setenv("WATCHDOG_USEC", "900000")
	go func() {
		for b := make([]byte, 100); ; {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			if string(b[:n]) == "WATCHDOG=1" {
				l.beats.Add(1)
			}
		}
	}()
}

// beating checks that systemd would not kill flexd.
func (l *lab) beating() {
	l.Helper()
	before := l.beats.Load()
	l.within(soon, "the watchdog reports", func() string {
		if l.beats.Load() < before+3 {
			return "silence"
		}
		return ""
	})
}

// linear is a line of a table of under.
func (l *lab) linear(from, to int64) string {
	return fmt.Sprintf("%d %d linear %s %d", from, to-from, host.Disks()[0], start+from)
}

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// sh runs a command of an operator's.
func (l *lab) sh(argv ...string) string {
	l.Helper()
	return l.typed("", argv...)
}

// typed runs one that reads what is typed.
func (l *lab) typed(text string, argv ...string) string {
	l.Helper()
	c := exec.Command(argv[0], argv[1:]...)
	c.Env = append(os.Environ(), "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1")
	c.Stdin = strings.NewReader(text)
	out, err := c.CombinedOutput()
	if err != nil {
		l.Fatalf("%v: %v: %s", argv, err, out)
	}
	return strings.TrimSpace(string(out))
}

// lvm runs commands in one process: one costs most of what many cost.
func (l *lab) lvm(commands ...string) {
	l.Helper()
	l.typed(strings.Join(commands, "\n")+"\n", "lvm")
}

func (l *lab) number(argv ...string) int64 {
	l.Helper()
	n, err := strconv.ParseInt(l.sh(argv...), 10, 64)
	l.must(err)
	return n
}

// create is the command that makes a volume of host.VG on one disk, active.
func create(lv, size, disk string) string {
	return fmt.Sprintf("lvcreate -qq -y -ay -Zn -Wn -L %s -n %s %s %s", size, lv, host.VG, disk)
}

// device is a volume's.
func device(lv string) string { return "/dev/" + host.VG + "/" + lv }

// mkfs is an owner's, for volumes that are active.
func (l *lab) mkfs(fs string, lvs ...string) {
	l.Helper()
	for _, lv := range lvs {
		switch fs {
		case "ext4":
			l.sh("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", device(lv)) // nothing writes to it by itself
		case "xfs":
			l.sh("mkfs.xfs", "-q", "-K", device(lv))
		}
	}
}

// volume is one of host.VG as a pod names it; "other/x" is one of the other group.
func volumeOf(lv string) host.Volume {
	vg, name, ok := strings.Cut(lv, "/")
	if !ok {
		vg, name = host.VG, lv
	}
	return host.Volume{Name: "pv-" + name, Options: map[string]string{"volumegroup": vg, "volumeID": name}}
}

func podOf(lv string) host.Pod {
	name := strings.ReplaceAll(lv, "/", "-")
	return host.Pod{Namespace: "default", Name: "pod-" + name, UID: "uid-" + name}
}

func (l *lab) dir(lv string) string { return l.PodDir(podOf(lv), volumeOf(lv)) }

// story is what status says of a volume of host.VG.
func (l *lab) story(lv string) status.VolumeDetail {
	l.Helper()
	s, err := l.Volume(lv)
	if err != nil {
		l.Errorf("%v", err)
	}
	return s
}

// within waits until what is wrong is nothing.
func (l *lab) within(d time.Duration, what string, wrong func() string) bool {
	l.Helper()
	for end := time.Now().Add(d); ; time.Sleep(100 * time.Millisecond) {
		s := wrong()
		if s == "" {
			return true
		}
		if time.Now().After(end) {
			l.Errorf("%s: not after %s: %s", what, d, s)
			return false
		}
	}
}

// suspend makes everything wait that reads or writes under.
func (l *lab) suspend() {
	l.Helper()
	l.sh("dmsetup", "suspend", "--nolockfs", "--noudevsync", "under")
}

func (l *lab) resume() {
	l.Helper()
	l.sh("dmsetup", "resume", "--noudevsync", "under")
}

// reload gives under another table.
func (l *lab) reload(lines ...string) {
	l.Helper()
	l.typed(strings.Join(lines, "\n")+"\n", "dmsetup", "reload", "under")
	l.sh("dmsetup", "suspend", "--nolockfs", "--noudevsync", "under")
	l.resume()
}

// freeze stops a child of flexd's that works on a volume as soon as it is there, and
// returns its pid. What it is named by is its program, or an operation of flexd's own.
func (l *lab) freeze(what string) int {
	l.Helper()
	pid := l.Freeze(func() bool { return false }, what)
	if pid == 0 {
		l.Fatalf("no %s", what)
	}
	return pid
}

// mountFrozen mounts a volume and stops flexd's child that mounts it, before the kernel has
// the filesystem. On a busy machine that takes several attempts.
func (l *lab) mountFrozen(lv string) (wait chan reply, pid int) {
	l.Helper()
	for range 20 {
		wait = behind(func() reply { return l.mount(lv) })
		pid = l.Freeze(func() bool { return len(wait) > 0 }, "mount")
		var st unix.Stat_t
		if pid != 0 && unix.Stat(device(lv), &st) == nil {
			if _, err := os.Stat(fmt.Sprintf("/sys/fs/ext4/dm-%d", unix.Minor(st.Rdev))); err != nil {
				return wait, pid
			}
			l.must(unix.Kill(pid, unix.SIGCONT))
		}
		l.ok(<-wait)
		l.ok(l.unmount(lv))
	}
	l.Fatalf("no mount of %s was stopped", lv)
	return nil, 0
}

// hangs waits until a child hangs on a volume, in a sleep that no signal ends, and
// returns it.
func (l *lab) hangs(lv string) (w *procfs.Waiting) {
	l.Helper()
	l.within(soon, lv+" hangs", func() string {
		s, err := l.Volume(lv)
		if err != nil {
			return err.Error()
		}
		w = run.Holder(l.Node.Run + "/lanes/" + s.UUID)
		if w != nil && asleep(w.Pid) {
			return ""
		}
		return fmt.Sprintf("%+v", w)
	})
	return w
}

// asleep reports whether a thread of a process is in D state.
func asleep(pid int) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return slices.ContainsFunc(files, func(f string) bool {
		b, _ := os.ReadFile(f)
		return strings.Contains(string(b), ") D ")
	})
}

// ends is SIGTERM, as systemd sends it.
func (l *lab) ends() time.Duration {
	l.Helper()
	begun := time.Now()
	l.must(l.Signal(unix.SIGTERM))
	return time.Since(begun)
}

// list is `flexd status -o json`.
func (l *lab) list() (list status.List) {
	l.Helper()
	text, err := l.Status("-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(text), &list)
	}
	l.must(err)
	return list
}

// size is flexd's memory, in bytes, and how many goroutines it has.
func (l *lab) size() (memory int64, goroutines int) {
	l.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.Pid()))
	l.must(err)
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	l.must(err)
	return kib << 10, l.list().Goroutines
}
