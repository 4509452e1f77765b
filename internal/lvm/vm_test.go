package lvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Ensure that a volume goes its whole way: made, found, deactivated, activated,
// extended, with any name that LVM allows.
func TestVMWholeWay(t *testing.T) {
	l := newLab(t)
	for _, name := range []string{"data", "a-b.c", "--", "x+_.--y-"} {
		if checkName(name) != nil {
			continue
		}
		n := volume.Name{VG: "vg0", LV: name}
		if lv := l.lookUp(name); lv.Presence != volume.Absent {
			t.Fatalf("got %+v", lv)
		}
		if err := l.Create(t.Context(), l.lock, n, 9*mib); err != nil {
			t.Fatal(err)
		}
		lv := l.present(name)
		if lv.Size != 12*mib || !lv.Created || lv.ReadOnly {
			t.Errorf("got %+v", lv)
		}
		d := l.activate(lv)
		if d.Size != 12*mib || d.Seq == 0 || d.ReadOnly || d.Suspended {
			t.Errorf("got %+v", d)
		}
		uuid, got, ok, err := l.Identify(t.Context(), d.Number)
		if err != nil || !ok || uuid != lv.UUID || got != n {
			t.Errorf("got %s %s %v %v", uuid, got, ok, err)
		}
		l.deactivate(lv)
		l.deactivate(lv)
		l.count("")
		d = l.activate(lv)
		if got := l.count(""); got != 1 {
			t.Errorf("activation took %d commands", got)
		}
		if l.activate(lv) != d || l.count("") != 0 {
			t.Errorf("what is active costs a command")
		}
		for range 2 {
			if err := l.Extend(t.Context(), l.lock, lv, d, 21*mib); err != nil {
				t.Fatal(err)
			}
			if lv, d = l.present(name), l.device(lv); lv.Size != 24*mib || d.Size != 24*mib {
				t.Errorf("extended: got %+v %+v", lv, d)
			}
		}
		l.deactivate(lv)
		if err := l.Extend(t.Context(), l.lock, lv, volume.Device{}, 25*mib); err != nil {
			t.Fatal(err)
		}
		if lv = l.present(name); lv.Size != 28*mib || l.device(lv).Activity != volume.Inactive {
			t.Errorf("extended while inactive: got %+v", lv)
		}
		if why, err := l.Unsound(lv.UUID); !errors.Is(err, ErrNoDevice) {
			t.Errorf("got %q %v", why, err)
		}
		l.activate(lv)
		if why, err := l.Unsound(lv.UUID); err != nil || why != "" {
			t.Errorf("got %q %v", why, err)
		}
	}
	l.restart(Group{})
	l.present("data")
	l.save(t, "report", 1)
}

// Ensure that a new volume on extents that were another's is zero at both ends.
func TestVMRecycledExtents(t *testing.T) {
	l := newLab(t)
	old := l.lv("old", "40M")
	d := l.activate(old)
	l.sh("sh", "-c", "tr '\\0' 'x' < /dev/zero | dd of="+d.Path+" bs=1M count=40 iflag=fullblock conv=fsync 2>&1; mkfs.ext4 -q -F "+d.Path)
	l.deactivate(old)
	l.sh("lvremove", "-q", "-y", "vg0/old")
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "new"}, 40*mib); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(l.device(l.present("new")).Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 40*mib)
	if _, err := f.ReadAt(buf, 0); err != nil {
		t.Fatal(err)
	}
	if len(bytes.Trim(buf[:4*mib], "\x00")) != 0 || len(bytes.Trim(buf[36*mib:], "\x00")) != 0 {
		t.Errorf("both ends are not zero")
	}
	if len(bytes.Trim(buf[4*mib:36*mib], "\x00")) == 0 {
		t.Errorf("the extents were not those of the old volume: the test proves nothing")
	}
}

