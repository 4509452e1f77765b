package main

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
)

// shutdownTimeout is how long tasks may take to end at shutdown. The next start continues
// unfinished work, as after a kill.
const shutdownTimeout = 900 * time.Millisecond

// A task runs for as long as the daemon does.
type task struct {
	name string
	run  func(ctx context.Context) error
}

// runTasks runs the tasks until the context ends or one of them does. ready is closed when
// the daemon can answer; found then describes the state of the node.
func runTasks(ctx context.Context, log *logrus.Entry, ready <-chan struct{}, found func() string, tasks []task) error {
	stop := ctx
	group, ctx := errgroup.WithContext(ctx)
	for _, t := range tasks {
		group.Go(func() error {
			switch err := t.run(ctx); {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return fmt.Errorf("%s: %w", t.name, err)
			}
			return fmt.Errorf("%s: ended by itself", t.name)
		})
	}
	group.Go(func() error {
		select {
		case <-ready:
			log.Info("flexd is ready: " + found())
			notify(log, daemon.SdNotifyReady)
		case <-ctx.Done():
		}
		return nil
	})

	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	<-ctx.Done()
	notify(log, daemon.SdNotifyStopping)
	select {
	case err := <-ended:
		if stop.Err() == nil {
			return err
		}
		log.Info("flexd stops; mounts stay as they are")
	case <-time.After(shutdownTimeout):
		log.Warn("flexd stops without waiting for all its tasks; mounts stay as they are")
		if stop.Err() == nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// notify reports the state to systemd, if it has asked for it.
func notify(log *logrus.Entry, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.WithError(err).Warn("cannot notify systemd")
	}
}
