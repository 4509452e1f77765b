//go:build !vm

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestHundredTimes(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs", "mkfs.btrfs")
	h := newHost(t)
	var all sync.WaitGroup
	for i, fs := range []string{"ext4", "xfs", "btrfs"} {
		all.Go(func() {
			v, p := h.vol("again-"+fs, fs), podN(i)
			h.ok(h.up(noAttach, v, p))
			for n := range times(100) {
				text := fmt.Sprintf("round %d", n)
				h.write(v, p, "round", text)
				h.ok(h.unmount(v, p))
				h.ok(h.up(noAttach, v, p))
				h.reads(v, p, "round", text)
				if t.Failed() {
					return
				}
			}
			h.end(noAttach, v, p)
		})
	}
	all.Wait()
}

// A detach that comes while others ask for the volume takes it from none of
// them.
func TestDetachMeanwhile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v := h.vol("hint", "ext4")
	h.ok(h.call("waitforattach", "", v.blob(nil)))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range times(25) {
				switch {
				case i%2 == 0:
					h.ok(h.call("detach", v.name, node))
				default:
					h.ok(h.call("waitforattach", "", v.blob(nil)))
				}
			}
		})
	}
	all.Wait()
}

// attach:false pods come and go on one volume; each finds all it wrote.
func TestPodsComeAndGo(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v := h.vol("shared", "ext4")
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			p := podN(i)
			for n := range times(8) {
				if h.ok(h.up(noAttach, v, p)); t.Failed() {
					return
				}
				name := fmt.Sprint("diary-", i)
				b, err := os.ReadFile(filepath.Join(h.podDir(v, p), name))
				if len(b) != n || err != nil && n > 0 {
					t.Errorf("pod %d finds %d of %d entries: %v", i, len(b), n, err)
				}
				h.write(v, p, name, string(b)+"x")
				h.ok(h.unmount(v, p))
			}
		})
	}
	all.Wait()
}

// A read-only pod beside a read-write one, in both orders, in each way.
func TestReadOnlyBesideReadWrite(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, m := range modes {
		for _, roFirst := range []bool{true, false} {
			v := h.vol(fmt.Sprintf("ro-%d-%v", len(m), roFirst), "ext4")
			reader, writer := podN(1), podN(2)
			if roFirst {
				h.ok(h.up(m, v.readOnly(), reader))
				h.ok(h.up(m, v, writer))
			} else {
				h.ok(h.up(m, v, writer))
				h.ok(h.up(m, v.readOnly(), reader))
			}
			h.write(v, writer, "f", "written")
			h.reads(v, reader, "f", "written")
			err := os.WriteFile(h.podDir(v, reader)+"/g", nil, 0o644)
			if e, ok := err.(*os.PathError); !ok || e.Err != syscall.EROFS {
				t.Errorf("%s, read-only first %v: the reader writes: %v", m, roFirst, err)
			}
			if s := h.show(); !strings.Contains(s, "default/web-1 (ro)") || strings.Contains(s, "web-2 (ro)") {
				t.Errorf("status:\n%s", s)
			}
			// The pod's mode is not changed by asking again for another.
			h.refused(h.call("mount", h.podDir(v, reader), v.blob(&reader)), "read-only")
			h.end(m, v, reader, writer)
		}
	}
}
