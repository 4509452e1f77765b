package reconcile

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/flexd/flexd/internal/mounttable"
)

// follow wakes the lanes whose mounts change.
func (n *Node) follow() error {
	var last uint64
	for {
		wait, cancel := context.WithTimeoutCause(n.ctx, resync, errResync)
		waited := n.Mounts.Wait(wait)
		cancel()
		if n.ctx.Err() != nil {
			return nil
		}
		if waited != nil && !errors.Is(waited, errResync) {
			return fmt.Errorf("waiting for the mount table: %w", waited)
		}
		table, err := n.lookUntilRead() // the event is consumed even if the read fails
		if err != nil {
			return nil
		}
		n.adopt(table)
		if now := deviceMounts(table); now != last || errors.Is(waited, errResync) {
			last = now
			n.auditor.Changed("")
		}
		devices := table.Devices() // of all lanes at once, and without n.mu
		n.mu.Lock()
		for _, l := range n.lanes {
			if l.mountsChanged(devices) || errors.Is(waited, errResync) && (l.mountMissing(table) || l.leaseExpired()) {
				l.wake()
			}
		}
		n.mu.Unlock()
	}
}

// deviceMounts is a fingerprint of the mounts that are on block devices: the others
// come and go with every container.
func deviceMounts(table *mounttable.Table) uint64 {
	h := fnv.New64a()
	for _, e := range table.All() {
		if strings.HasPrefix(e.Source, "/dev/") {
			fmt.Fprintln(h, e.ID, e.Number, e.Dir, e.Options, e.SuperReadOnly)
		}
	}
	return h.Sum64()
}
