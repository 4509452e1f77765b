package hosttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// ops are flexd's children. An unknown operation fails the test: the simulation must not
// accept it silently.
var ops = map[string]func(*process, []byte) (any, error){
	"probe":         onDevice(probe),
	"format":        format,
	"zero":          onDevice(zero),
	"check":         onDevice(check),
	"mount":         mountVolume,
	"umount":        umount,
	"grow":          onDevice(grow),
	"can-grow":      onDevice(canGrow),
	"loop-identify": identify,
	"loop-create":   create,
	"loop-attach":   attach,
	"loop-detach":   detach,
	"loop-extend":   extend,
	"lvm-holders": func(*process, []byte) (any, error) {
		return []mount.Holder{{Pid: 4712, Comm: "dd", How: "has it open"}}, nil
	},
}

func decode[T any](p *process, text []byte) T {
	var arg T
	if err := json.Unmarshal(text, &arg); err != nil {
		p.h.broke("%s: its argument does not parse: %v: %s", p.op, err, text)
	}
	return arg
}

// A deviceArg is the argument of a child that works on one device. No child has all fields.
type deviceArg struct {
	Device volume.Device `json:"device"`
	At     string        `json:"at"`
	From   int64         `json:"from"`
}

// onDevice returns a child whose device is the one that was observed. h.mu is held in do.
func onDevice(do func(p *process, a deviceArg, l *loop) (any, error)) func(p *process, text []byte) (any, error) {
	return func(p *process, text []byte) (any, error) {
		a := decode[deviceArg](p, text)
		p.h.mu.Lock()
		defer p.h.mu.Unlock()
		l, err := p.h.device(a.Device)
		if err != nil {
			return nil, err
		}
		return do(p, a, l)
	}
}

// device finds the device that was observed, if it is still the same.
func (h *Host) device(d volume.Device) (*loop, error) {
	if h.locking != nil && h.locking.cutOff {
		return nil, &fs.PathError{Op: "read", Path: d.Path, Err: syscall.EIO}
	}
	l := h.loops[path.Base(d.Path)]
	if l == nil || l.Number != d.Number || l.Seq != d.Seq {
		return nil, fmt.Errorf("%w: %s", mount.ErrChanged, d.Path)
	}
	if l.foreign {
		h.broke("a command is about a foreign device: %s", d.Path)
	}
	if l.fenced {
		return nil, &fs.PathError{Op: "read", Path: d.Path, Err: syscall.EIO}
	}
	return l, nil
}

// begin reserves the volume for one command: two at the same time would break the first promise.
func (h *Host) begin(p *process, f *File) {
	if other, ok := h.live[f]; ok {
		h.broke("%s began while %s still works on %s", p.op, other, f.path)
	}
	if p.cmd.Lock == "" {
		h.broke("%s works on %s without its lane's lock", p.op, f.path)
	}
	h.live[f] = p.op
	p.file = f
}

