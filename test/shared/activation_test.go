//go:build vm

package shared

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/shared/nodes"
)

// blank is a volume that LVM has made, with a filesystem, and that is active nowhere.
func blank(n *nodes.Node, lv string) host.Volume {
	n.Sh(fmt.Sprintf("lvcreate -q -y -aey -L 16M -n %[1]s svg && mkfs.ext4 -q /dev/svg/%[1]s && lvchange -an svg/%[1]s", lv))
	return nodes.Volume(lv, "")
}

// later sets a volume up in the background, and returns the failures at its end.
func later(n *nodes.Node, p host.Pod, v host.Volume) <-chan []string {
	done := make(chan []string, 1)
	go func() { done <- n.SetUp(p, v) }()
	return done
}

// waitsFor waits until flexd says that a volume waits, with these words.
func waitsFor(t *testing.T, n *nodes.Node, v host.Volume, words string) {
	t.Helper()
	lv, said := "svg/"+v.Options["volumeID"], ""
	for range 60 {
		if said, _ = n.Try(n.At.Flexd() + " status --socket " + n.At.StatusSocket() + " " + lv); strings.Contains(said, words) {
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	t.Errorf("%s does not say %q:\n%s", lv, words, said)
}

func mounted(t *testing.T, n *nodes.Node, p host.Pod, v host.Volume) {
	t.Helper()
	n.Sh("grep -q ' " + n.At.PodDir(p, v) + " ' /proc/self/mountinfo")
	n.Sh(`lvmlockctl -i | grep -q "LK LV ex $(lvs --noheadings -o uuid svg/` + v.Options["volumeID"] + ` | xargs)"`)
}

// unused unmounts a volume, and waits until its lock is given back: the answer to an unmount
// comes earlier.
func unused(n *nodes.Node, p host.Pod, v host.Volume) {
	n.TearDown(p, v)
	released(n, v)
}

func released(n *nodes.Node, v host.Volume) {
	lv := v.Options["volumeID"]
	n.Sh("id=$(lvs --noheadings -o uuid svg/" + lv + ` | xargs)
		for n in $(seq 300); do [ -e /dev/svg/` + lv + ` ] || lvmlockctl -i | grep -qE "LK LV (ex|sh) $id" || exit 0; sleep 0.1; done; exit 1`)
}

// operators is what somebody does by hand with the volumes of the group on two nodes.
func operators(t *testing.T, a, b *nodes.Node) {
	// Active on both: LVM allows that to those who ask for it.
	v := blank(a, "both")
	a.Sh("lvchange -asy svg/both")
	b.Sh("lvchange -asy svg/both")
	done := later(b, web, v)
	waitsFor(t, b, v, "it is active on this node without its lock")
	if out, err := b.Try("grep ' " + b.At.PodDir(web, v) + " ' /proc/self/mountinfo"); err == nil {
		t.Errorf("mounted on two nodes: %s", out)
	}
	a.Sh("lvchange -an svg/both")
	t.Logf("both: %q", <-done)
	mounted(t, b, web, v)
	b.TearDown(web, v)

	// What A does to volumes that B knows.
	v = blank(a, "grown")
	b.SetUp(web, v)
	unused(b, web, v)
	a.Sh("lvextend -q -L 24M svg/grown && lvcreate -q -an -L 16M -n renamed svg && lvrename svg renamed named")
	b.SetUp(web, v)
	mounted(t, b, web, v)
	if got := strings.TrimSpace(b.Sh("blockdev --getsize64 /dev/svg/grown")); got != fmt.Sprint(24<<20) {
		t.Errorf("extended elsewhere, it has %s bytes here", got)
	}
	a.Refused("lvextend -L 32M svg/grown", "locked by other host")
	unused(b, web, v)
	a.Sh("lvremove -q -y svg/grown && lvcreate -q -y -aey -L 16M -n grown svg && mkfs.ext4 -q /dev/svg/grown && lvchange -an svg/grown")
	if failures := b.SetUp(web, v); len(failures) > 0 {
		t.Errorf("a new volume of an old name: %q", failures)
	}
	unused(b, web, v)

	// A device that was removed without LVM leaves the lock to this node.
	b.Sh("lvchange -aey svg/grown && dmsetup remove --retry svg-grown")
	b.SetUp(web, v)
	mounted(t, b, web, v)
	unused(b, web, v)
	a.Sh("lvchange -aey svg/grown && lvchange -an svg/grown")
}

// many is a node that wants volumes of which another has one.
func many(t *testing.T, a, b *nodes.Node) {
	var volumes []host.Volume
	for i := range 5 {
		volumes = append(volumes, nodes.Volume(fmt.Sprintf("many%d", i), "16m"))
	}
	nodes.Together([]*nodes.Node{a}, func(n *nodes.Node) { n.SetUp(web, volumes[2]) })
	var done []<-chan []string
	for _, v := range volumes {
		done = append(done, later(b, web, v))
	}
	for i, d := range done {
		if i != 2 {
			if failures := <-d; len(failures) > 0 {
				t.Errorf("many%d: %q", i, failures)
			}
			mounted(t, b, web, volumes[i])
		}
	}
	waitsFor(t, b, volumes[2], "another host has it active")
	a.TearDown(web, volumes[2])
	<-done[2]
	for _, v := range volumes {
		b.TearDown(web, v)
	}
}

// snapshot is a thick snapshot of a thin volume, which has the lock of the pool.
func snapshot(t *testing.T, a, b *nodes.Node) {
	a.Sh("lvcreate -q -y -L 16M -T svg/pool && lvcreate -q -y -V 16M -n thin -T svg/pool && mkfs.ext4 -q /dev/svg/thin && lvcreate -q -y -s -L 8M -n snap svg/thin")
	v := nodes.Volume("snap", "")
	done := later(b, web, v)
	waitsFor(t, b, v, "node-1")
	a.Sh("lvchange -q -y -an svg/thin svg/pool")
	<-done
	b.Sh("grep -q ' " + b.At.PodDir(web, v) + " ' /proc/self/mountinfo")
	b.TearDown(web, v)
}

// readers use a read-only volume on two nodes at once.
func readers(t *testing.T, a, b *nodes.Node) {
	v := blank(a, "ro")
	v.ReadOnly = true
	a.Sh("lvchange -pr svg/ro")
	nodes.Together([]*nodes.Node{a, b}, func(n *nodes.Node) { n.SetUp(web, v) })
	for _, n := range []*nodes.Node{a, b} {
		n.Sh("ls " + n.At.PodDir(web, v) + "/lost+found")
	}
	// Written again: not before the other node has let it go.
	a.Sh("lvchange -prw svg/ro")
	a.TearDown(web, v)
	v.ReadOnly = false
	done := later(a, web, v)
	waitsFor(t, a, v, "another host has it active")
	b.TearDown(web, v)
	<-done
	mounted(t, a, web, v)
	a.TearDown(web, v)
}
