package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/flex"
	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/reconcile"
	children "github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/server"
)

// newNode puts the rooms together: this is the only place that knows them all.
func newNode(cfg *config.Config, log *logrus.Entry) (node, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	store, err := dsw.Open(filepath.Join(cfg.RunDir, "notes"), boot)
	if err != nil {
		return nil, err
	}
	records, err := dsw.OpenRecords(filepath.Join(cfg.StateDir, "formats"))
	if err != nil {
		return nil, err
	}
	mounts, err := asw.OpenMountinfo()
	if err != nil {
		return nil, err
	}
	self, err := reconcile.OwnNamespaces()
	if err != nil {
		return nil, err
	}
	runner := children.NewExec()
	providers, seen := providers(cfg, runner)
	observer := asw.New(asw.Roots{Dirs: cfg.KubeletRoots, Driver: cfg.Driver}, seen, records.Get, mounts)
	parts := reconcile.Parts{
		Config: cfg, Version: version, Log: log,
		Store: store, Records: records, Observer: observer, Mounts: mounts,
		Ops: mount.Ops{Runner: runner}, Providers: providers, Boot: sinceBoot, Self: self,
	}
	if complaints, err := asw.OpenComplaints(); err != nil {
		log.WithError(err).Warn("the kernel's messages cannot be read: errors of filesystems are seen at the next call only")
	} else {
		parts.Complaints = complaints
	}
	return served{reconcile.New(parts)}, nil
}

// providers makes one provider for each kind, and returns it under the name of
// each of its volume groups. There is always one for loop devices: what is
// mounted by now is let go whatever the configuration says.
func providers(cfg *config.Config, runner children.Runner) (map[string]reconcile.Provider, map[string]asw.Provider) {
	dirs := map[string]string{}
	for _, vg := range cfg.VolumeGroups {
		dirs[vg.Name] = vg.Directory
	}
	loop := loopdev.New(dirs, filepath.Join(cfg.RunDir, "dev"), runner, loopdev.NewKernel())
	acting := map[string]reconcile.Provider{asw.Unconfigured: loop}
	seen := map[string]asw.Provider{asw.Unconfigured: loop}
	for vg := range dirs {
		acting[vg], seen[vg] = loop, loop
	}
	return acting, seen
}

// served fits the reconciler to the driver socket.
type served struct{ *reconcile.Node }

func (s served) Serve(ctx context.Context, r flex.Request, peer server.Peer) flex.Answer {
	return s.Node.Serve(ctx, r, peer.Pid)
}

// bootID names this boot: notes of another one are about mounts that are gone.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// sinceBoot is the clock that neither a suspend nor an operator sets back.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // the clock is there since Linux 2.6.39
	}
	return time.Duration(t.Nano())
}
