package mount

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/host"
)

// The filesystems with their minimal device sizes.
var types = []struct {
	name string
	size int64
}{
	{"ext4", 64 * mib},
	{"xfs", 320 * mib},
	{"btrfs", 128 * mib},
}

// Ensure that each filesystem is probed as blank, made, found, mounted, seen mounted, grown, unmounted and
// checked.
func TestWholeWay(t *testing.T) {
	for _, fs := range types {
		t.Run(fs.name, func(t *testing.T) {
			need(t, "mkfs."+fs.name)
			r := newRig(t, fs.size)
			if got := r.probe(""); got.Content != volume.Blank {
				t.Fatalf("new device: got %+v", got)
			}
			r.format(fs.name)
			got := r.probe("")
			if got.Content != volume.Filesystem || got.Type != fs.name || got.What != "" || got.Size > fs.size || got.Size < fs.size*9/10 {
				t.Fatalf("made: got %+v", got)
			}
			if err := r.Check(t.Context(), r.lock, r.dev, fs.name); err != nil {
				t.Fatal(err)
			}
			dir := r.mkdir("m")
			r.mount(r.spec(dir))
			if err := os.WriteFile(dir+"/file", []byte("hello"), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := r.probe(dir); got.Content != volume.Filesystem || got.Type != fs.name || got.Size > fs.size || got.Size < fs.size*9/10 {
				t.Errorf("mounted: got %+v", got)
			}

			// Grow, through a read-only mount: the superblock is what grows.
			ro := r.mkdir("ro")
			l := MountSpec{Device: r.dev, FSType: fs.name, Dir: ro, ReadOnly: true}
			r.mount(l)
			if err := os.WriteFile(ro+"/x", nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("write through the read-only mount: %v", err)
			}
			grown := 2*fs.size + 4*mib
			r.resize(grown)
			for range 2 { // the second has nothing to do
				err := r.Grow(t.Context(), r.lock, r.dev, fs.name, ro)
				if fs.name == "ext4" && !host.GrowsExt4() {
					if err == nil || !strings.Contains(err.Error(), "CAP_SYS_RESOURCE") {
						t.Errorf("got %v", err)
					}
					grown = fs.size
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if got := r.probe(ro); got.Size > grown || got.Size < grown*9/10 {
				t.Errorf("grown: got %+v", got)
			}

			if got := len(r.mounts()); got != 2 {
				t.Errorf("mounts: got %d, want 2", got)
			}
			r.unmount(ro)
			r.unmount(dir)
			if got := r.mounts(); len(got) != 0 {
				t.Errorf("still mounted: %v", got)
			}
			if got := r.probe(""); got.Content != volume.Filesystem || got.Size < grown*9/10 {
				t.Errorf("after: got %+v", got)
			}
			if err := r.Check(t.Context(), r.lock, r.dev, fs.name); err != nil {
				t.Error(err)
			}
		})
	}
}

// Ensure that nothing is done to another device than the observed one.
func TestChangedDevice(t *testing.T) {
	r := newRig(t, 64*mib)
	before := r.written()
	for _, change := range []func(*volume.Device){
		func(d *volume.Device) { d.Seq++ },
		func(d *volume.Device) { d.Number = "7:1048575" },
		func(d *volume.Device) { d.Path = "/dev/null" },
		func(d *volume.Device) { d.Path = "/dev/no-such-device" },
	} {
		d := r.dev
		change(&d)
		if _, err := r.Probe(t.Context(), r.lock, d, "", created, ""); !errors.Is(err, ErrChanged) {
			t.Errorf("probe: got %v", err)
		}
		if err := r.Format(t.Context(), r.lock, Formatting{Device: d, Type: "ext4"}, yes); !errors.Is(err, ErrChanged) {
			t.Errorf("format: got %v", err)
		}
		if err := r.Mount(t.Context(), r.lock, MountSpec{Device: d, FSType: "ext4", Dir: r.mkdir("m")}, yes); !errors.Is(err, ErrChanged) {
			t.Errorf("mount: got %v", err)
		}
	}
	if got := r.written(); got != before {
		t.Errorf("%s, before: %s", got, before)
	}
}

// Ensure that a device in use is not formatted, and that its user is named.
func TestFormatBusy(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m")
	r.mount(r.spec(dir))
	err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4", Repeat: true}, yes)
	var busy *BusyError
	if !errors.As(err, &busy) || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
	r.unmount(dir)
}

// Ensure that a read-only device is mounted unchanged, even beside its origin, and refused if its journal
// must be replayed.
func TestReadOnlyDevice(t *testing.T) {
	for _, fs := range types {
		t.Run(fs.name, func(t *testing.T) {
			need(t, "mkfs."+fs.name)
			origin := newRig(t, fs.size)
			origin.format(fs.name)
			at := origin.mkdir("m")
			origin.mount(origin.spec(at))
			origin.put(at + "/file")
			dirty := origin.twin()
			if fs.name == "btrfs" { // see TestTwins
				origin.unmount(at)
			}
			dirty.setReadOnly()
			before := dirty.written()
			l := firstOf(dirty.spec(dirty.mkdir("m")))
			var refusal *Refusal
			if fs.name == "xfs" && handle(dirty.dev).File == "" { // it could be a snapshot
				dirty.mount(l)
				dirty.unmount(l.Dir)
			} else if err := dirty.Mount(t.Context(), dirty.lock, l, yes); !errors.As(err, &refusal) || !strings.Contains(refusal.What, "not unmounted cleanly") {
				t.Errorf("got %v", err)
			}
			if got := dirty.written(); got != before {
				t.Errorf("%s, before: %s", got, before)
			}
			if fs.name != "btrfs" {
				origin.unmount(at)
			}
			r := origin.twin()
			if fs.name != "btrfs" {
				origin.mount(origin.spec(at))
			}
			r.setReadOnly()
			if !r.dev.ReadOnly {
				t.Fatal("the device is writable")
			}
			before = r.written()
			l = firstOf(r.spec(r.mkdir("m")))
			r.mount(l)
			if e := r.mounts()[0]; !e.ReadOnly || !e.SuperReadOnly {
				t.Errorf("got %+v", e)
			}
			if got := r.probe(l.Dir); got.Content != volume.Filesystem {
				t.Errorf("got %+v", got)
			}
			if err := r.Check(t.Context(), r.lock, r.dev, fs.name); err != nil {
				t.Errorf("check: %v", err)
			}
			if err := r.Grow(t.Context(), r.lock, r.dev, fs.name, l.Dir); volume.CodeOf(err) != volume.Conflict {
				t.Errorf("grow: got %v", err)
			}
			r.unmount(l.Dir)
			if err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: fs.name, Repeat: true}, yes); !errors.As(err, &refusal) {
				t.Errorf("format: got %v", err)
			}
			if got := r.written(); got != before {
				t.Errorf("%s, before: %s", got, before)
			}
			if fs.name != "btrfs" {
				origin.unmount(at)
			}
		})
	}
}

// Ensure that a copy beside its mounted origin is mounted if the kernel can distinguish them, refused if not,
// never changed, and that each mount is assigned to its device.
func TestTwins(t *testing.T) {
	for _, fs := range types {
		t.Run(fs.name, func(t *testing.T) {
			need(t, "mkfs."+fs.name)
			r := newRig(t, fs.size)
			r.format(fs.name)
			at := r.mkdir("m")
			r.mount(r.spec(at))
			r.put(at + "/file")
			c := r.twin()
			l := firstOf(c.spec(c.mkdir("m")))
			before := c.written()
			err := c.Mount(t.Context(), c.lock, l, yes)
			if fs.name == "btrfs" {
				var refusal *Refusal
				if !errors.As(err, &refusal) || !strings.Contains(err.Error(), c.dev.Path+" ") || !strings.Contains(err.Error(), r.dev.Path) {
					t.Errorf("got %v", err)
				}
				if len(c.mounts()) != 0 || len(r.mounts()) != 1 || c.written() != before {
					t.Errorf("mounts %v and %v; %s, before: %s", c.mounts(), r.mounts(), c.written(), before)
				}
				r.unmount(at)
				c.mount(l)
				if len(c.mounts()) != 1 || len(r.mounts()) != 0 {
					t.Errorf("mounts %v and %v", c.mounts(), r.mounts())
				}
				if err := r.Mount(t.Context(), r.lock, MountSpec{Device: r.dev, FSType: fs.name, Dir: at, First: true}, yes); !errors.As(err, &refusal) {
					t.Errorf("the origin beside its copy: got %v", err)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(l.Dir + "/file"); err != nil || string(b) != "hello" {
				t.Errorf("got %q, %v", b, err)
			}
			more := l
			more.Dir, more.First = c.mkdir("more"), false
			c.mount(more) // shares the superblock, with any options
			for _, e := range c.mounts() {
				if got := slices.Contains(e.Super, "nouuid"); got != (fs.name == "xfs") || e.SuperReadOnly {
					t.Errorf("got %v", e.Super)
				}
			}
			c.unmount(more.Dir)
			if len(c.mounts()) != 1 || c.mounts()[0].Dir != l.Dir {
				t.Errorf("mounts: %v", c.mounts())
			}
			c.unmount(l.Dir)
			if fs.name != "btrfs" {
				if len(r.mounts()) != 1 || r.mounts()[0].Dir != at {
					t.Errorf("mounts of the origin: %v", r.mounts())
				}
				r.unmount(at)
			}
			if fs.name == "xfs" { // alone again: as anybody would mount it
				c.mount(l)
				if e := c.mounts()[0]; slices.Contains(e.Super, "nouuid") {
					t.Errorf("got %v", e.Super)
				}
				c.unmount(l.Dir)
			}
		})
	}
}

// put writes a file that is then in the journal.
func (r *rig) put(name string) {
	r.Helper()
	f, err := os.Create(name)
	if err != nil {
		r.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("hello"); err != nil {
		r.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		r.Fatal(err)
	}
}
