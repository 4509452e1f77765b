package nodes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flexd/flexd/test/host"
)

// Group is the volume group of all nodes. Its disk is behind a linear device, as it would be behind
// multipath, so that it can be taken from one node: see Lose and Hang.
const Group = "svg"

// soon is how long the slowest of the machines may take for what is quick, and sanlock for a
// lockspace.
const soon = 2 * time.Minute

// T receives failures; it is a *testing.T as a rule.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
}

// A Node is a machine with the shared disk.
type Node struct {
	*Machine
	T   T
	At  *host.Node // its paths, in the machine
	bin string
}

// Settings are how many nodes there are.
type Settings struct {
	Nodes     int      // with the host ids 1, 2, ...
	IOTimeout int      // sanlock's; 0: 2 seconds
	Bin       string   // a directory with flexd and flexdriver; "": without them
	Disk      string   // the size of each one's own; "": 128M
	Options   []string // others of scripts/vm
	Ports     []string // see Machine
}

// New boots machines with one shared disk, and sets them up as nodes with a shared volume group. Their
// disks are in a directory, which may be removed when they are off: see Kill.
func New(t T, dir string, s Settings) []*Node {
	if s.IOTimeout == 0 {
		s.IOTimeout = 2
	}
	s.Disk = cmp.Or(s.Disk, "128M")
	if s.Bin != "" {
		s.Options = append(s.Options, "-f", s.Bin+"/flexd", "-f", s.Bin+"/flexdriver")
	}
	var all []*Node
	for id := 1; id <= s.Nodes; id++ {
		all = append(all, &Node{T: t, bin: s.Bin,
			Machine: &Machine{Name: fmt.Sprintf("node-%d", id), Ports: s.Ports, Options: append([]string{"-l", fmt.Sprintf("%d:%d", id, s.IOTimeout),
				"-D", dir + "/shared:2G", "-D", fmt.Sprintf("%s/node-%d:%s", dir, id, s.Disk)}, s.Options...)},
			At: &host.Node{Dir: "/srv/node", Run: "/run/flexd", State: "/srv/node/state", Root: "/srv/node/kubelet",
				Driver: "/srv/node/plugins/flexd~lvm/lvm", Log: "/run/flexd.log"}})
	}
	began := time.Now()
	defer func() { t.Logf("booting %d nodes took %.0f s", s.Nodes, time.Since(began).Seconds()) }()
	var off atomic.Bool
	Together(all, func(n *Node) {
		if !n.Up() {
			off.Store(true)
		}
	})
	if off.Load() {
		return all
	}
	if _, err := all[0].Try("vgcreate -q --shared " + Group + " /dev/mapper/shared"); err != nil {
		t.Errorf("%v", err)
		return all
	}
	Together(all[1:], (*Node).Join)
	return all
}

// Together does something with each node at the same time.
func Together(all []*Node, do func(*Node)) {
	var wg sync.WaitGroup
	for _, n := range all {
		wg.Go(func() { do(n) })
	}
	wg.Wait()
}

// For is the node for another test, which receives its failures.
func (n *Node) For(t T) *Node {
	m := *n
	m.T = t
	return &m
}

// Up boots the machine and does what a node does at boot: the filesystem that its own files
// are on, and the way to the shared disk. That begins at sector 2048 of the real one, or LVM would see
// one PV on two devices.
func (n *Node) Up() bool {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	if err := n.Boot(ctx); err != nil {
		n.T.Errorf("%v", err)
		return false
	}
	_, err := n.Shell(ctx, `set -e; mkdir -p /srv/node; blkid /dev/vdb >/dev/null || mkfs.ext4 -q /dev/vdb; mount /dev/vdb /srv/node
		dmsetup create shared --table "0 $(($(blockdev --getsz /dev/vda) - 2048)) linear /dev/vda 2048"; dmsetup mknodes`)
	if err != nil {
		n.T.Errorf("%v", err)
	}
	return err == nil
}

// Join starts the group's lockspace.
func (n *Node) Join() {
	n.T.Helper()
	// Without udev, lvmlockd may look for the device of the leases before LVM has made its
	// node, and the second attempt works.
	n.Sh("vgchange --lockstart " + Group + " || { sleep 1; vgchange --lockstart " + Group + "; }")
}

// Sh runs a command of the shell that must work, and returns what it printed.
func (n *Node) Sh(command string) string {
	n.T.Helper()
	out, err := n.Try(command)
	if err != nil {
		n.T.Errorf("%v", err)
	}
	return out
}

// Try runs a command of the shell that may fail: its status is an error.
func (n *Node) Try(command string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	return n.Shell(ctx, command)
}

// Refused runs a command of the shell that must fail, with these words in what it prints.
func (n *Node) Refused(command string, words ...string) {
	n.T.Helper()
	_, err := n.Try(command)
	if err == nil {
		n.T.Errorf("%s: %s: works", n.Name, command)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			n.T.Errorf("%v, want %q in that", err, w)
		}
	}
}

// Lose takes the shared disk from the node: reads and writes fail.
func (n *Node) Lose() {
	n.T.Helper()
	n.path("error")
}

// Find gives the node its disk back.
func (n *Node) Find() {
	n.T.Helper()
	n.path("linear /dev/vda 2048")
}

// Hang makes reads and writes of the shared disk wait, until Find.
func (n *Node) Hang() {
	n.T.Helper()
	n.Sh("dmsetup suspend --noflush --nolockfs shared")
}

// path changes the way to the shared disk.
func (n *Node) path(target string) {
	n.T.Helper()
	n.Sh(`set -e; size=$(($(blockdev --getsz /dev/vda) - 2048))
		dmsetup load shared --table "0 $size ` + target + `"; dmsetup suspend --noflush --nolockfs shared; dmsetup resume shared`)
}

// Active lists the group's volumes that the node has active.
func (n *Node) Active() []string {
	n.T.Helper()
	var all []string
	for line := range strings.Lines(n.Sh("dmsetup ls")) {
		name, ours := strings.CutPrefix(strings.Fields(line)[0], Group+"-")
		if ours && name != "lvmlock" {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// Report logs what a node says, after a failure.
func (n *Node) Report() {
	if n.Off() {
		n.T.Logf("%s is off: %s", n.Name, n.Said())
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, err := n.Run(ctx, "bash", "-c", `for c in "ps -eo pid,stat,etimes,args --ppid 2 -N" "dmsetup ls --tree" "lvmlockctl -i" "lvmlockctl -d" "sanlock client status" \
		"sanlock client log_dump" dmesg "cat /run/flexd.log"; do echo "--- $c"; timeout 3 $c 2>&1 | tail -n 25; done`)
	n.T.Logf("%s: %v\n%s", n.Name, err, r.Stdout)
}
