package flexserve

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
)

// A parent is the kubelet that started a flexdriver; nil = unknown. The parent of a process changes
// only when it ends. This check is cheap, and made before each step of a call.
type parent struct {
	pid int

	mu sync.Mutex // guards fd
	fd int        // a pidfd, -1 = none: /proc is read each time
}

// parentOf returns the parent of the flexdriver pid in flexd's pid namespace: the one that flexdriver
// reported at its start or, if flexdriver is in another pid namespace, the present one
// in /proc. The caller closes it.
func parentOf(pid, reported int) *parent {
	if pid == 0 || reported == 0 {
		return nil
	}
	p, now := watch(pid, reported)
	if now == reported {
		return p
	}
	theirs, err := procfs.Process(pid).Namespace("pid")
	ours, err2 := procfs.OwnNamespace("pid")
	switch {
	case err != nil || err2 != nil || ours == theirs:
		return p // the parent has ended, which alive detects in /proc
	case now == 0:
		return nil
	}
	p, _ = watch(pid, now)
	return p
}

// watch returns the parent with the pid of, with a descriptor only if it is the parent of
// pid now, and the pid of the present parent; 0 = unknown.
func watch(pid, of int) (p *parent, now int) {
	p = &parent{pid: of, fd: -1}
	if fd, err := unix.PidfdOpen(of, 0); err == nil {
		p.fd = fd
	}
	// After the open: the pid may have been reused before it.
	if now, _ = procfs.Process(pid).Parent(); now != of {
		p.close()
	}
	return p, now
}

// alive reports whether pid still is its child.
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
