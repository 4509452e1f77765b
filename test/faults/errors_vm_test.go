//go:build vm

package faults

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/test/host"
)

// A stage is the step during which a disk fails.
type stage struct {
	name   string
	child  string // what is frozen until the disk fails; "" = it fails before the call
	fs     string
	size   string
	mkfs   bool // the volume is blank, and flexd makes a filesystem
	replay bool // its journal is to be replayed
	grow   bool // it is mounted, and has become larger
}

var stages = []stage{
	{name: "probe", fs: "ext4", size: "40M"},
	{name: "proof", fs: "ext4", size: "40M", mkfs: true},
	{name: "mkfs", child: "mkfs.ext4", fs: "ext4", size: "40M", mkfs: true},
	{name: "fsck", child: "e2fsck", fs: "ext4", size: "40M", replay: true},
	{name: "mount", child: "mount", fs: "ext4", size: "40M"},
	{name: "journal", child: "mount", fs: "xfs", size: "304M", replay: true},
	{name: "grow", child: "grow", fs: "ext4", size: "40M", grow: true},
}

// What a disk does instead of its work: a line of a table for a part of under that
// begins at the sector from and is as long as that, and how to know the disk below.
var failures = map[string]func(from, sectors int64) string{
	"error": func(from, sectors int64) string {
		return fmt.Sprintf("%d %d error", from, sectors)
	},
	"flakey": func(from, sectors int64) string { // it can be read only
		return fmt.Sprintf("%d %d flakey %s %d 0 3600 1 error_writes", from, sectors, host.Disks()[0], start+from)
	},
	"delay": func(from, sectors int64) string { // 10 ms
		return fmt.Sprintf("%d %d delay %s %d 10", from, sectors, host.Disks()[0], start+from)
	},
}

// places are where a sector that cannot be read is enough to leave the proof that a
// volume is blank without a result; from the end where negative.
var places = []int64{0, 8, 4<<20/512 - 8, 8<<20/512 + 8, -8}

// A part is a piece of under, in sectors.
type part struct{ from, sectors int64 }

// parts are where the volumes of host.VG on under are.
func (l *lab) parts() map[string]part {
	l.Helper()
	all := map[string]part{}
	names := strings.NewReplacer("--", "-")
	for line := range strings.Lines(l.sh("dmsetup", "table", "--noudevsync")) {
		// demo-a--b: 0 81920 linear 253:0 2048
		name, table, _ := strings.Cut(line, ": ")
		f := strings.Fields(table)
		if lv, ours := strings.CutPrefix(name, host.VG+"-"); ours && len(f) == 5 && f[2] == "linear" {
			sectors, _ := strconv.ParseInt(f[1], 10, 64)
			from, _ := strconv.ParseInt(f[4], 10, 64)
			all[names.Replace(lv)] = part{from, sectors}
		}
	}
	return all
}

// fail makes parts of under fail.
func (l *lab) fail(how string, parts ...part) {
	l.Helper()
	slices.SortFunc(parts, func(a, b part) int { return int(a.from - b.from) })
	var lines []string
	at := int64(0)
	for _, p := range parts {
		if p.from > at {
			lines = append(lines, l.linear(at, p.from))
		}
		lines = append(lines, failures[how](p.from, p.sectors))
		at = p.from + p.sectors
	}
	l.reload(append(lines, l.linear(at, l.sectors))...)
}

// heal repairs the disk.
func (l *lab) heal() {
	l.Helper()
	l.reload(l.linear(0, l.sectors))
}

// goDown shuts a mounted filesystem down, with all that was written in its journal.
func (l *lab) goDown(dir string) {
	l.Helper()
	f, err := os.Open(dir)
	l.must(err)
	defer f.Close()
	const shutdown = 0x8004587d // of ext4 and xfs
	l.must(unix.IoctlSetPointerInt(int(f.Fd()), shutdown, 1))
}

const text = "what the owner wrote"

