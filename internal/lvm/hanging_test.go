package lvm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Ensure that a group's commands exclude hanging disks of other groups, and no other disks.
func TestFilterOfHangingDisks(t *testing.T) {
	f, p := newFake(t, 0)
	mine, other := p.groups["vg0"], p.groups["other"]
	filter := func() string {
		t.Helper()
		scope, err := p.scopeOf(t.Context(), mine)
		if err != nil {
			t.Fatal(err)
		}
		s, _, _ := strings.Cut(strings.TrimPrefix(scope.config, "devices{scan_lvs=0 filter=["), `"a|own|"`)
		return s
	}
	p.config.filter = []string{"a|own|"}
	path := t.TempDir() + "/dm.1+2" // a disk of device-mapper by its number, in a place of the test's
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(253, 99))); err != nil {
		t.Skipf("needs to make a device node: %v", err)
	}
	mine.known = &Facts{PVs: []PV{{Path: path}}}
	f.devices["under"] = devmapper.Mapped{Number: "253:99", Suspended: true}
	done := make(chan struct{})
	if got := filter(); got != "" {
		t.Errorf("its own disk: %q", got)
	}
	mine.known, other.known = nil, &Facts{PVs: []PV{{Path: path}, {Path: "/dev/sdx"}, {Path: "/dev/gone", Missing: true}, {Path: "/dev/odd(name"}}}
	if got, want := filter(), `"r|^`+strings.NewReplacer(".", "[.]", "+", "[+]").Replace(path)+`$|",`; got != want {
		t.Errorf("suspended: got %q, want %q", got, want)
	}
	f.devices["under"] = devmapper.Mapped{Number: "253:99"}
	if got := filter(); got != "" {
		t.Errorf("resumed: %q", got)
	}
	other.open(&Block{Step: "activate", Done: done})
	if got := other.blocked().Error(); strings.Contains(got, "suspended") {
		t.Errorf("nothing is suspended: %q", got)
	}
	if got := filter(); !strings.HasPrefix(got, `"r|^/dev/sdx$|","r|`) || strings.Contains(got, "odd") || strings.Contains(got, "gone") {
		t.Errorf("its group hangs: %q", got)
	}
	close(done)
	eventually(t, "all is looked at again", func() bool { return filter() == "" })

	// As after a restart, nothing is known of the other group.
	other.known = nil
	f.devices["under"] = devmapper.Mapped{Name: "under", Number: "253:99", Suspended: true}
	f.devices["lv"] = devmapper.Mapped{Name: "other-x", UUID: dmUUID(fakeUUID(7)), Number: "253:98", Suspended: true} // LVM reads no label of it
	if got, want := filter(), `"r|^`+p.Dev+`/mapper/under$|",`; got != want {
		t.Errorf("not known whose: got %q, want %q", got, want)
	}
	mine.known = &Facts{PVs: []PV{{Path: path}}}
	if got := filter(); got != "" {
		t.Errorf("its own disk: %q", got)
	}

	// A multipath disk without a usable path keeps its requests, and the kernel does not count them.
	delete(f.devices, "under")
	for _, row := range []struct {
		table, status string
		want          bool
	}{
		{"1 queue_if_no_path 0 2 1 service-time 0 1 2 8:0 1 1 service-time 0 1 2 8:16 1 1", "2 0 0 0 2 1 A 0 1 2 8:0 F 1 0 1 E 0 1 2 8:16 F 1 0 1", true},
		{"1 queue_if_no_path 0 2 1 service-time 0 1 2 8:0 1 1 service-time 0 1 2 8:16 1 1", "2 0 0 0 2 1 E 0 1 2 8:0 F 1 0 1 D 0 1 2 8:16 A 0 0 1", false},
		{"3 retain_attached_hw_handler queue_if_no_path queue_mode 1 alua 1 1 round-robin 0 2 1 8:0 1 8:16 1", "2 0 0 0 1 1 A 0 2 0 8:0 F 3 8:16 F 1", true},
		{"1 queue_if_no_path 0 0 0", "2 0 0 0 0 0", true},
		{"0 0 1 1 round-robin 0 1 1 8:0 1", "2 0 0 0 1 1 A 0 1 0 8:0 F 1", false}, // its requests fail
	} {
		f.devices["mpath-1"] = devmapper.Mapped{Name: "mpatha", UUID: "mpath-1", Number: "253:97", Targets: []devmapper.Target{{Type: "multipath", Params: row.table}}}
		f.status = map[string]string{"mpath-1": row.status}
		want := ""
		if row.want {
			want = `"r|^` + p.Dev + `/mapper/mpatha$|",`
		}
		if got := filter(); got != want {
			t.Errorf("%s: got %q, want %q", row.status, got, want)
		}
	}
}