// Ensure that a create that was cut is no volume, and is finished.
func TestVMCreateCut(t *testing.T) {
	l := newLab(t)
	for _, state := range []string{"-ay", "-an"} {
		name := "cut" + state[1:]
		l.sh("lvcreate", "-q", "-y", state, "-Zn", "-Wn", "-L", "8M", "--addtag", tagCreating, "-n", name, "vg0")
		l.Invalidate("")
		if lv := l.lookUp(name); lv.Presence != volume.Absent || !strings.Contains(lv.Reason, "cut") {
			t.Errorf("got %+v", lv)
		}
		if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: name}, 16*mib); err != nil {
			t.Fatal(err)
		}
		if lv := l.present(name); lv.Size != 16*mib || !lv.Created {
			t.Errorf("got %+v", lv)
		}
		if tags := l.sh("lvs", "--noheadings", "-o", "lv_tags", "vg0/"+name); tags != tagCreated {
			t.Errorf("tags: got %q", tags)
		}
	}
	l.lv("theirs", "8M")
	err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "theirs"}, 8*mib)
	if err == nil || !strings.Contains(err.Error(), "there already") {
		t.Errorf("got %v", err)
	}
}

// Ensure that no space is told in numbers, whoever finds out.
func TestVMNoSpace(t *testing.T) {
	l := newLab(t)
	n := volume.Name{VG: "vg0", LV: "big"}
	is(t, l.Create(t.Context(), l.lock, n, 1<<40), ErrNoSpace, "volume group vg0", fmt.Sprint(1<<40), "free")
	lv := l.lv("small", "8M")
	is(t, l.Extend(t.Context(), l.lock, lv, volume.Device{}, 1<<40), ErrNoSpace, "volume group vg0")

	l.restart(Group{Layout: Layout{Type: "striped", Stripes: 3}}) // LVM's word
	err := l.Create(t.Context(), l.lock, n, 8*mib)
	if err == nil || !strings.Contains(err.Error(), "stripes") {
		t.Errorf("got %v", err)
	}
	l.save(t, "stripes", 1)
	l.restart(Group{Layout: Layout{Type: "striped", Stripes: 2}})
	free := l.sh("vgs", "--noheadings", "--units", "b", "--nosuffix", "-o", "vg_free", "vg0")
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-l", "90%PVS", "-n", "fill", "vg0", l.disks[0])
	err = l.Create(t.Context(), l.lock, n, 1500*mib)
	is(t, err, ErrNoSpace, "vg0")
	l.save(t, "nospace", 1)
	t.Log(free, err)
}

// Ensure that what must not be used is refused, and says why.
func TestVMForeign(t *testing.T) {
	l := newLab(t)
	l.sh("lvcreate", "-q", "-y", "-L", "64M", "-T", "vg0/pool")
	l.sh("lvcreate", "-q", "-y", "-V", "128M", "-T", "vg0/pool", "-n", "thin")
	l.sh("lvcreate", "-q", "-s", "vg0/thin", "-n", "snap")
	l.sh("lvcreate", "-q", "-y", "-L", "8M", "-n", "ro", "-pr", "-Zn", "-Wn", "vg0")
	l.sh("lvcreate", "-q", "-y", "-L", "8M", "-n", "origin", "-Zn", "-Wn", "vg0")
	l.sh("lvcreate", "-q", "-y", "-L", "8M", "-s", "vg0/origin", "-n", "cow")
	l.sh("lvcreate", "-q", "-y", "--type", "raid1", "-m1", "-L", "8M", "-n", "mirrored", "vg0")
	for _, c := range []struct{ name, why string }{
		{"pool", "is a pool"},
		{"pool_tdata", "LVM's own"},
		{"pool_tmeta", "LVM's own"},
		{"lvol0_pmspare", "LVM's own"},
		{"mirrored_rimage_0", "LVM's own"},
	} {
		if lv := l.lookUp(c.name); lv.Presence != volume.Foreign || !strings.Contains(lv.Reason, c.why) {
			t.Errorf("%s: got %+v", c.name, lv)
		}
	}
	l.save(t, "kinds", 1)

	snap := l.present("snap")
	l.sh("lvchange", "-an", "vg0/thin")
	l.activate(snap) // it has the skip flag
	l.deactivate(snap)
	if ro := l.present("ro"); !ro.ReadOnly || !l.activate(ro).ReadOnly {
		t.Errorf("got %+v %+v", ro, l.device(ro))
	}
	cow := l.present("cow")
	err := l.Extend(t.Context(), l.lock, cow, volume.Device{}, 16*mib)
	if err == nil || !strings.Contains(err.Error(), "snapshot") {
		t.Errorf("got %v", err)
	}
	for name, want := range map[string]string{"cow": "snapshot", "origin": "snapshot-origin", "mirrored": "", "thin": ""} {
		lv := l.present(name)
		l.activate(lv)
		if why, err := l.Unsound(lv.UUID); err != nil || want == "" && why != "" || !strings.Contains(why, want) {
			t.Errorf("%s: got %q %v", name, why, err)
		}
	}
	m, _, _ := l.find(l.present("thin").UUID)
	for _, key := range []string{m.UUID + "-tpool", dmUUID(strings.ReplaceAll(l.sh("vgs", "--noheadings", "-o", "vg_uuid", "vg0"), " ", ""), l.lookUp("pool").UUID) + "-tpool"} {
		if d, err := l.DM.Device(Key{UUID: key}); err == nil {
			if uuid, name, ok, err := l.Identify(t.Context(), d.Number); ok || err != nil {
				t.Errorf("a pool's own device is the volume %s %s (%v)", uuid, name, err)
			}
		}
	}
}

