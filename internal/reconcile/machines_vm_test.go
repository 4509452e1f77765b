//go:build vm

package reconcile_test

import (
	"flag"
	"testing"

	"github.com/flexd/flexd/internal/hosttest"
)

// The machine of this build is a virtual one with real LVM. The same tests are
// played on it, but for those of the simulation, whose node needs no machine, and
// those that are about volumes in files.

// ownSteps are those that only these volumes take.
var ownSteps = []string{"lvm report", "zero"}

// some returns those of a list that are played: each play costs seconds.
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

// onReal plays half of the tests, drawn by the seed, where none is asked for by name:
// the host plays each of them on loop devices.
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

// onBoth plays a third of the sequences: every one is played on a simulated node and
// on loop devices, too.
func onBoth(t *testing.T, name string, test test) {
	t.Helper()
	if soak || seeded(t).IntN(3) == 0 {
		onLVM(t, name, test)
	}
}
