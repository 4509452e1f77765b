package loopdev

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// heeded is what somebody may do to a directory, or to a name or an attribute in
// it. Not what is written: that is every write of every volume.
const heeded = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

var ne = binary.NativeEndian

// settle is for how long what happens after a first change counts as the same.
const settle = 20 * time.Millisecond

// A watch follows what is done to the volumes' files by hand: no mount and no
// call tells of it.
type watch struct {
	p       *Provider
	changed func(vg string, volumes []volume.UUID, heard time.Time)
	notify  *os.File // inotify

	mu     sync.Mutex
	groups map[int]string                    // guarded by mu: inotify's number → VG
	files  map[string]map[string]volume.UUID // guarded by mu: by VG and name, as they were told last
}

// Watch calls changed when something may have changed in a volume group ("" = in
// any), until ctx is done: of these volumes, or of any if there are none. heard is
// when the kernel told it last.
func (p *Provider) Watch(ctx context.Context, changed func(vg string, volumes []volume.UUID, heard time.Time)) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	w := &watch{p: p, changed: changed, notify: os.NewFile(uintptr(fd), "inotify"), groups: map[int]string{}, files: map[string]map[string]volume.UUID{}}
	defer w.notify.Close()
	defer context.AfterFunc(ctx, func() { w.notify.Close() })()
	for vg := range p.dirs {
		if _, err := w.follow(vg); err != nil {
			return err
		}
	}
	p.watch.Store(w)
	defer p.watch.Store(nil)

	var (
		buf     [16 << 10]byte
		stirred = map[string]map[volume.UUID]bool{} // what is still to be told; a VG without volumes = all of it
		heard   time.Time
	)
	for {
		n, err := w.notify.Read(buf[:])
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			w.tell(stirred, heard)
			clear(stirred)
			w.notify.SetReadDeadline(time.Time{})
			continue
		case err != nil:
			return fmt.Errorf("inotify: %w", err)
		}
		heard = time.Now() // not before: whoever has looked since has seen all that was told
		quiet := len(stirred) == 0
		if w.read(buf[:n], stirred); quiet && len(stirred) > 0 {
			w.notify.SetReadDeadline(heard.Add(settle))
		}
	}
}

func (w *watch) tell(stirred map[string]map[volume.UUID]bool, heard time.Time) {
	for vg, volumes := range stirred {
		var some []volume.UUID
		for uuid := range volumes {
			some = append(some, uuid)
		}
		w.changed(vg, some, heard)
	}
}

// read notes which volumes some events are about: the file that has the name now,
// and the one that had it before.
func (w *watch) read(b []byte, stirred map[string]map[volume.UUID]bool) {
	for len(b) >= unix.SizeofInotifyEvent {
		wd, mask, size := int(int32(ne.Uint32(b))), ne.Uint32(b[4:]), int(ne.Uint32(b[12:]))
		end := min(unix.SizeofInotifyEvent+size, len(b))
		name := unix.ByteSliceToString(b[unix.SizeofInotifyEvent:end])
		b = b[end:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			stirred[""] = nil
			continue
		}
		w.mu.Lock()
		vg, known := w.groups[wd]
		if mask&unix.IN_IGNORED != 0 {
			delete(w.groups, wd)
		}
		w.mu.Unlock()
		volumes, told := stirred[vg]
		switch {
		case !known, told && volumes == nil:
		case name == "" && mask&unix.IN_ATTRIB != 0: // the directory's own
		case name == "":
			stirred[vg] = nil
		default:
			for _, uuid := range w.named(vg, name) {
				if stirred[vg] == nil {
					stirred[vg] = map[volume.UUID]bool{}
				}
				stirred[vg][uuid] = true
			}
		}
	}
}

// named returns which volumes had the name and have it now.
func (w *watch) named(vg, name string) (all []volume.UUID) {
	file, err := w.p.file(volume.Name{VG: vg, LV: name})
	if err != nil {
		return nil // no name of a volume
	}
	f, err := w.p.kernel.File(file)
	w.mu.Lock()
	defer w.mu.Unlock()
	files := w.files[vg]
	if before := files[name]; before != "" {
		all = append(all, before)
	}
	delete(files, name)
	if now := volume.UUID(f.UUID); err == nil && f.UUID != "" {
		files[name] = now
		all = append(all, now)
	}
	return all
}

// follow watches the group's directory, if it is another one than before: it was
// mounted, or made anew. One that is not there is followed by the next survey
// that finds it.
func (w *watch) follow(vg string) (news bool, err error) {
	dir, err := w.p.directory(vg)
	if err != nil {
		return false, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	wd, err := w.add(dir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("inotify: %s: %w", dir, err)
	}
	if _, followed := w.groups[wd]; followed {
		return false, nil
	}
	for old, of := range w.groups {
		if of == vg {
			delete(w.groups, old)
		}
	}
	w.groups[wd] = vg
	files := map[string]volume.UUID{}
	all, _ := w.p.files(vg, dir) // the survey says what is wrong with it
	for _, v := range all {
		files[v.Name] = v.UUID
	}
	w.files[vg] = files
	return true, nil
}

func (w *watch) add(dir string) (wd int, err error) {
	raw, err := w.notify.SyscallConn()
	if err != nil {
		return 0, err
	}
	if cerr := raw.Control(func(fd uintptr) { wd, err = unix.InotifyAddWatch(int(fd), dir, heeded) }); cerr != nil {
		return 0, cerr
	}
	return wd, err
}
