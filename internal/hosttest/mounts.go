package hosttest

import (
	"path"
	"slices"
	"strings"
)

// A mnt is a mount. As in the kernel, a lookup reaches it only through the mount that it is
// on.
type mnt struct {
	id        int
	on        *mnt // nil = the root
	number    string
	root, dir string
	ro        bool
	attrs     string // other attributes, each after a comma
	superRO   bool
	typ, src  string
	super     string
	peer      int   // its peer group, 0 = private
	file      *File // nil = none of the volumes
	owners    bool  // an operator or another driver created it
	stranded  bool  // a copy of one that does not propagate any more
}

// A spot is a directory on a mount.
type spot struct {
	on  *mnt
	dir string
}

// reach returns the mount that a lookup of dir reaches.
func (h *Host) reach(dir string) *mnt {
	var on *mnt
	for {
		var next *mnt
		for _, m := range h.mounts {
			if m.on == on && (next == nil || len(m.dir) < len(next.dir)) && below(dir, m.dir) {
				next = m
			}
		}
		if next == nil {
			return on
		}
		on = next
	}
}

// below reports whether dir is base, or in it.
func below(dir, base string) bool {
	return base == "/" || strings.HasPrefix(dir, base) && (len(dir) == len(base) || dir[len(base)] == '/')
}

// top returns the mount whose root a lookup of dir reaches, or nil.
func (h *Host) top(dir string) *mnt {
	if m := h.reach(dir); m.dir == dir {
		return m
	}
	return nil
}

// MountID returns the ID of the mount whose root a directory is; 0 = none.
func (h *Host) MountID(dir string) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.top(dir); m != nil {
		return m.id, nil
	}
	return 0, nil
}

// place returns the filesystem and the directory that a lookup of dir reaches.
func (h *Host) place(dir string) string {
	m := h.reach(dir)
	return m.number + " " + m.within(dir)
}

// within returns the path of a directory in the filesystem of its mount.
func (m *mnt) within(dir string) string {
	return path.Join(m.root, strings.TrimPrefix(dir, m.dir))
}

// add mounts m where a lookup of its directory leads, with its copies by propagation.
func (h *Host) add(m *mnt) {
	on := h.reach(m.dir)
	if on != nil && on.peer != 0 && m.peer == 0 {
		m.peer = 1000 + h.nextID
	}
	h.put(m, on)
	for _, s := range h.peers(m) {
		c := *m
		c.dir = s.dir
		h.put(&c, s.on)
	}
	h.tableChanged()
}

// put mounts m on a mount, below its other mounts there.
func (h *Host) put(m, on *mnt) {
	for _, over := range h.mounts {
		if over.on == on && over.dir == m.dir {
			over.on = m
		}
	}
	m.id, m.on = h.nextID, on
	h.nextID++
	h.mounts = append(h.mounts, m)
	h.folders[m.number+" "+m.root] = true
}

// peers returns the places to which a mount at m's place is propagated.
func (h *Host) peers(m *mnt) (all []spot) {
	if m.on == nil || m.on.peer == 0 {
		return nil
	}
	place := m.on.within(m.dir)
	for _, p := range h.mounts {
		if p != m && p != m.on && p.peer == m.on.peer && below(place, p.root) {
			all = append(all, spot{p, path.Join(p.dir, strings.TrimPrefix(place, p.root))})
		}
	}
	return all
}

// copies returns the mounts that are unmounted together with m, if nothing is mounted in
// them.
func (h *Host) copies(m *mnt) (all []*mnt) {
	for _, s := range h.peers(m) {
		for _, c := range h.mounts {
			if c.on == s.on && c.dir == s.dir && !slices.ContainsFunc(h.mounts, func(o *mnt) bool { return o.on == c && o.dir != c.dir }) {
				all = append(all, c)
			}
		}
	}
	return all
}

// busy reports whether umount(2) of m fails.
func (h *Host) busy(m *mnt) bool {
	if h.holders[m.id] > 0 || slices.ContainsFunc(h.mounts, func(o *mnt) bool { return o.on == m }) {
		return true
	}
	return slices.ContainsFunc(h.copies(m), func(c *mnt) bool { return h.holders[c.id] > 0 })
}

// unlink removes a mount that is not busy, and its copies.
func (h *Host) unlink(m *mnt) {
	for _, gone := range append(h.copies(m), m) {
		for _, over := range h.mounts {
			if over.on == gone {
				over.on = gone.on
			}
		}
		h.mounts = slices.DeleteFunc(h.mounts, func(o *mnt) bool { return o == gone })
	}
	h.tableChanged()
	h.detached()
}

func (h *Host) mountsOf(f *File) (all []*mnt) {
	for _, m := range h.mounts {
		if m.file == f {
			all = append(all, m)
		}
	}
	return all
}

func (h *Host) tableChanged() {
	h.version++
	close(h.changed)
	h.changed = make(chan struct{})
}