// A filter of the host may accept another name of a disk, so all names are rejected.
func TestNamesOfDisks(t *testing.T) {
	_, p := newFake(t, 0)
	for _, dir := range []string{"/mapper", "/disk/by-id", "/shm"} {
		if err := os.MkdirAll(p.Dev+dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for minor, node := range []string{"/dm-0", "/dm-1"} {
		if err := unix.Mknod(p.Dev+node, unix.S_IFBLK|0o600, int(unix.Mkdev(253, uint32(minor)))); err != nil {
			t.Skipf("needs to make a device node: %v", err)
		}
	}
	for link, target := range map[string]string{
		"/mapper/under": "../dm-0", "/disk/by-id/dm-name-under": "../../dm-0", "/absolute": p.Dev + "/dm-0", "/shm/user": "../dm-0",
		"/mapper/sound": "../dm-1", "/disk/by-id/gone": "../../dm-2",
	} {
		if err := os.Symlink(target, p.Dev+link); err != nil {
			t.Fatal(err)
		}
	}
	got := strings.ReplaceAll(strings.Join(p.allNames([]string{p.Dev + "/mapper/under", "/dev/none"}), " "), p.Dev, "")
	if want := "/dev/none /absolute /disk/by-id/dm-name-under /dm-0 /mapper/under"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Disks that complete no requests are excluded like suspended ones. All are checked at once, and each only
// once.
func TestFilterOfStalledDisks(t *testing.T) {
	t.Parallel()
	f, p := newFake(t, 0)
	p.config.filter = []string{"a|own|"}
	own := t.TempDir() + "/own"
	if err := unix.Mknod(own, unix.S_IFBLK|0o600, int(unix.Mkdev(8, 48))); err != nil {
		t.Skipf("needs to make a device node: %v", err)
	}
	p.groups["vg0"].known = &Facts{PVs: []PV{{Path: own}}}
	p.groups["other"].known = &Facts{PVs: []PV{{Path: "/dev/sdb"}}}
	p.pending = func(string, []devmapper.Mapped) []disk {
		return []disk{{"/dev/sda", "8:0", "8:0"}, {"/dev/sda1", "8:1", "8:0"}, {"/dev/sdb", "8:16", "8:16"}, {"/dev/sdc", "8:32", "8:32"}, {"/dev/sdd", "8:48", "8:48"}}
	}
	var busy, back atomic.Int64
	p.requests = func(number string) (bool, int64) {
		switch number {
		case "8:32": // it is only busy
			return true, busy.Add(1)
		case "8:48":
			t.Error("the group's own disk is asked")
		}
		return true, back.Load()
	}
	filter := func(min, max time.Duration) string {
		t.Helper()
		began := time.Now()
		scope, err := p.scopeOf(t.Context(), p.groups["vg0"])
		if took := time.Since(began); err != nil || took < min || took > max {
			t.Errorf("%v, it took %s", err, took)
		}
		return strings.Join(scope.excluded, " ")
	}
	const all = "/dev/sda /dev/sda1 /dev/sdb"
	if got := filter(silentLimit, 2*silentLimit); got != all {
		t.Errorf("got %q", got)
	}
	if got := filter(0, silentLimit/2); got != all {
		t.Errorf("again: %q", got)
	}
	back.Add(1)
	for i := range 3 { // hanging pools are asked at once, too
		m := devmapper.Mapped{Name: fmt.Sprintf("vg%d-pool-tpool", i), UUID: dmUUID(fakeUUID(i)) + "-tpool", Targets: []devmapper.Target{{Type: "thin-pool", Params: "253:1 253:0 128"}}}
		f.devices[m.UUID] = m
	}
	cache := dmUUID(identity(strings.ReplaceAll(vgUUID, "0", "1"), "LVLVLV-0000-0000-0000-0000-0000-000009"))
	f.devices[cache] = devmapper.Mapped{Name: "vg9-cached", UUID: cache}
	f.devices[cache+"-cmeta"] = devmapper.Mapped{Name: "vg9-fast_cvol-cmeta", UUID: cache + "-cmeta"}
	p.pending = func(string, []devmapper.Mapped) []disk { return nil }
	if got := filter(silentLimit, 2*silentLimit); strings.Count(got, "-tpool") != 3 || strings.Count(got, "/vg9-cached") != 1 || strings.Contains(got, "sda") {
		t.Errorf("with pools: %q", got)
	}
}

// Linux 6.1 counts requests to an NVMe disk with multipath only for its paths. Without a usable path they
// wait uncounted.
func TestPendingMultipath(t *testing.T) {
	t.Parallel()
	sys := t.TempDir()
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	write := func(file, text string) {
		t.Helper()
		path := filepath.Join(sys, file)
		must(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text+"\n"), 0o600))
	}
	const idle, stat = "       0        0", " %d 0 0 0 2 0 0 0 0 0 0 3 0 0 0 4 0"
	must(os.MkdirAll(sys+"/dev/block", 0o700), os.MkdirAll(sys+"/subsys", 0o700))
	for number, name := range map[string]string{"259:0": "nvme0n1", "8:0": "sda"} {
		must(os.Symlink("../../block/"+name, sys+"/dev/block/"+number))
	}
	for _, name := range []string{"block/nvme0n1", "nvme0/nvme0c0n1", "nvme12/nvme0c12n1", "nvme0/nvme0c0n2", "block/sda"} {
		write(name+"/inflight", idle)
		write(name+"/stat", fmt.Sprintf(stat, 0))
	}
	write("block/nvme0n1/nvme0n1p1/dev", "259:1")
	must(os.Symlink("../../subsys", sys+"/block/nvme0n1/device"))
	for _, path := range []string{"nvme0/nvme0c0n1", "nvme12/nvme0c12n1"} {
		controller := filepath.Dir(path)
		must(os.Symlink("../"+controller, sys+"/subsys/"+controller), os.Symlink("..", sys+"/"+path+"/device"))
		write(controller+"/state", "live")
	}
	check := func(what string, want bool, wantDone int64) {
		t.Helper()
		var disks []disk
		if want {
			disks = []disk{{"/dev/nvme0n1", "259:0", "259:0"}, {"/dev/nvme0n1p1", "259:1", "259:0"}}
		}
		p := New(Options{Sys: sys})
		if got := p.pending("/dev", nil); !slices.Equal(got, disks) {
			t.Errorf("%s: pending: %v", what, got)
		}
		if waiting, done := p.requests("259:0"); waiting != want || done != wantDone {
			t.Errorf("%s: got %v, %d", what, waiting, done)
		}
	}
	check("idle", false, 0)
	write("nvme0/nvme0c0n2/inflight", "       1        0") // of another disk
	check("another disk", false, 0)
	write("nvme12/nvme0c12n1/inflight", "       0        2")
	check("a request", true, 3*9)
	write("nvme12/nvme0c12n1/stat", fmt.Sprintf(stat, 5))
	check("one is completed", true, 3*9+5)
	write("nvme12/nvme0c12n1/inflight", idle)
	write("nvme0/state", "connecting")
	check("one path is usable", false, 0)
	write("nvme12/state", "resetting")
	check("none is usable", true, 3*9+5)

	// Nor are requests counted that wait for a SCSI disk, or for an NVMe disk without multipath.
	write("nvme12/state", "live")
	for _, row := range []struct {
		name, number, state string
		want                bool
	}{
		{"sda", "8:0", "running", false},
		{"sda", "8:0", "blocked", true}, // as after the loss of an iSCSI session
		{"sda", "8:0", "created-blocked", true},
		{"sda", "8:0", "quiesce", true},
		{"sda", "8:0", "transport-offline", false}, // its requests fail
		{"nvme1n1", "259:2", "live", false},
		{"nvme1n1", "259:2", "connecting", true},
		{"nvme1n1", "259:2", "resetting", true},
	} {
		_ = os.Symlink("../../block/"+row.name, sys+"/dev/block/"+row.number)
		write("block/"+row.name+"/device/state", row.state)
		write("block/"+row.name+"/"+row.name+"p1/dev", row.number+"1")
		var disks []disk
		if row.want {
			disks = []disk{{"/dev/" + row.name, row.number, row.number}, {"/dev/" + row.name + "p1", row.number + "1", row.number}}
		}
		p := New(Options{Sys: sys})
		if got := p.pending("/dev", nil); !slices.Equal(got, disks) {
			t.Errorf("%s %s: pending: %v", row.name, row.state, got)
		}
		if waiting, _ := p.requests(row.number); waiting != row.want {
			t.Errorf("%s %s: waiting: %v", row.name, row.state, waiting)
		}
		write("block/"+row.name+"/device/state", "")
	}
}

// A report that lacks PVs is neither a fact nor an absence while the command must exclude a disk that may be
// one of them.
func TestReportWithoutHangingDisks(t *testing.T) {
	f, p := newFake(t, 1)
	g := p.groups["vg0"]
	f.devices["under"] = devmapper.Mapped{Name: "under", Number: "253:99", Suspended: true}
	refused := func(what string) {
		t.Helper()
		_, _, err := g.look(t.Context(), true)
		if is(t, err, ErrFailed, "PVs are missing", p.Dev+"/mapper/under", "dmesg"); errors.Is(err, ErrNoVG) || len(p.Blocks()) != 0 {
			t.Errorf("%s: %v %v", what, err, p.Blocks())
		}
	}
	f.missing = 1
	refused("without facts")
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		res, err := utterance{Argv: c.Argv, Code: 5, Stderr: "  Volume group \"vg0\" not found\n"}.result()
		return res, err, slices.Contains(c.Argv, "fullreport")
	}
	refused("without any disk")
	f.hook, f.missing = nil, 0
	if _, _, err := g.look(t.Context(), true); err != nil {
		t.Errorf("it lacks none: %v", err)
	}
	f.missing = 1
	refused("since the last facts")
	f.devices["under"] = devmapper.Mapped{Name: "under", Number: "253:99"}
	if facts, _, err := g.look(t.Context(), true); err != nil || facts.Missing != 1 {
		t.Errorf("resumed: %v", err)
	}
	f.devices["under"] = devmapper.Mapped{Name: "under", Number: "253:99", Suspended: true}
	if _, _, err := g.look(t.Context(), true); err != nil {
		t.Errorf("known to be missing: %v", err)
	}
}

