package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/reconcile"
	children "github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/server"
	"github.com/flexd/flexd/internal/volume"
)

// newNode puts the rooms together: this is the only place that knows them all.
func newNode(cfg *config.Config, log *logrus.Entry) (node, error) {
	boot, err := procfs.BootID() // notes of another one are about mounts that are gone
	if err != nil {
		return nil, err
	}
	store, err := dsw.Open(filepath.Join(cfg.RunDir, "notes"), boot)
	if err != nil {
		return nil, err
	}
	records, err := dsw.OpenRecords(filepath.Join(cfg.StateDir, "formats"), boot, procfs.SinceBoot)
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
	providers, seen, loop, volumes := providers(cfg, runner)
	renameNotes(store, volumes, filepath.Join(cfg.RunDir, "lanes"), log)
	observer := asw.New(kubelet.Roots{Dirs: cfg.KubeletRoots, Driver: cfg.Driver}, seen, records.Get, mounts)
	parts := reconcile.Parts{
		Config: cfg, Version: version, Log: log,
		Store: store, Records: records, Observer: observer, Mounts: mounts,
		Ops: mount.Ops{Runner: runner}, Providers: providers, Boot: procfs.SinceBoot, Self: self,
	}
	if complaints, err := asw.OpenComplaints(); err != nil {
		log.WithError(err).Warn("the kernel's messages cannot be read: errors of filesystems are seen at the next call only")
	} else {
		parts.Complaints = complaints
	}
	observer.Pods = asw.NewCgroups(cfg.CgroupDir).Look
	if ends, err := asw.OpenPodEvents(); err != nil {
		log.WithError(err).Warn("the ends of pods are not heard of: flexd looks for them every now and then")
	} else {
		parts.PodEvents = ends
	}
	return served{reconcile.New(parts), loop, volumes, lvmGroups(cfg)}, nil
}

// renameNotes gives the notes of an earlier version, which have half of the identity
// of LVM's volumes, the whole one. Where that cannot be told the notes stay as they
// are, and nothing is done to their volume.
func renameNotes(store *dsw.Store, volumes *lvm.Provider, lanes string, log *logrus.Entry) {
	groups := map[volume.UUID]string{}
	for _, c := range store.All() {
		groups[c.UUID] = c.VG
	}
	for _, l := range store.Leases() {
		groups[l.UUID] = l.VG
	}
	for old, vg := range groups {
		if !lvm.IsUUID(old) || old.Earlier() != "" {
			continue
		}
		now, err := volumes.Identity(old, vg)
		if err == nil && now == "" {
			continue // it has no device: there is nothing to lose
		}
		if err == nil {
			err = os.Rename(filepath.Join(lanes, string(old)), filepath.Join(lanes, string(now))) // a child that lives holds it
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = store.Rename(old, now)
		}
		if err != nil {
			log.WithError(err).WithField("uuid", old).Warn("a note of an earlier version stays as it is: nothing is done to its volume, what is mounted is known from the mount table")
		}
	}
}

// providers makes one provider of each kind, and returns it under the name of
// each of its volume groups. What is mounted by now is let go whatever the
// configuration says: there is always one for loop devices and one for LVM.
func providers(cfg *config.Config, runner children.Runner) (acting map[string]reconcile.Provider, seen map[string]asw.Provider, loop *loopdev.Provider, real *lvm.Provider) {
	dirs, groups := map[string]string{}, map[string]lvm.Group{}
	for _, vg := range cfg.VolumeGroups {
		if vg.Provider == "lvm" {
			groups[vg.Name] = lvm.Group{ThinPool: vg.ThinPool, Layout: lvm.Layout(vg.Layout)}
		} else {
			dirs[vg.Name] = vg.Directory
		}
	}
	loop = loopdev.New(dirs, filepath.Join(cfg.RunDir, "dev"), runner, loopdev.NewKernel())
	real = lvm.New(lvm.Options{
		Runner: runner, LockDir: filepath.Join(cfg.RunDir, "lanes"), Groups: groups,
		Filter: cfg.LVMFilter, CallDeadline: cfg.CallDeadline,
	})
	any := unconfigured{loop, real}
	acting, seen = map[string]reconcile.Provider{asw.Unconfigured: any}, map[string]asw.Provider{asw.Unconfigured: any}
	for vg := range dirs {
		acting[vg], seen[vg] = loop, loop
	}
	for vg := range groups {
		acting[vg], seen[vg] = real, real
	}
	return acting, seen, loop, real
}

// unconfigured lets go of volumes whose group is not configured any more. Their
// uuid says whose they are.
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

func (u unconfigured) Identify(ctx context.Context, number string) (volume.UUID, volume.Name, bool, error) {
	if uuid, name, ok, err := u.lvm.Identify(ctx, number); ok || err != nil {
		return uuid, name, ok, err
	}
	return u.Provider.Identify(ctx, number)
}

func lvmGroups(cfg *config.Config) bool {
	return slices.ContainsFunc(cfg.VolumeGroups, func(g config.VolumeGroup) bool { return g.Provider == "lvm" })
}

// served fits the reconciler to the driver socket.
type served struct {
	*reconcile.Node
	loop    *loopdev.Provider
	lvm     *lvm.Provider
	watched bool
}

// Run is the reconciler, with what files, and LVM's devices and disks, tell
// beside it.
func (s served) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	// Nobody waits for it: a directory may be on a filesystem that hangs.
	go s.loop.Watch(ctx, func(vg string) { s.Node.Stirred(vg, nil, time.Now()) }, func(err error) {
		s.Log.WithError(err).Warn("what is done to its files by hand is not heard of: it is seen at the next call, or within five minutes")
	})
	group.Go(func() error { return s.Node.Run(ctx) })
	if s.watched {
		group.Go(func() error {
			if err := s.lvm.Watch(ctx, s.Node.Stirred); err != nil {
				s.Log.WithError(err).Warn("changes of LVM's devices are not heard of: what is known of volumes is read anew every half minute that it is asked for")
			}
			return nil
		})
	}
	return group.Wait()
}

func (s served) Serve(ctx context.Context, r flexvolume.Request, peer server.Peer) flexvolume.Answer {
	return s.Node.Serve(ctx, r, peer.Pid)
}
