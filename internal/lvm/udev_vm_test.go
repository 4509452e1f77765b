//go:build vm && udev

package lvm

import (
	"os"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// Without a semaphore for udev, lvextend writes the metadata and leaves the devices suspended. The command in the
// error gives them the new size.
func TestVMExtendLeavesSuspended(t *testing.T) {
	l := newLab(t)
	l.sh("lvcreate", "-q", "-y", "-L", "64M", "-T", "vg0/pool")
	for name, create := range map[string]string{"linear": "-L 8M", "thin": "-V 8M --thinpool pool"} {
		l.sh(append([]string{"lvcreate", "-q", "-y", "-an", "-n", name, "vg0"}, strings.Fields(create)...)...)
		l.Invalidate("")
		lv := l.present(name)
		d := l.activate(lv)
		sem := l.sh("cat", "/proc/sys/kernel/sem")
		limit := func(value string) {
			t.Helper()
			if err := os.WriteFile("/proc/sys/kernel/sem", []byte(value), 0); err != nil {
				t.Fatal(err)
			}
		}
		limit("32000 1024000000 500 0")
		err := l.Extend(t.Context(), l.lock, lv, d, 16*mib)
		limit(sem)
		is(t, err, ErrFailed, "number of semaphores reached", "are suspended: vg0-", "dmsetup resume vg0-"+name)
		if volume.CodeOf(err) != volume.Busy {
			t.Errorf("%s: code %s", name, volume.CodeOf(err))
		}
		if d := l.device(lv); !d.Suspended {
			t.Errorf("%s: got %+v", name, d)
		}
		_, remedy, _ := strings.Cut(err.Error(), "grep lv): ")
		l.sh("sh", "-c", remedy)
		if d := l.device(lv); d.Suspended || d.Size != 16*mib {
			t.Errorf("%s: got %+v", name, d)
		}
		if err := l.Extend(t.Context(), l.lock, lv, d, 24*mib); err != nil {
			t.Error(err)
		}
		l.deactivate(lv)
	}
}
