//go:build vm

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
		Groups: "  - {name: " + host.VG + ", provider: lvm, create: true, maxSize: 8GiB}\n  - {name: other, provider: lvm}\n",
	}))
	l.lvm(append([]string{"vgcreate -q other " + disks[2]}, commands...)...)
	l.must(l.Start())
	// Whatever happens, nothing hangs when the node is taken away.
	t.Cleanup(func() { exec.Command("dmsetup", "resume", "--noudevsync", "under").Run() })
	return l
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

// A reply is an answer, and how long it took.
type reply struct {
	host.Answer
	what string
	took time.Duration
	err  error
}

func (r reply) ok() bool { return r.err == nil && r.Status == "Success" }

func (r reply) String() string {
	return fmt.Sprintf("%s, after %s: %s %s %v", r.what, r.took.Round(time.Millisecond), r.Status, r.Message, r.err)
}

// call runs the driver as kubelet does.
func (l *lab) call(what string, args ...string) reply {
	begun := time.Now()
	a, err := l.Call(context.Background(), args...)
	return reply{Answer: a, what: what, took: time.Since(begun), err: err}
}

func (l *lab) mount(lv string, more ...string) reply {
	v, p := volumeOf(lv), podOf(lv)
	if len(more) > 0 {
		p = podOf(more[0])
	}
	dir := l.PodDir(p, v)
	if err := host.Prepare(dir); err != nil {
		return reply{what: "mount " + lv, err: err}
	}
	return l.call("mount "+lv, "mount", dir, v.Blob(&p))
}

func (l *lab) unmount(lv string) reply { return l.call("unmount "+lv, "unmount", l.dir(lv)) }

func (l *lab) attach(lv string) reply {
	return l.call("waitforattach "+lv, "waitforattach", "", volumeOf(lv).Blob(nil))
}

// behind does something while the test goes on.
func behind(do func() reply) chan reply {
	done := make(chan reply, 1)
	go func() { done <- do() }()
	return done
}

// ok fails the test unless the answer is Success.
func (l *lab) ok(r reply) reply {
	l.Helper()
	if !r.ok() {
		l.Errorf("%s", r)
	}
	return r
}

// refused fails the test unless the answer is a Failure with all the words.
func (l *lab) refused(r reply, words ...string) {
	l.Helper()
	if r.err != nil || r.Status != "Failure" {
		l.Errorf("%s; want a Failure that says %q", r, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(r.Message, w) {
			l.Errorf("%s\n\tdoes not say %q", r, w)
		}
	}
}

var howLong = regexp.MustCompile(`, ((?:\d+m)?\d+s)\b| since (\d\d:\d\d:\d\d)\b`)

// howLong fails the test unless an answer says since when something hangs, and that
// is credible.
func (l *lab) howLong(r reply) {
	l.Helper()
	m := howLong.FindStringSubmatch(r.Message)
	if m == nil {
		l.Errorf("%s\n\tdoes not say how long", r)
		return
	}
	age, err := time.ParseDuration(m[1])
	if m[2] != "" {
		var at time.Time
		at, err = time.ParseInLocation(time.DateTime, time.Now().Format(time.DateOnly+" ")+m[2], time.Local)
		if age = time.Since(at); age < -time.Hour { // yesterday's
			age += 24 * time.Hour
		}
	}
	if err != nil || age < time.Second || age > soon+deadline {
		l.Errorf("%s\n\tsays that it is %s (%v)", r, age, err)
	}
}

var answerID, answered = regexp.MustCompile(`^\[([0-9a-f]+)\]`), `(?m) answer=%s .* took=(\S+)`

// soonEnough fails the test unless flexd has given an answer within that time. It
// is flexd's own that counts: what a process costs here is no part of it.
func (l *lab) soonEnough(r reply, d time.Duration) {
	l.Helper()
	id := answerID.FindStringSubmatch(r.Message)
	if id == nil {
		l.Errorf("%s\n\thas no id", r)
		return
	}
	line := regexp.MustCompile(fmt.Sprintf(answered, id[1]))
	var took time.Duration
	log, err := os.ReadFile(l.Node.Log) // it is written before the answer is
	l.must(err)
	calls := line.FindAllSubmatch(log, -1)
	if len(calls) == 0 {
		l.Errorf("flexd's log does not have %s", r)
		return
	}
	took, err = time.ParseDuration(string(calls[len(calls)-1][1]))
	l.must(err)
	if took > d {
		l.Errorf("%s\n\tanswered after %s, want %s", r, took, d)
	}
}

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

// served lets a pod start and stop, again and again, and returns how long each of
// both together took.
func (l *lab) served(lv string, times int) (took []time.Duration) {
	l.Helper()
	for range times {
		up := l.ok(l.mount(lv))
		down := l.ok(l.unmount(lv))
		took = append(took, up.took+down.took)
	}
	return took
}

// p90 is what nine of ten stay below.
func p90(took []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[(len(sorted)*9+9)/10-1]
}

// twice fails the test if what hangs elsewhere makes a service take more than
// twice as long as alone.
func (l *lab) twice(what string, alone, now []time.Duration) {
	l.Helper()
	a, n := p90(alone), p90(now)
	l.Logf("%s: p90 %s, alone %s", what, n.Round(time.Millisecond), a.Round(time.Millisecond))
	if n > 2*a {
		l.Errorf("%s: p90 %s, more than twice %s: %v, alone %v", what, n, a, now, alone)
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

// asleep says whether a thread of a process is in D state.
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
