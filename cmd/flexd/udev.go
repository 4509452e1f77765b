package main

import (
	"context"
	"io"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/flexd/flexd/internal/config"
	children "github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/udev"
)

func udevCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:        "udev",
		Usage:       "print or install the udev rule for the volumes",
		ArgsUsage:   " ",
		Description: "The rule excludes volumes that pods use from /dev/disk/by-*, RAIDs, and scans of LVM and multipath.",
		Before:      atMost(0),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Value: config.DefaultPath, Usage: "read the configuration from `FILE`"},
			&cli.BoolFlag{Name: "install", Usage: "write it to " + udev.Installed + ", and have udev read it"},
		},
		Action: func(c *cli.Context) error {
			cfg, err := loadConfig(c.String("config"))
			if err != nil {
				return err
			}
			rule, err := ruleOf(cfg)
			if err != nil {
				return err
			}
			if !c.Bool("install") {
				_, err = io.WriteString(stdout, rule)
				return err
			}
			return installRule(c.Context, rule)
		},
	}
}

// installRule writes the rule and has udev read it, unless it is installed already.
func installRule(ctx context.Context, rule string) error {
	changed, err := udev.Install("", rule)
	if err != nil || !changed || !udev.Running("") {
		return err
	}
	_, err = children.NewExec().Run(ctx, children.Cmd{Step: "udev", Argv: []string{"udevadm", "control", "--reload"}, Deadline: 10 * time.Second})
	return err
}

// ruleOf returns the rule for a configuration. It touches the directories of loop devices.
func ruleOf(cfg *config.Config) (string, error) {
	var dirs []string
	for _, g := range cfg.VolumeGroups {
		if g.Directory != "" {
			dirs = append(dirs, g.Directory)
		}
	}
	return udev.Rule(cfg.StateDir, dirs)
}

// A udevRule is the rule for the configuration of the daemon.
type udevRule struct {
	known chan struct{} // closed when rule and err are
	rule  string
	err   error

	mu    sync.Mutex
	since time.Time // when a problem was found first
}

// newUdevRule finds the rule in the background, since a directory may be on a disk that hangs,
// and updates the installed one: the configuration may have changed. Where none is installed,
// or the rule of another flexd, it installs none.
func newUdevRule(cfg *config.Config, log *logrus.Entry) *udevRule {
	r := &udevRule{known: make(chan struct{})}
	go func() {
		r.rule, r.err = ruleOf(cfg)
		if other := udev.OtherStateDir("", cfg.StateDir); other != "" {
			log.Warnf("the udev rule stays as it is: it is that of a flexd with stateDir %s; flexd udev --install replaces it", other)
		} else if _, err := os.Stat(udev.Installed); err == nil && r.err == nil {
			if err := installRule(context.Background(), r.rule); err != nil {
				log.WithError(err).Warn("the udev rule cannot be updated: flexd udev --install")
			}
		}
		close(r.known)
	}()
	return r
}

// findings returns the problems of the rule that udev reads.
func (r *udevRule) findings() []status.Finding {
	wrong := ""
	select {
	case <-r.known:
		if wrong = udev.Problem("", r.rule); wrong != "" && r.err != nil {
			wrong = r.err.Error()
		}
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if wrong == "" {
		r.since = time.Time{}
		return nil
	}
	if r.since.IsZero() {
		r.since = time.Now()
	}
	return []status.Finding{{
		Class: "udev-rule", Dir: udev.Installed, Since: r.since,
		Message: "udev reads volumes that pods have written: their labels may become names of the host, and their RAID and LVM metadata may be started (" + wrong + ")",
		Hint:    "flexd udev --install",
	}}
}