func mountVolume(p *process, text []byte) (any, error) {
	a := decode[mount.MountSpec](p, text)
	h := p.h
	h.mu.Lock()
	l, err := h.device(a.Device)
	if err != nil {
		h.mu.Unlock()
		return nil, err
	}
	f := l.file
	h.begin(p, f)
	if a.First {
		h.alone(p, f)
		if err := h.takes(p, l); err != nil {
			h.mu.Unlock()
			return nil, err
		}
	}
	super := "rw"
	live := h.mountsOf(f)
	for _, o := range a.Super {
		super += "," + o
	}
	if len(live) > 0 { // one superblock for all
		super = live[0].super
	}
	readOnly := a.Device.ReadOnly || l.ReadOnly && len(live) == 0
	m := &mnt{number: l.Number, root: "/", dir: a.Dir, typ: a.FSType, src: a.Device.Path, super: super,
		ro: a.ReadOnly || readOnly, superRO: readOnly, file: f}
	for _, attr := range a.Attrs {
		m.attrs += "," + attr
	}
	switch {
	case f.State == Failed:
		err = fmt.Errorf("%w: %s", mount.ErrFailed, f.Note)
	case f.Bytes > l.Size:
		err = &mount.Refusal{What: "it is larger than its device", Hint: "give it its size back"}
	case f.State != Whole || f.Type != a.FSType:
		err = errors.New("wrong fs type, bad superblock")
	case !h.folders[h.place(a.Dir)]:
		err = fmt.Errorf("%w: %s", mount.ErrNoDir, a.Dir)
	case len(live) > 0 && live[0].superRO != readOnly:
		err = syscall.EBUSY
	case a.Root == "" || !strings.HasPrefix(a.Dir, a.Root+"/"):
		err = fmt.Errorf("%s does not lie below %q", a.Dir, a.Root)
	}
	was := h.reach(a.Dir)
	others := slices.DeleteFunc(slices.Clone(live), func(m *mnt) bool { return !m.owners })
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if !p.stay(h.before, "mount-built") {
		return nil, errKilled
	}
	if !p.gate() {
		return nil, errors.New("flexd did not permit it")
	}
	if h.Permitted != nil {
		h.Permitted(a.Dir, f.UUID)
	}
	if err := p.pace("within"); err != nil {
		return nil, err
	}
	h.mustClaim(f.UUID, a.Dir)
	h.mustNotRecord(f.UUID, "formatting")
	h.mu.Lock()
	if !h.folders[h.place(a.Dir)] || h.reach(a.Dir) != was {
		h.mu.Unlock()
		return nil, fmt.Errorf("%s became another directory, or something was mounted there, in the meantime", a.Dir)
	}
	if was.dir == a.Dir {
		h.broke("a mount lands on a mount point: %s", a.Dir)
	}
	for _, o := range others {
		if slices.Contains(h.mounts, o) {
			h.broke("a mount lands at %s while something else has the volume mounted at %s", a.Dir, o.dir)
		}
	}
	h.alone(p, f)
	h.mustTag(f, "flexd.fs="+f.Type)
	h.add(m)
	f.mounted = true
	h.mu.Unlock()
	if h.Mounted != nil {
		h.Mounted(a.Dir, f.UUID)
	}
	return struct{}{}, nil
}

func umount(p *process, text []byte) (any, error) {
	a := decode[struct {
		Dir    string `json:"dir"`
		Number string `json:"number"`
		Alone  bool   `json:"alone"`
		Last   bool   `json:"last"`
	}](p, text)
	h := p.h
	h.mu.Lock()
	m := h.top(a.Dir)
	switch {
	case m == nil:
		h.mu.Unlock()
		return nil, fmt.Errorf("%w: %s", mount.ErrNone, a.Dir)
	case m.number != a.Number:
		h.mu.Unlock()
		return nil, fmt.Errorf("%w: %s", mount.ErrForeign, a.Dir)
	case m.file == nil:
		h.broke("umount of a foreign mount: %s at %s", m.src, a.Dir)
		h.mu.Unlock()
		return nil, fmt.Errorf("%w: %s", mount.ErrForeign, a.Dir)
	}
	h.begin(p, m.file)
	if h.busy(m) {
		h.mu.Unlock()
		return nil, &mount.BusyError{What: a.Dir, Holders: []mount.Holder{{Pid: 4711, Comm: "pod", How: "open file"}}}
	}
	if where := h.elsewhere[m.file.path]; a.Alone && where != "" {
		h.mu.Unlock()
		return nil, &mount.BusyError{What: a.Dir, Holders: []mount.Holder{{Pid: 4712, Comm: "container", How: "mounted in its mount namespace mnt:[4026532208] at " + where}}}
	}
	careless := h.Careless
	h.mu.Unlock()
	if !careless {
		h.mustBeReleasing(m.file.UUID, a.Dir)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !slices.Contains(h.mounts, m):
	case h.busy(m): // it was not, when the child looked
		return nil, &mount.BusyError{What: a.Dir}
	default:
		h.unlink(m)
		if a.Last {
			if h.umounts++; h.umounts%4 == 0 { // the disk refuses a write now and then
				return nil, mount.ErrUnwritten
			}
		}
	}
	return struct{}{}, nil
}

func canGrow(p *process, a deviceArg, l *loop) (any, error) {
	if m := p.h.top(a.At); m == nil || m.file != l.file {
		return nil, fmt.Errorf("%w: %s", mount.ErrNone, a.At)
	}
	return struct{}{}, nil
}

func grow(p *process, a deviceArg, l *loop) (any, error) {
	h := p.h
	h.begin(p, l.file)
	h.alone(p, l.file)
	if m := h.top(a.At); m == nil || m.file != l.file {
		return nil, fmt.Errorf("%w: %s", mount.ErrNone, a.At)
	}
	l.file.Bytes = max(l.file.Bytes, volume.Room(l.Size))
	return struct{}{}, nil
}
