package dsw

import (
	"errors"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// A call for a mount that an earlier life of flexd has permitted is not refused before
// the outcome is known.
func TestRememberCommit(t *testing.T) {
	for _, mounted := range []bool{true, false} {
		name := volume.Name{VG: "vg", LV: "v"}
		q := NewRequests(func(volume.UUID) {})
		q.RememberCommit("/a", "uuid", name)
		r := &Request{Call: volume.Call{ID: "c1", Verb: volume.Publish, Dir: "/a"}, Name: name, Started: 1}
		if committed, err := q.Enter(r, 1); committed != "uuid" || err != nil || q.Bound(r) != "uuid" {
			t.Fatalf("it waits for %q: %v", committed, err)
		}
		answered := func() bool { return len(r.Answered()) > 0 }
		q.Refuse("uuid", "c1", errors.New("its device could not be inspected"))
		q.Abandon(r, Answer{Err: errors.New("the look failed")})
		if answered() || len(q.Free("uuid")) > 0 {
			t.Error("it was answered before the outcome was known")
		}
		q.Observed("uuid", "/a", mounted)
		if q.Refuse("uuid", "c1", errors.New("refused")); !answered() {
			t.Errorf("mounted %v: it has no answer", mounted)
		}
		if q.targets["/a"].committed != "" {
			t.Errorf("mounted %v: the mount counts as committed for ever", mounted)
		}
	}
}
