package loopdev

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// A file gets a new uuid, even if it has none or is a copy, but not while a loop device uses it under any
// name.
func TestMark(t *testing.T) {
	n := newNode(t)
	n.create("a", mib)
	a, lv := n.dir+"/a", n.lookUp("a")
	d := n.activate(lv)
	other := n.dir + "/link"
	if err := os.Link(a, other); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{a, other} {
		if _, _, err := Mark(path); err == nil || !strings.Contains(err.Error(), d.Path) {
			t.Errorf("%s, in use: got %v", path, err)
		}
		if uuid, err := Marked(path); uuid != lv.UUID || err != nil {
			t.Errorf("%s, in use: the uuid is %s, %v", path, uuid, err)
		}
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	n.deactivate(lv, d)
	old, now, err := Mark(a)
	if err != nil || old != lv.UUID || now == old {
		t.Errorf("got %q, %q, %v", old, now, err)
	}
	if got := n.lookUp("a"); got.UUID != now || got.Created {
		t.Errorf("got %+v", got)
	}

	plain := n.dir + "/plain"
	if err := os.WriteFile(plain, make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if uuid, err := Marked(plain); uuid != "" || err != nil {
		t.Errorf("got %q, %v", uuid, err)
	}
	if old, _, err := Mark(plain); old != "" || err != nil {
		t.Errorf("got %q, %v", old, err)
	}
	if got := n.lookUp("plain"); got.Presence != volume.Present {
		t.Errorf("got %+v", got)
	}
	if err := os.Symlink(plain, n.dir+"/symlink"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{n.dir, n.dir + "/symlink", "/dev/null", filepath.Join(n.dir, "nothing")} {
		if _, _, err := Mark(path); err == nil {
			t.Errorf("%s was marked", path)
		}
	}
}
