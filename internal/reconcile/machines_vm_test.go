//go:build vm

package reconcile_test

import (
	"flag"
	"testing"

	"github.com/flexd/flexd/internal/hosttest"
)

// The machine of this build is virtual, with real LVM. It runs the same tests, except those of the simulation
// and those of volumes in files.

// ownSteps are the steps that only these volumes take.
var ownSteps = []string{"lvm report", "zero"}

// some returns the elements of a list to run, since each run takes seconds.
func some[T any](t *testing.T, list []T) []T {
	t.Helper()
	if soak {
		return list
	}
	return drawn(t, list)
}

type test = func(t *testing.T, e *hosttest.Env)

func onSim(*testing.T, string, test)   {}
func onLoops(*testing.T, string, test) {}
func onFiles(*testing.T, string, test) {}

// onReal runs half of the tests, drawn by the seed, unless a test is named: the host runs all of them on loop
// devices.
func onReal(t *testing.T, name string, test test) {
	t.Helper()
	if soak || flag.Lookup("test.run").Value.String() != "" || seeded(t).IntN(2) == 0 {
		onLVM(t, name, test)
	}
}

func onLVM(t *testing.T, name string, test test) {
	t.Helper()
	t.Run(name+"/lvm", func(t *testing.T) {
		e := hosttest.NewLVM(t)
		defer e.Close()
		test(t, e)
	})
}

// onBoth runs a third of the sequences: each also runs on a simulated node and on loop devices.
func onBoth(t *testing.T, name string, test test) {
	t.Helper()
	if soak || seeded(t).IntN(3) == 0 {
		onLVM(t, name, test)
	}
}
