package host

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/flexd/flexd/internal/status"
)

// VG is the volume group of the nodes that have one of their own.
const VG = "demo"

// A group is VG, as New makes it.
type group interface {
	Volumes
	prepare() error // makes it
	config() string // says where it is
}

// New makes a node in a place of its own with the two executables of bin and a
// volume group. flexd is not started. lease is how long a volume stays active after its
// last use. The volume group is a real one if there are disks for it, which are
// overwritten; else it is a directory, and its volumes are loop devices.
func New(bin string, lease time.Duration, disks ...string) (*Node, error) {
	dir, err := os.MkdirTemp("", "flexd-")
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // as the mount table shows it
		return nil, err
	}
	var g group = Loops{dir + "/vg"}
	if len(disks) > 0 {
		g = &lvm{disks: disks}
	}
	return with(bin, lease, dir, dir+"/run", g)
}

// Reopen returns the node in a directory that survives reboots; run does not. A missing directory is created;
// the volume group exists already, and Close does not remove it.
func Reopen(bin string, lease time.Duration, dir, run string) (*Node, error) {
	return with(bin, lease, dir, run, &lvm{})
}

func with(bin string, lease time.Duration, dir, run string, g group) (*Node, error) {
	n, err := At(dir, g)
	if err != nil {
		return nil, err
	}
	n.Run = run
	for from, to := range map[string]string{"flexd": n.Flexd(), "flexdriver": n.Driver} {
		if err := Install(bin+"/"+from, to); err != nil {
			return n, err
		}
	}
	if err := g.prepare(); err != nil {
		return n, err
	}
	return n, n.Configure(Settings{Lease: lease, Groups: "  - {name: " + VG + ", create: true, maxSize: 8GiB, namespaces: ['*'], " + g.config() + "}\n"})
}

// Volume returns the status of a volume of VG from the status socket.
func (n *Node) Volume(lv string) (s status.VolumeDetail, err error) {
	text, err := n.Get("/v1/volumes/" + VG + "/" + lv)
	if err == nil {
		err = json.Unmarshal([]byte(text), &s)
	}
	return s, err
}
