package hosttest

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/flexd/flexd/internal/asw"
)

// Text renders the mount table as the kernel does.
func (h *Host) Text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	for _, m := range h.mounts {
		peer, parent := "", 1
		if m.on != nil {
			parent = m.on.id
		}
		if m.peer != 0 {
			peer = fmt.Sprintf(" shared:%d", m.peer)
		}
		fmt.Fprintf(&b, "%d %d %s %s %s %s%s - %s %s %s\n", m.id, parent, m.number, escape(m.root), escape(m.dir),
			mode(m.ro)+m.attrs+",relatime", peer, m.typ, escape(m.src), mode(m.superRO)+strings.TrimPrefix(m.super, "rw"))
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

// TearTable truncates the mount table for its next reader.
func (h *Host) TearTable() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.torn = true
}

// A tableReader is one life's view of the mount table: each life reads the table anew.
type tableReader struct {
	h            *Host
	seen, waited int // versions, guarded by h.mu
}

// Mounts implements Machine: each life has a reader of its own.
func (h *Host) Mounts() asw.MountSource {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &tableReader{h: h, seen: -1, waited: h.version}
}

// Open implements asw.MountSource.
func (r *tableReader) Open() (io.ReadCloser, error) {
	h := r.h
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

// Changed implements asw.MountSource.
func (r *tableReader) Changed() bool {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	changed := r.seen != r.h.version
	r.seen = r.h.version
	return changed
}

// Wait implements asw.MountSource.
func (r *tableReader) Wait(ctx context.Context) error {
	for {
		r.h.mu.Lock()
		if r.waited != r.h.version {
			r.waited = r.h.version
			r.h.mu.Unlock()
			return nil
		}
		changed := r.h.changed
		r.h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
