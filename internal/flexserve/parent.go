package flexserve

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
)

// A parent is the kubelet that has started a flexdriver. A process has another
// parent than at its start only when that one is dead, which is cheap to ask: it
// is asked before each step of a call. A nil one is not known.
type parent struct {
	pid int

	mu sync.Mutex // guards what follows
	fd int        // a pidfd, -1 = there is none: each time /proc is read
}

// parentOf finds the parent of the flexdriver pid, as flexd sees process ids: what
// flexdriver said at its start or, where it lives in another pid namespace and its
// numbers mean nothing here, what /proc says at its arrival. It is the caller's to
// close.
func parentOf(pid, said int) *parent {
	if pid == 0 || said == 0 {
		return nil
	}
	p, now := watch(pid, said)
	if now == said {
		return p
	}
	theirs, err := procfs.Process(pid).Namespace("pid")
	ours, err2 := procfs.OwnNamespace("pid")
	switch {
	case err != nil || err2 != nil || ours == theirs:
		return p // it is dead, and /proc continues to show that
	case now == 0:
		return nil
	}
	p, _ = watch(pid, now)
	return p
}

// watch returns a parent of that number, with a descriptor only if it really is
// the process' parent, and the pid of the real one; 0 = unknown.
func watch(pid, of int) (p *parent, now int) {
	p = &parent{pid: of, fd: -1}
	if fd, err := unix.PidfdOpen(of, 0); err == nil {
		p.fd = fd
	}
	// Only now is it sure that the descriptor is the parent's, not that of a
	// process that has its number since.
	if now, _ = procfs.Process(pid).Parent(); now != of {
		p.close()
	}
	return p, now
}

// alive reports whether the process is still its child.
func (p *parent) alive(pid int) bool {
	if p == nil || pid == 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd < 0 {
		now, err := procfs.Process(pid).Parent()
		return err == nil && now == p.pid
	}
	return procfs.Alive(p.fd)
}

func (p *parent) close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd >= 0 {
		unix.Close(p.fd)
		p.fd = -1
	}
}
