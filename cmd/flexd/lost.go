package main

import (
	"context"
	"errors"
	"fmt"
	"log/syslog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/boottime"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/doctor"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/reconcile"
	children "github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
	"github.com/urfave/cli/v2"
)

func lockspaceLostCommand() *cli.Command {
	return &cli.Command{
		Name:      doctor.KillCommand,
		Usage:     "unmounts and deactivates the unused volumes of a group whose locks are lost",
		ArgsUsage: "VG",
		Description: "LVM runs it for a shared volume group whose disk does not answer, if lvm.conf has\n" +
			"lvmlockctl_kill_command = \"/usr/local/bin/flexd lockspace-lost\". The daemon sets up nothing more in the\n" +
			"group, unmounts volumes that no pod uses, and deactivates volumes that nothing has open. Without a daemon only the last\n" +
			"is done. It ends within half a minute.\n" +
			"Exit status: 0 no volume of the group is active, and LVM drops the locks (by hand: lvmlockctl --drop VG);\n" +
			"1 some are, and the watchdog resets the node unless they become inactive.",
		Flags: []cli.Flag{&cli.StringFlag{Name: "driver-socket", Value: config.Default().DriverSocket(), Usage: "ask the daemon at `PATH`"}},
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 || strings.ContainsAny(c.Args().First(), "/ ") {
				return usage("lockspace-lost: name one volume group")
			}
			l := lockspaceLost{vg: c.Args().First(), socket: c.String("driver-socket"), runner: children.NewExec(), dm: devmapper.New(), say: say}
			return l.run(c.Context)
		},
	}
}

// lostTimeout is longer than the daemon needs, and shorter than the 40 s that sanlock waits.
const lostTimeout = 23 * time.Second

// A lockspaceLost is `flexd lockspace-lost`.
type lockspaceLost struct {
	vg     string
	socket string
	runner children.Runner
	dm     lvm.DM
	say    func(text string)
}

// run returns nil if no volume of the group is active, whatever the daemon answers.
func (l lockspaceLost) run(ctx context.Context) error {
	asked := l.ask()
	if volume.CodeOf(asked) == volume.NotAllowed {
		return asked
	}
	ctx, cancel := context.WithTimeout(ctx, lostTimeout)
	defer cancel()
	left, err := lvm.RemoveUnused(ctx, l.runner, l.dm, l.vg)
	switch {
	case err != nil && len(left) == 0:
		err = fmt.Errorf("whether volumes of %s are active is unknown: %w", l.vg, err)
	case len(left) == 0:
		l.say(fmt.Sprintf("volume group %s has lost its locks, and none of its volumes is active: its locks can be dropped", l.vg))
		return nil
	case asked != nil:
		err = asked
	default: // it became active again, or flexd is wrong
		err = errors.New("some of its volumes became active meanwhile")
	}
	err = fmt.Errorf("volume group %s has lost its locks, and the watchdog resets this node in less than a minute: %w", l.vg, err)
	var names []string
	for _, u := range left {
		names = append(names, fmt.Sprintf("%s (open %d times)", u.Name, u.Open))
	}
	if len(names) > 0 {
		err = fmt.Errorf("%w. Active: %s", err, reconcile.FirstFew(names))
	}
	l.say(err.Error())
	return err
}

// ask makes the daemon unmount and deactivate. It returns why volumes are still active.
func (l lockspaceLost) ask() error {
	now := int64(boottime.Now())
	c := flexvolume.Client{Socket: l.socket, Timeout: lostTimeout, Connect: time.Second, Once: true, Parent: os.Getppid()}
	a, err := c.Ask(flexvolume.Request{
		V: flexvolume.Version, ID: "lost-" + strconv.FormatInt(now, 36), Verb: flexvolume.LockspaceLost,
		Args: []string{l.vg}, Started: now, Parent: os.Getppid(),
	})
	switch {
	case err != nil:
		return fmt.Errorf("flexd does not answer (%w), so nothing is unmounted", err)
	case a.Status != flexvolume.StatusSuccess:
		return volume.Errorf(volume.Code(a.Code), "%s", a.Message)
	}
	return nil
}

// say writes to the log of the system: sanlock starts the command without a standard error,
// and LVM does not read its output.
func say(text string) {
	if w, err := syslog.New(syslog.LOG_CRIT|syslog.LOG_DAEMON, "flexd"); err == nil {
		w.Crit(text) // #nosec G104 -- there is no other log
		w.Close()
	}
}
