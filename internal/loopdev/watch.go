package loopdev

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// watchMask has the external changes to a directory and to names and attributes in it. It
// has no writes: every write to every volume would be an event.
const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// settle is the pause after a reported change: all changes during the pause are reported as
// one.
const settle = 250 * time.Millisecond

// Watch calls changed when a volume of a group may have changed, until ctx is done. It is the only
// source of events for changes made to files by hand. It calls trouble with the reason why a group
// cannot be watched. Each group is watched separately: if a directory does not respond, only its
// group is not watched, and Watch does not return.
func (p *Provider) Watch(ctx context.Context, changed func(vg string), trouble func(error)) {
	var all sync.WaitGroup
	for vg := range p.dirs {
		all.Go(func() {
			if err := p.follow(ctx, vg, changed, trouble); err != nil {
				trouble(fmt.Errorf("volume group %s: %w", vg, err))
			}
		})
	}
	all.Wait()
}

// follow watches one group.
func (p *Provider) follow(ctx context.Context, vg string, changed func(vg string), trouble func(error)) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	notify := os.NewFile(uintptr(fd), "inotify")
	defer notify.Close()
	again := func() { notify.SetReadDeadline(time.Now()) }
	p.mu.Lock()
	p.rewatch[vg] = again
	p.mu.Unlock()
	defer context.AfterFunc(ctx, again)()

	var (
		buf      [16 << 10]byte
		watched  = -1 // the watch descriptor
		reported string
	)
	for {
		notify.SetReadDeadline(time.Time{}) // first: events from here on end the wait below
		if ctx.Err() != nil {
			return nil
		}
		wd, err := p.watch(fd, vg)
		if err != nil && err.Error() != reported {
			reported = err.Error()
			trouble(fmt.Errorf("volume group %s: %w", vg, err))
		}
		if wd >= 0 && wd != watched { // earlier changes were missed
			if watched >= 0 {
				_, _ = unix.InotifyRmWatch(fd, uint32(watched))
			}
			watched, reported = wd, ""
			changed(vg)
		}
		n, err := notify.Read(buf[:])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return fmt.Errorf("inotify: %w", err)
		case !matters(buf[:n]):
			continue
		}
		changed(vg)
		select {
		case <-time.After(settle):
		case <-ctx.Done():
		}
	}
}

// watch watches the group's directory, which may have changed: it was mounted, or created
// again. The descriptor is -1 if it does not exist.
func (p *Provider) watch(fd int, vg string) (wd int, err error) {
	dir, err := p.directory(vg)
	if err != nil {
		return -1, err
	}
	wd, err = unix.InotifyAddWatch(fd, dir, watchMask)
	switch {
	case err == nil:
		return wd, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return -1, nil // the next survey that finds it starts the watch
	}
	return -1, fmt.Errorf("%s cannot be watched: %w", dir, err)
}

// watchAgain restarts the watch of the group's directory.
func (p *Provider) watchAgain(vg string) {
	p.mu.Lock()
	again := p.rewatch[vg]
	p.mu.Unlock()
	if again != nil {
		again()
	}
}

// matters reports whether one of these events may concern a volume.
func matters(b []byte) bool {
	for ne := binary.NativeEndian; len(b) >= unix.SizeofInotifyEvent; {
		mask, size := ne.Uint32(b[4:]), int(ne.Uint32(b[12:]))
		end := min(unix.SizeofInotifyEvent+size, len(b))
		name := unix.ByteSliceToString(b[unix.SizeofInotifyEvent:end])
		b = b[end:]
		switch {
		case name != "" && !strings.HasPrefix(name, "."): // see file
			return true
		case name == "" && mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_Q_OVERFLOW) != 0:
			return true
		}
	}
	return false
}
