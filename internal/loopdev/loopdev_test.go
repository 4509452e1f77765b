package loopdev

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// A fakeKernel has files and loop devices in maps.
type fakeKernel struct {
	files   map[string]FileInfo
	loops   []Loop
	space   Space
	spaces  map[string]Space // by path, instead of space
	err     error
	bad     map[string]error // files that cannot be read
	extents error            // of NeedsSpace
	scans   int
	asked   atomic.Int64 // how often File or Loop was called
}

func (k *fakeKernel) File(path string) (FileInfo, error) {
	k.asked.Add(1)
	return k.files[path], cmp.Or(k.bad[path], k.err)
}
func (k *fakeKernel) Space(path string) (Space, error) {
	return cmp.Or(k.spaces[path], k.space), k.err
}
func (k *fakeKernel) Loops() ([]Loop, error)               { k.scans++; return k.loops, k.err }
func (k *fakeKernel) Directory(dir string) (string, error) { return kernel{}.Directory(dir) }

func (k *fakeKernel) NeedsSpace(path string) (bool, error) {
	f := k.files[path]
	return f.Blocks < f.Size, cmp.Or(k.extents, k.err)
}

func (k *fakeKernel) Files(dir string) (names []string, err error) {
	for file := range k.files {
		if filepath.Dir(file) == dir {
			names = append(names, filepath.Base(file))
		}
	}
	return names, k.err
}
func (k *fakeKernel) Loop(name string) (Loop, error) {
	k.asked.Add(1)
	l, err := fakeLoop(k.loops, name)
	return l, cmp.Or(err, k.err)
}

func fakeLoop(loops []Loop, name string) (Loop, error) {
	for _, l := range loops {
		if l.Name == name || l.Number == name {
			return l, nil
		}
	}
	return Loop{}, fs.ErrNotExist
}

// A fakeRunner answers loop-identify for marked devices, and counts the calls.
type fakeRunner struct {
	answer string
	count  int
}

func (f *fakeRunner) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	f.count++
	if c.Mutates || c.Argv[2] != "loop-identify" {
		return run.Result{}, fmt.Errorf("a look started %v", c.Argv)
	}
	c.Line([]byte(f.answer))
	return run.Result{}, nil
}

const uuidA, uuidB = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa", "bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb"

// Ensure that names and files are classified: absent, ours, foreign, unknown.
func TestLookUp(t *testing.T) {
	k := &fakeKernel{files: map[string]FileInfo{
		"/no/vg0":       {Exists: true, Dir: true},
		"/no/vg0/a":     {Exists: true, Regular: true, Links: 1, UUID: uuidA, Size: 4096, Created: true},
		"/no/vg0/plain": {Exists: true, Regular: true, Links: 1, Size: 4096},
		"/no/vg0/link":  {Exists: true, Links: 1},
		"/no/vg0/two":   {Exists: true, Regular: true, Links: 2, UUID: uuidA},
		"/no/vg0/odd":   {Exists: true, Regular: true, Links: 1, UUID: "flexd:x\x00"},
		"/no/vg0/ro":    {Exists: true, Regular: true, Links: 1, UUID: uuidB, ReadOnly: true},
		"/no/file":      {Exists: true, Regular: true},
	}}
	p := New(map[string]string{"vg0": "/no/vg0", "vg1": "/no/vg1", "vg2": "/no/file"}, t.TempDir(), &fakeRunner{}, k)
	for _, row := range []struct {
		vg, lv string
		want   volume.Presence
		text   string // in the reason, or in the error if want is unknown
	}{
		{"vg0", "a", volume.Present, ""},
		{"vg0", "ro", volume.Present, ""},
		{"vg0", "none", volume.Absent, ""},
		{"vg0", "plain", volume.Foreign, "flexd uuid --new "},
		{"vg0", "link", volume.Foreign, "not a regular file"},
		{"vg0", "two", volume.Foreign, "2 hard links"},
		{"vg0", "odd", volume.Foreign, "not a uuid"},
		{"vg1", "a", volume.PresenceUnknown, "volume group vg1 not found"},
		{"vg2", "a", volume.PresenceUnknown, "not found"},
		{"vg9", "a", volume.PresenceUnknown, "not configured"},
		{"vg0", "../vg1/a", volume.PresenceUnknown, "not a valid volume name"},
		{"vg0", "..", volume.PresenceUnknown, "not a valid volume name"},
		{"vg0", ".flexd-new-a", volume.PresenceUnknown, "not a valid volume name"},
		{"vg0", "", volume.PresenceUnknown, "not a valid volume name"},
	} {
		got, err := p.LookUp(t.Context(), volume.Name{VG: row.vg, LV: row.lv})
		text := got.Reason
		if err != nil {
			text = err.Error()
		}
		if got.Presence != row.want || (err != nil) != (row.want == volume.PresenceUnknown) || !strings.Contains(text, row.text) {
			t.Errorf("%s/%s: got %+v, %v", row.vg, row.lv, got, err)
		}
		if row.want == volume.Foreign && got.UUID != "" {
			t.Errorf("%s/%s: a foreign file has the uuid %s", row.vg, row.lv, got.UUID)
		}
		if got.ReadOnly != (row.lv == "ro") || (got.Created != (row.lv == "a" && err == nil)) {
			t.Errorf("%s/%s: got %+v", row.vg, row.lv, got)
		}
	}
	k.err = errors.New("trouble")
	if got, err := p.LookUp(t.Context(), volume.Name{VG: "vg0", LV: "a"}); err == nil || got.Presence != volume.PresenceUnknown {
		t.Errorf("got %+v, %v", got, err)
	}
}

