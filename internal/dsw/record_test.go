package dsw

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
	"golang.org/x/sys/unix"
)

// A record has a reserved name once, also while it cannot be written, and a name that it has lost is free.
func TestReserve(t *testing.T) {
	r, err := OpenRecords(filepath.Join(t.TempDir(), "formats"), "boot", func() time.Duration { return time.Hour })
	if err != nil {
		t.Fatal(err)
	}
	a, b, moved := volume.Name{VG: "vg0", LV: "a"}, volume.Name{VG: "vg0", LV: "b"}, volume.Name{VG: "vg1", LV: "a"}
	if err := r.Reserve("uuid-a", moved); err != nil || r.Holder(moved) != "" {
		t.Errorf("without a record: %v, %q", err, r.Holder(moved))
	}
	if err := r.Seen("uuid-a", a, "ext4", 0); err != nil {
		t.Fatal(err)
	}
	if err := r.Renamed("uuid-a", b, false); err != nil || r.Holder(a) != "" || r.Holder(b) != "uuid-a" {
		t.Errorf("after a rename: %v, %q, %q", err, r.Holder(a), r.Holder(b))
	}
	file := r.File("uuid-a")
	if err := os.Rename(filepath.Dir(file), filepath.Dir(file)+"-away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Dir(file), nil, 0o600); err != nil { // nothing can be written there
		t.Fatal(err)
	}
	for range 3 {
		_ = r.Reserve("uuid-a", moved)
	}
	if err := os.Remove(filepath.Dir(file)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Dir(file)+"-away", filepath.Dir(file)); err != nil {
		t.Fatal(err)
	}
	if err := r.Reserve("uuid-a", moved); err != nil {
		t.Error(err)
	}
	r.putAgain("uuid-a")
	if got := r.known["uuid-a"].Also; !slices.Equal(got, []string{"vg1/a"}) {
		t.Errorf("it has %q", got)
	}
	again, err := OpenRecords(filepath.Dir(file), "boot", func() time.Duration { return time.Hour })
	if err != nil {
		t.Fatal(err)
	}
	if uuid, facts, err := again.Named(moved); uuid != "uuid-a" || facts.Name != b || err != nil {
		t.Errorf("the next flexd has %q, %+v, %v", uuid, facts, err)
	}
}

// A directory that its filesystem does not allow to be created keeps flexd neither from starting nor from
// saying why it knows no record; a wrong path is an error.
func TestDirectoryNotMade(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Symlink(dir+"/gone", dir+"/link"), os.WriteFile(dir+"/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	up := func() time.Duration { return time.Hour }
	r, err := OpenRecords(dir+"/link", "boot", up) // to a disk that is gone
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Named(volume.Name{VG: "vg0", LV: "v"}); err == nil || !strings.Contains(err.Error(), dir+"/link: file exists") {
		t.Errorf("got %v", err)
	}
	if _, err := r.Get("v"); err == nil || !strings.Contains(err.Error(), dir+"/link: file exists") {
		t.Errorf("got %v", err)
	}
	if p := r.Problems(); len(p) != 1 || !strings.Contains(p[0], dir+"/link cannot be read") {
		t.Errorf("got %q", p)
	}
	if err := os.Mkdir(dir+"/gone", 0o700); err != nil { // the disk is back
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, _, _ = r.Named(volume.Name{VG: "vg0", LV: "v"}) // reads the directory, too
		facts, err := r.Get("v")
		if err == nil && facts.State == volume.NoRecord && len(r.Problems()) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("got %v %q", err, r.Problems())
		}
	}
	if _, err := OpenRecords(dir+"/file/formats", "boot", up); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("got %v", err)
	}
}

// The records of a newer flexd are good: the first remedy after a downgrade is that flexd.
func TestRecordNewer(t *testing.T) {
	dir := t.TempDir()
	r, err := OpenRecords(dir, boot, up)
	if err != nil {
		t.Fatal(err)
	}
	record := fmt.Sprintf(`{"version":%d,"uuid":"u","vg":"vg0","lv":"v","state":{"since":"later"},"fsType":"ext4"}`, noteVersion+1)
	if err := os.WriteFile(r.File("u"), []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = r.Get("u")
	for _, text := range append(r.Problems(), fmt.Sprint(err)) {
		if !strings.Contains(text, "version 2, this one knows 1): install that flexd again") || strings.Contains(text, "damaged") {
			t.Errorf("got %q", text)
		}
	}
	if len(r.Problems()) != 1 {
		t.Errorf("got %q", r.Problems())
	}
}

// The directory of the records is away for a while: no record loses an earlier name of its volume, whether it was read
// before or not.
func TestRecordsAway(t *testing.T) {
	for name, known := range map[string]bool{"read before": true, "not read before": false} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "formats")
			r, err := OpenRecords(dir, boot, up)
			if err != nil {
				t.Fatal(err)
			}
			a, b := volume.Name{VG: "ga", LV: "w"}, volume.Name{VG: "gb", LV: "w"}
			if err := errors.Join(r.Seen("u", b, "ext4", 1), r.Renamed("u", a, true)); err != nil {
				t.Fatal(err)
			}
			if !known {
				if r, err = OpenRecords(dir, boot, up); err != nil {
					t.Fatal(err)
				}
				delete(r.known, "u")
			}
			if err := os.Rename(dir, dir+".away"); err != nil {
				t.Fatal(err)
			}
			if facts, err := r.Get("u"); known && (err != nil || facts.State != volume.Seen || facts.Name != a) {
				t.Errorf("got %+v, %v", facts, err)
			} else if known && len(r.Problems()) != 1 {
				t.Errorf("problems: %q", r.Problems())
			}
			if err := r.Seen("u", a, "ext4", 1); err == nil || !strings.Contains(err.Error(), "bring the filesystem of stateDir back") {
				t.Errorf("without the directory: %v", err)
			}
			if err := os.Rename(dir+".away", dir); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(10 * time.Second); len(r.Problems()) > 0 && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			for _, n := range []volume.Name{a, b} {
				if uuid, _, err := r.Named(n); uuid != "u" || err != nil {
					t.Errorf("%s: got %q, %v; problems: %q", n, uuid, err, r.Problems())
				}
			}
			text, err := os.ReadFile(r.File("u"))
			if err != nil || !strings.Contains(string(text), "gb/w") {
				t.Errorf("got %s, %v", text, err)
			}
		})
	}
}

// A name that a volume has lost is free, also if its record could not be written for a while.
func TestRecordRenamedAway(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "formats")
	r, err := OpenRecords(dir, boot, up)
	if err != nil {
		t.Fatal(err)
	}
	a, b := volume.Name{VG: "vg0", LV: "a"}, volume.Name{VG: "vg0", LV: "b"}
	if err := errors.Join(r.Seen("u", a, "ext4", 1), os.Rename(dir, dir+".away")); err != nil {
		t.Fatal(err)
	}
	if r.Renamed("u", b, false) == nil {
		t.Error("no error without the directory")
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); len(r.Problems()) > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	for name, want := range map[volume.Name]volume.UUID{a: "", b: "u"} {
		if uuid, _, err := r.Named(name); uuid != want || err != nil {
			t.Errorf("%s: got %q, %v", name, uuid, err)
		}
	}
}
