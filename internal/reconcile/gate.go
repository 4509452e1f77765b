package reconcile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// letLand is the last look before a mount appears: somebody waits for it, no
// newer wish wants the opposite, the directory is no mount point by now, and
// the caller will see what lands there. From its nil on, the calls for this
// directory, those on their way to the lane included, are answered by what comes
// of the landing only.
func (l *lane) letLand(ctx context.Context, s volume.Step) error {
	table, err := l.n.Observer.Look(ctx, l.n.Observer.Now())
	if err != nil {
		return err
	}
	if e := table.Top(s.Dir); e != nil {
		return fmt.Errorf("%s became a mount point (%s from %s) meanwhile", s.Dir, e.Type, e.Source)
	}
	c := l.waiter(s)
	if c == nil {
		return errNobodyWaits
	}
	if err := l.n.Self.visible(table, s.Dir, c.pid); err != nil {
		return err
	}
	if l.n.Store.Superseded(s.Dir, c.started, false) {
		return errSuperseded
	}
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	waits := func(c *call) bool { return c.mountsAt(s.Dir) }
	if !slices.ContainsFunc(l.calls, waits) {
		return errNobodyWaits
	}
	l.n.letGo[s.Dir] = l
	l.n.takeAlongLocked(l, s.Dir)
	for _, c := range l.calls {
		c.landing = c.landing || waits(c)
	}
	return nil
}

// unland takes the promise of letLand back: nothing landed.
func (l *lane) unland(s volume.Step) {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	l.n.landedLocked(l, s.Dir)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		if c.Dir == s.Dir {
			c.landing = false
		}
	}
}

// Namespaces knows in which mount namespace flexd lives.
type Namespaces struct {
	mnt string // "mnt:[4026531841]", "" = not looked at
}

// OwnNamespaces returns flexd's own.
func OwnNamespaces() (Namespaces, error) {
	mnt, err := os.Readlink("/proc/self/ns/mnt")
	return Namespaces{mnt}, err
}

// visible says whether a process would see what is mounted at dir: it lives in
// flexd's mount namespace, or the mount that dir lies on propagates to its own.
func (n Namespaces) visible(table *mount.Table, dir string, pid int) error {
	if pid == 0 || n.mnt == "" {
		return nil
	}
	proc := "/proc/" + strconv.Itoa(pid)
	theirs, err := os.Readlink(proc + "/ns/mnt")
	if err != nil {
		return fmt.Errorf("the caller's mount namespace: %w", err)
	}
	if theirs == n.mnt {
		return nil
	}
	on := table.Containing(dir)
	if on == nil || on.Peer == 0 {
		return fmt.Errorf("the caller lives in another mount namespace and would not see a mount at %s: make the mount below it shared (mount --make-rshared), or run flexd in kubelet's namespace", dir)
	}
	text, err := os.ReadFile(proc + "/mountinfo")
	if err != nil {
		return fmt.Errorf("the caller's mount table: %w", err)
	}
	for _, kind := range []string{"shared:", "master:"} {
		if bytes.Contains(text, []byte(" "+kind+strconv.Itoa(on.Peer)+" ")) {
			return nil
		}
	}
	return fmt.Errorf("the caller lives in another mount namespace, and %s (on which %s lies) does not propagate to it: run flexd in kubelet's namespace, or share the mount with it", on.Dir, dir)
}
