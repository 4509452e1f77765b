package lvm

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// A watch receives external changes without polling: the kernel reports every change of a
// device-mapper device, and LVM commands that change metadata close the disks that they have written,
// which inotify reports.
type watch struct {
	p       *Provider
	changed func(vg string, volumes map[volume.UUID]time.Time)
	notify  int // inotify

	// Used only by Watch's goroutine:
	devices        map[string]devmapper.Mapped // by number, with their last names
	changedDevices map[string]time.Time        // changes that are not reported yet: the device numbers, and the times of the events
	gone           []goneDevice                // likewise, removed devices
	groups         map[string]bool             // likewise, whole groups

	mu    sync.Mutex
	disks map[string]string // guarded by mu: path → VG
	paths map[int32]string  // guarded by mu: inotify's number → path
}

// A goneDevice is a device that was removed, with its last name.
type goneDevice struct {
	devmapper.Mapped
	heard time.Time
}

// Watch calls changed when something may have changed in a volume group ("" = any group), until ctx is
// done. volumes are the volumes whose devices have changed, nil = any; an observation that began after
// the given time includes that change. If the group's metadata may have changed, its cache is
// invalidated first.
func (p *Provider) Watch(ctx context.Context, changed func(vg string, volumes map[volume.UUID]time.Time)) error {
	events, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("uevents: %w", err)
	}
	defer unix.Close(events)
	if err := unix.Bind(events, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		return fmt.Errorf("uevents: %w", err)
	}
	w := &watch{p: p, changed: changed, devices: map[string]devmapper.Mapped{}, changedDevices: map[string]time.Time{}, groups: map[string]bool{}, disks: map[string]string{}, paths: map[int32]string{}}
	if w.notify, err = unix.InotifyInit1(unix.IN_CLOEXEC); err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	defer unix.Close(w.notify)
	var wake [2]int
	if err := unix.Pipe2(wake[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(wake[0])
	defer unix.Close(wake[1])
	stop := context.AfterFunc(ctx, func() { _, _ = unix.Write(wake[1], []byte{0}) })
	defer stop()

	p.watch.Store(w)
	defer p.watch.CompareAndSwap(w, nil)
	p.Invalidate("") // earlier changes were missed
	if all, err := p.DM.List(); err == nil {
		for _, m := range all {
			w.devices[m.Number] = m
		}
	}
	go p.warm(ctx)
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(events), Events: unix.POLLIN}, {Fd: int32(w.notify), Events: unix.POLLIN}, {Fd: int32(wake[0]), Events: unix.POLLIN}}
		wait := -1
		if len(w.changedDevices)+len(w.gone)+len(w.groups) > 0 {
			wait = settle
		}
		n, err := unix.Poll(fds, wait)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("poll: %w", err)
		}
		if n == 0 {
			w.report()
			continue
		}
		if fds[0].Revents != 0 {
			w.uevents(events)
		}
		if fds[1].Revents != 0 {
			w.written()
		}
		time.Sleep(readPause) // read the following events together
	}
	return nil
}

// readPause is the pause between reads: an activation of many volumes causes several events for each,
// and waking up for each event costs more than handling it.
const readPause = 10 * time.Millisecond

// settle is the time in milliseconds without events after which a change is reported: an
// activation of many volumes is one change.
const settle = 20

func (w *watch) report() {
	groups, volumes := w.groups, map[string]map[volume.UUID]time.Time{}
	add := func(m devmapper.Mapped, heard time.Time) {
		vg := groupOf(m)
		uuid, ok := parseDMUUID(m.UUID)
		if !ok || vg == "" { // a pool, an origin or a disk: any volume on it may have changed
			groups[vg] = true
			return
		}
		if volumes[vg] == nil {
			volumes[vg] = map[volume.UUID]time.Time{}
		}
		if heard.After(volumes[vg][uuid]) { // it may have been removed and created again
			volumes[vg][uuid] = heard
		}
	}
	for _, m := range w.gone {
		add(m.Mapped, m.heard)
	}
	for _, m := range w.changedMappings() {
		add(m, w.changedDevices[m.Number])
	}
	w.changedDevices, w.gone, w.groups = map[string]time.Time{}, nil, map[string]bool{}
	if groups[""] {
		w.changed("", nil)
		return
	}
	for vg := range groups {
		w.changed(vg, nil)
		delete(volumes, vg)
	}
	for vg, some := range volumes {
		w.changed(vg, some)
	}
}

// changedMappings returns the changed devices, for which an event has only the number. If they cannot
// be listed, it returns an unnamed one, which stands for any.
func (w *watch) changedMappings() (all []devmapper.Mapped) {
	if len(w.changedDevices) == 0 {
		return nil
	}
	known, err := w.p.DM.List()
	if err != nil {
		return []devmapper.Mapped{{}} // anything
	}
	for _, m := range known {
		if _, changed := w.changedDevices[m.Number]; changed {
			w.devices[m.Number] = m
			all = append(all, m)
		}
	}
	return all
}