// Ensure that thin volumes are made in their pool, and that a full one is told.
func TestVMThin(t *testing.T) {
	l := newLab(t)
	l.sh("lvcreate", "-q", "-y", "-L", "64M", "-T", "vg0/pool")
	l.restart(Group{ThinPool: "pool"})
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "thin"}, 200*mib); err != nil {
		t.Fatal(err)
	}
	lv := l.present("thin")
	if got := l.sh("lvs", "--noheadings", "-o", "pool_lv", "vg0/thin"); got != "pool" || lv.Size != 200*mib {
		t.Errorf("got %q %+v", got, lv)
	}
	pools, err := l.Pools(t.Context(), "vg0")
	if err != nil || len(pools) != 1 || !pools[0].Active || pools[0].Data.Total != 64*mib || pools[0].Mode != "rw" || pools[0].Trouble(80) != "" {
		t.Fatalf("got %+v %v", pools, err)
	}
	l.sh("sh", "-c", "dd if=/dev/urandom of="+l.device(lv).Path+" bs=1M count=56 oflag=direct 2>&1")
	pools, _ = l.Pools(t.Context(), "vg0")
	if got := pools[0].Trouble(80); !strings.Contains(got, "data") {
		t.Errorf("got %q of %+v", got, pools[0])
	}
	l.sh("lvchange", "--errorwhenfull", "y", "vg0/pool")
	l.sh("sh", "-c", "dd if=/dev/urandom of="+l.device(lv).Path+" bs=1M count=80 oflag=direct 2>&1 || true")
	pools, _ = l.Pools(t.Context(), "vg0")
	if got := pools[0].Full(); !strings.Contains(got, "full") || !pools[0].ErrorFull {
		t.Errorf("got %q of %+v", got, pools[0])
	}
	is(t, l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "more"}, 8*mib), ErrNoSpace, "thin pool vg0/pool", "full")
	l.restart(Group{ThinPool: "none"})
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "more"}, 8*mib); err == nil || !strings.Contains(err.Error(), "no thin pool") {
		t.Errorf("got %v", err)
	}
}

// Ensure that a node that is missing, or leads elsewhere, is healed, and that
// what cannot be healed is told.
func TestVMNodes(t *testing.T) {
	l := newLab(t)
	one, two := l.lv("one-x", "8M"), l.lv("two", "8M")
	d := l.activate(one)
	other := l.activate(two)
	for _, harm := range []string{
		"rm -f /dev/vg0/one-x /dev/mapper/vg0-one--x",
		"rm -rf /dev/vg0",
		"ln -sf " + other.Path + " /dev/vg0/one-x",
	} {
		l.sh("sh", "-c", harm)
		if got := l.device(one); got.Link != "" || got.Number != d.Number {
			t.Errorf("%s: got %+v", harm, got)
		}
		l.activate(one)
	}
	l.sh("sh", "-c", "rm -f /dev/vg0/one-x; echo x > /dev/vg0/one-x")
	if _, err := l.Activate(t.Context(), l.lock, one); err != nil {
		if !strings.Contains(err.Error(), "/dev/vg0/one-x") {
			t.Errorf("got %v", err)
		}
	} else if l.device(one).Link == "" {
		t.Error("no link, no error")
	}
}

