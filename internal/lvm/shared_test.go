package lvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/lockspace"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Recorded outputs of LVM's commands on two machines with one disk.
func TestSharedTranscripts(t *testing.T) {
	for name, want := range map[string][]struct {
		kind error
		text string
	}{
		"nolockd":    {{ErrShared, "lvmlockd does not run here"}, {ErrShared, "lvmlockd does not run here"}, {ErrShared, "lvmlockd does not run here"}, {ErrShared, "lvmlockd does not run here"}, {}},
		"notstarted": {{ErrShared, "vgchange --lockstart"}, {ErrShared, "vgchange --lockstart"}, {}, {ErrShared, "vgchange --lockstart"}, {ErrShared, "vgchange --lockstart"}},
		"nosanlock":  {{ErrShared, "sanlock does not answer"}, {ErrShared, "sanlock does not answer"}, {ErrShared, "sanlock does not answer"}, {}},
		"nolease":    {{ErrFailed, "(ORPHAN, flexd doctor names it)"}},
		"grouplock":  {{ErrGroupLocked, "another machine holds its lock"}, {ErrGroupLocked, "another machine holds its lock"}, {}},
		"disabled":   {{ErrShared, "set use_lvmlockd=1"}, {ErrShared, "set use_lvmlockd=1"}, {ErrShared, "set use_lvmlockd=1"}},
		"elsewhere": {{ErrElsewhere, "active on another machine"}, {ErrElsewhere, ""}, {ErrElsewhere, ""},
			{}, {ErrElsewhere, ""}, {ErrElsewhere, ""}, {ErrElsewhere, ""}, {ErrElsewhere, ""}, {ErrElsewhere, ""}, {ErrElsewhere, ""}, {ErrElsewhere, ""}, {ErrElsewhere, ""}},
		"readers": {{ErrElsewhere, ""}, {ErrFailed, "for reading only (lvchange -asy)"}, {ErrFailed, "does not activate such a volume on several nodes"}, {ErrFailed, "does not activate such a volume on several nodes"}},
	} {
		all := transcript(t, "shared-"+name)
		if len(all) != len(want) {
			t.Errorf("%s: %d commands", name, len(all))
			continue
		}
		for i, u := range all {
			res, err := u.result()
			got := classify("svg", err, res.Stderr)
			if u.Argv[1] == "fullreport" && err == nil {
				f, perr := parseReport(withOwners(res.Stdout), "svg")
				if perr != nil {
					t.Fatal(name, perr)
				}
				p := New(Options{Groups: map[string]Group{"svg": {Shared: true}}, LockDir: t.TempDir()})
				got = p.groups["svg"].unlocked(f, res.Stderr)
			}
			if want[i].kind == nil {
				if got != nil {
					t.Errorf("%s %d: %v", name, i, got)
				}
				continue
			}
			var wait *volume.WaitError
			if errors.As(got, &wait) {
				got = wait.Err
			}
			is(t, got, want[i].kind, want[i].text)
		}
	}
	res, err := transcript(t, "shared-report")[0].result()
	if err != nil {
		t.Fatal(err)
	}
	f, err := parseReport(withOwners(res.Stdout), "svg")
	if err != nil || !f.Shared() || f.LVs["a"].LockArgs != "1.0.0:70254592" {
		t.Fatalf("%+v %v", f, err)
	}
	for lv, owner := range map[string]string{"a": "a", "o": "o", "osnap": "o", "t1": "pool", "t2": "pool", "r": "r"} {
		if got := f.lockOf(f.LVs[lv]); got.Name != owner || got.LockArgs == "" {
			t.Errorf("the lock of %s is that of %s (%s)", lv, got.Name, got.LockArgs)
		}
	}
	if u := f.LVs["lvmlock"]; f.refusal(u) == "" {
		t.Error("the leases are a volume")
	}
	// A batch of three, of which one is held elsewhere.
	u := transcript(t, "shared-elsewhere")[2]
	for lv, want := range map[string]bool{"a": true, "b": false, "c": false} {
		if got := refused([]byte(u.Stderr), &member{name: volume.Name{VG: "svg", LV: lv}}); got != want {
			t.Errorf("%s: refused %v", lv, got)
		}
	}
	for name, i := range map[string]int{"nolockd": 4, "notstarted": 2} {
		u := transcript(t, "shared-"+name)[i]
		if !unlockFailed([]byte(u.Stderr), &member{name: volume.Name{VG: "svg", LV: map[string]string{"nolockd": "c", "notstarted": "a"}[name]}}) {
			t.Errorf("%s: %s", name, u.Stderr)
		}
	}
}