// prepare gives a volume what it has before its disk fails.
func (l *lab) prepare(s stage, lv string) {
	l.Helper()
	if s.mkfs {
		return
	}
	l.mkfs(s.fs, lv)
	l.use(s, lv)
}

// use has a pod use a volume that has a filesystem.
func (l *lab) use(s stage, lv string) {
	l.Helper()
	l.ok(l.mount(lv))
	l.must(os.WriteFile(l.dir(lv)+"/file", []byte(text), 0o644))
	l.sh("sync", "-f", l.dir(lv))
	if s.replay {
		l.must(os.WriteFile(l.dir(lv)+"/more", []byte(text), 0o644))
		l.goDown(l.dir(lv))
	}
	if s.grow {
		l.sh("lvextend", "-q", "-L", "+24M", host.VG+"/"+lv, under)
		return
	}
	l.ok(l.unmount(lv))
	// As if flexd had never seen it: nothing but what is on the disk says that it
	// is not blank.
	l.must(os.RemoveAll(l.Dir + "/state/formats"))
	l.must(os.Mkdir(l.Dir+"/state/formats", 0o700))
}

// A disk gives errors, or is slow, during each step. No data is lost, no failed call succeeds, and when the
// disk is repaired, everything works.
func TestDiskFails(t *testing.T) {
	random := host.Random(t)
	type row struct {
		stage
		how   string
		place int // among places; -1 = everywhere
	}
	var rows []row
	for _, s := range stages {
		for _, how := range []string{"error", "flakey", "delay"} {
			switch {
			case s.name != "proof" || how != "error":
				rows = append(rows, row{s, how, -1})
			case soak:
				for i := range places {
					rows = append(rows, row{s, how, i})
				}
			default:
				rows = append(rows, row{s, how, random.IntN(len(places))})
			}
		}
	}
	if !soak {
		random.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		rows = rows[:5]
	}
	var commands []string
	lv := func(i int) string { return fmt.Sprintf("%s-%s-%d", rows[i].name, rows[i].how, i) }
	for i, r := range rows {
		commands = append(commands, create(lv(i), r.size, under))
	}
	l := newLab(t, patient, commands...)
	where := l.parts()
	for i, r := range rows {
		p := where[lv(i)]
		bad := p
		if r.place >= 0 {
			bad = part{p.from + (places[r.place]+p.sectors)%p.sectors, 8}
		}
		l.one(r.stage, r.how, lv(i), bad)
		if t.Failed() {
			t.Fatalf("%s in the middle of %s", r.how, r.name)
		}
	}
}

func (l *lab) one(s stage, how, lv string, where part) {
	l.Helper()
	l.prepare(s, lv)
	call := func() reply { return l.mount(lv) }
	if s.grow {
		size := l.number("blockdev", "--getsize64", device(lv))
		call = func() reply {
			return l.call("expandfs "+lv, "expandfs", volumeOf(lv).Blob(nil), device(lv), l.dir(lv), host.Bytes(size), host.Bytes(40<<20))
		}
	}
	if s.child == "" {
		l.fail(how, where)
	}
	wait := behind(call)
	if s.child != "" {
		pid := 0
		for range 20 { // on a busy machine a mount is over before it is stopped
			over := func() bool { return s.child == "mount" && len(wait) > 0 }
			if pid = l.Freeze(over, s.child); pid != 0 || !over() {
				break
			}
			l.ok(<-wait)
			l.ok(l.unmount(lv))
			l.use(s, lv)
			wait = behind(call)
		}
		if pid == 0 {
			l.Fatalf("no %s of %s was stopped", s.child, lv)
		}
		l.fail(how, where)
		l.must(syscall.Kill(pid, syscall.SIGCONT))
	}
	r := <-wait
	l.T.Log(how, "in", s.name+":", r)
	switch {
	case how == "error":
		l.refused(r, lv)
	case how == "delay":
		l.ok(r)
	}
	if mounted := host.Mounted(l.dir(lv)); mounted != (r.ok() || s.grow) {
		l.Errorf("%s; mounted: %v", r, mounted)
	}
	l.heal()
	if !r.ok() && s.name == "proof" {
		l.blank(lv)
	}
	if r.ok() || s.grow {
		l.ok(l.unmount(lv))
	}
	up := l.mount(lv) // fsck and the journal mend it
	if s.grow && !r.ok() && strings.Contains(up.Message, "may not repair by itself") {
		exec.Command("e2fsck", "-f", "-y", device(lv)).Run() // its owner may
		up = l.mount(lv)
	}
	l.ok(up)
	if !s.mkfs {
		if b, err := os.ReadFile(l.dir(lv) + "/file"); err != nil || string(b) != text {
			l.Errorf("%s: %q %v", lv, b, err)
		}
	}
	if s.grow {
		l.ok(call())
		if got := l.bytes(lv); got < 48<<20 {
			l.Errorf("%s: the filesystem has %d bytes", lv, got)
		}
	}
	if st := l.story(lv); len(st.Refused) > 0 || st.State != status.Mounted {
		l.Errorf("%s: %+v", lv, st)
	}
	l.ok(l.unmount(lv))
}