// Ensure that a device in use is never taken away, and that who uses it is named.
func TestVMBusy(t *testing.T) {
	l := newLab(t)
	lv := l.lv("held", "16M")
	d := l.activate(lv)
	f, err := os.Open(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	l.count("")
	var busy *mount.BusyError
	if err := l.Deactivate(t.Context(), l.lock, lv, d); !errors.As(err, &busy) || len(busy.Holders) == 0 || busy.Holders[0].Pid != os.Getpid() {
		t.Errorf("got %v", err)
	}
	if got := l.count(""); got != 0 {
		t.Errorf("%d commands", got)
	}
	f.Close()
	l.deactivate(lv)
}

// Ensure that the states of a group are different answers.
func TestVMGroups(t *testing.T) {
	l := newLab(t)
	lv := l.lv("data", "8M")
	_, err := l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: "data"})
	is(t, err, ErrNoVG, "vg1")
	l.save(t, "novg", 1)

	l.sh("vgexport", "-q", "vg0")
	l.Invalidate("")
	if got := l.lookUp("data"); got.Presence != volume.Foreign || !strings.Contains(got.Reason, "exported") {
		t.Errorf("got %+v", got)
	}
	l.save(t, "exported", 1)
	_, err = l.Activate(t.Context(), l.lock, lv)
	is(t, err, ErrExported)
	l.sh("vgimport", "-q", "vg0")

	l.sh("vgchange", "-q", "-y", "--systemid", "other", "vg0")
	l.Invalidate("")
	_, err = l.LookUp(t.Context(), lv.Name)
	is(t, err, ErrForeignSystem, "another machine", "other")
	l.save(t, "systemid", 1)
	_, err = l.Activate(t.Context(), l.lock, lv)
	is(t, err, ErrForeignSystem)
	l.sh("vgchange", "-q", "-y", "--config", `global/system_id_source="lvmlocal" local/system_id="other"`, "--systemid", "", "vg0")

	// A disk that is missing.
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "8M", "-n", "there", "vg0", l.disks[1])
	l.sh("dd", "if="+l.disks[0], "of="+l.dir+"/label", "bs=1M", "count=2")
	l.sh("dd", "if=/dev/zero", "of="+l.disks[0], "bs=1M", "count=2", "conv=fsync")
	l.Invalidate("")
	if got := l.lookUp("data"); got.Presence != volume.Foreign || !strings.Contains(got.Reason, "missing") {
		t.Errorf("got %+v", got)
	}
	l.save(t, "partial", 1)
	l.activate(l.present("there"))
	if _, err := l.Activate(t.Context(), l.lock, lv); err == nil || l.device(lv).Activity != volume.Inactive {
		t.Errorf("a partial volume is active: %v", err)
	}
	if got := l.lookUp("none"); got.Presence != volume.Absent || got.Reason == "" {
		t.Errorf("got %+v", got)
	}
	l.sh("dd", "if="+l.dir+"/label", "of="+l.disks[0], "bs=1M", "count=2", "conv=fsync")
	os.Remove("/run/lvm/hints") // LVM looks for a label only where there was one, as long as no disk comes or goes
	l.Invalidate("")
	l.present("data")

	// Two groups of one name.
	only := `devices/filter=["a|^` + l.disks[2] + `$|","r|.*|"]`
	l.sh("vgchange", "-q", "-an", "vg0") // LVM looks whether there is a directory /dev/vg0
	os.RemoveAll("/dev/vg0")
	l.sh("vgcreate", "-q", "--config", only, "vg0", l.disks[2])
	l.Invalidate("")
	_, err = l.LookUp(t.Context(), lv.Name)
	is(t, err, ErrTwoVGs, "vgrename")
	l.save(t, "twovgs", 1)

	// A shared one without lvmlockd.
	l.sh("vgremove", "-q", "-y", "--config", only, "vg0")
	file := l.dir + "/metadata"
	l.sh("vgcfgbackup", "-q", "-f", file, "vg0")
	l.sh("sed", "-i", `s/"READ", "WRITE"\]/"READ"]/; 0,/flags = \[\]/s//flags = ["WRITE_LOCKED"]\nlock_type = "sanlock"\nlock_args = "1.0.0:lvmlock"/`, file)
	l.sh("vgcfgrestore", "-q", "-f", file, "vg0")
	l.Invalidate("")
	_, err = l.LookUp(t.Context(), lv.Name)
	is(t, err, ErrShared, "lvmlockd")
	l.save(t, "shared", 1)
	_, err = l.Activate(t.Context(), l.lock, lv)
	is(t, err, ErrShared)
}

