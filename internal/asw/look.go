package asw

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
)

// A MountSource is the source of the mount table.
type MountSource interface {
	// Open returns the table's text.
	Open() (io.ReadCloser, error)
	// Changed reports whether the table may have changed since Changed was called
	// last. The first answer is true.
	Changed() bool
	// Wait returns when the table may have changed since Wait was called last,
	// or with an error when ctx is done.
	Wait(ctx context.Context) error
}

// A looker shares looks: callers that wait for the next look share it, and an unchanged table is
// not read again.
type looker struct {
	source MountSource

	mu        sync.Mutex
	begun     int      // the number of readings that have begun
	last      *reading // the last successful one
	forceRead bool     // the next one reads the table even if the kernel reports no change
	running   *reading
	reader    mounttable.Reader // only the running reading uses it
}

type reading struct {
	nth   int // by its beginning
	done  chan struct{}
	table *mounttable.Table
	err   error
}

// Look returns the mount table of a look that begins after the call.
func (o *Observer) Look(ctx context.Context) (*mounttable.Table, error) {
	return o.tables.look(ctx, false)
}

// Read is Look for changes without an event: changes of mount propagation.
func (o *Observer) Read(ctx context.Context) (*mounttable.Table, error) {
	return o.tables.look(ctx, true)
}

// LookAt is Look, with the mounts that a lookup of dirs reaches now: a rename of a directory
// above a mount changes paths in the table without an event.
func (o *Observer) LookAt(ctx context.Context, dirs ...string) (*mounttable.Table, error) {
	table, err := o.Look(ctx)
	if err == nil && slices.ContainsFunc(dirs, func(dir string) bool { return o.moved(table, dir) }) {
		return o.Read(ctx)
	}
	return table, err
}

// moved reports whether a lookup of dir reaches another mount than the table's. It touches no mount
// without a block device, at dir or above it, because its server may not respond.
func (o *Observer) moved(table *mounttable.Table, dir string) bool {
	id := 0
	switch reached, hidden := table.At(dir); {
	case len(reached) > 0:
		e := reached[len(reached)-1]
		if strings.HasPrefix(e.Number, "0:") && e.Type != "btrfs" {
			return false
		}
		id = e.ID
	case len(hidden) > 0:
		return false
	}
	now, err := o.MountID(dir)
	return err == nil && now != id
}

// mountID returns the ID of the mount whose root a directory is; 0 = none.
func mountID(dir string) (int, error) {
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &s)
	switch {
	case err == unix.ENOENT, err == unix.ENOTDIR:
		return 0, nil
	case err != nil:
		return 0, err
	case s.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0:
		return 0, nil
	}
	return int(s.Mnt_id), nil
}

// look returns the table of a look that begins after the call. With anew, the table is read even
// if the kernel reports no change.
func (l *looker) look(ctx context.Context, anew bool) (*mounttable.Table, error) {
	l.mu.Lock()
	l.forceRead = l.forceRead || anew
	after := l.begun
	l.mu.Unlock()
	for {
		l.mu.Lock()
		if l.last != nil && l.last.nth > after {
			defer l.mu.Unlock()
			return l.last.table, nil
		}
		g := l.running
		if g == nil {
			l.begun++
			g = &reading{nth: l.begun, done: make(chan struct{})}
			l.running = g
			go l.run(g)
		}
		l.mu.Unlock()
		select {
		case <-g.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if g.nth > after {
			return g.table, g.err
		}
	}
}

func (l *looker) run(g *reading) {
	l.mu.Lock()
	last := l.last
	if l.forceRead {
		last, l.forceRead = nil, false
	}
	l.mu.Unlock()
	// Changed is called before the read: the next look sees changes during the read.
	if changed := l.source.Changed(); !changed && last != nil {
		g.table = last.table
	} else {
		g.table, g.err = l.read()
	}
	l.mu.Lock()
	if l.running = nil; g.err == nil {
		l.last = g
	} else {
		l.last = nil // so that an unchanged table is read again
	}
	l.mu.Unlock()
	close(g.done)
}

func (l *looker) read() (*mounttable.Table, error) {
	r, err := l.source.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return l.reader.Read(r)
}

// Mountinfo is this process's own mount table. Its descriptors are not os.Files: the
// runtime's poller would consume the kernel's events.
type Mountinfo struct {
	looks, waits int
	wake         [2]int
}

const mountinfo = "/proc/self/mountinfo"

// OpenMountinfo returns the mount table of this process's mount namespace. It
// stays open until Close, or for the process's life.
func OpenMountinfo() (*Mountinfo, error) {
	m := new(Mountinfo)
	for _, fd := range []*int{&m.looks, &m.waits} {
		n, err := unix.Open(mountinfo, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: mountinfo, Err: err}
		}
		*fd = n
	}
	if err := unix.Pipe2(m.wake[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	return m, nil
}

// Close releases the descriptors. No further look is allowed.
func (m *Mountinfo) Close() {
	for _, fd := range []int{m.looks, m.waits, m.wake[0], m.wake[1]} {
		unix.Close(fd)
	}
}

// Open returns the table's text. Large reads need few walks of the kernel over the table.
func (m *Mountinfo) Open() (io.ReadCloser, error) { return os.Open(mountinfo) }

// Changed polls the kernel, which counts the changes of a namespace.
func (m *Mountinfo) Changed() bool {
	fds := []unix.PollFd{{Fd: int32(m.looks), Events: unix.POLLPRI}}
	n, err := unix.Poll(fds, 0)
	return err != nil || n > 0 // also after an interrupt: an additional read is always correct
}

// Wait sleeps in poll(2) until the kernel reports a change.
func (m *Mountinfo) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _, _ = unix.Write(m.wake[1], []byte{0}) })
	defer stop()
	for {
		// An old wake-up must not wake every later Wait. The pipe is emptied before ctx is
		// checked, so that no wake-up is lost.
		for n := 1; n > 0; {
			n, _ = unix.Read(m.wake[0], make([]byte, 16))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		fds := []unix.PollFd{{Fd: int32(m.waits), Events: unix.POLLPRI}, {Fd: int32(m.wake[0]), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case fds[0].Revents != 0:
			return nil
		}
	}
}
