package main

import (
	"context"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/status"
)

// A watchdog tells systemd that flexd works as long as its state can be read. The read takes the locks
// of all parts, and waits for no volume, disk or process. systemd kills and restarts a flexd that
// sends no message: mounts stay as they are.
type watchdog struct {
	every time.Duration
	list  func() status.List
	log   *logrus.Entry
}

func (w watchdog) Serve(ctx context.Context) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			w.list()
			notify(w.log, daemon.SdNotifyWatchdog)
		}
	}
}
