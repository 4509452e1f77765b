package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/test/host"
)

// A ground is the environment of the demonstration, described for the audience.
type ground struct {
	volumes string // where they are
	device  string // what an active one is
	lvm     bool   // lvs can be asked as well
	scratch string // a size whose mkfs takes long enough to be killed in

	// lease is how long flexd keeps a volume active after its last use. A real node has
	// more; here the user waits for the end.
	lease time.Duration
}

var onLoops = ground{
	volumes: "with sparse files and loop devices instead of LVM",
	device:  "loop device",
	scratch: "1g",
	lease:   2 * time.Second,
}

func onLVM(disks []string) ground {
	return ground{
		volumes: fmt.Sprintf("with a real LVM volume group (%s, made of %s)", host.VG, strings.Join(disks, " and ")),
		device:  "LVM device",
		lvm:     true,
		scratch: "256m",
		lease:   5 * time.Second, // in a virtual machine a call takes seconds
	}
}

// has reports whether the volume group has a volume with a name.
func (d *demo) has(lv string) bool {
	if !d.ground.lvm {
		_, err := os.Stat(d.Dir + "/vg/" + lv)
		return err == nil
	}
	names, err := exec.Command("lvs", "--noheadings", "-o", "lv_name", host.VG).Output()
	d.Must(err)
	return slices.Contains(strings.Fields(string(names)), lv)
}

// A sharing has the filesystem of the shared volume, and its first size.
type sharing struct {
	fsType string
	size   int64
	why    string // it is not ext4
	fixed  string // why it cannot grow while it is mounted, and what to do
}

// chooseSharing chooses a filesystem that this kernel and these privileges can grow while it is mounted, if
// possible.
func chooseSharing() sharing {
	ext4 := sharing{fsType: "ext4", size: 64 * MiB}
	if host.GrowsExt4() {
		return ext4
	}
	const why = "the kernel grows a mounted ext4 only for a process with CAP_SYS_RESOURCE, which this root does not have"
	for _, tool := range []string{"mkfs.xfs", "xfs_growfs"} {
		if _, err := exec.LookPath(tool); err != nil {
			ext4.fixed = why + ", and there is no " + tool + " for an xfs (package xfsprogs)"
			return ext4
		}
	}
	return sharing{fsType: "xfs", size: 320 * MiB, why: why + "; so the shared volume is xfs"}
}