// withOwners adds a column to a report that was recorded with only the free segments.
func withOwners(report []byte) []byte {
	return bytes.ReplaceAll(report, []byte(`"pvseg_start":`), []byte(`"lv_uuid":"","pvseg_start":`))
}

// fakeLocks are the lock managers of a fake LVM.
type fakeLocks struct {
	mu    sync.Mutex
	f     *fakeLVM
	ready error // guarded by mu, as all that follows
	kept  error // why no lock is given back
	since time.Time
	known bool // who holds a lock
	asked int

	before func() // called before own locks are read
	unread error  // the locks cannot be read
}

func (l *fakeLocks) Ready(context.Context, string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready
}

func (l *fakeLocks) Check(ctx context.Context, vg string) error { return l.Ready(ctx, vg) }

func (l *fakeLocks) CanUnlock(context.Context, string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept
}

func (l *fakeLocks) Holder(_ context.Context, _ string, asked lockspace.LV) (*volume.Holder, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	l.asked++
	if !l.known {
		return nil, errors.New("unknown")
	}
	for name, lv := range l.f.lvs {
		if other := l.f.others[name]; asked.UUID == lv.uuid && other != "" {
			return &volume.Holder{Host: "b", HostID: 2, Shared: other == "sh"}, nil
		}
	}
	return nil, nil
}

func (l *fakeLocks) Taken(_ context.Context, _ string, lvs []lockspace.LV) (map[volume.UUID]volume.Holder, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	if l.before != nil {
		l.before()
	}
	if l.unread != nil {
		return nil, l.unread
	}
	all := map[volume.UUID]volume.Holder{}
	for name, lv := range l.f.lvs {
		for _, asked := range lvs {
			if other := l.f.others[name]; asked.UUID == lv.uuid && other != "" {
				all[asked.UUID] = volume.Holder{Host: "b", HostID: 2}
			}
		}
	}
	return all, nil
}

func (l *fakeLocks) Status(vg string) lockspace.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return lockspace.Status{VG: vg, State: lockspace.Started, Since: l.since}
}

func newShared(t *testing.T, n int) (*fakeLVM, *Provider, *fakeLocks) {
	f, _ := newFake(t, n)
	f.lockType, f.others, f.locks = "sanlock", map[string]string{}, map[string]string{}
	p := f.provider(Group{Shared: true})
	l := &fakeLocks{f: f, known: true, since: time.Now()}
	p.Locks = l
	return f, p, l
}