// blank fails the test if a volume was written.
func (l *lab) blank(lv string) {
	l.Helper()
	b, err := os.ReadFile(device(lv))
	l.must(err)
	for i, c := range b {
		if c != 0 {
			l.Errorf("%s: a byte at %d", lv, i)
			return
		}
	}
}

// The disk of mounted filesystems fails: status reports it within half a minute without any call, and no
// other pod gets them until they are repaired.
func TestMountedDiskFails(t *testing.T) {
	l := newLab(t, patient, create("ext", "40M", under), create("x", "304M", under), create("fine", "40M", host.Disks()[1]))
	l.mkfs("ext4", "ext", "fine")
	l.mkfs("xfs", "x")
	all := []string{"ext", "x", "fine"}
	for _, lv := range all {
		l.ok(l.mount(lv))
		l.must(os.WriteFile(l.dir(lv)+"/file", []byte(text), 0o644))
		l.sh("sync", "-f", l.dir(lv))
	}
	where := l.parts()
	l.fail("error", where["ext"], where["x"])
	for _, lv := range all[:2] {
		dir, err := os.Open(l.dir(lv))
		l.must(err)
		l.must(os.Mkdir(l.dir(lv)+"/more", 0o755))
		if dir.Sync() == nil { // writes the journal: where that fails, the filesystem ends
			t.Fatalf("%s: it was written: the test proves nothing", lv)
		}
		dir.Close()
		os.Mkdir(l.dir(lv)+"/again", 0o755) // ext4 detects it at the next write
	}
	broken := time.Now()
	inError := func(s status.VolumeDetail) bool {
		return slices.ContainsFunc(s.Observed, func(f status.Fact) bool {
			return f.Name == "filesystem" && strings.Contains(f.Value, "in error")
		})
	}
	for _, lv := range all[:2] {
		l.within(30*time.Second-time.Since(broken), lv+" is reported in error", func() string {
			if s := l.story(lv); !inError(s) || len(s.Refused) == 0 {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
		t.Logf("%s: reported after %s", lv, time.Since(broken).Round(time.Millisecond))
		l.refused(l.mount(lv, "another"), host.VG+"/"+lv, "in error")
	}
	if s := l.story("fine"); inError(s) || len(s.Refused) > 0 {
		t.Errorf("its neighbour: %+v", s)
	}
	l.heal()
	for _, lv := range all {
		l.ok(l.unmount(lv))
		l.ok(l.mount(lv))
		if s := l.story(lv); inError(s) || len(s.Refused) > 0 {
			t.Errorf("after the way out: %+v", s)
		}
		if b, err := os.ReadFile(l.dir(lv) + "/file"); err != nil || string(b) != text {
			t.Errorf("%s: %q %v", lv, b, err)
		}
		l.ok(l.unmount(lv))
	}
}
