//go:build !vm

package e2e

import (
	"os"
	"testing"
	"time"
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
