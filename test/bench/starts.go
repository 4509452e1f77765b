package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A starts receives from the kernel every process that is started below some
// process: the proc connector reports each fork and each exec, and no process can
// avoid it.
type starts struct {
	fd   int
	root int

	mu       sync.Mutex
	family   map[int]bool   // guarded by mu, as all that follows: root, and the processes that it started
	forks    int            // processes, not threads
	programs map[string]int // what they ran: the program's name, and the first word of lvm's
	err      error
}

// linux/connector.h and linux/cn_proc.h
const (
	connectorProc = 1
	procListen    = 1
	procFork      = 1
	procExec      = 2

	netlinkHeader   = 16
	connectorHeader = 20
	eventHeader     = 16 // what, cpu, timestamp
)

// hearStarts begins to count the processes that root and its descendants start. It leaves an fd open until
// this program ends.
func hearStarts(root int) (*starts, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_CONNECTOR)
	if err != nil {
		return nil, fmt.Errorf("proc connector: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: connectorProc}); err != nil {
		return nil, fmt.Errorf("proc connector: %w", err)
	}
	var m bytes.Buffer
	for _, field := range []any{
		uint32(netlinkHeader + connectorHeader + 4), uint16(unix.NLMSG_DONE), uint16(0), uint32(0), uint32(0),
		uint32(connectorProc), uint32(connectorProc), uint32(0), uint32(0), uint16(4), uint16(0),
		uint32(procListen),
	} {
		binary.Write(&m, binary.NativeEndian, field)
	}
	if err := unix.Send(fd, m.Bytes(), 0); err != nil {
		return nil, fmt.Errorf("proc connector: %w", err)
	}
	s := &starts{fd: fd, root: root, family: map[int]bool{root: true}, programs: map[string]int{}}
	go s.listen()
	return s, nil
}

func (s *starts) listen() {
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(s.fd, buf)
		if err == unix.EINTR {
			continue
		}
		s.mu.Lock()
		if err != nil {
			s.err = fmt.Errorf("proc connector: %w", err) // ENOBUFS: some went unheard
		} else if n >= netlinkHeader+connectorHeader+eventHeader+16 {
			s.heard(buf[netlinkHeader+connectorHeader : n])
		}
		s.mu.Unlock()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
	}
}

func (s *starts) heard(event []byte) {
	pid := func(i int) int { return int(binary.NativeEndian.Uint32(event[eventHeader+4*i:])) }
	switch binary.NativeEndian.Uint32(event) {
	case procFork: // parent's pid and tgid, child's pid and tgid
		if child := pid(2); s.family[pid(1)] && child == pid(3) {
			s.family[child] = true
			s.forks++
		}
	case procExec:
		if s.family[pid(1)] && pid(1) != s.root {
			s.programs[program(pid(1))]++
		}
	}
}

// program returns the name of a process's program.
func program(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	words := strings.Split(string(text), "\x00")
	name := words[0][strings.LastIndexByte(words[0], '/')+1:]
	switch {
	case words[0] == "lvm" && len(words) > 2:
		return "lvm " + words[1]
	case name == "lvm": // by its path in kubelet's directory
		return "flexdriver"
	case name == "exe" && len(words) > 3 && words[1] == "child": // flexd itself
		return "flexd " + words[2]
	case name == "exe":
		return "bench-floor"
	}
	return name
}

// take returns the starts since the last call: the number of processes, their programs, and the number of
// LVM's.
func (s *starts) take() (forks int, programs map[string]int, err error) {
	time.Sleep(50 * time.Millisecond) // the last events are on their way
	s.mu.Lock()
	defer s.mu.Unlock()
	forks, programs, err = s.forks, s.programs, s.err
	s.forks, s.programs = 0, map[string]int{}
	return forks, programs, err
}