func device(t *testing.T, p *Provider, lv volume.LV) volume.Device {
	t.Helper()
	d, err := p.Device(t.Context(), lv)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// waits fails unless err is a WaitError with the reason.
func waits(t *testing.T, err error, reason string) *volume.WaitError {
	t.Helper()
	var w *volume.WaitError
	if !errors.As(err, &w) || !strings.Contains(w.Reason, reason) || w.Err == nil {
		t.Errorf("got %v, want to wait because %q", err, reason)
		return &volume.WaitError{}
	}
	return w
}

func TestSharedActivation(t *testing.T) {
	f, p, locks := newShared(t, 1)
	lv := f.lookUp(p, "v0")
	if w := p.WouldWait(t.Context(), lv); w != nil {
		t.Errorf("%+v", w)
	}
	f.others["v0"] = "ex"
	f.commands()
	if w := waits(t, p.WouldWait(t.Context(), lv), "another host has it active"); w.Holder == nil || w.Holder.Host != "b" {
		t.Errorf("%+v", w)
	}
	locks.ready = errors.New("lvmlockd does not run")
	if err := p.WouldWait(t.Context(), lv); !errors.Is(err, locks.ready) {
		t.Error(err)
	}
	locks.ready = nil
	if w := waits(t, p.Activate(t.Context(), "", lv), "another host has it active"); w.Holder == nil || w.Holder.Host != "b" || volume.CodeOf(w) != volume.Busy {
		t.Errorf("%+v", w)
	}
	if ran := f.commands(); len(ran) != 0 {
		t.Errorf("a command is bound to fail: %q", ran)
	}
	locks.known = false
	if w := waits(t, p.Activate(t.Context(), "", lv), "LVM does not say which one"); w.Holder != nil {
		t.Errorf("%+v", w)
	}
	delete(f.others, "v0")
	if err := p.Activate(t.Context(), "", lv); err != nil || f.locks["v0"] != "ex" {
		t.Fatal(err, f.locks)
	}
	// Another node has extended it while it waited.
	f.lvs["v0"].size *= 2
	f.commands()
	if got := f.lookUp(p, "v0"); got.Size != f.lvs["v0"].size || device(t, p, got).Unlocked {
		t.Errorf("%+v", got)
	}
	if err := p.Activate(t.Context(), "", lv); err != nil || slices.Contains(f.commands(), "lvchange") {
		t.Error("activated twice", err)
	}
	locks.ready = volume.Errorf(volume.Unusable, "lvmlockd does not run")
	if err := p.Refresh(t.Context(), "vg0"); err == nil || !strings.Contains(err.Error(), "lvmlockd does not run") {
		t.Error(err)
	}
	if err := p.Deactivate(t.Context(), "", lv, device(t, p, lv)); err != nil || len(f.locks) != 0 {
		t.Error(err, f.locks)
	}
	if err := p.Activate(t.Context(), "", lv); err == nil || len(f.devices) != 0 {
		t.Error("activated without locks", err)
	}
	if err := p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "new"}, mib, ""); err == nil || f.lvs["new"] != nil {
		t.Error("created without locks", err)
	}
	if err := p.Extend(t.Context(), "", lv, volume.Device{}, 64*mib); err == nil || f.lvs["v0"].size > 16*mib {
		t.Error("extended without locks", err)
	}
}

// An active device does not prove a lock: an operator, a crash or another program may have left it.
func TestActiveWithoutItsLock(t *testing.T) {
	f, p, locks := newShared(t, 1)
	lv := f.lookUp(p, "v0")
	uuid := dmUUID(lv.UUID)
	f.devices[uuid] = devmapper.Mapped{Name: "vg0-v0", UUID: uuid, Number: "253:70", Live: true, Targets: []devmapper.Target{{Type: "linear", Length: lv.Size}}}
	f.locks["v0"], f.others["v0"] = "sh", "sh" // lvchange -asy on both
	if !device(t, p, lv).Unlocked {
		t.Fatal("its lock counts as held")
	}
	waits(t, p.Activate(t.Context(), "", lv), "active on this node without its lock")
	if !device(t, p, lv).Unlocked {
		t.Error("a refusal counts as its lock")
	}
	delete(f.others, "v0")
	f.commands()
	if err := p.Activate(t.Context(), "", lv); err != nil || f.locks["v0"] != "ex" || device(t, p, lv).Unlocked {
		t.Fatal(err, f.locks)
	}
	if ran := f.commands(); !slices.Equal(ran, []string{"lvchange", "lvchange"}) {
		t.Errorf("the table of a device that was not locked may be old: %q", ran)
	}
	locks.since = time.Now() // the locks were lost, and started again
	if !device(t, p, lv).Unlocked {
		t.Error("the lock of an earlier lockspace counts")
	}
	if err := p.Activate(t.Context(), "", lv); err != nil || device(t, p, lv).Unlocked {
		t.Error(err)
	}
	again := f.devices[uuid]
	again.Number = "253:71" // lvchange -an; lvchange -asy
	f.devices[uuid] = again
	if !device(t, p, lv).Unlocked {
		t.Error("the lock of another device counts")
	}
}

