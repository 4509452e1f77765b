package loopdev

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// What somebody does to the volumes' files by hand is told, by the volume whose
// file it is or was.
func TestWatch(t *testing.T) {
	n := newNode(t)
	type change struct {
		vg      string
		volumes []volume.UUID
	}
	told := make(chan change, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	a, b := n.create("a", mib), n.create("b", mib)
	go func() {
		ended <- n.Watch(ctx, func(vg string, volumes []volume.UUID, heard time.Time) {
			slices.Sort(volumes)
			told <- change{vg, volumes}
		})
	}()
	for n.Provider.watch.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	hears := func(what string, want ...volume.UUID) {
		t.Helper()
		slices.Sort(want)
		select {
		case got := <-told:
			if got.vg != "vg0" || !slices.Equal(got.volumes, want) {
				t.Errorf("%s: %v, want %q", what, got, want)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: nothing is told", what)
		}
	}
	path := func(lv string) string { return filepath.Join(n.dir, lv) }
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rename := func(from, to string) { t.Helper(); ok(os.Rename(from, to)) }

	rename(path("a"), path("c"))
	hears("renamed", a.UUID)
	rename(path("b"), path("c"))
	hears("renamed over another", a.UUID, b.UUID)
	ok(os.Link(path("c"), path("d")))
	hears("a second name", b.UUID)
	ok(os.Remove(path("d")))
	hears("the second name removed", b.UUID)
	id := newUUID()
	ok(unix.Setxattr(path("c"), uuidAttr, []byte(id), 0))
	hears("made another volume", b.UUID, volume.UUID(id))
	ok(os.Remove(path("c")))
	hears("removed", volume.UUID(id))
	e := n.create("e", mib)
	hears("created", e.UUID)

	// What is no volume, and what volumes write, is nobody's affair.
	ok(os.WriteFile(path("foreign"), []byte("x"), 0o600))
	ok(os.Remove(path("foreign")))
	ok(os.WriteFile(path(".hidden"), []byte("x"), 0o600))
	f, err := os.OpenFile(path("e"), os.O_RDWR, 0)
	ok(err)
	_, err = f.WriteAt([]byte("data"), 4096)
	ok(err)
	ok(f.Close())
	select {
	case got := <-told:
		t.Errorf("nothing of ours has changed, and yet: %v", got)
	case <-time.After(10 * settle):
	}

	// The directory goes, and another one comes.
	rename(n.dir, n.dir+".away")
	hears("the directory was renamed")
	n.Survey(ctx, "vg0", false)
	ok(os.Mkdir(n.dir, 0o700))
	n.Survey(ctx, "vg0", false)
	hears("a survey has found another directory")
	n.Survey(ctx, "vg0", false)
	g := n.create("g", mib)
	hears("created in the other", g.UUID)
	ok(unix.Mount("over", n.dir, "tmpfs", 0, "size=1m"))
	n.Survey(ctx, "vg0", false)
	hears("a survey has found another filesystem there")
	ok(unix.Unmount(n.dir, 0))
	hears("that is unmounted")
	n.Survey(ctx, "vg0", false)
	hears("and the first again")
	ok(os.Remove(path("g")))
	hears("removed there", g.UUID)

	// Many at once are one change.
	var many []volume.UUID
	for i := range 50 {
		many = append(many, volume.UUID(fmt.Sprintf("%08d-0000-4000-8000-000000000000", i)))
		made := filepath.Join(filepath.Dir(n.dir), "made")
		ok(os.WriteFile(made, nil, 0o600))
		ok(unix.Setxattr(made, uuidAttr, []byte(many[i]), 0))
		rename(made, path(fmt.Sprintf("v%d", i)))
	}
	var got []volume.UUID
	for changes := 0; len(got) < len(many); changes++ {
		select {
		case c := <-told:
			got = append(got, c.volumes...)
		case <-time.After(10 * time.Second):
			t.Fatalf("%d of 50 are told", len(got))
		}
	}
	if slices.Sort(got); !slices.Equal(got, many) {
		t.Errorf("%q", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// More events than the kernel keeps, and one of a directory that is not ours.
func TestWatchLost(t *testing.T) {
	k := &fakeKernel{}
	w := &watch{p: New(map[string]string{"vg0": "/srv/vg0"}, "", nil, k), groups: map[int]string{1: "vg0"}, files: map[string]map[string]volume.UUID{"vg0": {}}}
	for _, c := range []struct {
		name string
		wd   int32
		mask uint32
		want string
	}{
		{"lost", -1, unix.IN_Q_OVERFLOW, "map[:map[]]"},
		{"of nobody", 7, unix.IN_DELETE, "map[]"},
		{"directory's own attributes", 1, unix.IN_ATTRIB | unix.IN_ISDIR, "map[]"},
		{"unmounted", 1, unix.IN_UNMOUNT, "map[vg0:map[]]"},
		{"no more", 1, unix.IN_IGNORED, "map[vg0:map[]]"},
		{"after that", 1, unix.IN_DELETE_SELF, "map[]"},
	} {
		b := make([]byte, unix.SizeofInotifyEvent)
		ne.PutUint32(b, uint32(c.wd))
		ne.PutUint32(b[4:], c.mask)
		stirred := map[string]map[volume.UUID]bool{}
		if w.read(b, stirred); fmt.Sprint(stirred) != c.want {
			t.Errorf("%s: %v, want %s", c.name, stirred, c.want)
		}
	}
}
