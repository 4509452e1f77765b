package main

import (
	"context"

	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/reconcile"
)

// watchFiles reports changes of the files of loop devices to the reconciler. The shutdown
// does not wait for it: a directory may be on a filesystem that hangs.
func watchFiles(n *reconcile.Node, loop *loopdev.Provider) task {
	return task{"watch of files", func(ctx context.Context) error {
		go loop.Watch(ctx, func(vg string) { n.NotifyChanged(vg, nil) }, func(err error) {
			n.Log.WithError(err).Warn("changes of its files cannot be watched: they are noticed at the next call, or within five minutes")
		})
		<-ctx.Done()
		return ctx.Err()
	}}
}

// watchDevices reports changes of LVM's devices and disks to the reconciler.
func watchDevices(n *reconcile.Node, volumes *lvm.Provider) task {
	return task{"watch of devices", func(ctx context.Context) error {
		if err := volumes.Watch(ctx, n.NotifyChanged); err != nil {
			n.Log.WithError(err).Warn("changes of LVM's devices cannot be watched: metadata older than half a minute is read again")
		}
		<-ctx.Done()
		return ctx.Err()
	}}
}
