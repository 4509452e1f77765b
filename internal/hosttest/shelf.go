package hosttest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/volume"
)

// A Shelf is the smallest frontend beside FlexVolume's: it publishes volumes at
// ROOT/NAME. Its root lies below kubelet's, as that of CSI does.
type Shelf struct{ E *Env }

// AddShelf starts flexd again with this frontend.
func AddShelf(e *Env) {
	s := Shelf{e}
	e.mu.Lock()
	e.layouts = []asw.Layout{s}
	e.life.die()
	e.mu.Unlock()
	e.Start()
	if err := e.M.Mkdir(s.root()); err != nil {
		e.T.Fatal(err)
	}
}

func (s Shelf) root() string { return filepath.Join(s.E.Root, "shelf") }

// Dir returns the directory at which a volume is published by that name.
func (s Shelf) Dir(name string) string { return filepath.Join(s.root(), name) }

// Roots implements asw.Layout.
func (s Shelf) Roots() ([]string, bool) { return []string{s.root()}, true }

// Place implements asw.Layout.
func (s Shelf) Place(root, dir string) volume.Place {
	if name := strings.TrimPrefix(dir, root+"/"); !strings.Contains(name, "/") {
		return volume.Place{Kind: volume.Published, Name: name}
	}
	return volume.Place{}
}

// AnyRoot implements asw.Layout.
func (s Shelf) AnyRoot(string) volume.Place { return volume.Place{} }

// Strays implements asw.Layout.
func (s Shelf) Strays() []volume.Stray { return nil }

// Publish mounts a volume, with retries.
func (s Shelf) Publish(name, lv string, size int64) error {
	if err := s.E.M.Mkdir(s.Dir(name)); err != nil {
		return err
	}
	return s.insist(reconcile.Request{Verb: volume.Publish, Title: "publish", Name: volume.Name{VG: VG, LV: lv},
		Target: reconcile.Target{Dir: s.Dir(name), Root: s.root()}, Options: reconcile.Options{Alias: name, Size: size}})
}

// Withdraw unmounts a volume, with retries.
func (s Shelf) Withdraw(name string) error {
	err := s.insist(reconcile.Request{Verb: volume.Release, Title: "withdraw", Target: reconcile.Target{Dir: s.Dir(name), Root: s.root()}})
	if err != nil {
		return err
	}
	if s.E.M.Exists(s.Dir(name)) {
		return s.E.M.Remove(s.Dir(name))
	}
	return nil
}

func (s Shelf) insist(r reconcile.Request) error {
	end := time.Now().Add(s.E.Limit)
	for {
		l := s.E.current()
		err := errors.New("flexd is down")
		if !l.dead.Load() {
			ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, reconcile.ErrDeadline)
			go func() {
				select {
				case <-l.over:
					cancel()
				case <-ctx.Done():
				}
			}()
			r.ID, r.Caller.Started = fmt.Sprintf("s%d", s.E.calls.Add(1)), s.E.M.Boot()
			off := s.E.waits(driver{[]string{r.Target.Dir}, cancel})
			_, err = l.node.Do(ctx, r)
			off()
			cancel()
			if err == nil && !l.dead.Load() {
				return nil
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s %s does not succeed: %w", r.Title, r.Target.Dir, err)
		}
		time.Sleep(s.E.Restart)
	}
}
