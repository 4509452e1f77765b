//go:build !vm

package reconcile_test

import (
	"testing"
	"testing/synctest"

	"github.com/flexd/flexd/internal/hosttest"
)

// The machines of this build: the simulated one, and this one with loop devices. For virtual machines see
// machines_vm_test.go.

// ownSteps are the steps that only these volumes take.
var ownSteps []string

// some returns the elements of a list to run: all.
func some[T any](_ *testing.T, list []T) []T { return list }

// onSim runs a test on a simulated node. Time costs nothing there, and a
// goroutine that is left behind is a failure.
func onSim(t *testing.T, name string, test func(t *testing.T, e *hosttest.Env)) {
	t.Helper()
	t.Run(name+"/simulated", func(t *testing.T) {
		t.Parallel()
		tmp := hosttest.TempDir(t)
		synctest.Test(t, func(t *testing.T) {
			e := hosttest.NewSim(t, tmp)
			defer e.Close()
			test(t, e)
		})
	})
}

// onReal runs a test on this machine, with real block devices, filesystems and mounts. Tests run in parallel,
// since each mostly waits for its lease.
func onReal(t *testing.T, name string, test func(t *testing.T, e *hosttest.Env)) {
	t.Helper()
	t.Run(name+"/real", func(t *testing.T) {
		if why := hosttest.NoReal(); why != "" {
			t.Skip(why)
		}
		t.Parallel()
		e := hosttest.NewReal(t)
		defer e.Close()
		test(t, e)
	})
}

// onLVM runs a test of LVM: none here.
func onLVM(*testing.T, string, func(t *testing.T, e *hosttest.Env)) {}

// onLoops runs a test of files and their loop devices on this machine.
func onLoops(t *testing.T, name string, test func(t *testing.T, e *hosttest.Env)) {
	t.Helper()
	onReal(t, name, test)
}

// onBoth runs a test on each kind of machine.
func onBoth(t *testing.T, name string, test func(t *testing.T, e *hosttest.Env)) {
	t.Helper()
	onSim(t, name, test)
	onReal(t, name, test)
}

// onFiles runs a test of volumes in files, simulated and real ones.
func onFiles(t *testing.T, name string, test func(t *testing.T, e *hosttest.Env)) {
	t.Helper()
	onBoth(t, name, test)
}