// A report that hangs is repeated without the disks that did not respond to it.
func TestReportThatHangs(t *testing.T) {
	t.Parallel()
	f, p := newFake(t, 1)
	p.CallDeadline = 20 * time.Second
	g, done := p.groups["vg0"], make(chan struct{})
	defer close(done)
	sees := func() {
		p.pending = func(string, []devmapper.Mapped) []disk { return []disk{{"/dev/sdx", "8:0", "8:0"}} }
		p.requests = func(string) (bool, int64) { return true, 0 }
	}
	reports := 0
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		if !slices.Contains(c.Argv, "fullreport") {
			return run.Result{}, nil, false
		}
		if reports++; c.Deadline > p.CallDeadline/4 {
			t.Errorf("two reports may take %s", 2*c.Deadline)
		}
		if strings.Contains(strings.Join(c.Argv, " "), "r|^/dev/sdx$|") {
			return run.Result{}, nil, false
		}
		if sees != nil {
			sees()
		}
		return run.Result{}, &run.StuckError{Step: "lvm report", Pid: 4711, Since: time.Now(), Wchan: "exit_aio", Done: done}, true
	}
	if lv := f.lookUp(p, "v0"); lv.Presence != volume.Present || reports != 2 || len(p.Blocks()) != 0 {
		t.Errorf("got %+v after %d reports, %v", lv, reports, p.Blocks())
	}
	if _, _, err := g.look(t.Context(), true); err != nil || reports != 3 {
		t.Errorf("got %v after %d reports", err, reports)
	}
	// Nothing else is seen that may be the cause.
	p.pending, sees, reports = func(string, []devmapper.Mapped) []disk { return nil }, nil, 0
	var blocked *BlockedError
	if _, _, err := g.look(t.Context(), true); !errors.As(err, &blocked) || blocked.Pids[0] != 4711 || reports != 1 {
		t.Errorf("got %v after %d reports", err, reports)
	}
}

// It is not repeated without a disk of the group itself; the error names that disk.
func TestReportThatHangsOnItsOwnDisk(t *testing.T) {
	t.Parallel()
	f, p := newFake(t, 1)
	done := make(chan struct{})
	defer close(done)
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		if !slices.Contains(c.Argv, "fullreport") || strings.Contains(strings.Join(c.Argv, " "), "r|^/dev/sdx$|") {
			return run.Result{}, nil, false
		}
		p.pending = func(string, []devmapper.Mapped) []disk { return []disk{{"/dev/sdx", "8:0", "8:0"}} }
		p.requests = func(string) (bool, int64) { return true, 0 }
		return run.Result{}, &run.StuckError{Step: "lvm report", Pid: 4711, Done: done}, true
	}
	f.missing = 1
	var blocked *BlockedError
	if _, _, err := p.groups["vg0"].look(t.Context(), true); !errors.As(err, &blocked) || !slices.Equal(blocked.Disks, []string{"/dev/sdx"}) {
		t.Errorf("got %v", err)
	}
}
