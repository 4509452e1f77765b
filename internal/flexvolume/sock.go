package flexvolume

import (
	"syscall"
	"time"
	"unsafe"
)

// A sock is a unix stream socket with plain system calls. Package net would
// make flexdriver larger and slower to start (see scanner).
type sock int

const (
	forReading = 0x1 // POLLIN
	forWriting = 0x4 // POLLOUT
)

// dial connects to the socket at path without waiting. EAGAIN: its backlog is full.
func dial(path string) (sock, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	for {
		err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path})
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		syscall.Close(fd)
		return 0, err
	}
	return sock(fd), nil
}

func (s sock) close() { syscall.Close(int(s)) }

func (s sock) read(b []byte) (int, error) {
	for {
		n, err := syscall.Read(int(s), b)
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// write writes a part of b. The Go runtime ignores SIGPIPE on descriptors other
// than 1 and 2, so a closed connection is EPIPE.
func (s sock) write(b []byte) (int, error) {
	for {
		n, err := syscall.Write(int(s), b)
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// locked reports whether a process may hold the lock of a file, which may not exist.
func locked(file string) bool {
	fd, err := syscall.Open(file, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err != syscall.ENOENT
	}
	defer syscall.Close(fd)
	return syscall.Flock(fd, syscall.LOCK_SH|syscall.LOCK_NB) != nil
}

// poll waits for at most d and reports whether s is ready, and whether the process has ended.
func (s sock) poll(what int16, p pidfd, d time.Duration) (ready, ended bool) {
	fds := [2]struct {
		fd              int32
		events, revents int16
	}{{fd: int32(s), events: what}, {fd: int32(p), events: forReading}} // the kernel ignores a negative descriptor
	ts := syscall.NsecToTimespec(int64(d))
	n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), 2, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	happened := errno == 0 && n > 0
	return happened && fds[0].revents != 0, happened && fds[1].revents != 0
}

// A pidfd reports the end of a process.
type pidfd int

const none pidfd = -1

// process returns the pidfd of a process, or none: kernels before 5.3 have none, and a
// parent in another pid namespace has no pid here.
func process(pid int) pidfd {
	const pidfdOpen = 434 // not on MIPS, where the call fails
	fd, _, errno := syscall.Syscall(pidfdOpen, uintptr(pid), 0, 0)
	if errno != 0 {
		return none
	}
	return pidfd(fd)
}

func (p pidfd) close() {
	if p != none {
		syscall.Close(int(p))
	}
}
