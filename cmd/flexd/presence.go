package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// A presence ends the daemon when one of its own files is removed: without its sockets it
// cannot be reached, and without its lock it does not exclude a second flexd. Its
// supervisor starts it again; mounts stay as they are, and calls that wait are sent again.
type presence struct {
	files []string
	log   *logrus.Entry
}

// Serve returns an error when a file is gone. If the node has no inotify instance or watch left, flexd
// runs without this check: other programs of root may use all of them.
func (p presence) Serve(ctx context.Context) error {
	w, err := p.watch()
	if noInotify(err) {
		p.log.WithError(err).Warn("flexd will not notice when its sockets or its lock are removed: raise fs.inotify.max_user_instances or max_user_watches")
	}
	for ; noInotify(err); w, err = p.watch() {
		select {
		case <-time.After(watchPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err != nil {
		return err
	}
	defer w.Close()
	for _, f := range p.files {
		if _, err := os.Lstat(f); errors.Is(err, fs.ErrNotExist) { // before it was watched
			return lost(f)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-w.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return err
			}
		case e := <-w.Events:
			for _, f := range p.files {
				gone := e.Op.Has(fsnotify.Remove) || e.Op.Has(fsnotify.Rename)
				if gone && (e.Name == f || e.Name == filepath.Dir(f)) && ctx.Err() == nil {
					return lost(e.Name)
				}
			}
		}
	}
}

func lost(file string) error {
	return fmt.Errorf("%s was removed from outside: flexd has to be started again (mounts stay as they are)", file)
}

// watchPause is the time between attempts to watch.
var watchPause = time.Minute

var newWatcher = fsnotify.NewWatcher

// watch watches the directories, not the files: a watch on a file ends with it.
func (p presence) watch() (*fsnotify.Watcher, error) {
	w, err := newWatcher()
	if err != nil {
		return nil, err
	}
	for _, f := range p.files {
		if err := w.Add(filepath.Dir(f)); err != nil {
			w.Close()
			return nil, fmt.Errorf("%s: %w", filepath.Dir(f), err)
		}
	}
	return w, nil
}

// noInotify reports whether an error is a lack of inotify instances or watches.
func noInotify(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENOSPC)
}