// Ensure that a volume's device is the one that flexd attached to this file, and that any other device on the
// file makes it unusable.
func TestDevice(t *testing.T) {
	lv := volume.LV{Presence: volume.Present, Size: 4096, Name: volume.Name{VG: "vg0", LV: "a"}, UUID: uuidA}
	loop := func(n int, deleted bool) Loop {
		return Loop{Name: fmt.Sprintf("loop%d", n), Number: fmt.Sprintf("7:%d", n), Seq: uint64(100 + n), BackingFile: "/no/vg0/a", Deleted: deleted, Size: 4096}
	}
	for _, row := range []struct {
		name     string
		loops    []Loop
		ids      map[uint64]volume.UUID
		want     volume.Activity
		unusable string
	}{
		{"none", nil, nil, volume.Inactive, ""},
		{"another file", []Loop{{Name: "loop1", BackingFile: "/no/vg0/aa", Seq: 101}}, nil, volume.Inactive, ""},
		{"ours", []Loop{loop(1, false)}, map[uint64]volume.UUID{101: uuidA}, volume.Active, ""},
		{"an operator's", []Loop{loop(1, false)}, map[uint64]volume.UUID{101: ""}, volume.Inactive, "/dev/loop1"},
		{"two", []Loop{loop(1, false), loop(2, false)}, map[uint64]volume.UUID{101: uuidA, 102: uuidA}, volume.Active, "both"},
		{"ours and an operator's", []Loop{loop(1, false), loop(2, false)}, map[uint64]volume.UUID{101: uuidA, 102: ""}, volume.Active, "/dev/loop2"},
		{"of a deleted file of that name", []Loop{loop(1, true)}, map[uint64]volume.UUID{101: uuidB}, volume.Inactive, ""},
		{"of a deleted file with our uuid", []Loop{loop(1, true)}, map[uint64]volume.UUID{101: uuidA}, volume.Active, "deleted"},
		{"another uuid", []Loop{loop(1, false)}, map[uint64]volume.UUID{101: uuidB}, volume.Inactive, uuidB},
	} {
		p := New(map[string]string{"vg0": "/no/vg0"}, t.TempDir(), &fakeRunner{}, &fakeKernel{loops: row.loops})
		for seq, id := range row.ids {
			p.remember(seq, identity{UUID: id})
		}
		got, err := p.Device(t.Context(), lv)
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
		}
		if got.Activity != row.want || got.Unusable != (row.unusable != "") || !strings.Contains(got.Reason, row.unusable) {
			t.Errorf("%s: got %+v", row.name, got)
		}
		if got.Activity == volume.Active && (got.Path != "/dev/loop1" || got.Number != "7:1" || got.Seq != 101 || got.Link != "") {
			t.Errorf("%s: got %+v", row.name, got)
		}
	}
}

// Ensure that a volume's device is identified by its file's inode and its uuid, whatever path the kernel
// shows in another mount namespace.
func TestDeviceByAnotherPath(t *testing.T) {
	dir, at := t.TempDir(), Inode{1, 2}
	file := filepath.Join(dir, "a")
	for _, shown := range []string{file, "/a", "(unreachable)/a", "/other/vg0/a"} {
		k := &fakeKernel{
			files: map[string]FileInfo{file: {Exists: true, Regular: true, Links: 1, Inode: at, UUID: uuidA, Size: 4096}},
			loops: []Loop{{Name: "loop1", Number: "7:1", Seq: 101, BackingFile: shown, Size: 4096}},
		}
		p := New(map[string]string{"vg0": dir}, t.TempDir(), &fakeRunner{}, k)
		p.remember(101, identity{uuidA, at})
		lv := volume.LV{Presence: volume.Present, Size: 4096, Name: volume.Name{VG: "vg0", LV: "a"}, UUID: uuidA, File: volume.File{Path: file, Dev: at.Dev, Ino: at.Ino}}
		for range 2 {
			if d, err := p.Device(t.Context(), lv); err != nil || d.Path != "/dev/loop1" || d.Unusable {
				t.Errorf("%s: got %+v, %v", shown, d, err)
			}
		}
		s := p.Survey(t.Context(), "vg0", true)
		if s.Metadata+s.Kernel != "" || len(s.Devices) != 1 || s.Devices[0].Name != "a" || s.Devices[0].UUID != uuidA || len(s.Devices[0].Rivals) > 0 {
			t.Errorf("%s: survey %+v", shown, s)
		}
		// One that is attached beside it is a rival, with the volume's path, too.
		k.loops = append(k.loops, Loop{Name: "loop2", Number: "7:2", Seq: 102, BackingFile: file, Size: 4096})
		p.remember(102, identity{"", at})
		if s = p.Survey(t.Context(), "vg0", true); len(s.Devices) == 0 || len(s.Devices[0].Rivals) != 1 {
			t.Errorf("%s: survey of two %+v", shown, s)
		}
	}
}

// Nodes in containers share the kernel's loop devices: a node may have a volume with the path of another
// node's.
func TestDeviceOfAnotherNode(t *testing.T) {
	dir, at := t.TempDir(), Inode{1, 2}
	file := filepath.Join(dir, "a")
	lv := volume.LV{Presence: volume.Present, Size: 4096, Name: volume.Name{VG: "vg0", LV: "a"}, UUID: uuidA, File: volume.File{Path: file, Dev: at.Dev, Ino: at.Ino}}
	for _, row := range []struct {
		name     string
		file     bool
		id       identity
		deleted  bool
		unusable bool
		devices  int
	}{
		{"another node's, of a volume with the same name", true, identity{uuidB, Inode{3, 2}}, false, false, 0},
		{"another node's, of a volume that this one lacks", false, identity{uuidB, Inode{3, 2}}, false, false, 0},
		{"of a deleted file", true, identity{uuidB, Inode{3, 2}}, true, false, 1},
		{"the same file, with another uuid", true, identity{uuidB, at}, false, true, 1},
		{"an operator's, perhaps before the filesystem was mounted again", true, identity{"", Inode{3, 2}}, false, true, 1},
	} {
		k := &fakeKernel{files: map[string]FileInfo{}, loops: []Loop{{Name: "loop1", Number: "7:1", Seq: 101, BackingFile: file, Deleted: row.deleted, Size: 4096}}}
		p := New(map[string]string{"vg0": dir}, t.TempDir(), &fakeRunner{}, k)
		p.remember(101, row.id)
		if row.file {
			k.files[file] = FileInfo{Exists: true, Regular: true, Links: 1, Inode: at, UUID: uuidA, Size: 4096}
			if d, err := p.Device(t.Context(), lv); err != nil || d.Activity != volume.Inactive || d.Unusable != row.unusable {
				t.Errorf("%s: got %+v, %v", row.name, d, err)
			}
		}
		if s := p.Survey(t.Context(), "vg0", true); s.Metadata+s.Kernel != "" || len(s.Devices) != row.devices {
			t.Errorf("%s: survey %+v", row.name, s)
		}
	}
}

