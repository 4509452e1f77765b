package lockspace

import (
	"context"
	"strings"

	"github.com/flexd/flexd/internal/run"
)

// Drop makes lvmlockd forget a volume group whose locks it has lost. The caller has seen that
// no volume of the group is active. Locks that are not lost are refused: lvmlockd would drop
// them, too, and other hosts could take them.
func (m *Manager) Drop(ctx context.Context, vg string) error {
	f, err := m.lookNow(ctx)
	switch {
	case err != nil:
		return err
	case f.lvmlockdErr != nil:
		return unusable("%w", f.lvmlockdErr)
	}
	l, listed := f.lvmlockd[vg]
	switch {
	case !listed:
		return nil
	case !l.Killed:
		return unusable("lvmlockd was not told to stop using volume group %s: lvmlockctl --kill %s", vg, vg)
	}
	res, err := m.Runner.Run(ctx, run.Cmd{Step: "drop", Argv: []string{"lvmlockctl", "--drop", vg}, Deadline: commandDeadline, Mutates: true})
	if err != nil {
		return unusable("lvmlockctl --drop %s: %s", vg, said(strings.TrimSpace(string(res.Stderr)), err))
	}
	_, err = m.lookNow(ctx)
	return err
}
