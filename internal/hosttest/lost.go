package hosttest

import (
	"context"
	"path/filepath"

	"github.com/flexd/flexd/internal/volume"
)

// RemoveUnused simulates dmsetup remove: a device that is mounted or open stays.
func (h *Host) RemoveUnused(context.Context, string) (left []volume.Used, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range h.loopNames() {
		l := h.loops[name]
		open := l.openers + len(h.mountsOf(l.file))
		if h.live[l.file] != "" || h.frozen[l.file] {
			open++
		}
		if open == 0 {
			delete(h.loops, name)
			continue
		}
		for path, f := range h.files {
			if f == l.file {
				left = append(left, volume.Used{Name: volume.Name{VG: VG, LV: filepath.Base(path)}, UUID: volume.UUID(f.UUID), Open: open})
			}
		}
	}
	return left, nil
}
