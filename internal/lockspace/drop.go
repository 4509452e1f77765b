package lockspace

import (
	"context"
	"errors"
	"strings"

	"github.com/flexd/flexd/internal/run"
)

// ErrStale is the cause of an error of Ready: sanlock has dropped the lockspace, which it does without
// notice if it cannot renew its lease while no volume is active, or if it was restarted. lvmlockd
// must also drop the lockspace before it can be started again.
var ErrStale = errors.New("sanlock has dropped its lockspace, because the disks did not respond or sanlock was restarted")

// Drop makes lvmlockd drop a volume group whose locks are lost. The caller has checked that no volume
// of the group is active. Drop refuses locks that are not lost: lvmlockd would drop them, too, and
// other hosts could take them.
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
		return unusable("lvmlockctl --drop %s: %s", vg, outputOr(strings.TrimSpace(string(res.Stderr)), err))
	}
	_, err = m.lookNow(ctx)
	return err
}
