package dsw

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

const boot = "6c1e5f0a-boot"

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, boot)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func claim(phase volume.Phase) Claim {
	return Claim{
		Kind: volume.Published, Phase: phase, Dir: "/k/pods/u1/volumes/flexd~lvm/data", VG: "vg0", LV: "a", UUID: "uuid-a",
		Pod: &Pod{Namespace: "ns", Name: "web", UID: "u1"}, Name: "data", Super: []string{"discard"},
		Since: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC),
	}
}

// onlyFile returns the one file of a directory.
func onlyFile(t *testing.T, dir string) string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("want one file in %s, got %v, %v", dir, files, err)
	}
	return filepath.Join(dir, files[0].Name())
}

func TestNotesSurvive(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	want := claim(volume.Held)
	lease := Lease{VG: "vg0", LV: "a", UUID: "uuid-a", Name: "data", Until: time.Hour, Since: want.Since}
	if err := s.Put(want); err != nil {
		t.Fatal(err)
	}
	if err := s.PutLease(lease); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir)
	want.Version, want.Boot = noteVersion, boot
	if diff := cmp.Diff([]Claim{want}, again.Claims("uuid-a")); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
	lease.Version, lease.Boot = noteVersion, boot
	if got, ok := again.Lease("uuid-a"); !ok || got != lease {
		t.Errorf("lease: got %+v, %v", got, ok)
	}
	if p := again.Problems(); p != nil {
		t.Errorf("problems: %q", p)
	}
	if err := again.Drop("uuid-a", want.Dir); err != nil {
		t.Fatal(err)
	}
	if err := again.DropLease("uuid-a"); err != nil {
		t.Fatal(err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 0 {
		t.Errorf("notes are left: %v", files)
	}
}

// A note of an earlier boot is about a mount that is gone.
func TestOtherBoot(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir).Put(claim(volume.Held)); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir, "another-boot")
	if err != nil {
		t.Fatal(err)
	}
	if c, p := s.All(), s.Problems(); c != nil || p != nil {
		t.Errorf("got claims %v, problems %q", c, p)
	}
	if files, _ := os.ReadDir(dir); len(files) != 0 {
		t.Errorf("notes are left: %v", files)
	}
}

