package hosttest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// Arm sets a fault at the k-th occasion from now on.
func (e *Env) Arm(m Moment, k int) { e.tap.arm(fault{moment: m, k: k}) }

// ArmStep sets a fault at the k-th command of one step of run.Cmd.
func (e *Env) ArmStep(m Moment, k int, step string) { e.tap.arm(fault{moment: m, k: k, step: step}) }

// ArmEach sets a fault at the first command of each step.
func (e *Env) ArmEach(m Moment) { e.tap.arm(fault{moment: m, k: 1, each: true}) }

// Refuse makes every command of a step fail, until err is nil.
func (e *Env) Refuse(step string, err error) {
	e.tap.mu.Lock()
	defer e.tap.mu.Unlock()
	e.tap.refuse[step] = err
}

// Struck returns the steps at which the fault occurred, in that order: "look", "note" and
// "answer" are three of them.
func (e *Env) Struck() []string {
	e.tap.mu.Lock()
	defer e.tap.mu.Unlock()
	return slices.Clone(e.tap.struck)
}

// Commands returns the number of commands that flexd has started.
func (e *Env) Commands() int {
	e.tap.mu.Lock()
	defer e.tap.mu.Unlock()
	return e.tap.total
}

// Steps returns the number of commands for each step, since the last Arm.
func (e *Env) Steps() string {
	e.tap.mu.Lock()
	defer e.tap.mu.Unlock()
	var all []string
	for _, step := range slices.Sorted(maps.Keys(e.tap.steps)) {
		if step != "" {
			all = append(all, fmt.Sprintf("%d %s", e.tap.steps[step], step))
		}
	}
	return strings.Join(all, ", ")
}

// Occasions returns how many there were for a fault of that kind, since the last Arm.
func (e *Env) Occasions(m Moment) int {
	e.tap.mu.Lock()
	defer e.tap.mu.Unlock()
	switch m {
	case CrashLooking, KillLooking:
		return e.tap.steps[look]
	case CrashNoting:
		return e.tap.steps[note]
	case CrashAnswer:
		return e.tap.steps[answer]
	}
	return e.tap.steps[""]
}

// BreakNotes makes every write of a note fail, until restored.
func (e *Env) BreakNotes() (restore func()) { return e.away(e.Notes()) }

// BreakRecords makes every write of a format record fail, until restored.
func (e *Env) BreakRecords() (restore func()) { return e.away(e.Records()) }

func (e *Env) away(dir string) (restore func()) {
	if e.Sim != nil {
		e.Sim.setCareless(true)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		e.T.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // so that it is not created again
		e.T.Fatal(err)
	}
	return func() {
		if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
			e.T.Error(err)
		}
		if e.Sim != nil {
			e.Sim.setCareless(false)
		}
	}
}
