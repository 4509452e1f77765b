package dsw

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

const (
	half  = volume.UUID("tLRoe9-kj7z-fenz-s6k6-t6CI-nlAJ-oTgOdY")
	whole = "la3KrT-Xg7I-9fu6-0jwY-5CZS-Wkey-96hrb7_" + half
	other = "aaaaaa-Xg7I-9fu6-0jwY-5CZS-Wkey-96hrb7_" + half // a copy by vgimportclone
)

func TestRename(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	c := claim(volume.Held)
	c.UUID = half
	second := c
	second.Dir += "2"
	for _, err := range []error{s.Put(c), s.Put(second), s.PutLease(Lease{VG: "vg0", LV: "a", UUID: half, Until: time.Hour}), s.Rename(half, whole)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, dir)
	if got := s.Claims(whole); len(got) != 2 || got[0].Dir != c.Dir || got[1].Dir != second.Dir || got[0].Phase != volume.Held {
		t.Errorf("claims: got %+v", got)
	}
	if l, ok := s.Lease(whole); !ok || l.Until != time.Hour {
		t.Errorf("lease: got %+v", l)
	}
	if files, _ := os.ReadDir(dir); len(files) != 3 || len(s.Problems()) > 0 {
		t.Errorf("files %v, problems %q", files, s.Problems())
	}
}

func TestEarlierRecords(t *testing.T) {
	dir := t.TempDir()
	records := func() *Records {
		r, err := OpenRecords(dir, boot, up)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	is := func(r *Records, uuid volume.UUID, want volume.Record) {
		t.Helper()
		if got, err := r.Get(uuid); err != nil || got.State != want {
			t.Errorf("%s: got %v %v, want %v", uuid, got, err, want)
		}
	}
	name := volume.Name{VG: "vg0", LV: "a"}
	if err := records().Formatting(half, name, "ext4"); err != nil {
		t.Fatal(err)
	}
	is(records(), whole, volume.NoRecord) // a copy may have other data by now
	if err := records().Seen(half, name, "ext4", 0); err != nil {
		t.Fatal(err)
	}
	r := records()
	is(r, whole, volume.Seen)
	is(r, whole, volume.Seen)
	is(r, other, volume.Seen)
	if uuid, _, err := r.Named(name); uuid != half || err != nil {
		t.Errorf("got %s %v", uuid, err)
	}
	if err := r.Seen(other, volume.Name{VG: "copy", LV: "a"}, "ext4", 0); err != nil { // not the volume of the record
		t.Fatal(err)
	}
	is(records(), whole, volume.Seen)
	if err := r.Seen(whole, name, "ext4", 0); err != nil {
		t.Fatal(err)
	}
	is(records(), whole, volume.Seen)
	if files, _ := filepath.Glob(dir + "/*.json"); len(files) != 2 || !strings.Contains(files[0], "_") || !strings.Contains(files[1], "_") {
		t.Errorf("got %q", files)
	}
}

// The uuid of a group changes when it is split, merged or copied. What was seen of a
// volume in it holds all the same.
func TestRecordOfOtherGroup(t *testing.T) {
	dir := t.TempDir()
	name := volume.Name{VG: "vg0", LV: "a"}
	open := func() *Records {
		r, err := OpenRecords(dir, boot, up)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := open()
	if err := first.Formatting(whole, name, "ext4"); err != nil {
		t.Fatal(err)
	}
	if got, err := first.Get(other); err != nil || got.State != volume.NoRecord {
		t.Errorf("an mkfs was started on another copy: %v %v", got, err)
	}
	if err := first.Seen(whole, name, "ext4", 0); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Records{first, open()} {
		if got, err := r.Get(other); err != nil || got.State != volume.Seen || got.Name != name {
			t.Errorf("got %v %v", got, err)
		}
		if err := r.Formatting(other, volume.Name{VG: "vg1", LV: "a"}, "ext4"); err == nil {
			t.Error("an mkfs is recorded on a volume that was seen with a filesystem")
		}
	}
	moved := volume.Name{VG: "vg1", LV: "a"}
	if err := first.Renamed(other, moved, false); err != nil {
		t.Fatal(err)
	}
	if uuid, _, err := open().Named(moved); uuid != other || err != nil {
		t.Errorf("its new name: %s %v", uuid, err)
	}
}