// A scan can miss a device that is attached while it runs, and show a newer one: the missed device must not
// count as checked.
func TestChecked(t *testing.T) {
	dir, at := t.TempDir(), Inode{1, 2}
	file := filepath.Join(dir, "a")
	own := Loop{Name: "loop1", Number: "7:1", Seq: 101, BackingFile: file, Size: 4096}
	newer := Loop{Name: "loop3", Number: "7:3", Seq: 103, BackingFile: "/elsewhere/c"} // loop2 has 102
	k := &fakeKernel{files: map[string]FileInfo{file: {Exists: true, Regular: true, Links: 1, Inode: at, UUID: uuidA, Size: 4096}}}
	p := New(map[string]string{"vg0": dir}, t.TempDir(), &fakeRunner{}, k)
	p.remember(101, identity{uuidA, at})
	p.remember(103, identity{"", Inode{3, 2}})
	lv := volume.LV{Presence: volume.Present, Size: 4096, Name: volume.Name{VG: "vg0", LV: "a"}, UUID: uuidA, File: volume.File{Path: file, Dev: at.Dev, Ino: at.Ino}}
	for i, row := range []struct {
		loops   []Loop
		checked uint64
	}{{[]Loop{own}, 0}, {[]Loop{own, newer}, 101}, {[]Loop{own, newer}, 103}} {
		k.loops = row.loops
		clear(p.sole)
		if d, err := p.Device(t.Context(), lv); err != nil || d.Checked != row.checked {
			t.Errorf("scan %d: got %d, %v, want %d", i, d.Checked, err, row.checked)
		}
	}
}

// In a full directory writes to a file that needs space fail. A filesystem without blocks has no limit. A file
// whose extents cannot be read may need space.
func TestFullDirectory(t *testing.T) {
	dir, at := t.TempDir(), Inode{1, 2}
	for _, row := range []struct {
		name   string
		space  Space
		blocks int64
		err    error
		failed string
	}{
		{"holes", Space{Size: 1 << 30, Root: 1<<20 - 1}, 0, nil, "writes to the volume fail"},
		{"room that only root gets", Space{Size: 1 << 30, Root: 1 << 20}, 0, nil, ""},
		{"allocated", Space{Size: 1 << 30}, 4096, nil, ""},
		{"no limit", Space{}, 0, nil, ""},
		{"bad extents", Space{Size: 1 << 30}, 4096, unix.EIO, "is unknown: " + unix.EIO.Error()},
		{"hangs", Space{Size: 1 << 30}, 4096, &hangError{dir + "/a"}, "its filesystem hangs"},
		{"moved away", Space{Size: 1 << 30}, 4096, unix.ENOENT, ""},
	} {
		k := &fakeKernel{
			files: map[string]FileInfo{dir + "/a": {Exists: true, Regular: true, Links: 1, Inode: at, UUID: uuidA, Size: 4096, Blocks: row.blocks}},
			loops: []Loop{{Name: "loop1", Number: "7:1", Seq: 101, BackingFile: dir + "/a", Size: 4096}},
			space: row.space, extents: row.err,
		}
		p := New(map[string]string{"vg0": dir}, t.TempDir(), &fakeRunner{}, k)
		p.remember(101, identity{uuidA, at})
		if s := p.Survey(t.Context(), "vg0", true); len(s.Devices) != 1 || (s.Devices[0].Failed != "") != (row.failed != "") || !strings.Contains(s.Devices[0].Failed, row.failed) {
			t.Errorf("%s: got %+v", row.name, s)
		}
	}
}

// A file that is bound into the directory from another filesystem needs space of that one.
func TestFullBound(t *testing.T) {
	dir, at := t.TempDir(), Inode{2, 2}
	full, roomy := Space{Size: 1 << 30}, Space{Size: 1 << 30, Root: 1 << 29}
	for name, row := range map[string]struct{ dir, file Space }{
		"full":  {roomy, full},
		"roomy": {full, roomy},
	} {
		k := &fakeKernel{
			files:  map[string]FileInfo{dir: {Exists: true, Dir: true, Inode: Inode{1, 2}}, dir + "/a": {Exists: true, Regular: true, Links: 1, Inode: at, UUID: uuidA, Size: 4096}},
			loops:  []Loop{{Name: "loop1", Number: "7:1", Seq: 101, BackingFile: dir + "/a", Size: 4096}},
			spaces: map[string]Space{dir: row.dir, dir + "/a": row.file},
		}
		p := New(map[string]string{"vg0": dir}, t.TempDir(), &fakeRunner{}, k)
		p.remember(101, identity{uuidA, at})
		if s := p.Survey(t.Context(), "vg0", true); len(s.Devices) != 1 || strings.Contains(s.Devices[0].Failed, "the filesystem of "+dir+"/a is full") != (row.file == full) {
			t.Errorf("%s: got %+v", name, s)
		}
	}
}

