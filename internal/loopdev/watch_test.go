package loopdev

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/test/umount"
)

// Changes of the volumes' files by hand are reported, but not writes to the volumes, nor changes of other
// files.
func TestWatch(t *testing.T) {
	n := newNode(t)
	reported := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan bool)
	n.create("a", mib)
	n.create("b", mib)
	go func() {
		defer close(ended)
		n.Watch(ctx, func(vg string) { reported <- vg }, func(err error) { reported <- err.Error() })
	}()
	hears := func(what string) {
		t.Helper()
		select {
		case got := <-reported:
			if got != "vg0" {
				t.Errorf("%s: %q", what, got)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: no report", what)
		}
		time.Sleep(2 * settle) // a deed may be two events
		for len(reported) > 0 {
			<-reported
		}
	}
	quiet := func(what string) {
		t.Helper()
		select {
		case got := <-reported:
			t.Errorf("%s: %q", what, got)
		case <-time.After(3 * settle):
		}
	}
	path := func(lv string) string { return filepath.Join(n.dir, lv) }
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	hears("what was done before is not known")

	ok(os.Rename(path("a"), path("c")))
	hears("renamed")
	ok(os.Rename(path("b"), path("c")))
	hears("renamed over another")
	ok(os.Link(path("c"), path("d")))
	hears("a second name")
	ok(unix.Setxattr(path("c"), uuidAttr, []byte(newUUID()), 0))
	hears("made another volume")
	ok(os.Remove(path("d")))
	hears("removed")
	e := n.create("e", mib)
	hears("created")

	ok(os.WriteFile(path(".hidden"), []byte("x"), 0o600))
	f, err := os.OpenFile(path("e"), os.O_RDWR, 0)
	ok(err)
	_, err = f.WriteAt([]byte("data"), 4096)
	ok(err)
	ok(f.Close())
	n.deactivate(e, n.activate(e))
	ok(unix.Setxattr(n.dir, "trusted.unknown", []byte("x"), 0))
	n.Survey(ctx, "vg0", false)
	quiet("nothing of ours has changed")

	// Another directory, or another filesystem.
	ok(os.Rename(n.dir, n.dir+".away"))
	hears("the directory was renamed")
	n.Survey(ctx, "vg0", false)
	quiet("there is none")
	ok(os.Mkdir(n.dir, 0o700))
	n.Survey(ctx, "vg0", false)
	hears("a survey has found another")
	ok(os.Remove(filepath.Join(n.dir+".away", "e")))
	quiet("the old one is not watched")
	ok(unix.Mount("over", n.dir, "tmpfs", 0, "size=1m"))
	n.Survey(ctx, "vg0", false)
	hears("a filesystem was mounted there")
	ok(umount.Plain(n.dir))
	n.Survey(ctx, "vg0", false)
	hears("and unmounted")
	n.create("g", mib)
	hears("created there")

	for range 50 {
		ok(os.WriteFile(path("h"), nil, 0o600))
		ok(os.Remove(path("h")))
	}
	time.Sleep(3 * settle)
	if n := len(reported); n == 0 || n > 10 {
		t.Errorf("many changes at once are reported %d times", n)
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("Watch does not end")
	}
}

// A group that cannot be watched is reported once, and the others are watched.
func TestWatchTrouble(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good"), filepath.Join(dir, "bad")
	if err := os.Mkdir(good, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(bad, bad); err != nil { // leads to itself
		t.Fatal(err)
	}
	p := New(map[string]string{"good": good, "bad": bad}, dir, run.NewExec(), NewKernel())
	changes, troubles := make(chan string, 100), make(chan string, 100)
	go p.Watch(t.Context(), func(vg string) { changes <- vg }, func(err error) { troubles <- err.Error() })
	next := func(c <-chan string) string {
		t.Helper()
		select {
		case s := <-c:
			return s
		case <-time.After(time.Minute):
			t.Fatal("no report")
			return ""
		}
	}
	if s := next(troubles); !strings.Contains(s, "volume group bad: "+bad+" cannot be watched: too many levels of symbolic links") {
		t.Error(s)
	}
	p.Survey(t.Context(), "bad", false)
	if s := next(changes); s != "good" {
		t.Error(s)
	}
	if err := os.WriteFile(filepath.Join(good, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s := next(changes); s != "good" {
		t.Error(s)
	}
	if len(troubles) != 0 {
		t.Errorf("reported again: %s", <-troubles)
	}
	// It is in order again.
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(bad, 0o700); err != nil {
		t.Fatal(err)
	}
	p.Survey(t.Context(), "bad", false)
	if s := next(changes); s != "bad" {
		t.Error(s)
	}
}

// The kernel's queue of events overflows.
func TestWatchLost(t *testing.T) {
	for mask, want := range map[uint32]bool{
		unix.IN_Q_OVERFLOW: true, unix.IN_UNMOUNT: true, unix.IN_DELETE_SELF: true,
		unix.IN_IGNORED: false, unix.IN_ATTRIB | unix.IN_ISDIR: false,
	} {
		b := make([]byte, unix.SizeofInotifyEvent)
		binary.NativeEndian.PutUint32(b[4:], mask)
		if got := matters(b); got != want {
			t.Errorf("%#x: %v, want %v", mask, got, want)
		}
	}
}