// warm reads the metadata of the configured groups, so that their disks are watched and the first call
// does not wait for a report.
func (p *Provider) warm(ctx context.Context) {
	for vg := range p.Groups {
		if g, err := p.configured(vg); err == nil {
			for range 2 { // the first finds the disks, see follow
				if _, _, err := g.look(ctx, false); err != nil {
					break // a request for a volume returns the error
				}
			}
		}
	}
}

// uevents reads the kernel's events.
func (w *watch) uevents(fd int) {
	var buf [16 << 10]byte
	for {
		n, from, err := unix.Recvfrom(fd, buf[:], unix.MSG_DONTWAIT)
		switch {
		case err == unix.ENOBUFS: // some were lost
			w.p.Invalidate("")
			w.groups[""] = true
			continue
		case err != nil || n <= 0:
			return
		case !fromKernel(from):
			continue
		}
		heard := time.Now() // taken after the event: later observations include the change
		switch e := parseUevent(buf[:n]); e.what {
		case deviceChanged:
			if !e.removed {
				w.changedDevices[e.number] = heard
				continue
			}
			// The kernel reports a removal twice. The second event finds no device here and is
			// ignored, unless the device was removed before it was listed.
			m, known := w.devices[e.number]
			if _, changed := w.changedDevices[e.number]; known || changed {
				w.gone = append(w.gone, goneDevice{m, heard})
			}
			delete(w.devices, e.number)
			delete(w.changedDevices, e.number)
		case diskChanged:
			w.p.Invalidate("")
			w.groups[""] = true
		}
	}
}

// fromKernel reports whether the kernel sent a uevent: a process with CAP_NET_ADMIN can also send one,
// to the group or to this socket.
func fromKernel(from unix.Sockaddr) bool {
	a, ok := from.(*unix.SockaddrNetlink)
	return ok && a.Pid == 0 && a.Groups == 1
}

func groupOf(m devmapper.Mapped) string {
	if !strings.HasPrefix(m.UUID, "LVM-") {
		return ""
	}
	name, _, _ := parseDMName(m.Name)
	return name.VG
}

// A uevent is a kernel event of a block device.
type uevent struct {
	what    int
	number  string
	removed bool
}

// The kinds of events.
const (
	nothingOfOurs = iota
	deviceChanged // a device of device-mapper
	diskChanged   // another disk was added, removed or resized
)

// parseUevent reads one message of the kernel: a header and KEY=value words, separated by zero bytes.
func parseUevent(message []byte) (e uevent) {
	var action, subsystem, major, minor, name, resize string
	of := map[string]*string{"ACTION": &action, "SUBSYSTEM": &subsystem, "MAJOR": &major, "MINOR": &minor, "DEVNAME": &name, "RESIZE": &resize}
	for word := range bytes.SplitSeq(message, []byte{0}) {
		key, value, _ := bytes.Cut(word, []byte{'='})
		if v := of[string(key)]; v != nil {
			*v = string(value)
		}
	}
	if subsystem != "block" {
		return e
	}
	e.number = major + ":" + minor
	e.removed = action == "remove"
	switch {
	case !strings.HasPrefix(name, "dm-"):
		if e.removed || action == "add" || resize != "" {
			e.what = diskChanged
		}
	case action != "add": // it has no table yet
		e.what = deviceChanged
	}
	return e
}

// written reads the names of the disks that were written.
func (w *watch) written() {
	var buf [16 << 10]byte
	n, err := unix.Read(w.notify, buf[:])
	if err != nil {
		return
	}
	groups := map[string]bool{}
	for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		wd, mask, length := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		w.mu.Lock()
		path := w.paths[wd]
		if mask&unix.IN_IGNORED != 0 { // the node is gone
			delete(w.paths, wd)
			delete(w.disks, path)
		}
		if vg, ok := w.disks[path]; ok || mask&(unix.IN_Q_OVERFLOW|unix.IN_IGNORED) != 0 {
			groups[vg] = true
		}
		w.mu.Unlock()
		b = b[min(unix.SizeofInotifyEvent+length, len(b)):]
	}
	for vg := range groups {
		w.p.Invalidate(vg)
		w.groups[vg] = true
	}
}

// follow watches the group's disks; it is called with the facts of each look. news reports that a disk
// was added: a change between the look and the start of its watch would be missed, so the look must be
// repeated. all is false if a disk is not watched, for example because the kernel has no watch left.
func (w *watch) follow(f *Facts) (news, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all = true
	for _, pv := range f.PVs {
		if pv.Missing || !strings.HasPrefix(pv.Path, "/") || w.disks[pv.Path] == f.Name {
			continue
		}
		wd, err := unix.InotifyAddWatch(w.notify, pv.Path, unix.IN_CLOSE_WRITE|unix.IN_DELETE_SELF)
		if err != nil {
			all = false
			continue
		}
		w.disks[pv.Path], w.paths[int32(wd)] = f.Name, pv.Path
		news = true
	}
	return news, all
}
