package hosttest

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// Text renders the mount table as the kernel does.
func (h *Host) Text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	for _, m := range h.mounts {
		peer := ""
		if m.peer != 0 {
			peer = fmt.Sprintf(" shared:%d", m.peer)
		}
		fmt.Fprintf(&b, "%d %d %s %s %s %s%s - %s %s %s\n", m.id, m.parent, m.number, escape(m.root), escape(m.dir),
			mode(m.ro)+",relatime", peer, m.typ, escape(m.src), mode(m.superRO)+strings.TrimPrefix(m.super, "rw"))
	}
	return b.String()
}

func mode(ro bool) string {
	if ro {
		return "ro"
	}
	return "rw"
}

func escape(s string) string {
	return strings.NewReplacer("\\", `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(s)
}

// Open implements asw.MountSource.
func (h *Host) Open() (io.ReadCloser, error) {
	text := h.Text()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.torn {
		h.torn = false
		cut := strings.TrimRight(text[:len(text)/2], "\n") // within a line: no kernel ends a read between two
		return io.NopCloser(strings.NewReader(cut)), nil
	}
	return io.NopCloser(strings.NewReader(text)), nil
}

// TearTable cuts the mount table short for whoever reads it next.
func (h *Host) TearTable() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.torn = true
}

// Changed implements asw.MountSource.
func (h *Host) Changed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := h.seen != h.version
	h.seen = h.version
	return changed
}

// Wait implements asw.MountSource.
func (h *Host) Wait(ctx context.Context) error {
	for {
		h.mu.Lock()
		if h.waited != h.version {
			h.waited = h.version
			h.mu.Unlock()
			return nil
		}
		changed := h.changed
		h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// forget makes the next look and the next wait those of a new reader.
func (h *Host) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen, h.waited = -1, h.version
}
