package kubelet

import (
	"context"
	"errors"

	"github.com/fsnotify/fsnotify"
)

// PodEvents watches for the first and the last process of pods' control groups, without
// polling.
type PodEvents struct{ w *fsnotify.Watcher }

// OpenPodEvents returns a watcher without files.
func OpenPodEvents() (*PodEvents, error) {
	w, err := fsnotify.NewWatcher()
	return &PodEvents{w}, err
}

// Follow replaces the watched files (Pods.Events). It reports whether all could be watched: some
// may have been removed meanwhile.
func (e *PodEvents) Follow(files []string) (all bool) {
	followed := map[string]bool{}
	for _, f := range e.w.WatchList() {
		followed[f] = true
	}
	all = true
	for _, f := range files {
		if !followed[f] {
			all = e.w.Add(f) == nil && all
		}
		delete(followed, f)
	}
	for f := range followed {
		_ = e.w.Remove(f) // may be gone already
	}
	return all
}

// Each calls notify after changes, until ctx is done.
func (e *PodEvents) Each(ctx context.Context, notify func()) error {
	defer e.w.Close()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err, ok := <-e.w.Errors:
			if !ok || !errors.Is(err, fsnotify.ErrEventOverflow) {
				return err
			}
			notify()
		case _, ok := <-e.w.Events:
			if !ok {
				return errors.New("the watcher was closed")
			}
			notify()
		}
	}
}
