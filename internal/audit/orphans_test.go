package audit

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flexd/flexd/internal/status"
)

// Stray files are recorded when they are found, and when they are gone: the history would else show
// them forever.
func TestStrays(t *testing.T) {
	a := auditor(t, &spaceGroup{}, func() []*View { return nil })
	var events []string
	a.Record = func(e status.Event) { events = append(events, string(e.Type)+" "+e.Dir) }
	a.orphans.storeStrays([]status.Finding{{Class: strayFiles, Dir: "/pods/a"}, {Class: strayFiles, Dir: "/pods/b"}})
	a.orphans.storeStrays([]status.Finding{{Class: strayFiles, Dir: "/pods/b"}}) // the operator has moved them away
	a.orphans.storeStrays(nil)
	a.orphans.storeStrays(nil)
	want := []string{"found /pods/a", "found /pods/b", "resolved /pods/a", "resolved /pods/b"}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Error(diff)
	}
}
