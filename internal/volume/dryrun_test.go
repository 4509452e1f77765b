package volume

import (
	"slices"
	"testing"
)

// For a call in each state of the space test, DryRun has the outcome of Plan's steps, taken one after
// another.
func TestDryRun(t *testing.T) {
	t.Parallel()
	states, compared, ends := 0, 0, map[string]int{}
	start(func(first world) {
		// A part of them, because there are many.
		if states++; states%7 != 0 || first.calls[0] == oNone || first.calls[1] != oNone {
			return
		}
		kinds, end, ok := taken(first)
		if !ok || t.Failed() {
			return
		}
		seen := first
		seen.known, seen.unlooked = true, false
		seen.sized = first.truth != tBlank && first.truth != tData && first.truth != tLUKS && first.truth != tLeftover
		w := first.want()
		got := DryRun(w, first.have(), w.Calls[0], seen.have().FS)
		var refused Refusal
		if len(end.Refused) > 0 {
			refused = end.Refused[0]
		}
		var steps []StepKind
		for _, s := range got.Steps {
			steps = append(steps, s.Kind)
		}
		if got.Done != (len(end.Done) > 0) || got.Refused != refused || !slices.Equal(steps, kinds) {
			t.Errorf("%+v:\nplan:    done %v, refused %+v, after %v\ndry run: done %v, refused %+v, after %v",
				first, len(end.Done) > 0, refused, kinds, got.Done, got.Refused, steps)
		}
		compared++
		ends[string(refused.Code)]++
	})
	if compared < 10000 || len(ends) < 8 {
		t.Errorf("only %d calls compared, with the ends %v", compared, ends)
	}
}

// taken takes the steps of the only call until it is answered or waits. It returns the
// kinds of the call's steps and the last verdict; false = a step fails.
func taken(w world) (kinds []StepKind, v Verdict, ok bool) {
	for range maxDryRunSteps {
		v = Plan(w.want(), w.have())
		if len(v.Done)+len(v.Refused) > 0 || len(v.Steps) == 0 {
			return kinds, v, true
		}
		s := v.Steps[0]
		if len(s.Calls) > 0 {
			kinds = append(kinds, s.Kind)
		}
		if s.Kind == MountVolume && w.truth == tCut { // the child sees that
			return nil, v, false
		}
		var err error
		if w, err = w.do(s); err != nil {
			return nil, v, false // TestPlanSpace reports it
		}
	}
	return nil, v, false
}