// Whatever a crash, a full disk or a hand did to a note: flexd starts, leaves it
// alone, says what is wrong with it, and never acts on a half of it.
func TestTornNotes(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir).Put(claim(volume.Releasing)); err != nil {
		t.Fatal(err)
	}
	file := onlyFile(t, dir)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(old, new string) []byte { return bytes.Replace(whole, []byte(old), []byte(new), 1) }
	type torn struct {
		name string
		data []byte
	}
	cases := []torn{
		{"zeroed", make([]byte, len(whole))},
		{"garbage", []byte("\x7fELF garbage")},
		{"another version", edit(`"version": 1`, `"version": 7`)},
		{"an unknown key", edit(`"version": 1`, `"version": 1, "x": 2`)},
		{"an unknown phase", edit(`"releasing"`, `"relieved"`)},
		{"an unknown kind", edit(`"published"`, `"printed"`)},
		{"another directory than its name says", edit(`/data"`, `/date"`)},
		{"a relative directory", edit(`"/k/`, `"k/`)},
		{"no uuid", edit(`"uuid-a"`, `""`)},
		{"two objects", append(bytes.Clone(whole), whole...)},
		{"too large", append(bytes.Clone(whole), make([]byte, maxNote)...)},
		{"an array", []byte("[]")},
	}
	for n := range len(whole) - 2 { // the last two bytes are "}\n": without the newline it is whole
		cases = append(cases, torn{"torn", whole[:n]})
	}
	for _, c := range cases {
		if err := os.WriteFile(file, c.data, 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir)
		if got := s.All(); got != nil {
			t.Errorf("%s (%d bytes): it was acted on: %+v", c.name, len(c.data), got)
		}
		kept := file + damaged
		if p := s.Problems(); len(p) != 1 || !strings.Contains(p[0], kept) {
			t.Errorf("%s (%d bytes): problems %q", c.name, len(c.data), p)
		}
		// A new note for the same claim, and another start, leave it as it is.
		if err := s.Put(claim(volume.Held)); err != nil {
			t.Error(err)
		}
		if s = open(t, dir); len(s.All()) != 1 || len(s.Problems()) != 1 {
			t.Errorf("%s: at the next start: %v, %q", c.name, s.All(), s.Problems())
		}
		if after, _ := os.ReadFile(kept); !bytes.Equal(after, c.data) {
			t.Errorf("%s: the file was changed", c.name)
		}
		if err := os.Remove(kept); err != nil {
			t.Error(err)
		}
	}
	// What is edited within the rules counts as written.
	if err := os.WriteFile(file, edit(`"releasing"`, `"held"`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := open(t, dir).All(); len(got) != 1 || got[0].Phase != volume.Held {
		t.Errorf("a good hand: %+v", got)
	}
}

// A write that was cut leaves the note before it whole.
func TestCutWrite(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir).Put(claim(volume.Making)); err != nil {
		t.Fatal(err)
	}
	file := onlyFile(t, dir)
	if err := os.WriteFile(file+".tmp", []byte(`{"vers`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if got := s.All(); len(got) != 1 || got[0].Phase != volume.Making {
		t.Errorf("got %+v", got)
	}
	if got := onlyFile(t, dir); got != file {
		t.Errorf("left behind: %s", got)
	}
}

// Only what sets up depends on a write that succeeds.
func TestUnwritable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "notes")
	s := open(t, dir)
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(claim(volume.Making)); err == nil || s.All() != nil {
		t.Errorf("making: error %v, claims %v", err, s.All())
	}
	for _, phase := range []volume.Phase{volume.Held, volume.Releasing} {
		if err := s.Put(claim(phase)); err == nil {
			t.Errorf("%s: no error", phase)
		}
		if got := s.All(); len(got) != 1 || got[0].Phase != phase {
			t.Errorf("%s: memory must lead: %+v", phase, got)
		}
	}
	if p := s.Problems(); len(p) != 1 {
		t.Errorf("problems: %q", p)
	}
	if _ = s.Drop("uuid-a", claim(volume.Held).Dir); s.All() != nil {
		t.Errorf("drop: %v", s.All())
	}
	// Once the directory can be made again, so are the notes.
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(claim(volume.Making)); err != nil {
		t.Errorf("after /run was cleared: %v", err)
	}
	if p := s.Problems(); len(p) != 0 {
		t.Errorf("problems that are over: %q", p)
	}
}

