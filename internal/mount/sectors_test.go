//go:build !vm

package mount

import (
	"errors"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// A file's filesystem with sectors of 512 bytes is attached by another program with logical blocks of 4096: it is
// refused with the remedy, not tried. One with larger sectors is mounted.
func TestSmallSectors(t *testing.T) {
	for _, row := range []struct {
		fsType string
		opts   []string
		size   int64 // of its sectors
		fits   bool
	}{
		{"xfs", nil, 512, false},
		{"xfs", []string{"-s", "size=4096"}, 4096, true},
		{"ext4", []string{"-b", "1024"}, 1024, false},
		{"ext4", []string{"-b", "4096"}, 4096, true},
		{"btrfs", nil, 4096, true},
	} {
		t.Run(strings.Join(append([]string{row.fsType}, row.opts...), " "), func(t *testing.T) {
			need(t, "mkfs."+row.fsType)
			r := newRig(t, 320*mib)
			r.format(row.fsType, row.opts...)
			l := r.spec(r.mkdir("m"))
			l.First = true
			r.mount(l)
			id := r.mountID(l.Dir)
			if found, err := r.gauge().Read(t.Context(), []int{id}); err != nil || found[id].Sector != row.size {
				t.Errorf("got %+v, %v", found[id], err)
			}
			r.unmount(l.Dir)

			r.detach(r.dev.Path)
			r.attach("-b", "4096")
			l.Device = r.dev
			_, perr := r.Probe(t.Context(), r.lock, r.dev, "", created, row.fsType)
			merr := r.Mount(t.Context(), r.lock, l, yes)
			if row.fits {
				if perr != nil || merr != nil {
					t.Errorf("got %v, %v", perr, merr)
				}
				r.unmount(l.Dir)
				return
			}
			for _, err := range []error{perr, merr} {
				if refused := new(Refusal); !errors.As(err, &refused) || refused.Why != volume.Unusable || !strings.Contains(err.Error(), "logical blocks of 4096") || !strings.Contains(err.Error(), "losetup -d "+r.dev.Path) {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}
