//go:build !vm

package e2e

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// deeds are what is done to a loop device, at any point of a volume's life.
func (h *host) deeds() []deed {
	return []deed{{"losetup -d", func(_ vol, device string) trace {
		h.sh("losetup", "-d", device)
		return trace{}
	}}}
}

// Somebody renames, replaces and removes the files of volumes in use. No mount
// and no call tells of it, and yet flexd knows at once; what is mounted stays as
// it is, and goes when kubelet lets it go.
func TestMeddlingWithFiles(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p, q := podN(1), podN(2)
	v, a, b := h.vol("a", "ext4"), h.dir+"/vg0/a", h.dir+"/vg0/b"
	h.ok(h.up(byKubelet, v, p))
	h.write(v, p, "f", "x")
	id := h.story("a").UUID
	uuid := "-/" + id

	h.must(os.Rename(a, b))
	h.noticed("renamed", uuid, func(s volumeStatus) bool { return s.State == "missing" })
	h.disagrees("stale-mapping", id, "renamed to b")
	h.refused(h.mount(v, q), "vg0/a", "does not exist", id, "vg0/b")
	h.must(os.Rename(b, a))
	h.noticed("renamed back", uuid, func(s volumeStatus) bool { return s.State == "mounted" })

	other := "bbbbbbbb-0000-4000-8000-00000000000b"
	h.must(unix.Setxattr(a, "trusted.flexd.uuid", []byte(other), 0))
	h.noticed("made another volume", uuid, func(s volumeStatus) bool { return s.sees("is another volume by now", other) })
	h.must(unix.Setxattr(a, "trusted.flexd.uuid", []byte(id), 0))
	h.noticed("the same again", uuid, func(s volumeStatus) bool { return s.State == "mounted" })

	h.must(os.Remove(a))
	h.noticed("removed", uuid, func(s volumeStatus) bool { return s.State == "missing" && s.sees("does not exist") })
	h.refused(h.up(byKubelet, v, q), "vg0/a")
	h.reads(v, p, "f", "x")
	h.end(byKubelet, v, p)
	h.eventually("it is let go", func() string { return strings.Join(h.active(), " ") })
}