// A note that could not be written is written when there is space again: at the next look at the problems, or with
// another note.
func TestWrittenLater(t *testing.T) {
	held, lease := claim(volume.Held), Lease{VG: "vg0", LV: "b", UUID: "uuid-b", Until: time.Hour}
	for name, look := range map[string]func(*Store) error{
		"the problems": func(s *Store) error { s.Problems(); return nil },
		"another note": func(s *Store) error { return s.PutLease(Lease{VG: "vg0", LV: "c", UUID: "uuid-c"}) },
	} {
		dir := filepath.Join(t.TempDir(), "notes")
		s := open(t, dir)
		if err := errors.Join(s.Put(claim(volume.Making)), s.PutLease(lease)); err != nil {
			t.Fatal(err)
		}
		aside := dir + ".aside"
		if err := errors.Join(os.Rename(dir, aside), os.WriteFile(dir, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		refused := claim(volume.Making)
		refused.Dir += "2"
		if s.Put(held) == nil || s.MoveLease("uuid-b", "", 2*time.Hour) == nil || s.Put(refused) == nil || len(s.Problems()) != 3 {
			t.Errorf("%s: problems %q", name, s.Problems())
		}
		if err := errors.Join(os.Remove(dir), os.Rename(aside, dir), look(s)); err != nil {
			t.Fatal(err)
		}
		again := open(t, dir)
		if c := again.All(); len(c) != 1 || c[0].Phase != volume.Held {
			t.Errorf("%s: the next flexd knows %+v", name, c)
		}
		if l, _ := again.Lease("uuid-b"); l.Until != 2*time.Hour {
			t.Errorf("%s: the next flexd knows %+v", name, l)
		}
		if p := s.Problems(); p != nil {
			t.Errorf("%s: problems that are over: %q", name, p)
		}
	}
}

// The end of a lease moves in memory also if its note cannot be written, and nothing revives a
// lease that is gone.
func TestLeaseMoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "notes")
	s := open(t, dir)
	if err := s.PutLease(Lease{VG: "vg0", LV: "a", UUID: "uuid-a", Name: "pv", Until: time.Hour}); err != nil {
		t.Fatal(err)
	}
	until := func(s *Store) time.Duration {
		l, _ := s.Lease("uuid-a")
		return l.Until
	}
	if err := s.MoveLease("uuid-a", "pv", 2*time.Hour); err != nil || until(s) != 2*time.Hour || until(open(t, dir)) != 2*time.Hour {
		t.Errorf("%v: %v, the next flexd knows %v", err, until(s), until(open(t, dir)))
	}
	note := filepath.Join(dir, leaseFile("uuid-a"))
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(note, "x"), 0o700); err != nil { // nothing can be renamed over it
		t.Fatal(err)
	}
	if err := s.MoveLease("uuid-a", "pv", time.Minute); err == nil || until(s) != time.Minute {
		t.Errorf("%v: %v", err, until(s))
	}
	if _, leases := s.Named("pv"); len(leases) != 1 || leases[0].Until != time.Minute {
		t.Errorf("by its name: %+v", leases)
	}
	_ = s.MoveLease("uuid-a", "other", time.Minute)
	_, was := s.Named("pv")
	if _, now := s.Named("other"); len(was) != 0 || len(now) != 1 {
		t.Errorf("by its names: %+v, %+v", was, now)
	}
	_ = s.DropLease("uuid-a")
	if err := s.MoveLease("uuid-a", "pv", time.Hour); err != nil || s.Leases() != nil {
		t.Errorf("%v: %+v", err, s.Leases())
	}
}

