//go:build vm

package shared

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flexd/flexd/test/shared/nodes"
)

func TestMain(m *testing.M) {
	nodes.Agent()
	inside(os.Args[1:])
	os.Exit(m.Run())
}

// start boots nodes with flexd's executables, for one test.
func start(t *testing.T, s nodes.Settings) []*nodes.Node {
	t.Helper()
	s.Bin, _ = filepath.Abs("../../bin/vm")
	all := nodes.New(t, t.TempDir(), s)
	t.Cleanup(func() {
		nodes.Together(all, func(n *nodes.Node) {
			if t.Failed() {
				n.Report()
			}
			n.Kill()
		})
	})
	if t.Failed() {
		t.FailNow()
	}
	return all
}

// TestTwo has two nodes with flexd, of which one is reset at the end.
func TestTwo(t *testing.T) {
	two := start(t, nodes.Settings{Nodes: 2})
	nodes.Together(two, func(n *nodes.Node) {
		n.Sh(killCommand)
		n.Install(cgroups)
		n.Serve()
	})
	for _, test := range []struct {
		name string
		run  func(t *testing.T, a, b *nodes.Node)
	}{
		{"LVM", lvm},
		{"move", move},
		{"elsewhere", elsewhere},
		{"killed", killed},
		{"locks", locks},
		{"operators", operators},
		{"many", many},
		{"readers", readers},
		{"snapshot", snapshot},
		{"records", records},
		{"lvmlockd", lvmlockd},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, two[0].For(t), two[1].For(t)) }) {
			break // it may have left a volume, or a node that is off
		}
	}
	t.Run("losing", func(t *testing.T) { losing(t, two[1].For(t), two[0].For(t)) })
}

// lvm is about LVM alone, and the nodes: a volume is active on one at a time.
func lvm(t *testing.T, a, b *nodes.Node) {
	a.Sh("lvcreate -q -an -L 16M -n plain svg && lvchange -aey svg/plain && echo data | dd of=/dev/svg/plain bs=512 count=1 conv=sync,fsync status=none")
	b.Refused("lvchange -aey svg/plain", "locked by other host")
	a.Sh("lvchange -an svg/plain")
	b.Sh("lvchange -aey svg/plain")
	if got := b.Sh("head -c 4 /dev/svg/plain"); got != "data" {
		t.Errorf("the volume has %q", got)
	}
	a.Refused("lvchange -aey svg/plain", "locked by other host")

	// A lock without a device, as a command leaves that is killed: lvchange -an gives it back,
	// and does nothing on the other node.
	a.Sh("lvchange -an svg/plain")
	b.Sh("dmsetup remove --retry svg-plain")
	a.Refused("lvchange -aey svg/plain", "locked by other host")
	b.Sh("lvchange -an svg/plain")
	a.Sh("lvchange -aey svg/plain && lvchange -an svg/plain")
	damaged(a)
	b.Sh("lvremove -q -y svg/plain")
}

// damaged is a lease that is lost on the disk, and made anew.
func damaged(n *nodes.Node) {
	lease := strings.Fields(n.Sh("lvs --noheadings -o lv_uuid,lv_lockargs svg/plain"))
	_, offset, _ := strings.Cut(lease[1], ":")
	n.Sh("dd if=/dev/zero of=/dev/mapper/svg-lvmlock bs=512 seek=$((" + offset + "/512)) count=2048 oflag=direct conv=notrunc status=none")
	n.Refused("lvchange -aey svg/plain", "error -221")
	n.Sh("sanlock client init -r lvm_svg:" + lease[0] + ":/dev/mapper/svg-lvmlock:" + offset)
	n.Sh("lvchange -aey svg/plain && lvchange -an svg/plain")
}
