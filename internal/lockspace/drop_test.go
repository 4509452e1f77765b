package lockspace

import (
	"errors"
	"strings"
	"testing"
)

// Only locks that are lost are dropped: lvmlockd itself would drop all.
func TestDrop(t *testing.T) {
	t.Parallel()
	const drop, info = "lvmlockctl --drop svg", "lvmlockctl --info --dump"
	m, n := newNode(t, "started")
	n.says[drop] = utterance{}
	if err := m.Drop(t.Context(), "svg"); err == nil || !strings.Contains(err.Error(), "was not told") || n.count(drop) > 0 {
		t.Errorf("locks that are not lost: %v", err)
	}

	m, n = newNode(t, "started")
	u := n.says[info]
	u.stdout = strings.Replace(u.stdout, "kill_vg=0", "kill_vg=1", 1)
	n.says[info], n.says[drop] = u, utterance{code: 1, stderr: "Cannot drop"}
	if err := m.Drop(t.Context(), "svg"); err == nil || !strings.Contains(err.Error(), "Cannot drop") {
		t.Errorf("a command that fails: %v", err)
	}
	n.says[drop] = utterance{}
	if err := m.Drop(t.Context(), "svg"); err != nil || n.count(drop) != 2 {
		t.Errorf("lost locks: %v", err)
	}

	// sanlock has given the lockspace up while no volume was active.
	m, n = newNode(t, "started")
	const status = "sanlock client status -D"
	u = n.says[status]
	u.stdout = u.stdout[:strings.Index(u.stdout, "\ns lvm_svg")+1]
	n.says[status], n.says[drop] = u, utterance{}
	if err := m.Ready(t.Context(), "svg"); !errors.Is(err, ErrStale) {
		t.Errorf("not ready: %v", err)
	}
	if err := m.Drop(t.Context(), "svg"); err != nil || n.count(drop) != 1 {
		t.Errorf("stale locks: %v", err)
	}

	if err := m.Drop(t.Context(), "other"); err != nil || n.count("lvmlockctl --drop other") > 0 {
		t.Errorf("locks that are dropped already: %v", err)
	}
}