// A damaged file, and a mount without its server, hide no other volume of their group.
func TestUnreadFile(t *testing.T) {
	dir := t.TempDir()
	k := &fakeKernel{
		files: map[string]FileInfo{dir + "/a": {Exists: true, Regular: true, Links: 1, UUID: uuidA, Size: 4096}, dir + "/bad": {}},
		bad:   map[string]error{dir + "/bad": unix.EBADMSG},
	}
	p := New(map[string]string{"vg0": dir}, t.TempDir(), &fakeRunner{}, k)
	s := p.Survey(t.Context(), "vg0", true)
	if s.Metadata+s.Kernel != "" || len(s.Volumes) != 1 || len(s.Unread) != 1 || !strings.Contains(s.Unread["bad"], "vg0/bad: "+unix.EBADMSG.Error()) {
		t.Errorf("got %+v", s)
	}
}

// The survey reports why the file of a device in use is not a volume any more, with the remedy.
func TestRefusedInUse(t *testing.T) {
	dir, at := t.TempDir(), Inode{1, 2}
	for _, row := range []struct {
		info FileInfo
		why  string
	}{
		{FileInfo{UUID: uuidA, Links: 2}, "2 hard links"},
		{FileInfo{UUID: "", Links: 1}, "setfattr -n trusted.flexd.uuid -v " + uuidA + " " + dir + "/a"},
		{FileInfo{UUID: "garbage", Links: 1}, "setfattr -n trusted.flexd.uuid -v " + uuidA + " " + dir + "/a"},
	} {
		row.info.Exists, row.info.Regular, row.info.Inode, row.info.Size = true, true, at, 4096
		k := &fakeKernel{files: map[string]FileInfo{dir + "/a": row.info}, loops: []Loop{{Name: "loop1", Number: "7:1", Seq: 101, BackingFile: dir + "/a", Size: 4096}}}
		p := New(map[string]string{"vg0": dir}, t.TempDir(), &fakeRunner{}, k)
		p.remember(101, identity{uuidA, at})
		if s := p.Survey(t.Context(), "vg0", true); len(s.Volumes) > 0 || len(s.Devices) != 1 || !strings.Contains(s.Refused[uuidA], row.why) {
			t.Errorf("%+v: got %+v", row.info, s)
		}
	}
}

// Ensure that the device of a deleted file is found, so that it can be released, and that a new file of the same
// name is refused until then.
func TestDeviceOfDeletedFile(t *testing.T) {
	k := &fakeKernel{loops: []Loop{
		{Name: "loop1", Number: "7:1", Seq: 101, BackingFile: "/no/vg0/a", Size: 4096},
		{Name: "loop2", Number: "7:2", Seq: 102, BackingFile: "/no/vg0/a", Size: 4096, Deleted: true},
	}}
	p := New(map[string]string{"vg0": "/no/vg0"}, t.TempDir(), &fakeRunner{}, k)
	p.remember(101, identity{UUID: uuidB})
	p.remember(102, identity{UUID: uuidA})
	lv := volume.LV{Presence: volume.Absent, Name: volume.Name{VG: "vg0", LV: "a"}, UUID: uuidA}
	for range 2 {
		if d, err := p.Device(t.Context(), lv); err != nil || d.Activity != volume.Active || d.Path != "/dev/loop2" || d.Unusable {
			t.Errorf("got %+v, %v", d, err)
		}
	}
	lv = volume.LV{Presence: volume.Present, Size: 4096, Name: lv.Name, UUID: uuidB}
	if d, err := p.Device(t.Context(), lv); err != nil || d.Path != "/dev/loop1" || !strings.Contains(d.Reason, "/dev/loop2 still has a deleted file with that name") {
		t.Errorf("the new one: got %+v, %v", d, err)
	}
	// A file with that uuid took its place, as a restored backup does.
	lv.UUID = uuidA
	k.files = map[string]FileInfo{"/no/vg0/a": {Exists: true, Regular: true, Links: 1, Inode: Inode{1, 3}, UUID: uuidA, Size: 4096}}
	k.loops = k.loops[1:]
	lv.File = volume.File{Path: "/no/vg0/a", Dev: 1, Ino: 3}
	if d, err := p.Device(t.Context(), lv); err != nil || !d.Unusable || !strings.Contains(d.Reason, "only in /dev/loop2") || !strings.Contains(d.Reason, " ] && cp --sparse=always /dev/loop2 /no/vg0/a-rescued-") {
		t.Errorf("replaced: got %+v, %v", d, err)
	}
}

// Ensure that devices with an unknown identity cost one child, once, and that a device that cannot be
// identified is an error.
func TestIdentityIsAskedOnce(t *testing.T) {
	k := &fakeKernel{loops: []Loop{
		{Name: "loop1", Number: "7:1", Seq: 11, BackingFile: "/no/vg0/a"},
		{Name: "loop2", Number: "7:2", Seq: 12, BackingFile: "/no/vg0/b", Deleted: true},
		{Name: "loop3", Number: "7:3", Seq: 13, BackingFile: "/elsewhere/c"},
		{Name: "loop4", Number: "7:4", Seq: 14},
	}}
	r := &fakeRunner{answer: fmt.Sprintf(`{"value":[{"seq":11,"uuid":%q},{"seq":12,"uuid":%q},{"seq":13}]}`, uuidA, uuidB)}
	p := New(map[string]string{"vg0": "/no/vg0"}, t.TempDir(), r, k)
	for _, row := range []struct {
		number string
		uuid   volume.UUID
		lv     string
	}{
		{"7:1", uuidA, "a"},
		{"7:2", uuidB, "b"},
		{"7:3", "", ""},
		{"7:4", "", ""},
		{"7:9", "", ""},
		{"253:1", "", ""},
	} {
		id, err := p.Identify(t.Context(), row.number)
		if err != nil || id.UUID != row.uuid || id.Name.LV != row.lv {
			t.Errorf("%s: got %+v, %v", row.number, id, err)
		}
	}
	if r.count != 1 {
		t.Errorf("children: got %d, want 1", r.count)
	}
	k.loops[0].Seq = 99 // attached anew
	if id, err := p.Identify(t.Context(), "7:1"); err == nil || id.UUID != "" {
		t.Errorf("got %+v, %v", id, err)
	}
}

