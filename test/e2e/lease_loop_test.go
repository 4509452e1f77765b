//go:build !vm

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReplacedAfterWaitForAttach with files, as on LVM.
func TestReplacedFile(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(h *host) { h.settings.lease = time.Hour })
	v, p := h.vol("a", "ext4"), podN(1)
	a := h.ok(h.call("waitforattach", "", v.Blob(nil)))
	other := v // the same volume under another name of kubelet's: its lease lives
	other.Name = "other"
	h.ok(h.call("detach", v.Name, node))
	h.quiet()
	h.ok(h.up(noAttach, other, p))
	h.end(noAttach, other, p)
	a = h.ok(h.call("waitforattach", "", v.Blob(nil)))
	path := h.Dir + "/vg0/a"
	h.must(os.Rename(path, path+"-old"))
	h.volume("vg0/a", 16*mib, nil)
	before := h.hash(path)
	h.must(os.MkdirAll(h.GlobalDir(v), 0o750))
	h.refused(h.call("mountdevice", h.GlobalDir(v), a.Device, v.Blob(nil)), "is not the volume that was activated last", "vg0/a-old")
	h.refused(h.call("waitforattach", "", v.Blob(nil)), "is not the volume that was activated last", "vg0/a-old")
	if h.hash(path) != before {
		t.Error("the other volume was changed")
	}
	h.ok(h.call("detach", v.Name, node))
	h.quiet()
	h.ok(h.stage(v, a.Device)) // the new one is meant
	h.ok(h.down(byKubelet, v))
	h.ok(h.call("detach", v.Name, node))
}

// The filesystems of two groups' directories are exchanged, as by the names of disks in fstab, or one is mounted
// twice: no pod gets the volume of the other group, also after a restart.
func TestExchangedDirectories(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(h *host) {
		h.settings.groups = "  - {name: vg1, " + h.group("vg1") + ", create: true, maxSize: 20GiB}\n"
	})
	v, w, p, q := h.vol("a", "ext4"), h.vol("a", "ext4").With("volumegroup", "vg1"), podN(1), podN(2)
	w.Name = "pv-w"
	for _, u := range []vol{v, w} {
		h.ok(h.up(noAttach, u, p))
		h.write(u, p, "f", u.Name)
		h.end(noAttach, u, p)
	}
	h.quiet()
	vg0, vg1, t0 := h.Dir+"/vg0", h.Dir+"/vg1", h.Dir+"/t"
	exchange := func() {
		h.kill()
		h.must(os.Rename(vg0, t0))
		h.must(os.Rename(vg1, vg0))
		h.must(os.Rename(t0, vg1))
		h.start()
	}
	exchange()
	for range 2 {
		h.refused(h.up(noAttach, v, q), "vg0/a was the volume", "now the one that was vg1/a", "exchanged")
		h.refused(h.up(noAttach, w, q), "vg1/a was the volume", "now the one that was vg0/a")
	}
	exchange()
	h.kill()
	h.must(unix.Mount(vg1, vg0, "", unix.MS_BIND, ""))
	h.start()
	h.refused(h.up(noAttach, v, q), "vg0/a was the volume", "mounted twice")
	h.ok(h.up(noAttach, w, q))
	h.reads(w, q, "f", w.Name)
	h.refused(h.up(noAttach, v, q), "vg0/a was the volume", "mounted twice")
	h.end(noAttach, w, q)
	h.kill()
	h.take(vg0)
	h.start()
	for _, u := range []vol{v, w} {
		h.ok(h.up(noAttach, u, q))
		h.reads(u, q, "f", u.Name)
		h.end(noAttach, u, q)
	}
}

// Two groups are renamed in the configuration, or a file is moved to another group, and no pod has used the volumes since:
// their new names are protected like the old ones.
func TestRenamedGroupOfFiles(t *testing.T) {
	t.Parallel()
	groups := func(h *host, one, two string) {
		h.settings.groups = ""
		for i, name := range []string{one, two} {
			h.settings.groups += fmt.Sprintf("  - {name: %s, provider: loopdev, directory: %s/g%d, create: true, maxSize: 20GiB, namespaces: ['*']}\n", name, h.Dir, i)
		}
	}
	h := newHost(t, func(h *host) {
		h.must(os.Mkdir(h.Dir+"/g0", 0o700))
		h.must(os.Mkdir(h.Dir+"/g1", 0o700))
		groups(h, "one", "two")
	})
	in := func(group, volume string) vol {
		v := h.vol(volume, "ext4").With("volumegroup", group)
		v.Name = group + "-" + volume
		return v
	}
	p := podN(1)
	for _, v := range []vol{in("one", "a"), in("two", "a"), in("one", "moved")} {
		h.ok(h.up(noAttach, v, p))
		h.write(v, p, "f", v.Name)
		h.end(noAttach, v, p)
	}
	h.quiet()
	h.must(os.Rename(h.Dir+"/g0/moved", h.Dir+"/g1/moved"))
	recorded := func(name string) {
		t.Helper()
		h.eventually("the record has "+name, func() string {
			h.check()
			for _, record := range h.files(h.State + "/formats/*") {
				text, _ := os.ReadFile(record)
				if strings.Contains(string(text), `"`+name+`"`) {
					return ""
				}
			}
			return "not yet"
		})
	}
	recorded("two/moved")
	h.kill()
	groups(h, "fast", "slow")
	h.configure()
	h.start()
	for _, name := range []string{"fast/a", "slow/a", "slow/moved"} {
		recorded(name)
	}
	for _, lost := range []string{"g1/moved", "g0/a"} {
		h.must(os.Rename(h.Dir+"/"+lost, h.Dir+"/lost"))
		v := in(map[string]string{"g0/a": "fast", "g1/moved": "slow"}[lost], filepath.Base(lost))
		h.refused(h.up(noAttach, v, p), "flexd has seen a filesystem on a volume of that name")
		h.must(os.Rename(h.Dir+"/lost", h.Dir+"/"+lost))
	}
	exchange := func() {
		h.kill()
		h.must(os.Rename(h.Dir+"/g0", h.Dir+"/t"))
		h.must(os.Rename(h.Dir+"/g1", h.Dir+"/g0"))
		h.must(os.Rename(h.Dir+"/t", h.Dir+"/g1"))
		h.start()
		h.check()
	}
	exchange()
	h.refused(h.up(noAttach, in("fast", "a"), p), "fast/a was the volume")
	h.refused(h.up(noAttach, in("slow", "a"), p), "slow/a was the volume")
	exchange()
	for _, v := range []vol{in("fast", "a"), in("slow", "a"), in("slow", "moved")} {
		h.ok(h.up(noAttach, v, p))
		h.reads(v, p, "f", strings.NewReplacer("fast", "one", "slow-a", "two-a", "slow-moved", "one-moved").Replace(v.Name))
		h.end(noAttach, v, p)
	}
}