// Ensure that volumes that are wanted at once share commands, and that one that
// fails does not fail the others.
func TestVMGroupCommit(t *testing.T) {
	l := newLab(t)
	const n = 20
	var lvs []volume.LV
	for i := range n {
		l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "4M", "-n", fmt.Sprintf("v-%d", i), "vg0")
	}
	for i := range n {
		lvs = append(lvs, l.present(fmt.Sprintf("v-%d", i)))
	}
	all := func(do func(lv volume.LV) error) []error {
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i, lv := range lvs {
			wg.Go(func() { errs[i] = do(lv) })
		}
		wg.Wait()
		return errs
	}
	l.count("")
	start := time.Now()
	for i, err := range all(func(lv volume.LV) error { _, err := l.Activate(t.Context(), l.lock, lv); return err }) {
		if d := l.device(lvs[i]); err != nil || d.Activity != volume.Active || d.Link == "" {
			t.Errorf("%s: %v %+v", lvs[i].Name, err, d)
		}
	}
	took := time.Since(start)
	l.recorder.mu.Lock()
	joined := l.said[len(l.said)-1]
	l.recorder.mu.Unlock()
	if got := l.count(""); got > 2 {
		t.Errorf("%d commands", got)
	}
	for _, err := range all(func(lv volume.LV) error { return l.Deactivate(t.Context(), l.lock, lv, volume.Device{}) }) {
		if err != nil {
			t.Error(err)
		}
	}
	if got := l.count(""); got > 2 {
		t.Errorf("%d commands", got)
	}
	t.Logf("activation of %d took %s; %d words", n, took, len(joined.Argv))

	// Two are not what they were.
	l.sh("lvremove", "-q", "-y", "vg0/v-7", "vg0/v-8")
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "4M", "-n", "v-8", "vg0")
	for i, err := range all(func(lv volume.LV) error { _, err := l.Activate(t.Context(), l.lock, lv); return err }) {
		switch i {
		case 7:
			is(t, err, ErrNoLV, "does not exist any more")
		case 8:
			if err == nil || !strings.Contains(err.Error(), "another volume") {
				t.Errorf("got %v", err)
			}
		default:
			if err != nil {
				t.Errorf("%s: %v", lvs[i].Name, err)
			}
		}
	}
	if d := l.device(l.present("v-8")); d.Activity != volume.Inactive {
		t.Errorf("the new v-8 was activated: %+v", d)
	}
}

// Ensure that a command that hangs blocks its group at once and for no longer
// than it lives, that nothing is killed, and that what needs no command goes on.
func TestVMStuck(t *testing.T) {
	l := newLab(t)
	l.sh("sh", "-c", "echo 0 $(($(blockdev --getsz "+l.disks[3]+")-2048)) linear "+l.disks[3]+" 2048 | dmsetup create slow --noudevsync && dmsetup mknodes")
	l.sh("vgcreate", "-q", "vg1", "/dev/mapper/slow")
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "8M", "-n", "one", "vg1")
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "8M", "-n", "two", "vg1")
	find := func(name string) volume.LV {
		lv, err := l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: name})
		if err != nil {
			t.Fatal(err)
		}
		return lv
	}
	one, two := find("one"), find("two")
	l.activate(two)
	l.sh("dmsetup", "suspend", "--noudevsync", "slow")
	defer l.try("dmsetup", "resume", "--noudevsync", "slow")

	l.patience = time.Second
	var stuck *run.StuckError
	if _, err := l.Activate(t.Context(), l.lock, one); !errors.As(err, &stuck) {
		t.Fatalf("got %v", err)
	}
	start := time.Now()
	var blocked *BlockedError
	if err := l.Deactivate(t.Context(), l.lock, two, volume.Device{}); !errors.As(err, &blocked) || blocked.Pids[0] != stuck.Pid || errors.As(err, new(*run.StuckError)) {
		t.Errorf("got %v", err)
	}
	if d := l.device(two); d.Activity != volume.Active { // no command is needed
		t.Errorf("got %+v", d)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %s", took)
	}
	// The next flexd sees it, and which volume it is about.
	l.restart(Group{})
	if b, ok := l.Blocks()["vg1"]; !ok || len(b.Volumes) != 1 || b.Volumes[0] != "vg1/one" {
		t.Errorf("got %+v", l.Blocks())
	}
	if d := l.device(one); !d.Unusable {
		t.Errorf("got %+v", d)
	}
	l.sh("dmsetup", "resume", "--noudevsync", "slow")
	select {
	case <-stuck.Done:
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
	for i := 0; len(l.Blocks()) > 0; i++ {
		if i > 500 {
			t.Fatalf("still blocked: %+v", l.Blocks())
		}
		time.Sleep(10 * time.Millisecond)
	}
	if d := l.device(one); d.Activity != volume.Active {
		t.Errorf("it was not killed, but did nothing: %+v", d)
	}
	l.deactivate(one)
	l.deactivate(two)
}

