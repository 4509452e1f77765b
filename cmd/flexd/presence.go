package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// A presence ends the daemon when one of its own files is taken away: without
// its sockets it cannot be reached, and without its lock it no longer keeps a second
// flexd off. Its supervisor starts it again; mounts stay as they are, and
// calls that wait are sent again.
type presence struct{ files []string }

func (presence) String() string { return "presence" }

// Serve returns an error when a file is gone.
func (p presence) Serve(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	// The directory is watched, not the file: a watch on a file ends with it.
	for _, f := range p.files {
		if err := w.Add(filepath.Dir(f)); err != nil {
			return fmt.Errorf("%s: %w", filepath.Dir(f), err)
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
				lost := e.Op.Has(fsnotify.Remove) || e.Op.Has(fsnotify.Rename)
				if lost && (e.Name == f || e.Name == filepath.Dir(f)) && ctx.Err() == nil {
					return fmt.Errorf("%s was removed from outside: flexd has to be started again (mounts stay as they are)", e.Name)
				}
			}
		}
	}
}
