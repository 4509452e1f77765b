//go:build !vm

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The points of a volume's life at which somebody meddles.
const (
	leased    = "active"
	staged    = "staged"
	published = "mounted for a pod"
	parting   = "staged, the pod is gone"
)

// Somebody meddles with a volume at each point of its life, while flexd runs and
// while it is dead. Kubelet's calls that follow succeed or are refused by the
// name of what is in their way; nothing is repaired unasked, and once the
// meddler has taken his own away again, the volume serves the next pod with its
// data and goes.
func TestMeddlingAtEachPoint(t *testing.T) {
	t.Parallel()
	// Kubelet must find a device that it was told of, on a slow machine too.
	h := newHost(t, func(h *host) { h.settings.lease = time.Second })
	p, q := podN(1), podN(2)
	elsewhere := h.dir + "/elsewhere"
	h.must(os.MkdirAll(elsewhere, 0o755))

	// A deed returns what is in the way, to be named by whoever is refused, and how
	// it is undone.
	type deed struct {
		name string
		do   func(v vol, device string) (inTheWay string, undo func())
	}
	taken := func(dir func(vol) string) func(vol, string) (string, func()) {
		return func(v vol, _ string) (string, func()) {
			h.must(unix.Unmount(dir(v), 0))
			return "", func() {}
		}
	}
	covered := func(dir func(vol) string) func(vol, string) (string, func()) {
		return func(v vol, _ string) (string, func()) {
			h.must(unix.Mount("foreign-source", dir(v), "tmpfs", 0, "size=64k"))
			return "foreign-source", func() { h.must(unix.Unmount(dir(v), 0)) }
		}
	}
	global, pods := h.globalDir, func(v vol) string { return h.podDir(v, p) }
	detached := deed{"losetup -d", func(_ vol, device string) (string, func()) {
		h.sh("losetup", "-d", device)
		return "", func() {}
	}}
	second := deed{"mounted elsewhere", func(_ vol, device string) (string, func()) {
		h.sh("mount", device, elsewhere)
		return elsewhere, func() { h.must(unix.Unmount(elsewhere, 0)) }
	}}
	points := map[string][]deed{
		leased:    {detached, second},
		staged:    {detached, second, {"umount of the global mount", taken(global)}, {"a mount on the global mount", covered(global)}},
		published: {detached, second, {"umount of the pod's mount", taken(pods)}, {"a mount on the pod's mount", covered(pods)}, {"a mount on the global mount", covered(global)}},
		parting:   {detached, second, {"umount of the global mount", taken(global)}, {"a mount on the global mount", covered(global)}},
	}
	type row struct {
		point string
		deed
		dead bool
	}
	var rows []row
	for _, point := range []string{leased, staged, published, parting} {
		for _, d := range points[point] {
			rows = append(rows, row{point, d, false}, row{point, d, true})
		}
	}
	r := seeded(t)
	if r.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] }); !soak {
		rows = rows[:15]
	}
	for n, row := range rows {
		point, d, dead := row.point, row.deed, row.dead
		about := fmt.Sprintf("%s; %s; flexd dead: %v", point, d.name, dead)
		v := h.vol(fmt.Sprint("meddled-", n), "ext4")
		h.ok(h.up(byKubelet, v, q)) // it has data
		h.write(v, q, "f", about)
		h.end(byKubelet, v, q)
		device := h.ok(h.call("waitforattach", "", v.blob(nil))).Device
		switch point {
		case staged:
			h.ok(h.stage(v, device))
		case published:
			h.ok(h.up(byKubelet, v, p))
		case parting:
			h.ok(h.up(byKubelet, v, p))
			h.ok(h.unmount(v, p))
		}
		real := h.story(v.opts["volumeID"]).Device
		if dead {
			h.kill()
		}
		inTheWay, undo := d.do(v, real)
		left := mounts(h.root)
		if dead {
			h.start()
		}
		h.settled(v.opts["volumeID"])
		if now := mounts(h.root); !slices.Equal(now, left) {
			t.Errorf("%s: mounted: %q, then %q", about, left, now)
		}
		// Kubelet goes on: with what it has begun, or to the end.
		fine := func(a answer) bool {
			if !a.ok() && (inTheWay == "" || !strings.Contains(a.Message, inTheWay)) {
				t.Errorf("%s: %s; does not name %q", about, a, inTheWay)
			}
			return a.ok()
		}
		if point == leased || point == staged {
			if a := h.up(byKubelet, v, p); fine(a) {
				h.reads(v, p, "f", about)
			}
		}
		if fine(h.unmount(v, p)) {
			fine(h.down(byKubelet, v))
		}
		undo()
		h.ok(h.unmount(v, p))
		h.ok(h.down(byKubelet, v))
		h.eventually(about+": it is let go", h.left)
		h.ok(h.up(byKubelet, v, q))
		h.reads(v, q, "f", about)
		h.end(byKubelet, v, q)
		if t.Failed() {
			t.Fatal(about)
		}
	}
	t.Logf("%d times meddled", len(rows))
}
