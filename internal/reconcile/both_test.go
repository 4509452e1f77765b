package reconcile_test

import (
	"testing"
	"testing/synctest"

	"github.com/flexd/flexd/internal/hosttest"
)

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

// onReal runs a test on this machine: real loop devices, filesystems and mounts.
func onReal(t *testing.T, name string, test func(t *testing.T, e *hosttest.Env)) {
	t.Helper()
	t.Run(name+"/real", func(t *testing.T) {
		if why := hosttest.NoReal(); why != "" {
			t.Skip(why)
		}
		e := hosttest.NewReal(t)
		defer e.Close()
		test(t, e)
	})
}

func onBoth(t *testing.T, name string, test func(t *testing.T, e *hosttest.Env)) {
	t.Helper()
	onSim(t, name, test)
	onReal(t, name, test)
}