// A read-only volume is activated on many nodes, if LVM can share it.
func TestReaders(t *testing.T) {
	f, p, _ := newShared(t, 1)
	f.lvs["v0"].attr = "-ri-XX----"
	f.others["v0"] = "sh"
	lv := f.lookUp(p, "v0")
	if err := p.Activate(t.Context(), "", lv); err != nil || f.locks["v0"] != "sh" || device(t, p, lv).Unlocked {
		t.Fatal(err, f.locks)
	}
	if err := p.Deactivate(t.Context(), "", lv, device(t, p, lv)); err != nil {
		t.Fatal(err)
	}
	f.others["v0"] = "ex"
	if w := waits(t, p.Activate(t.Context(), "", lv), "another host has it active"); w.Holder == nil {
		t.Error("LVM was asked, which takes it seconds")
	}
	f.others["v0"] = "sh"
	if err := p.Activate(t.Context(), "", lv); err != nil {
		t.Fatal(err)
	}
	f.lvs["v0"].attr = "" // lvchange -prw on any node needs no lock
	if err := p.Refresh(t.Context(), "vg0"); err != nil {
		t.Fatal(err)
	}
	lv = f.lookUp(p, "v0")
	if !device(t, p, lv).Unlocked {
		t.Error("a lock for reading counts for writing")
	}
	waits(t, p.Activate(t.Context(), "", lv), "")
	if f.locks["v0"] != "sh" {
		t.Error(f.locks)
	}
	for _, l := range []Logical{
		{Layout: []string{"linear"}}, {ReadOnly: true, Layout: []string{"raid", "raid1"}}, {ReadOnly: true, Layout: []string{"thin", "sparse"}},
		{ReadOnly: true, Layout: []string{"linear"}, Role: []string{"public", "snapshot", "thicksnapshot"}},
		{ReadOnly: true, Layout: []string{"linear"}, Role: []string{"public", "origin", "thickorigin"}},
	} {
		if l.forReaders() {
			t.Errorf("shared: %+v", l)
		}
	}
}

// One of many volumes is held elsewhere: the others share a command.
func TestBatchWithOneElsewhere(t *testing.T) {
	f, p, locks := newShared(t, 20)
	locks.known = false // so LVM is asked
	f.others["v7"] = "ex"
	f.lookUp(p, "v0")
	release, err := p.groups["vg0"].take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.commands()
	var all sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		lv := f.lookUp(p, fmt.Sprintf("v%d", i))
		all.Go(func() { errs[i] = p.Activate(t.Context(), "", lv) })
	}
	eventually(t, "all wait", func() bool {
		g := p.groups["vg0"]
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.next[exclusive]) == 20
	})
	release()
	all.Wait()
	for i, err := range errs {
		if i == 7 {
			waits(t, err, "another host has it active")
		} else if err != nil {
			t.Errorf("v%d: %v", i, err)
		}
	}
	if ran := f.commands(); len(ran) > 2 || ran[0] != "lvchange" {
		t.Errorf("%q", ran)
	}
}

// LVM's messages end with a dot, and the name of a volume may be a prefix of another one.
func TestBatchWithPrefix(t *testing.T) {
	f, p, locks := newShared(t, 0)
	locks.known = false
	f.lvs["db"], f.lvs["db.1"] = &fakeLV{uuid: fakeUUID(1), size: 8 * mib}, &fakeLV{uuid: fakeUUID(2), size: 8 * mib}
	f.others["db.1"] = "ex"
	lv, longer := f.lookUp(p, "db"), f.lookUp(p, "db.1")
	release, err := p.groups["vg0"].take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 2)
	go func() { errs <- p.Activate(t.Context(), "", lv) }()
	go func() { waits(t, p.Activate(t.Context(), "", longer), "another host has it active"); errs <- nil }()
	eventually(t, "both wait", func() bool {
		g := p.groups["vg0"]
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.next[exclusive]) == 2
	})
	release()
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if d := device(t, p, lv); d.Activity != volume.Active || d.Unlocked {
		t.Errorf("%+v", d)
	}
	db := &member{name: volume.Name{VG: "vg0", LV: "db"}}
	if unlockFailed([]byte("  Failed to unlock logical volume vg0/db.1.\n"), db) {
		t.Error("the lock of vg0/db counts as kept")
	}
	for said, named := range map[string]bool{"vg0/db.": true, "/dev/vg0/db: no": true, "vg0/db.1.": false, "vg0/dbx": false, "xvg0/db": false} {
		if mentions([]byte("  LV "+said+"\n"), db.name) != named {
			t.Errorf("%q", said)
		}
	}
}

