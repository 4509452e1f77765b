package lockspace

import (
	"context"
	"errors"
	"strings"

	"github.com/flexd/flexd/internal/run"
)

// ErrStale is the cause of an error of Ready: sanlock has given the lockspace up, as it does
// without a word when it cannot renew its lease while no volume is active, or was restarted.
// lvmlockd has to drop it before it can be started again.
var ErrStale = errors.New("sanlock has given up its lockspace, because the disks did not answer or sanlock was restarted")

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
	_, added := f.sanlock.Spaces["lvm_"+vg]
	switch {
	case !listed:
		return nil
	case !l.Killed && (l.Type != "sanlock" || f.sanlockErr != nil || added):
		return unusable("lvmlockd was not told to stop using volume group %s: lvmlockctl --kill %s", vg, vg)
	}
	res, err := m.Runner.Run(ctx, run.Cmd{Step: "drop", Argv: []string{"lvmlockctl", "--drop", vg}, Deadline: commandDeadline, Mutates: true})
	if err != nil {
		return unusable("lvmlockctl --drop %s: %s", vg, said(strings.TrimSpace(string(res.Stderr)), err))
	}
	_, err = m.lookNow(ctx)
	return err
}
