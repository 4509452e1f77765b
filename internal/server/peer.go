package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
)

// A Peer is the process at the other end, as the kernel reports it.
type Peer struct {
	Pid int // 0 = in a pid namespace that is not visible here
	UID uint32
}

// peerOf returns the peer of a connection and, if it may not call, a refusal. It returns an
// error if the caller has ended.
//
// Kubelet, which starts flexdriver, is root with CAP_SYS_ADMIN on the node itself. The uid is not
// enough: a root process in a pod that can reach the socket has uid 0 as well.
func peerOf(conn *net.UnixConn) (p Peer, refused *refusedPeer, err error) {
	cred, err := credentials(conn)
	if err != nil {
		return p, nil, err
	}
	p = Peer{Pid: int(cred.Pid), UID: cred.Uid}
	process, err := option(conn, func(fd int) (int, error) { return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD) })
	if err == unix.ENOPROTOOPT && p.Pid != 0 { // before Linux 6.5: a later process may have its pid by now
		process, err = unix.PidfdOpen(p.Pid, 0)
	}
	if err != nil && err != unix.ENOPROTOOPT {
		return p, nil, fmt.Errorf("process %d: %w", p.Pid, err)
	}
	known := err == nil
	if known {
		defer unix.Close(process)
	}
	refused = p.check()
	// The facts from /proc are about the peer only if the peer has not ended.
	if known && !procfs.Alive(process) {
		return p, nil, fmt.Errorf("process %d has ended", p.Pid)
	}
	return p, refused, nil
}

// check returns why the process may not call, or nil.
func (p Peer) check() *refusedPeer {
	process := procfs.Process(p.Pid)
	refuse := func(cgroup string, err error) *refusedPeer {
		lines := strings.Split(cgroup, "\n") // with cgroup v1 one for each controller
		i := max(slices.IndexFunc(lines, procfs.OfPod), 0)
		return &refusedPeer{p, process.Comm(), lines[i], err}
	}
	cgroup, err := process.Cgroup()
	switch own := os.Geteuid(); {
	case own != 0 && int(p.UID) == own: // a flexd without root, for development, takes calls of its own user
		return nil
	case p.UID != 0:
		return refuse(cgroup, errors.New("its uid is not 0"))
	case p.Pid == 0:
		return refuse("", errors.New("flexd cannot see it: in a container flexd needs hostPID"))
	case err != nil:
		return refuse("", err)
	case procfs.OfPod(cgroup):
		return refuse(cgroup, errors.New("it runs in a pod"))
	}
	if err := process.Administers(); err != nil {
		return refuse(cgroup, err)
	}
	return nil
}

// A refusedPeer is a process that may not call, and why.
type refusedPeer struct {
	Peer
	command string
	cgroup  string
	why     error
}

func (r *refusedPeer) Error() string {
	return fmt.Sprintf("only kubelet and an administrator of the node itself may call flexd, not process %d (%q, uid %d, cgroup %q): %v",
		r.Pid, r.command, r.UID, r.cgroup, r.why)
}

func (r *refusedPeer) fields() logrus.Fields {
	return logrus.Fields{"command": r.command, "uid": r.UID, "cgroup": r.cgroup}
}
