package lvm

import (
	"context"
	"slices"
	"testing"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// An LVM before 2.03.12 creates volumes as well, without the option that it does not know, and
// a later one those for which lvcreate does not take it.
func TestCreateWithoutAutoactivationOption(t *testing.T) {
	for _, text := range []string{
		"lvcreate: unrecognized option '--setautoactivation'\n  Error during parsing of command line.\n",
		"  Option --setautoactivation is unsupported with thins.\n  Run `lvcreate --help' for more information.\n",
	} {
		withoutAutoactivation(t, text)
	}
}

func withoutAutoactivation(t *testing.T, text string) {
	t.Helper()
	f, p := newFake(t, 1)
	refused := 0
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		if c.Argv[0] == "lvm" && c.Argv[1] == "lvcreate" && slices.Contains(c.Argv, "--setautoactivation") {
			refused++
			return run.Result{Stderr: []byte(text)}, &run.ExitError{Step: c.Step, Argv: c.Argv, Code: 3, Stderr: text}, true
		}
		return run.Result{}, nil, false
	}
	name := volume.Name{VG: "vg0", LV: "new"}
	if err := p.Create(context.Background(), "", name, 4*mib); err != nil || refused != 1 {
		t.Errorf("%q: refused %d times, then: %v", text, refused, err)
	}
}