// The metadata is read again for each set-up, once for all callers, but not for each observation.
func TestRefreshShares(t *testing.T) {
	f, p, _ := newShared(t, 3)
	f.lookUp(p, "v0")
	f.commands()
	gate, began := make(chan struct{}), make(chan struct{}, 10)
	f.before = func(string) error { began <- struct{}{}; <-gate; return nil }
	var all sync.WaitGroup
	ask := func() {
		all.Go(func() {
			if err := p.Refresh(t.Context(), "vg0"); err != nil {
				t.Error(err)
			}
		})
	}
	ask()
	<-began
	clock := p.groups["vg0"].clock
	for range 50 {
		ask()
	}
	eventually(t, "all wait", func() bool {
		g := p.groups["vg0"]
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.clock >= clock+50
	})
	close(gate)
	all.Wait()
	if ran := f.commands(); !slices.Equal(ran, []string{"fullreport", "fullreport"}) {
		t.Errorf("51 set-ups: %q", ran)
	}
	for range 50 {
		f.lookUp(p, "v1")
	}
	if ran := f.commands(); len(ran) != 0 {
		t.Errorf("observations: %q", ran)
	}
	delete(f.lvs, "v2") // elsewhere
	if err := p.Refresh(t.Context(), "vg0"); err != nil {
		t.Fatal(err)
	}
	if lv := f.lookUp(p, "v2"); lv.Presence != volume.Absent {
		t.Errorf("%+v", lv)
	}
	if err := (p.Refresh(t.Context(), "none")); err != nil {
		t.Error(err)
	}
}

// The configuration and the lock type must agree.
func TestUnfit(t *testing.T) {
	for _, row := range []struct {
		shared   bool
		lockType string
		want     string
	}{
		{true, "", "vgchange --lock-type sanlock vg0"}, {true, "none", "vgchange --lock-type sanlock vg0"},
		{false, "sanlock", "add `shared: true`"}, {true, "idm", "which flexd does not know"},
		{true, "sanlock", ""}, {true, "dlm", ""}, {false, "none", ""}, {false, "", ""},
	} {
		f, _ := newFake(t, 1)
		f.lockType = row.lockType
		p := f.provider(Group{Shared: row.shared})
		lv, err := p.LookUp(t.Context(), volume.Name{VG: "vg0", LV: "v0"})
		if err != nil || (lv.Presence == volume.Foreign) != (row.want != "") || !strings.Contains(lv.Reason, row.want) {
			t.Errorf("%+v: %+v %v", row, lv, err)
		}
		err = p.CanCreate(t.Context(), volume.Name{VG: "vg0", LV: "new"}, mib, "")
		if (err != nil) != (row.want != "") {
			t.Errorf("%+v: create: %v", row, err)
		}
		if s, err := p.Space(t.Context(), "vg0", 8*mib); err != nil || s.Unusable != (row.want != "") {
			t.Errorf("%+v: space: %+v %v", row, s, err)
		}
		if row.want != "" {
			if err := p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "new"}, mib, ""); err == nil || len(f.lvs) != 1 {
				t.Errorf("%+v: created: %v", row, err)
			}
		}
	}
}

// A set-up does not use a report that was made without the group's lock.
func TestReportWithoutLock(t *testing.T) {
	f, p, _ := newShared(t, 1)
	f.noLock = "VG vg0 lock skipped: held by other host."
	_, err := p.LookUp(t.Context(), volume.Name{VG: "vg0", LV: "v0"})
	waits(t, err, "another host changes volume group vg0")
	waits(t, p.Refresh(t.Context(), "vg0"), "another host changes volume group vg0")
	f.noLock = "WARNING: lvmlockd connect failed."
	err = p.Refresh(t.Context(), "vg0")
	is(t, err, ErrShared, "systemctl start lvmlockd")
	if volume.CodeOf(err) != volume.Unusable || errors.As(err, new(*volume.WaitError)) {
		t.Error(volume.CodeOf(err), err)
	}
	f.noLock = ""
	lv := f.lookUp(p, "v0")
	f.noLock = "VG vg0 lock skipped: lock start in progress"
	waits(t, p.Activate(t.Context(), "", lv), "are being started")
	f.noLock = "VG vg0 lock failed: held by other host."
	waits(t, p.Extend(t.Context(), "", lv, volume.Device{}, 64*mib), "")
	f.noLock, f.others["v0"] = "", "ex"
	if w := waits(t, p.Extend(t.Context(), "", lv, volume.Device{}, 64*mib), "another host has it active"); w.Holder == nil {
		t.Error(w)
	}
}

