package main

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/reconcile"
	children "github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// kinds has the providers of both kinds.
type kinds struct {
	acting map[string]reconcile.Provider // by volume group
	seen   map[string]asw.Provider       // the same
	loop   *loopdev.Provider
	lvm    *lvm.Provider
}

// providers makes one provider of each kind, and returns it under the name of each of its
// volume groups. There is always one provider for loop devices and one for LVM, to release mounted
// volumes of groups that are not configured.
func providers(live *config.Live, runner children.Runner, locks locks) kinds {
	cfg, dirs, groups := live.Get(), map[string]string{}, map[string]lvm.Group{}
	for _, vg := range cfg.VolumeGroups {
		if vg.Provider == "lvm" {
			groups[vg.Name] = lvm.Group{Shared: vg.Shared, ThinPool: vg.ThinPool, Layout: lvm.Layout(vg.Layout), ZeroAll: vg.ZeroAll}
		} else {
			dirs[vg.Name] = vg.Directory
		}
	}
	limits := func(name string) *volume.Limits {
		vg := live.VG(name)
		if vg == nil {
			return nil
		}
		return &volume.Limits{Group: volume.Limit(vg.Limit), Namespace: volume.Limit(vg.PerNamespace), Reserve: vg.Reserve, Overcommit: vg.Overcommit}
	}
	loop := loopdev.New(dirs, filepath.Join(cfg.RunDir, "dev"), runner, loopdev.NewKernel())
	loop.Limits = limits
	real := lvm.New(lvm.Options{
		Locks:  locks,
		Runner: runner, LockDir: filepath.Join(cfg.RunDir, "lanes"), DiskDir: filepath.Join(cfg.RunDir, "disks"), Groups: groups,
		Limits: limits, Filter: cfg.LVMFilter, CallDeadline: cfg.CallDeadline, Host: cfg.NodeName,
	})
	any := unconfigured{loop, real}
	k := kinds{map[string]reconcile.Provider{asw.Unconfigured: any}, map[string]asw.Provider{asw.Unconfigured: any}, loop, real}
	for vg := range dirs {
		k.acting[vg], k.seen[vg] = loop, loop
	}
	for vg := range groups {
		k.acting[vg], k.seen[vg] = real, real
	}
	return k
}

// oneDirectory finds groups of loop devices whose directory is that of an earlier one.
func (k kinds) oneDirectory(cfg *config.Config) (all []status.Finding) {
	for i, vg := range cfg.VolumeGroups {
		for _, other := range cfg.VolumeGroups[:i] {
			if k.loop.SameDirectory(other.Name, vg.Name) {
				what, remedy := reconcile.OneDirectory(other.Name, vg.Name)
				all = append(all, status.Finding{Class: "one-directory", VG: vg.Name, Dir: vg.Directory, Since: time.Now(), Message: what, Hint: remedy})
				break
			}
		}
	}
	return all
}

// unconfigured releases volumes of groups that are no longer configured. The form of the
// uuid determines the provider.
type unconfigured struct {
	reconcile.Provider // loop devices
	lvm                *lvm.Provider
}

func (u unconfigured) of(lv volume.LV) reconcile.Provider {
	if lvm.IsUUID(lv.UUID) {
		return u.lvm
	}
	return u.Provider
}

func (u unconfigured) Device(ctx context.Context, lv volume.LV) (volume.Device, error) {
	return u.of(lv).Device(ctx, lv)
}

func (u unconfigured) Deactivate(ctx context.Context, lock string, lv volume.LV, d volume.Device) error {
	return u.of(lv).Deactivate(ctx, lock, lv, d)
}

func (u unconfigured) Identify(ctx context.Context, number string) (volume.Identity, error) {
	if id, err := u.lvm.Identify(ctx, number); id.UUID != "" || err != nil {
		return id, err
	}
	return u.Provider.Identify(ctx, number)
}

func lvmGroups(cfg *config.Config) bool {
	return slices.ContainsFunc(cfg.VolumeGroups, func(g config.VolumeGroup) bool { return g.Provider == "lvm" })
}
