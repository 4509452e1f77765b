package lvm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
)

func fakePV(n int, path string) string {
	return fmt.Sprintf(`{"pv_name":%q,"pv_uuid":%q,"pv_missing":"","pv_allocatable":"allocatable","pv_size":"8388608","pv_free":"0","pv_tags":""}`, path, fakePVUUID(n))
}

func fakePVUUID(n int) string { return fmt.Sprintf("PVPVPV-0000-0000-0000-0000-0000-%06d", n) }

// While a disk does not respond, flexd uses a group only on disks on which it has seen the group before: a
// clone of the silent disk would be complete.
func TestSilentOriginal(t *testing.T) {
	f, p := newFake(t, 1)
	restart := func() {
		next := f.provider(Group{})
		next.DiskDir, next.config.filter = p.DiskDir, p.config.filter
		for name := range next.Groups {
			next.groups[name] = next.newGroup(name)
		}
		p = next
		p.pending = func(string, []devmapper.Mapped) []disk { return []disk{{"/dev/sdx", "8:368", "8:368"}} }
		p.requests = func(string) (bool, int64) { return true, 0 }
	}
	look := func() error { _, _, err := p.groups["vg0"].look(t.Context(), true); return err }
	ok := func(what string) {
		t.Helper()
		if err := look(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused := func(what string) {
		t.Helper()
		is(t, look(), ErrFailed, "/dev/clone may be a copy", fakePVUUID(1), "/dev/sdx", "lvmFilter")
		if p.groups["vg0"].lastFacts() != nil {
			t.Errorf("%s: it has facts", what)
		}
	}
	f.pvs = fakePV(1, "/dev/clone")
	restart()
	refused("without a note")
	p.pending = func(string, []devmapper.Mapped) []disk { return nil }
	f.pvs = fakePV(1, "/dev/original")
	ok("noted")

	// Both are visible, and LVM prefers the copy: it is not noted.
	f.pvs = fakePV(1, "/dev/clone")
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		return run.Result{Stdout: []byte(f.report()), Stderr: []byte("  WARNING: Not using device /dev/original for PV " + fakePVUUID(1) + ".\n")}, nil, slices.Contains(c.Argv, "fullreport")
	}
	ok("twice")
	f.hook = nil
	restart()
	refused("the original is silent")
	f.pvs = fakePV(1, "/dev/clone") + "," + fakePV(2, "/dev/other")
	refused("one of two")
	f.pvs = fakePV(1, "/dev/original")
	ok("another disk is silent")
	restart()
	p.config.filter = append(slices.Clone(DefaultFilter), "r|^/dev/sdx$|")
	f.pvs = fakePV(1, "/dev/clone")
	ok("LVM never reads the silent disk")
	if text, err := os.ReadFile(p.DiskDir + "/vg0"); err != nil || !strings.Contains(string(text), "/dev/clone") {
		t.Errorf("noted: %s %v", text, err)
	}
	if err := os.WriteFile(p.DiskDir+"/vg0", []byte(`{"Boot":"earlier","Disks":{"`+fakePVUUID(1)+`":"/dev/clone"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.config.filter = nil
	restart()
	refused("a note of an earlier boot")
}

// The disk of a PV fails, and LVM reads a copy: flexd refuses it while the disk exists.
func TestFailedOriginal(t *testing.T) {
	f, p := newFake(t, 1)
	p.udevDir = t.TempDir()
	original := filepath.Join(p.Dev, "block", "8:0")
	ids := map[string]string{"/dev/sda": "8:0 1", original: "8:0 1", "/dev/sdb": "8:16 2"}
	p.diskID = func(path string) string { return ids[path] }
	p.devicesOn = func(string) ([]string, error) { return nil, nil }
	probed := func(text string) {
		if err := os.WriteFile(p.udevDir+"/b8:0", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look := func() error { _, _, err := p.groups["vg0"].look(t.Context(), true); return err }
	member := "E:ID_FS_TYPE=LVM2_member\nE:ID_FS_UUID=" + fakePVUUID(1) + "\n"
	for _, row := range []struct {
		name    string
		change  func()
		refused bool
	}{
		{"it fails", func() {}, true},
		{"its PV was missing meanwhile", func() {
			f.pvs = strings.Replace(fakePV(1, "[unknown]"), `"pv_missing":""`, `"pv_missing":"missing"`, 1)
			if err := look(); err != nil {
				t.Error(err)
			}
		}, true},
		{"it is gone", func() { ids[original] = "" }, false},
		{"its number has another disk", func() { ids[original] = "8:0 3" }, false},
		{"it was wiped", func() { probed("E:ID_MODEL=x\n") }, false},
		{"multipath", func() { p.devicesOn = func(string) ([]string, error) { return []string{"8:16"}, nil } }, false},
	} {
		f.pvs = fakePV(1, "/dev/sda")
		ids[original] = "8:0 1"
		probed(member)
		if err := look(); err != nil {
			t.Fatalf("%s: %v", row.name, err)
		}
		row.change()
		f.pvs = fakePV(1, "/dev/sdb")
		if err := look(); !row.refused && err != nil {
			t.Errorf("%s: %v", row.name, err)
		} else if row.refused {
			is(t, err, ErrFailed, "/dev/sdb may be a copy", original, fakePVUUID(1))
		}
	}
}

// No event reports that LVM reads a copy: the group is read again when its volume is on another disk.
func TestConfirmDisks(t *testing.T) {
	f, p := newFake(t, 1)
	g := p.groups["vg0"]
	if _, _, err := g.look(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	g.lastFacts().place = &placement{all: true, disks: map[string]bool{"8:0": true}, stacks: map[string]bool{}, others: map[string]bool{"8:16": true}}
	again := errors.New("read again")
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		return run.Result{}, again, slices.Contains(c.Argv, "fullreport")
	}
	for disk, want := range map[string]error{"8:0": nil, "8:16": again} {
		m := devmapper.Mapped{Number: "253:9", Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 512, Params: disk + " 0"}}}
		if err := g.confirmDisks(t.Context(), m); !errors.Is(err, want) {
			t.Errorf("%s: got %v", disk, err)
		}
	}
}

// udev has probed a disk before it became silent.
func TestDiskWithOther(t *testing.T) {
	dir, pvs := t.TempDir(), []PV{{UUID: fakePVUUID(1)}}
	for text, want := range map[string]bool{
		"": false, "E:ID_MODEL=x\n": false, "E:ID_FS_TYPE=ext4\n": true, "E:ID_PART_TABLE_TYPE=gpt\n": true, "E:ID_FS_TYPE=mpath_member\n": false,
		"E:ID_FS_TYPE=LVM2_member\n":                                     false,
		"E:ID_FS_UUID=" + fakePVUUID(1) + "\nE:ID_FS_TYPE=LVM2_member\n": false,
		"E:ID_FS_UUID=" + fakePVUUID(2) + "\nE:ID_FS_TYPE=LVM2_member\n": true,
	} {
		if err := os.WriteFile(filepath.Join(dir, "b999:1"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := hasOther(dir, "999:1", pvs); got != want {
			t.Errorf("%q: got %v", text, got)
		}
	}
	if hasOther(dir, "999:2", pvs) || hasOther(dir, "", pvs) {
		t.Error("not in the database")
	}
}

// LVM uses a disk if the first element that matches one of its names accepts.
func TestRejects(t *testing.T) {
	names := []string{"/dev/sdx", "/dev/disk/by-id/x"}
	for _, c := range []struct {
		filter string
		want   bool
	}{
		{"", false}, {"r|^/dev/sdx$|", true}, {"r/.*/", true}, {"r|^/dev/sdy$|", false},
		{"a|by-id| r|.*|", false}, {"r|.*| a|by-id|", true}, {"r|sdx| a|.*|", false}, {"a|sdy| r|.*|", true},
		{"r|[|", false}, {`r|\/dev|`, false}, {"r|x{1}|", false}, {"r", false},
	} {
		if got := rejects(quoted(strings.Fields(c.filter)), names); got != c.want {
			t.Errorf("%s: got %v", c.filter, got)
		}
	}
}

func TestDiskID(t *testing.T) {
	path := t.TempDir() + "/disk"
	if diskID(path) != "" {
		t.Error("there is no disk")
	}
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(253, 99))); err != nil {
		t.Skipf("needs to make a device node: %v", err)
	}
	if got := diskID(path); got != "253:99 " {
		t.Errorf("got %q", got)
	}
}