// Ensure that a link is made and repaired, and removed only if it leads to the device.
func TestLink(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "vg0", "a")
	for _, path := range []string{"/dev/loop1", "/dev/loop1", "/dev/loop2"} {
		if err := makeLink(link, path); err != nil || !leadsTo(link, path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	p := New(nil, dir, &fakeRunner{}, &fakeKernel{})
	lv := volume.LV{Name: volume.Name{VG: "vg0", LV: "a"}, UUID: uuidA}
	if err := p.Deactivate(t.Context(), "", lv, volume.Device{Activity: volume.Inactive, Path: "/dev/loop1"}); err != nil || !leadsTo(link, "/dev/loop2") {
		t.Errorf("the link of another device is gone: %v", err)
	}
	if err := p.Deactivate(t.Context(), "", lv, volume.Device{Activity: volume.Inactive}); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(link); err == nil {
		t.Error("the link is still there")
	}
}

// The last volume of a group is removed with the directory of its link, while another one is added.
func TestLinksComeAndGo(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 4 {
		link := filepath.Join(dir, "vg0", fmt.Sprint("lv", i))
		all.Go(func() {
			for range 2000 {
				if err := makeLink(link, "/dev/loop0"); err != nil {
					t.Error(err)
					return
				}
				if err := removeLink(link); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// A hungRunner is a child that prints the answers of devices as they arrive. A device without an answer is
// silent; when it is released it gets its answer in late. A device with the answer "-" is not asked.
type hungRunner struct {
	released chan struct{}
	answers  map[string]string // by device
	late     map[string]string
	err      error         // how the child ends, with nothing printed
	slow     time.Duration // until the child asks
	children int32         // atomic
}

func (h *hungRunner) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	atomic.AddInt32(&h.children, 1)
	var arg identifyArg
	_ = json.Unmarshal([]byte(c.Argv[3]), &arg)
	if h.err != nil {
		return run.Result{}, h.err
	}
	if h.slow > c.Deadline {
		time.Sleep(c.Deadline)
		return run.Result{}, &run.ExitError{Step: c.Step, Err: context.DeadlineExceeded}
	}
	time.Sleep(h.slow)
	begin := time.Now()
	var silent []string
	for _, name := range arg.Names {
		if a := h.answers[name]; a == "-" {
			continue
		} else if a != "" {
			c.Line([]byte(`{"value":[` + a + `]}`))
		} else {
			silent = append(silent, name)
		}
	}
	if len(silent) == 0 {
		return run.Result{}, nil
	}
	select {
	case <-h.released:
		for _, name := range silent {
			c.Line([]byte(`{"value":[` + h.late[name] + `]}`))
		}
		return run.Result{}, nil
	case <-time.After(answerTimeout):
	}
	for _, name := range silent {
		c.Line(fmt.Appendf(nil, `{"value":[{"seq":1%s,"silent":true}]}`, name[4:]))
	}
	time.Sleep(time.Until(begin.Add(c.Deadline)))
	return run.Result{}, &run.StuckError{Step: c.Step, Done: h.released}
}

// A device that was not asked does not count as checked: it may be attached to the volume's file.
func TestUnasked(t *testing.T) {
	own, rival := fmt.Sprintf(`{"seq":11,"uuid":%q,"dev":1,"ino":2}`, uuidA), `{"seq":13,"dev":1,"ino":2}`
	for _, row := range []struct {
		name     string
		runner   hungRunner
		checked  uint64
		unusable bool
		took     time.Duration
	}{
		{"a silent device before it", hungRunner{answers: map[string]string{"loop1": own, "loop3": rival}}, 13, true, answerTimeout},
		{"a silent device alone", hungRunner{answers: map[string]string{"loop1": own, "loop3": `{"seq":13,"dev":1,"ino":3}`}}, 13, false, answerTimeout},
		{"a silent device delays it", hungRunner{answers: map[string]string{"loop1": own, "loop3": "-"}}, 12, false, 10 * time.Second},
		{"the child fails", hungRunner{err: unix.EAGAIN}, 10, false, 0},
		{"the child is slow", hungRunner{answers: map[string]string{"loop1": own, "loop3": rival}, slow: 4 * time.Second}, 13, true, 4*time.Second + answerTimeout},
		{"the child does not ask", hungRunner{answers: map[string]string{"loop1": own}, slow: time.Hour}, 10, false, 12 * time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &fakeKernel{loops: []Loop{
					{Name: "loop1", Number: "7:1", Seq: 11, BackingFile: "/no/vg0/a", Size: 4096},
					{Name: "loop2", Number: "7:2", Seq: 12, BackingFile: "/dead/server/image"},
					{Name: "loop3", Number: "7:3", Seq: 13, BackingFile: "/srv/disk.img"},
				}, files: map[string]FileInfo{"/no/vg0/a": {Exists: true, Regular: true, Inode: Inode{1, 2}}}}
				row.runner.released = make(chan struct{})
				p := New(map[string]string{"vg0": "/no/vg0"}, t.TempDir(), &row.runner, k)
				p.newest = 13
				begin := time.Now()
				s, err := p.look(t.Context())
				if err != nil || s.checked != row.checked || len(s.byInode[Inode{1, 2}]) == 2 != row.unusable || time.Since(begin) > row.took+10*time.Millisecond {
					t.Errorf("after %v: checked up to %d, %v, %v", time.Since(begin), s.checked, s.byInode, err)
				}
				close(row.runner.released)
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// The child that attaches a volume's file identifies the devices that flexd could not.
func TestUnaskedActivate(t *testing.T) {
	k := &fakeKernel{loops: []Loop{{Name: "loop3", Number: "7:3", Seq: 13, BackingFile: "/srv/disk.img"}},
		files: map[string]FileInfo{"/no/vg0/a": {Exists: true, Regular: true, Inode: Inode{1, 2}}}}
	for _, row := range []struct {
		err   error
		after uint64
	}{{unix.EAGAIN, 12}, {nil, 13}} {
		r := &attachRunner{err: row.err}
		p := New(map[string]string{"vg0": "/no/vg0"}, t.TempDir(), r, k)
		p.newest = 13
		lv := volume.LV{Presence: volume.Present, Size: 4096, Name: volume.Name{VG: "vg0", LV: "a"}, UUID: uuidA}
		if err := p.Activate(t.Context(), "", lv); !errors.Is(err, unix.ENOSPC) || r.arg.After != row.after {
			t.Errorf("%v: got %+v, %v", row.err, r.arg, err)
		}
	}
}

// An attachRunner identifies loop3, or returns err, and refuses an attach.
type attachRunner struct {
	err error
	arg attachArg
}

func (r *attachRunner) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	if c.Argv[2] == "loop-attach" {
		return run.Result{}, cmp.Or(json.Unmarshal([]byte(c.Argv[3]), &r.arg), error(unix.ENOSPC))
	}
	if r.err == nil {
		c.Line([]byte(`{"value":[{"seq":13,"dev":9,"ino":9}]}`))
	}
	return run.Result{}, r.err
}

// A device that does not answer delays only one look, and no further child is started for it. When it
// answers, it counts.
func TestHungDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{loops: []Loop{
			{Name: "loop1", Number: "7:1", Seq: 11, BackingFile: "/no/vg0/a", Size: 4096},
			{Name: "loop2", Number: "7:2", Seq: 12, BackingFile: "/dead/server/image"},
		}, files: map[string]FileInfo{"/no/vg0/a": {Exists: true, Regular: true, Inode: Inode{1, 2}}}}
		r := &hungRunner{released: make(chan struct{}),
			answers: map[string]string{"loop1": fmt.Sprintf(`{"seq":11,"uuid":%q,"dev":1,"ino":2}`, uuidA)},
			late:    map[string]string{"loop2": `{"seq":12,"dev":1,"ino":2}`}}
		p := New(map[string]string{"vg0": "/no/vg0"}, t.TempDir(), r, k)
		lv := volume.LV{Presence: volume.Present, Size: 4096, Name: volume.Name{VG: "vg0", LV: "a"}, UUID: uuidA}
		for i, limit := 0, answerTimeout; i < 300; i, limit = i+1, 2*time.Millisecond {
			begin := time.Now()
			if d, err := p.Device(t.Context(), lv); err != nil || d.Activity != volume.Active || d.Unusable {
				t.Fatalf("got %+v, %v", d, err)
			}
			if took := time.Since(begin); took > limit {
				t.Fatalf("look %d: after %v", i, took)
			}
		}
		time.Sleep(time.Hour)
		if _, err := p.Device(t.Context(), lv); err != nil || atomic.LoadInt32(&r.children) != 2 {
			t.Errorf("%d children, %v", r.children, err)
		}
		close(r.released)
		time.Sleep(2 * retryPause)
		for range 2 { // the first has it asked again
			p.Device(t.Context(), lv)
			time.Sleep(time.Second)
		}
		if d, err := p.Device(t.Context(), lv); err != nil || !d.Unusable || !strings.Contains(d.Reason, "/dev/loop2 is attached to the same file") {
			t.Errorf("got %+v, %v", d, err)
		}
	})
}

// A device of flexd whose path shows another file, and whose filesystem hangs, is asked once whether its file was
// deleted, and again only when that child has ended. Until then that is unknown, and the device is kept.
func TestHidingDeviceHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file, at := dir+"/a", Inode{1, 3}
		k := &fakeKernel{
			loops: []Loop{{Name: "loop1", Number: "7:1", Seq: 11, BackingFile: file, Size: 4096}},
			files: map[string]FileInfo{file: {Exists: true, Regular: true, Links: 1, Inode: at, UUID: uuidB, Size: 4096}},
		}
		r := &hungRunner{released: make(chan struct{}), late: map[string]string{"loop1": fmt.Sprintf(`{"seq":11,"uuid":%q,"ino":2}`, uuidA)}}
		p := New(map[string]string{"vg0": dir}, t.TempDir(), r, k)
		p.remember(11, identity{uuidA, Inode{1, 2}})
		p.saveAgain(11)
		lv := volume.LV{Presence: volume.Present, Size: 4096, Name: volume.Name{VG: "vg0", LV: "a"}, UUID: uuidB}
		unknown := "/dev/loop1 may have a deleted file, of the volume " + uuidA
		for i, limit := 0, answerTimeout; i < 300; i, limit = i+1, 2*time.Millisecond {
			begin := time.Now()
			d, err := p.Device(t.Context(), lv)
			if err != nil || !strings.Contains(d.Reason, unknown) {
				t.Fatalf("got %+v, %v", d, err)
			}
			if found := fmt.Sprint(join.Findings(join.Group{Name: "vg0", Survey: p.Survey(t.Context(), "vg0", true)})); !strings.Contains(found, unknown) {
				t.Fatalf("check: %s", found)
			}
			if took := time.Since(begin); took > limit+time.Millisecond {
				t.Fatalf("look %d: after %v", i, took)
			}
			time.Sleep(time.Second)
		}
		for _, present := range []volume.Presence{volume.Absent, volume.Present} {
			former := volume.LV{Presence: present, Name: lv.Name, UUID: uuidA}
			if err := p.Deactivate(t.Context(), "", former, volume.Device{Activity: volume.Active, Path: "/dev/loop1", Seq: 11}); err == nil || !strings.Contains(err.Error(), unknown) {
				t.Errorf("deactivate: %v", err)
			}
		}
		k.files[file] = FileInfo{Exists: true, Regular: true, Links: 1, Inode: at, UUID: uuidA, Size: 4096} // a snapshot that was restored
		if d, err := p.Device(t.Context(), volume.LV{Presence: volume.Present, Size: 4096, Name: lv.Name, UUID: uuidA}); err != nil || !strings.Contains(d.Reason, unknown) {
			t.Errorf("got %+v, %v", d, err)
		}
		k.files[file] = FileInfo{Exists: true, Regular: true, Links: 1, Inode: at, UUID: uuidB, Size: 4096}
		if atomic.LoadInt32(&r.children) != 1 {
			t.Errorf("%d children", r.children)
		}
		close(r.released)
		time.Sleep(2 * retryPause)
		for range 2 { // the first has it asked again
			p.Device(t.Context(), lv)
			time.Sleep(time.Second)
		}
		if d, err := p.Device(t.Context(), lv); err != nil || !strings.Contains(d.Reason, "/dev/loop1 still has a deleted file") || atomic.LoadInt32(&r.children) != 2 {
			t.Errorf("got %+v, %v, after %d children", d, err, r.children)
		}
	})
}

// A changingRunner is a child during which other programs attach a device anew, some times.
type changingRunner struct {
	k     *fakeKernel
	times int
}

func (r *changingRunner) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	l := &r.k.loops[0]
	if r.times == 0 {
		c.Line(fmt.Appendf(nil, `{"value":[{"seq":%d,"dev":1,"ino":2}]}`, l.Seq))
		return run.Result{}, nil
	}
	r.times--
	l.Seq++
	c.Line(fmt.Appendf(nil, `{"value":[{"seq":%d,"silent":true}]}`, l.Seq-1))
	return run.Result{}, nil
}