// The device is gone, and the lock remains.
func TestKeptLock(t *testing.T) {
	f, p, _ := newShared(t, 1)
	lv := f.lookUp(p, "v0")
	if err := p.Activate(t.Context(), "", lv); err != nil {
		t.Fatal(err)
	}
	f.noUnlock = true
	err := p.Deactivate(t.Context(), "", lv, device(t, p, lv))
	if err == nil || !strings.Contains(err.Error(), "lvchange -an vg0/v0") || len(f.devices) != 0 {
		t.Error(err)
	}
	// It is still this host's, and no obstacle.
	if err := p.Activate(t.Context(), "", lv); err != nil {
		t.Error(err)
	}
}

// A volume whose lock cannot be released stays active.
func TestNoUnlock(t *testing.T) {
	f, p, locks := newShared(t, 1)
	lv := f.lookUp(p, "v0")
	if err := p.Activate(t.Context(), "", lv); err != nil {
		t.Fatal(err)
	}
	locks.kept = errors.New("lvmlockd does not run")
	if err := p.Deactivate(t.Context(), "", lv, device(t, p, lv)); err == nil || !strings.Contains(err.Error(), "lvmlockd does not run") || len(f.devices) != 1 {
		t.Errorf("%v, and the devices %v", err, f.devices)
	}
	locks.kept = nil
	if err := p.Deactivate(t.Context(), "", lv, device(t, p, lv)); err != nil || len(f.devices) != 0 || len(f.locks) != 0 {
		t.Errorf("%v, and the devices %v, the locks %v", err, f.devices, f.locks)
	}
}