// Ensure that changes from outside are heard of, and that our own activations do
// not make us look again.
func TestVMWatch(t *testing.T) {
	l := newLab(t)
	lv := l.lv("data", "8M")
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan string, 1000)
	done := make(chan error)
	go func() { done <- l.Watch(ctx, func(vg string) { heard <- vg }) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for l.Provider.watch.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(2 * time.Second) // it warms up
	quiet := func() {
		for len(heard) > 0 {
			<-heard
		}
	}
	expect := func(what string) {
		t.Helper()
		select {
		case vg := <-heard:
			if vg != "vg0" {
				t.Errorf("%s: heard of %q", what, vg)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s: not heard of", what)
		}
	}
	quiet()
	l.count("")
	l.activate(lv)
	expect("activate")
	l.deactivate(lv)
	time.Sleep(200 * time.Millisecond)
	l.present("data")
	if got := l.count("fullreport"); got != 0 {
		t.Errorf("our own activation costs %d reports", got)
	}
	quiet()
	for _, c := range [][]string{
		{"lvrename", "-q", "vg0/data", "vg0/other"},
		{"lvextend", "-q", "-L", "12M", "vg0/other"},
		{"lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "4M", "-n", "data", "vg0"},
	} {
		l.sh(c...)
		expect(c[0])
		time.Sleep(100 * time.Millisecond)
		quiet()
		switch got := l.lookUp("data"); c[0] {
		case "lvrename", "lvextend":
			if got.Presence != volume.Absent {
				t.Errorf("%s: got %+v", c[0], got)
			}
		default:
			if got.UUID == lv.UUID || got.Presence != volume.Present {
				t.Errorf("%s: got %+v", c[0], got)
			}
		}
		if c[0] == "lvextend" && l.present("other").Size != 12*mib {
			t.Errorf("got %+v", l.present("other"))
		}
	}
}

// Ensure that many devices are listed as dmsetup lists them.
func TestVMList(t *testing.T) {
	l := newLab(t)
	for i := range 60 {
		l.sh("sh", "-c", fmt.Sprintf("echo 0 8 linear %s %d | dmsetup create --noudevsync -u LVM-%064d name-%d", l.disks[3], 4096+8*i, i, i))
	}
	start := time.Now()
	all, err := NewKernel().List()
	took := time.Since(start)
	if err != nil || len(all) != 60 {
		t.Fatalf("got %d %v", len(all), err)
	}
	want := l.sh("dmsetup", "info", "-c", "--noheadings", "-o", "name,uuid,major,minor", "--separator", " ")
	for _, m := range all {
		line := m.Name + " " + m.UUID + " " + strings.ReplaceAll(m.Number, ":", " ")
		if !strings.Contains(want+"\n", line+"\n") {
			t.Errorf("dmsetup does not say %q", line)
		}
		full, err := l.DM.Device(Key{UUID: m.UUID})
		if err != nil || full.Name != m.Name || full.Size() != 4096 || full.Targets[0].Type != "linear" {
			t.Fatalf("got %+v %v", full, err)
		}
	}
	t.Logf("%d devices in %s", len(all), took)
}