// The stale link of a volume leads to a device that other programs attach again and again: it is looked at again,
// since it may have the volume's file by then, but not forever.
func TestDeviceOfOthersChanges(t *testing.T) {
	const file = "/no/vg0/a"
	lv := volume.LV{Presence: volume.Present, Size: 4096, Name: volume.Name{VG: "vg0", LV: "a"}, UUID: uuidA, File: volume.File{Path: file, Dev: 1, Ino: 2}}
	for _, row := range []struct {
		times    int
		unusable bool
	}{{0, true}, {1, true}, {2, true}, {1000, false}} {
		k := &fakeKernel{loops: []Loop{{Name: "loop1", Number: "7:1", Seq: 11, BackingFile: "/other", Size: 4096}}}
		r := &changingRunner{k, row.times}
		p := New(map[string]string{"vg0": "/no/vg0"}, t.TempDir(), r, k)
		if err := makeLink(p.link(lv.Name), "/dev/loop1"); err != nil {
			t.Fatal(err)
		}
		d, err := p.Device(t.Context(), lv)
		if err != nil || d.Activity != volume.Inactive || d.Unusable != row.unusable {
			t.Errorf("%d times: got %+v, %v", row.times, d, err)
		}
		if id, err := p.Identify(t.Context(), "7:1"); id.UUID != "" || err != nil {
			t.Errorf("%d times: got %+v, %v", row.times, id, err)
		}
		if r.times > 0 && r.times < 980 {
			t.Errorf("%d children", 1000-r.times)
		}
	}
}