// A lease that could not be written does not count: a later call would activate the
// volume because of it, and the next flexd would not know after a kill.
func TestLeaseNotWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "notes")
	s := open(t, dir)
	if err := s.Put(claim(volume.Releasing)); err != nil {
		t.Fatal(err)
	}
	blocked := filepath.Join(dir, leaseFile("uuid-a"))
	if err := os.MkdirAll(filepath.Join(blocked, "x"), 0o700); err != nil { // nothing can be renamed over it
		t.Fatal(err)
	}
	lease := Lease{VG: "vg0", LV: "a", UUID: "uuid-a", Until: time.Hour}
	if err := s.PutLease(lease); err == nil {
		t.Fatal("no error")
	}
	if _, ok := s.Lease("uuid-a"); ok {
		t.Error("it counts all the same")
	}
	// The end of a claim does not depend on it, and the next flexd knows it.
	s.DropKeepingNote(claim(volume.Releasing).Dir, lease)
	if _, ok := s.Lease("uuid-a"); !ok || s.All() != nil {
		t.Errorf("in memory: lease %v, claims %v", ok, s.All())
	}
	if again := open(t, dir).All(); len(again) != 1 || again[0].Phase != volume.Releasing {
		t.Errorf("the next flexd knows %v", again)
	}
	// Its note goes with the lease, unless it is about a claim again by then.
	if err := os.RemoveAll(blocked + damaged); err != nil { // the next flexd put it aside
		t.Fatal(err)
	}
	if err := s.Put(claim(volume.Held)); err != nil {
		t.Fatal(err)
	}
	if err := s.DropLease("uuid-a"); err != nil || len(open(t, dir).All()) != 1 {
		t.Errorf("the note of a claim went with the lease: %v", err)
	}
	s.DropKeepingNote(claim(volume.Releasing).Dir, lease)
	if err := s.DropLease("uuid-a"); err != nil {
		t.Error(err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

// up is a boot clock.
func up() time.Duration { return 30 * time.Minute }

// state is what a record says and of which filesystem.
func state(r *Records, uuid volume.UUID) (volume.Record, string, error) {
	f, err := r.Get(uuid)
	return f.State, f.Type, err
}

func TestRecords(t *testing.T) {
	dir := t.TempDir()
	name := volume.Name{VG: "vg0", LV: "a"}
	get := func() (volume.Record, string, error) {
		r, err := OpenRecords(dir, boot, up)
		if err != nil {
			t.Fatal(err)
		}
		return state(r, "uuid-a")
	}
	if got, _, err := get(); got != volume.NoRecord || err != nil {
		t.Errorf("none: %v, %v", got, err)
	}
	r, _ := OpenRecords(dir, boot, up)
	if err := r.Formatting("uuid-a", name, "xfs"); err != nil {
		t.Fatal(err)
	}
	if got, fs, err := get(); got != volume.Formatting || fs != "xfs" || err != nil {
		t.Errorf("formatting: %v, %q, %v", got, fs, err)
	}
	if err := r.Seen("uuid-a", name, "xfs", 0); err != nil {
		t.Fatal(err)
	}
	if got, _, err := get(); got != volume.Seen || err != nil {
		t.Errorf("seen: %v, %v", got, err)
	}
	file := onlyFile(t, dir)
	whole, _ := os.ReadFile(file)
	for n := range len(whole) - 2 {
		if err := os.WriteFile(file, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if got, _, err := get(); got != volume.RecordUnknown || err == nil {
			t.Fatalf("cut at %d: %v, %v; unknown is never none", n, got, err)
		}
	}
	// A flexd that starts says so before anybody asks for the volume.
	torn, err := OpenRecords(dir, boot, up)
	if err != nil {
		t.Fatal(err)
	}
	if p := torn.Problems(); len(p) != 1 || !strings.Contains(p[0], file) {
		t.Errorf("problems: %q", p)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); len(torn.Problems()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("problems after its removal: %q", torn.Problems())
		}
	}
}

// udev's rule finds a record under the name of the volume's device, from before the record
// is there until it is removed.
func TestDeviceLinks(t *testing.T) {
	dir := t.TempDir()
	formats, links := dir+"/formats", dir+"/udev"
	device := func(uuid volume.UUID) string {
		if !strings.Contains(string(uuid), "_") {
			return ""
		}
		return "LVM-" + strings.ReplaceAll(string(uuid), "_", "")
	}
	found := func(want ...string) {
		t.Helper()
		got := []string{}
		all, _ := filepath.Glob(links + "/*")
		for _, path := range all {
			if _, err := os.Stat(path); err == nil {
				got = append(got, filepath.Base(path))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("links: %q, want %q", got, want)
		}
	}
	open := func() *Records {
		t.Helper()
		r, err := OpenRecords(formats, boot, up)
		if err == nil {
			err = r.LinkDevices(links, device)
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	name := volume.Name{VG: "vg0", LV: "a"}
	r, err := OpenRecords(formats, boot, up) // an earlier version
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Seen("g_a", name, "ext4", 0), r.Seen("file", name, "ext4", 0)); err != nil {
		t.Fatal(err)
	}
	r = open()
	found("LVM-ga")
	r.Midway = func(string) {
		if _, err := os.Lstat(links + "/LVM-gb"); err != nil {
			t.Error("the record is there before its link")
		}
	}
	if err := errors.Join(r.Formatting("g_b", name, "ext4"), r.Seen("g_b", name, "ext4", 0)); err != nil {
		t.Fatal(err)
	}
	found("LVM-ga", "LVM-gb")
	if err := os.Remove(r.File("g_a")); err != nil {
		t.Fatal(err)
	}
	found("LVM-gb")
	if err := r.Seen("g_a", name, "ext4", 0); err != nil {
		t.Fatal(err)
	}
	found("LVM-ga", "LVM-gb")

	// The directory is removed while flexd runs.
	r.Midway = nil
	if err := errors.Join(os.RemoveAll(links), r.Seen("g_a", name, "ext4", 0)); err != nil {
		t.Fatal(err)
	}
	found("LVM-ga")
	open()
	found("LVM-ga", "LVM-gb")

	// An operator excludes a volume by hand; links of removed records go.
	if err := errors.Join(os.WriteFile(links+"/LVM-gc", nil, 0o600), os.Remove(r.File("g_b"))); err != nil {
		t.Fatal(err)
	}
	open()
	found("LVM-ga", "LVM-gc")
	if _, err := os.Lstat(links + "/LVM-gb"); err == nil {
		t.Error("the link of a removed record stays")
	}
	if st, err := os.Stat(links); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
}

// What is no file, or too large for a record, is not waited for or read, but named.
func TestForeignFiles(t *testing.T) {
	dir, run := t.TempDir(), t.TempDir()
	err := errors.Join(
		unix.Mkfifo(dir+"/fifo.json", 0o600), os.Symlink("/dev/zero", dir+"/endless.json"), os.Mkdir(dir+"/dir.json", 0o700),
		os.WriteFile(dir+"/large.json", nil, 0o600), os.Truncate(dir+"/large.json", 1<<40), unix.Mkfifo(run+"/teardowns", 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	r, err := OpenRecords(dir, boot, up)
	if err != nil {
		t.Fatal(err)
	}
	all := r.Problems()
	if text := strings.Join(all, "\n"); len(all) != 4 || !strings.Contains(text, "fifo.json is damaged: it is not a regular file") || !strings.Contains(text, "large.json is damaged: it is 1099511627776 bytes large") {
		t.Errorf("problems: %q", all)
	}
	if downs := openTeardowns(run+"/teardowns", boot); len(downs.started) != 0 {
		t.Errorf("teardowns: %v", downs.started)
	}
}

// The remedy that a refusal names works at once, and a volume's name is not
// given to an empty one while a record says that the volume has data.
func TestRecordTakenAway(t *testing.T) {
	r, err := OpenRecords(t.TempDir(), boot, up)
	if err != nil {
		t.Fatal(err)
	}
	name := volume.Name{VG: "vg0", LV: "a"}
	if uuid, _, _ := r.Named(name); uuid != "" {
		t.Errorf("%s is unknown", uuid)
	}
	if err := errors.Join(r.Formatting("old", name, "ext4"), r.Seen("old", name, "ext4", 0), r.Formatting("half", volume.Name{VG: "vg0", LV: "b"}, "ext4")); err != nil {
		t.Fatal(err)
	}
	uuid, facts, err := r.Named(name)
	if err != nil || uuid != "old" {
		t.Fatalf("%s is known as %q", name, uuid)
	}
	if uuid, _, _ := r.Named(volume.Name{VG: "vg0", LV: "b"}); uuid != "" {
		t.Error("a volume that was never used counts as data")
	}
	if err := os.Truncate(facts.File, 20); err != nil {
		t.Fatal(err)
	}
	if uuid, _, err := r.Named(name); err == nil || !strings.Contains(err.Error(), facts.File) {
		t.Errorf("with a torn record: %q, %v", uuid, err)
	}
	if err := os.Remove(facts.File); err != nil {
		t.Fatal(err)
	}
	if got, _, err := state(r, "old"); got != volume.NoRecord || err != nil {
		t.Errorf("after its removal: %v, %v", got, err)
	}
}

// While an mkfs record stands, "seen" counts only when it is durable.
func TestSeenNotWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "formats")
	r, err := OpenRecords(dir, boot, up)
	if err != nil {
		t.Fatal(err)
	}
	name := volume.Name{VG: "vg0", LV: "a"}
	if err := r.Formatting("made", name, "ext4"); err != nil {
		t.Fatal(err)
	}
	for _, uuid := range []string{"made", "found"} { // no record can be written there
		if err := os.Mkdir(filepath.Join(dir, uuid+".json.tmp"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Seen("made", name, "ext4", 0); err == nil {
		t.Error("no error")
	}
	if got, _, _ := state(r, "made"); got != volume.Formatting {
		t.Errorf("made: %v, want formatting", got)
	}
	if err := r.Seen("found", name, "ext4", 0); err == nil {
		t.Error("no error")
	}
	if got, _, _ := state(r, "found"); got != volume.Seen {
		t.Errorf("found: %v, want seen in memory", got)
	}
	settled(t, r)
}

// settled waits until r does nothing in the background.
func settled(t *testing.T, r *Records) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		running := r.retrying
		r.mu.Unlock()
		if !running {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the retry does not end")
		}
	}
}

// The disk is full when a volume with an operator's filesystem is first mounted, and has space
// later. Until then its name is taken and status says why it may be forgotten; then the next
// look at the volume, its name or the problems makes the record durable.
func TestSeenWrittenLater(t *testing.T) {
	for what, look := range map[string]func(*Records){
		"the volume":   func(r *Records) { _, _ = r.Get("found") },
		"the problems": func(r *Records) { r.Problems() },
		"its name":     func(r *Records) { _, _, _ = r.Named(volume.Name{VG: "vg0", LV: "a"}) },
	} {
		t.Run(what, func(t *testing.T) {
			dir, name := t.TempDir(), volume.Name{VG: "vg0", LV: "a"}
			r, err := OpenRecords(dir, boot, up)
			if err != nil {
				t.Fatal(err)
			}
			if p := r.Problems(); len(p) > 0 {
				t.Errorf("problems: %q", p)
			}
			full := r.File("found") + ".tmp"
			if err := os.Mkdir(full, 0o700); err != nil { // no record can be written there
				t.Fatal(err)
			}
			if err := r.Seen("found", volume.Name{VG: "vg0", LV: "before"}, "ext4", 0); err == nil {
				t.Fatal("it was written")
			}
			if err := r.Renamed("found", name, false); err == nil {
				t.Fatal("it was written")
			}
			if p := r.Problems(); len(p) != 1 || !strings.Contains(p[0], r.File("found")+" cannot be written") {
				t.Errorf("problems: %q", p)
			}
			settled(t, r)
			if uuid, _, err := r.Named(name); uuid != "found" || err != nil {
				t.Errorf("its name belongs to %q, %v", uuid, err)
			}
			settled(t, r)
			if err := os.Remove(full); err != nil {
				t.Fatal(err)
			}
			look(r)
			settled(t, r)
			if p := r.Problems(); len(p) > 0 {
				t.Errorf("problems with space: %q", p)
			}
			next, err := OpenRecords(dir, boot, up)
			if err != nil {
				t.Fatal(err)
			}
			facts, err := next.Get("found")
			if err != nil || facts.State != volume.Seen || facts.Name != name {
				t.Errorf("after a restart: %+v, %v", facts, err)
			}
		})
	}
}

// The removal of a record takes effect at once, in any state of it.
func TestRecordRemoved(t *testing.T) {
	for _, seen := range []bool{false, true} {
		dir, name := t.TempDir(), volume.Name{VG: "vg0", LV: "a"}
		r, err := OpenRecords(dir, boot, up)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Formatting("a", name, "ext4"); err != nil {
			t.Fatal(err)
		}
		if seen {
			if err := r.Seen("a", name, "ext4", 0); err != nil {
				t.Fatal(err)
			}
			if err := r.Formatting("a", name, "ext4"); err == nil {
				t.Error("formatting replaces seen")
			}
		}
		if err := os.Remove(r.File("a")); err != nil {
			t.Fatal(err)
		}
		if got, _, err := state(r, "a"); got != volume.NoRecord || err != nil {
			t.Errorf("seen %v: %v, %v", seen, got, err)
		}
	}
}

// A name is found in the record that has it now. The records of other names are read once:
// a node may have had many volumes.
func TestRecordNamed(t *testing.T) {
	dir, name := t.TempDir(), func(lv string) volume.Name { return volume.Name{VG: "vg0", LV: lv} }
	for _, uuid := range []volume.UUID{"a", "b"} {
		r, err := OpenRecords(dir, boot, up)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Seen(uuid, name(string(uuid)), "ext4", 0); err != nil {
			t.Fatal(err)
		}
	}
	r, err := OpenRecords(dir, boot, up)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(lv string, want volume.UUID) {
		t.Helper()
		if got, _, err := r.Named(name(lv)); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", lv, got, err, want)
		}
	}
	if err := r.Formatting("c", name("c"), "ext4"); err != nil {
		t.Fatal(err)
	}
	verify("a", "a")
	verify("b", "b")
	verify("c", "") // not seen
	if err := r.Renamed("a", name("d"), false); err != nil {
		t.Fatal(err)
	}
	verify("a", "")
	verify("d", "a")
	// A copy: the original may be missing for a while.
	for _, now := range []string{"copy", "copy2"} {
		if err := r.Renamed("b", name(now), true); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for _, lv := range []string{"b", "copy", "copy2"} {
			verify(lv, "b")
		}
		if r, err = OpenRecords(dir, boot, up); err != nil {
			t.Fatal(err)
		}
	}
	other, err := OpenRecords(t.TempDir(), boot, up)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Seen("e", name("e"), "ext4", 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other.File("e"), r.File("e")); err != nil { // from a backup
		t.Fatal(err)
	}
	verify("e", "e")
	if err := os.WriteFile(r.File("b"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	verify("d", "a")
	if _, _, err := r.Named(name("none")); err == nil {
		t.Error("a damaged record is no answer")
	}
	if err := os.Remove(r.File("a")); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := r.Named(name("d")); got != "" {
		t.Errorf("removed: %q", got)
	}
}

// The names of a record are found while others are looked up.
func TestRecordNamedMeanwhile(t *testing.T) {
	r, err := OpenRecords(t.TempDir(), boot, up)
	if err != nil {
		t.Fatal(err)
	}
	name := func(i int) volume.Name { return volume.Name{VG: "vg0", LV: fmt.Sprint(i)} }
	if err := r.Seen("a", name(0), "ext4", 0); err != nil {
		t.Fatal(err)
	}
	end := make(chan struct{})
	var readers sync.WaitGroup
	defer readers.Wait()
	defer close(end)
	for range 4 {
		readers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-end:
					return
				default:
					_, _, _ = r.Named(name(i % 100))
				}
			}
		})
	}
	for i := 1; i < 100; i++ {
		if err := r.Renamed("a", name(i), false); err != nil {
			t.Fatal(err)
		}
		if uuid, _, err := r.Named(name(i)); uuid != "a" || err != nil {
			t.Fatalf("name %d: %q, %v", i, uuid, err)
		}
	}
}

// The audit and the volume's lane may write one record at the same time.
func TestRecordWriters(t *testing.T) {
	r, err := OpenRecords(t.TempDir(), boot, up)
	if err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for i := range 50 {
				if err := r.Seen("a", volume.Name{VG: "vg0", LV: fmt.Sprint(i)}, "ext4", 0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
}

// The mkfs of a record is repeated for a while only: by the boot clock in its own
// boot, by the wall clock after it.
func TestRecordLate(t *testing.T) {
	for _, row := range []struct {
		name   string
		boot   string
		uptime time.Duration
		at     time.Duration // before now
		late   bool
	}{
		{"this boot", boot, up() - time.Minute, time.Minute, false},
		{"this boot, wall clock set", boot, up() - time.Minute, 1000 * time.Hour, false},
		{"this boot, old", boot, up() - volume.RepeatWithin, time.Minute, true},
		{"earlier boot", "other", 9 * time.Hour, time.Minute, false},
		{"earlier boot, old", "other", 0, volume.RepeatWithin, true},
		{"earlier boot, from the future", "other", 0, -time.Hour, true},
		{"of a flexd that wrote no boot", "", 0, time.Minute, false},
		{"earlier boot, long ago by this one's clock", "other", 0, time.Minute, true},
	} {
		dir := t.TempDir()
		up := up
		if row.name == "earlier boot, long ago by this one's clock" {
			up = func() time.Duration { return volume.RepeatWithin }
		}
		r, err := OpenRecords(dir, boot, up)
		if err != nil {
			t.Fatal(err)
		}
		rec := Record{Version: noteVersion, UUID: "a", State: stateFormatting, FSType: "ext4", At: time.Now().Add(-row.at), Boot: row.boot, Uptime: row.uptime}
		if err := write(r.File("a"), &rec, true, nil); err != nil {
			t.Fatal(err)
		}
		if f, err := r.Get("a"); err != nil || f.State != volume.Formatting || (f.Late != "") != row.late {
			t.Errorf("%s: %+v, %v", row.name, f, err)
		}
	}
}

// A claim keeps the start of its call, and a note without one is read.
func TestClaim(t *testing.T) {
	for _, started := range []time.Duration{0, time.Hour} {
		dir := t.TempDir()
		s, err := Open(dir, boot)
		if err != nil {
			t.Fatal(err)
		}
		c := claim(volume.Held)
		c.Started = started
		if err := s.Put(c); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, claimFile(&c)))
		if err != nil || strings.Contains(string(data), "startedBootNanoseconds") != (started > 0) {
			t.Errorf("%v: %s, %v", started, data, err)
		}
		if s, err = Open(dir, boot); err != nil || len(s.All()) != 1 || s.All()[0].Started != started {
			t.Errorf("%v: %+v, %v", started, s, err)
		}
	}
}

func FuzzNote(f *testing.F) {
	c := claim(volume.Held)
	c.Version, c.Boot = noteVersion, boot
	seed, _ := json.Marshal(&c)
	f.Add(seed, true)
	c.Started = time.Hour
	seed, _ = json.Marshal(&c)
	f.Add(seed, true)
	l := Lease{Version: noteVersion, Boot: boot, VG: "vg0", LV: "a", UUID: "uuid-a"}
	seed, _ = json.Marshal(&l)
	f.Add(seed, false)
	f.Fuzz(func(t *testing.T, data []byte, isClaim bool) {
		if !isClaim {
			l := new(Lease)
			if parse(data, l, l.check, boot) == nil && (l.UUID == "" || l.Until < 0) {
				t.Errorf("took %q", data)
			}
			return
		}
		c := new(Claim)
		if parse(data, c, c.check, boot) != nil {
			return
		}
		if c.UUID == "" || !filepath.IsAbs(c.Dir) || c.Boot != boot || c.Started < 0 {
			t.Errorf("took %q", data)
		}
		if name := claimFile(c); filepath.Base(name) != name || len(name) > 200 {
			t.Errorf("%q is written to %q", data, name)
		}
	})
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"uuid":"u","state":"seen","fsType":"ext4","at":"2026-11-20T00:00:00Z","vg":"v","lv":"l"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r Record
		if parseRecord(data, &r) == nil && (r.Version != noteVersion || r.State != stateSeen && r.State != stateFormatting) {
			t.Errorf("took %q", data)
		}
	})
}