// LVM locks a volume and fails to activate it: the lock is released, so that no other node waits for it.
func TestLockOfFailedActivation(t *testing.T) {
	f, p, _ := newShared(t, 3)
	f.volumeList = []string{"vg9"}
	var all sync.WaitGroup
	for i := range 3 {
		lv := f.lookUp(p, fmt.Sprintf("v%d", i))
		all.Go(func() {
			if err := p.Activate(t.Context(), "", lv); !errors.Is(err, errNoDevice) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(f.locks) != 0 || len(p.mayHold) != 0 {
		t.Errorf("this node keeps the locks %v, and may hold %v", f.locks, p.mayHold)
	}
	// A lock that another node has is not touched, nor is one that a command could not take.
	f.volumeList, f.others["v0"] = nil, "ex"
	p.Locks.(*fakeLocks).known = false
	f.commands()
	waits(t, p.Activate(t.Context(), "", f.lookUp(p, "v0")), "another host has it active")
	f.noLock = "WARNING: lvmlockd connect failed."
	if err := p.Activate(t.Context(), "", volume.LV{Name: volume.Name{VG: "vg0", LV: "v1"}, UUID: f.lvs["v1"].uuid}); err == nil {
		t.Error("activated")
	}
	if ran := f.commands(); strings.Count(strings.Join(ran, " "), "lvchange") > 2 {
		t.Errorf("%q", ran)
	}
}

// A later device may have the number of a former one, and old kernels do not count devices.
func TestLockOfEarlierDevice(t *testing.T) {
	f, p, _ := newShared(t, 1)
	lv := f.lookUp(p, "v0")
	if err := p.Activate(t.Context(), "", lv); err != nil {
		t.Fatal(err)
	}
	active := f.devices[dmUUID(lv.UUID)]
	if err := p.Deactivate(t.Context(), "", lv, device(t, p, lv)); err != nil || device(t, p, lv).Activity != volume.Inactive {
		t.Fatal(err)
	}
	f.devices[active.UUID], f.locks["v0"], f.others["v0"] = active, "sh", "sh" // lvchange -asy on both
	if !device(t, p, lv).Unlocked {
		t.Error("a lock that was given back counts")
	}
}

// Another node completes a creation, and uses the volume, while this node waits for its lock: the volume is
// not zeroed.
func TestCreatedElsewhereMeanwhile(t *testing.T) {
	f, p, _ := newShared(t, 1)
	f.lvs["v0"].tags = []string{tagCreating}
	f.before = func(words string) error {
		if strings.Contains(words, "-aey") {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.lvs["v0"].tags = []string{tagCreated}
		}
		return nil
	}
	err := p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "v0"}, mib, "")
	if err == nil || !strings.Contains(err.Error(), "removed by another node") {
		t.Error(err)
	}
	if ran := f.commands(); slices.Contains(ran, "zero") || len(f.devices) != 0 || len(f.locks) != 0 {
		t.Errorf("%q %v %v", ran, f.devices, f.locks)
	}
}

// A killed command leaves a lock without a device: the next Deactivate releases it, also in the next flexd.
func TestLockLeft(t *testing.T) {
	for _, row := range []struct {
		killed string
		other  bool // it was activated by another program
	}{{killed: "-aey"}, {killed: "-an"}, {killed: "-an", other: true}} {
		killed := row.killed
		f, p, locks := newShared(t, 1)
		lv := f.lookUp(p, "v0")
		if device(t, p, lv).LockLeft {
			t.Error("nothing has taken it")
		}
		if killed == "-an" {
			if err := p.Activate(t.Context(), "", lv); err != nil {
				t.Fatal(err)
			}
		}
		if row.other {
			p = f.provider(Group{Shared: true})
			p.Locks = locks
		}
		f.hook = func(c run.Cmd) (run.Result, error, bool) {
			if !slices.Contains(c.Argv, killed) && !slices.Contains(c.Argv, "-an") { // which gives it back
				return run.Result{}, nil, false
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.locks["v0"] = "ex"
			clear(f.devices)
			return run.Result{}, &run.ExitError{Step: c.Step, Argv: c.Argv, Code: -1, Signal: "SIGKILL"}, true
		}
		var err error
		if killed == "-aey" {
			err = p.Activate(t.Context(), "", lv)
		} else {
			err = p.Deactivate(t.Context(), "", lv, device(t, p, lv))
		}
		if err == nil || !device(t, p, lv).LockLeft {
			t.Errorf("%s: %v", killed, err)
		}
		f.hook = nil
		next := f.provider(Group{Shared: true})
		next.Locks = locks
		next.NoteLock(lv.UUID)
		for _, p := range []*Provider{p, next} {
			f.locks["v0"] = "ex"
			if d := device(t, p, lv); !d.LockLeft || p.Deactivate(t.Context(), "", lv, d) != nil || len(f.locks) > 0 || device(t, p, lv).LockLeft {
				t.Errorf("%s: %v stays locked", killed, d)
			}
		}
		// What another host has was never taken, and a volume that is gone has no lock.
		f.others["v0"], locks.known = "ex", false
		_ = p.Activate(t.Context(), "", lv)
		if device(t, p, lv).LockLeft {
			t.Error("refused, and taken for locked")
		}
		next.NoteLock(lv.UUID)
		delete(f.lvs, "v0")
		if err := next.Deactivate(t.Context(), "", lv, volume.Device{}); err != nil || device(t, next, lv).LockLeft {
			t.Error(err)
		}
	}
}

// A new volume is locked by its creation.
func TestCreateShared(t *testing.T) {
	f, p, _ := newShared(t, 0)
	name := volume.Name{VG: "vg0", LV: "new"}
	if err := p.Create(t.Context(), "", name, mib, ""); err != nil {
		t.Fatal(err)
	}
	if d := device(t, p, f.lookUp(p, "new")); d.Activity != volume.Active || d.Unlocked {
		t.Errorf("%+v", d)
	}
}

// No command bypasses the locks.
func TestNoWayAroundLocks(t *testing.T) {
	f, p, _ := newShared(t, 2)
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		for _, word := range []string{"lockopt", "nolocking", "use_lvmlockd", "sysinit", "readonly"} {
			if slices.ContainsFunc(c.Argv, func(a string) bool { return bytes.Contains([]byte(a), []byte(word)) }) {
				t.Errorf("%q", c.Argv)
			}
		}
		return run.Result{}, nil, false
	}
	lv := f.lookUp(p, "v0")
	for _, err := range []error{p.Activate(t.Context(), "", lv), p.Extend(t.Context(), "", lv, volume.Device{}, 64*mib), p.Create(t.Context(), "", volume.Name{VG: "vg0", LV: "n"}, mib, ""), p.Deactivate(t.Context(), "", lv, device(t, p, lv))} {
		if err != nil {
			t.Error(err)
		}
	}
}