// A failingKernel cannot read a device at each second look.
type failingKernel struct {
	*fakeKernel
	looks int
}

func (k *failingKernel) Loop(name string) (Loop, error) {
	if k.looks++; k.looks%2 == 0 {
		return Loop{}, unix.EMFILE
	}
	return k.fakeKernel.Loop(name)
}

// A file on the filesystem of a disk is in no btrfs subvolume: it is below a later mount, and its device is not asked.
func TestHiddenOnDisk(t *testing.T) {
	dir, r := t.TempDir(), &countingRunner{}
	k := &fakeKernel{loops: []Loop{{Name: "loop1", Number: "7:1", Seq: 11, BackingFile: dir + "/a", Size: 4096}}}
	p := New(map[string]string{"vg0": dir}, t.TempDir(), r, k)
	p.remember(11, identity{uuidA, Inode{unix.Mkdev(8, 1), 2}})
	p.saveAgain(11)
	if l := p.askDeleted(t.Context(), k.loops[0]); l.Deleted || l.Silent || r.children != 0 {
		t.Errorf("got %+v, after %d children", l, r.children)
	}
}

// A device that cannot be read is not one that changes again and again.
func TestUnreadDevice(t *testing.T) {
	const file = "/no/vg0/a"
	f := &fakeKernel{loops: []Loop{{Name: "loop1", Number: "7:1", Seq: 11, BackingFile: file, Size: 4096}}}
	p := New(map[string]string{"vg0": "/no/vg0"}, t.TempDir(), silentRunner{}, &failingKernel{fakeKernel: f})
	if id, err := p.Identify(t.Context(), "7:1"); !errors.Is(err, unix.EMFILE) {
		t.Errorf("got %+v, %v", id, err)
	}
	lv := volume.LV{Presence: volume.Present, Size: 4096, Name: volume.Name{VG: "vg0", LV: "a"}, UUID: uuidA, File: volume.File{Path: file, Dev: 1, Ino: 2}}
	if d, err := p.Device(t.Context(), lv); !errors.Is(err, unix.EMFILE) {
		t.Errorf("got %+v, %v", d, err)
	}
}

// A silentRunner is a child to which the device does not answer.
type silentRunner struct{}

