package lvm

import (
	"context"
	"slices"
	"testing"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// An LVM before 2.03.12 creates volumes without the option that it does not know.
func TestCreateWithoutAutoactivationOption(t *testing.T) {
	f, p := newFake(t, 1)
	refused := 0
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		if c.Argv[0] == "lvm" && slices.Contains(c.Argv, "--setautoactivation") {
			refused++
			const text = "lvchange: unrecognized option '--setautoactivation'\n  Error during parsing of command line.\n"
			return run.Result{Stderr: []byte(text)}, &run.ExitError{Step: c.Step, Argv: c.Argv, Code: 3, Stderr: text}, true
		}
		return run.Result{}, nil, false
	}
	name := volume.Name{VG: "vg0", LV: "new"}
	if err := p.Create(context.Background(), "", name, 4*mib, ""); err != nil || refused != 1 {
		t.Errorf("refused %d times, then: %v", refused, err)
	}
}