func (silentRunner) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	c.Line([]byte(`{"value":[{"seq":11,"silent":true}]}`))
	return run.Result{}, nil
}

// A countingRunner is a child that finds no change of any device.
type countingRunner struct{ children int }

func (r *countingRunner) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	r.children++
	var all []identified
	for i := range 20 {
		all = append(all, identified{Seq: uint64(100 + i), identity: hiddenID(i)})
	}
	line, err := json.Marshal(map[string]any{"value": all})
	c.Line(line)
	return run.Result{}, err
}

func hiddenID(i int) identity {
	return identity{volume.UUID(fmt.Sprintf("aaaaaaaa-aaaa-4aaa-8aaa-%012d", i)), Inode{1, uint64(i + 2)}}
}

// A survey asks all devices whose paths do not show their files in one child, and none whose path cannot be read.
func TestSurveyOfHiddenFiles(t *testing.T) {
	dir := t.TempDir()
	for _, hangs := range []bool{false, true} {
		k := &fakeKernel{files: map[string]FileInfo{}, bad: map[string]error{}}
		r := &countingRunner{}
		p := New(map[string]string{"vg0": dir}, t.TempDir(), r, k)
		for i := range 20 {
			file := fmt.Sprintf("%s/v%d", dir, i)
			k.loops = append(k.loops, Loop{Name: fmt.Sprint("loop", i), Number: fmt.Sprint("7:", i), Seq: uint64(100 + i), BackingFile: file, Size: 4096})
			if k.files[file] = (FileInfo{}); hangs {
				k.bad[file] = &hangError{file}
			}
			p.remember(uint64(100+i), hiddenID(i))
			p.saveAgain(uint64(100 + i))
		}
		want := map[bool]int{false: 1, true: 0}[hangs]
		if p.Survey(t.Context(), "vg0", true); r.children != want {
			t.Errorf("hangs %v: %d children", hangs, r.children)
		}
		before := k.asked.Load()
		if p.askHidden(t.Context(), k.loops); hangs && k.asked.Load()-before > maxHung { // each takes seconds
			t.Errorf("%d paths are read", k.asked.Load()-before)
		}
		p.mu.Lock()
		for _, l := range k.loops {
			p.asked[l.Seq] = &question{loop: l, silent: true}
		}
		p.mu.Unlock()
		p.dirs["vg1"] = t.TempDir()
		before = k.asked.Load()
		if p.Survey(t.Context(), "vg1", false); k.asked.Load() > before {
			t.Errorf("hangs %v: %d paths of another group are read", hangs, k.asked.Load()-before)
		}
	}
}

// Concurrent looks at volumes share scans.
func TestScanShared(t *testing.T) {
	const n = 200
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{files: map[string]FileInfo{}}
		p := New(map[string]string{"vg0": "/no/vg0"}, t.TempDir(), &fakeRunner{}, k)
		var all []volume.LV
		for i := range n {
			lv := volume.LV{Presence: volume.Present, Size: 4096, Name: volume.Name{VG: "vg0", LV: fmt.Sprint("lv", i)}, UUID: volume.UUID(fmt.Sprintf("%08d", i))}
			file, at := "/no/vg0/"+lv.Name.LV, Inode{1, uint64(i + 1)}
			k.files[file] = FileInfo{Exists: true, Regular: true, Inode: at}
			k.loops = append(k.loops, Loop{Name: fmt.Sprint("loop", i), Seq: uint64(i + 1), BackingFile: file, Size: 4096})
			p.remember(uint64(i+1), identity{UUID: lv.UUID, Inode: at})
			all = append(all, lv)
		}
		look := func(lv volume.LV) {
			if d, err := p.Device(t.Context(), lv); err != nil || d.Activity != volume.Active || d.Unusable {
				t.Errorf("got %+v, %v", d, err)
			}
		}
		var wait sync.WaitGroup
		for _, lv := range all {
			wait.Go(func() { look(lv) })
		}
		wait.Wait()
		if k.scans > n/10 {
			t.Errorf("%d scans for %d volumes", k.scans, n)
		}
	})
}

// Ensure that a look at a volume reads its file and its device once, and that an activation reads the file
// again.
func TestRequestsPerLook(t *testing.T) {
	file, disk := "/no/vg0/a", unix.Mkdev(8, 1)
	k := &fakeKernel{
		files: map[string]FileInfo{"/no/vg0": {Exists: true, Dir: true}, file: {Exists: true, Regular: true, Links: 1, Inode: Inode{disk, 2}, UUID: uuidA, Size: 4096}},
		loops: []Loop{{Name: "loop1", Number: "7:1", Seq: 11, BackingFile: file, Size: 4096}},
	}
	p := New(map[string]string{"vg0": "/no/vg0"}, t.TempDir(), &fakeRunner{}, k)
	p.remember(11, identity{UUID: uuidA, Inode: Inode{disk, 2}})
	var lv volume.LV
	for range 2 {
		k.asked.Store(0)
		var err error
		if lv, err = p.LookUp(t.Context(), volume.Name{VG: "vg0", LV: "a"}); err != nil {
			t.Fatal(err)
		}
		if d, err := p.Device(t.Context(), lv); err != nil || d.Activity != volume.Active || d.Unusable {
			t.Fatalf("got %+v, %v", d, err)
		}
	}
	if k.asked.Load() != 2 || k.scans != 1 {
		t.Errorf("%d requests for what is known and %d scans", k.asked.Load(), k.scans)
	}
	// Another file has the name by now.
	k.files[file] = FileInfo{Exists: true, Regular: true, Links: 1, Inode: Inode{disk, 3}, UUID: uuidA, Size: 4096}
	if err := p.Activate(t.Context(), "", lv); err == nil || !strings.Contains(err.Error(), "another file with the path") {
		t.Errorf("got %v", err)
	}
}
