package join

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

const pod = "/var/lib/kubelet/pods/a/volumes/flexd~lvm/data"

// well is a group in which one volume is mounted for a pod and another is
// inactive, and all agree.
func well() Group {
	return Group{
		Name: "vg0",
		Survey: Survey{
			Kind:    "lvm",
			Volumes: []Volume{{Name: "data", UUID: "u1", Size: 64 << 20}, {Name: "idle", UUID: "u2", Size: 8 << 20}},
			Devices: []Device{{UUID: "u1", Name: "data", Kernel: "vg0-data", Path: "/dev/dm-3", Number: "253:3", Size: 64 << 20, Open: 1, Link: "/dev/vg0/data"}},
		},
		Claims: []Claim{{UUID: "u1", LV: "data", Dir: pod, Phase: volume.Held, For: "pod default/web-0"}},
		Mounts: []Mount{{Dir: pod, Device: "253:3", Type: "ext4", What: "ext4 from /dev/dm-3", Owner: volume.Ours}},
		Busy:   map[volume.UUID]bool{},
	}
}

func TestDisagreements(t *testing.T) {
	unmounted := func(g *Group) { g.Mounts = nil }
	unclaimed := func(g *Group) { g.Claims, g.Mounts = nil, nil }
	inactive := func(g *Group) { g.Devices = nil }
	leased := func(g *Group) { g.Leases = []Lease{{UUID: "u1", LV: "data", Live: true}} }
	faultyFS := func(fs volume.FS) func(*Group) {
		return func(g *Group) { g.Filesystems = map[volume.UUID]volume.FS{"u1": fs} }
	}
	twoTables := []Suspended{{Kernel: "vg0-data", Loaded: true}}
	copied := func(g *Group) {
		g.Kind, g.Directory = "loopdev", "/srv/vg0"
		g.Volumes = append(g.Volumes, Volume{Name: "copy", UUID: "u1", Size: 64 << 20})
	}
	renamedGroup := func(g *Group) {
		g.Volumes, g.Devices = nil, nil
		g.Mounts[0].UUID, g.Mounts[0].Name = "u1", volume.Name{VG: "old", LV: "data"}
	}
	for _, row := range []struct {
		about string
		do    []func(*Group)
		want  []string // "class name: " and then words of the text or the hint, with | between
	}{
		{"all agree", nil, nil},
		{"nothing at all", []func(*Group){func(g *Group) { *g = Group{Busy: g.Busy} }}, nil},

		{"deactivated under a lease", []func(*Group){unclaimed, inactive, leased}, []string{"lv-only data: lease|no device of it|deactivated"}},
		{"the lease has ended", []func(*Group){unclaimed, inactive, func(g *Group) { g.Leases = []Lease{{UUID: "u1"}} }}, nil},
		{"a lease that cannot be held against unseen devices", []func(*Group){unclaimed, inactive, leased, func(g *Group) { g.Kernel = "EIO" }}, nil},
		{"a lease, and no metadata", []func(*Group){unclaimed, inactive, leased, func(g *Group) { g.Metadata, g.Volumes = "hangs", nil }}, nil},
		{"removed under a lease", []func(*Group){unclaimed, inactive, leased, func(g *Group) { g.Volumes = nil }}, nil},
		{"the mount of a device that is gone stands", []func(*Group){inactive, func(g *Group) { g.Mounts[0].Gone = true }}, []string{"lv-only data: is mounted from its device 253:3 for pod default/web-0|by force"}},

		{"removed while it is mounted", []func(*Group){func(g *Group) { g.Volumes = nil }}, []string{"dm-only data: mounted at " + pod + " for pod default/web-0|vgcfgrestore --list vg0|dmsetup remove vg0-data"}},
		{"removed, and not claimed", []func(*Group){unclaimed, func(g *Group) { g.Volumes = nil }}, []string{"dm-only data: /dev/dm-3 (vg0-data)|uuid u1|open 1 times"}},
		{"made anew under its name", []func(*Group){unclaimed, func(g *Group) { g.Volumes[0].UUID = "u9" }}, []string{"dm-only data: uuid u1"}},
		{"removed, as far as unread metadata goes", []func(*Group){func(g *Group) { g.Metadata, g.Volumes = "hangs", nil }}, nil},
		{"its file cannot be read", []func(*Group){func(g *Group) { g.Kind, g.Volumes, g.Unread = "loopdev", nil, map[string]string{"data": "bad message"} }}, nil},
		{"its file cannot be read, and its filesystem is in error", []func(*Group){func(g *Group) {
			g.Kind, g.Volumes, g.Unread = "loopdev", nil, map[string]string{"data": "input/output error"}
			g.Mounts[0].Fault = "ext4 says emergency_ro"
		}}, []string{"faulty data: its filesystem is in error: ext4 says emergency_ro"}},
		{"another file cannot be read", []func(*Group){unclaimed, func(g *Group) { g.Volumes, g.Unread = nil, map[string]string{"x": "bad message"} }}, []string{"dm-only data: uuid u1"}},
		{"a part in older metadata", []func(*Group){unclaimed, func(g *Group) {
			g.Volumes, g.Devices[0].Misplaced = nil, "is a volume, and the metadata has it as vg0/x_cvol, a part of another"
		}}, []string{"dm-only data: is a volume, and the metadata has it as vg0/x_cvol|uuid u1|open 1 times|restore the newest file"}},
		{"a part that was left, which says nothing about other volumes", []func(*Group){func(g *Group) {
			g.Volumes[0].Size = 128 << 20
			g.Devices = append(g.Devices, Device{UUID: "u8", Name: "data_wcorig", Kernel: "vg0-data_wcorig", Path: "/dev/dm-4", Number: "253:4", Misplaced: "lies on space that the metadata gives to vg0/data", Left: true})
		}}, []string{"stale-mapping data: lvchange --refresh vg0/data", "dm-only data_wcorig: lies on space that the metadata gives to vg0/data|(uuid u8)|has left it, and nothing uses it: dmsetup remove vg0-data_wcorig"}},
		{"of a guest's group with the same name, which says nothing about other volumes", []func(*Group){func(g *Group) {
			g.Volumes[0].Size = 128 << 20
			g.Devices = append(g.Devices, Device{UUID: "u8", Name: "root", Kernel: "vg0-root", Path: "/dev/dm-4", Number: "253:4", Namesake: true})
		}}, []string{"stale-mapping data: lvchange --refresh vg0/data", "dm-only root: of another volume group with the name vg0|(uuid u8)|exclude the disk from LVM|dmsetup remove vg0-root"}},
		{"extended before the metadata", []func(*Group){func(g *Group) {
			g.Devices[0].Size, g.Devices[0].Misplaced = 68<<20, Enlarged
		}}, []string{"stale-mapping data: has 68 MiB|has more space at its end|neither restore nor refresh"}},
		{"a loop device of a file that is gone", []func(*Group){unclaimed, func(g *Group) { g.Kind, g.Volumes = "loopdev", nil }}, []string{"dm-only data: put it back|only /dev/dm-3 has its data|losetup -d /dev/dm-3"}},
		{"a loop device of a file with two names", []func(*Group){func(g *Group) {
			g.Kind, g.Volumes, g.Refused = "loopdev", nil, map[volume.UUID]string{"u1": "/srv/vg0/data has 2 names"}
		}}, []string{"dm-only data: because /srv/vg0/data has 2 names|undo that|mounted at " + pod}},
		{"its directory was replaced", []func(*Group){inactive, func(g *Group) {
			g.Kind, g.Directory, g.Volumes, g.Mounts[0].UUID = "loopdev", "/srv/vg0", nil, "u1"
		}}, []string{"dm-only data: mounted at " + pod + ", for pod default/web-0|/srv/vg0 has no file|uuid u1|put it back"}},
		{"its directory was replaced, as far as unseen devices go", []func(*Group){inactive, func(g *Group) {
			g.Kind, g.Volumes, g.Mounts[0].UUID, g.Kernel = "loopdev", nil, "u1", "EIO"
		}}, nil},

		{"its group was renamed, and another has the name", []func(*Group){renamedGroup}, []string{"stale-mapping data: mounted at " + pod + ", for pod default/web-0: it was vg0/data when flexd set it up, and is now old/data|(vgrename old vg0)|flexd unmounts them|pods that ask for vg0/data do not find it|a new, empty volume of the present vg0, or none"}},
		{"its group was renamed, which check says", []func(*Group){renamedGroup, func(g *Group) { g.Metadata, g.Gone = "LVM does not find it", true }}, nil},
		{"its group was renamed to that of another group, which reports it", []func(*Group){renamedGroup, func(g *Group) { g.Compared = []string{"vg0", "old"} }}, nil},
		{"its group was renamed, as far as unseen devices go", []func(*Group){renamedGroup, func(g *Group) { g.Kernel = "EIO" }}, nil},
		{"its group was renamed, while its claim is released", []func(*Group){renamedGroup, func(g *Group) { g.Claims[0].Phase = volume.Releasing }}, nil},

		{"a snapshot is to be merged into it", []func(*Group){func(g *Group) { g.Volumes[0].Merging = "snap" }}, []string{"merge-pending data: the snapshot snap|next activation|will be lost|copy them off"}},
		{"it is to be merged into its origin", []func(*Group){func(g *Group) { g.Volumes[0].Into = "orig" }}, []string{"merge-pending data: into vg0/orig|with all that its pods write|delete its pods and those of vg0/orig"}},
		{"active by hand, with a lost snapshot", []func(*Group){unclaimed, func(g *Group) { g.Devices[0].LostSnapshot = "vg0/snap" }}, []string{"active-unclaimed data: first lvremove vg0/snap|Then: flexd leaves it active"}},
		{"the contents of the snapshot that is to be merged are lost", []func(*Group){unclaimed, leased, func(g *Group) {
			g.Volumes[0].Merging = "snap"
			g.Volumes = append(g.Volumes, Volume{Name: "snap", UUID: "u2", Into: "data"})
			g.Devices = append(g.Devices, Device{UUID: "u2", Name: "snap", Kernel: "vg0-snap", Number: "253:4", Broken: "invalid", Repair: "lvremove it"})
		}}, []string{"merge-pending data: snapshot snap is to be merged|its contents are lost|vgcfgrestore -f now.vg0 vg0|lvremove vg0/snap"}},
		{"it is to be merged into its origin, and nothing uses it", []func(*Group){unclaimed, leased, func(g *Group) { g.Volumes[0].Into, g.Devices[0].Broken = "orig", "no data" }}, nil},
		{"it is merged into its origin", []func(*Group){unclaimed, inactive, func(g *Group) { g.Volumes[0].Into = "orig" }}, nil},
		{"a snapshot is being merged into it", []func(*Group){func(g *Group) { g.Volumes[0].Merging, g.Devices[0].Merges = "snap", true }}, nil},
		{"a snapshot is to be merged into it, and nothing uses it", []func(*Group){unclaimed, leased, func(g *Group) { g.Volumes[0].Merging = "snap" }}, nil},
		{"something is mounted below it", []func(*Group){func(g *Group) { g.Mounts[0].Nested = []string{pod + "/a", pod + "/b"} }}, []string{"nested-mount data: mounted at " + pod + "/a, " + pod + "/b|for pod default/web-0|umount " + pod + "/b " + pod + "/a"}},
		{"mounted by the host, too", []func(*Group){func(g *Group) {
			g.Mounts = append(g.Mounts, Mount{Dir: "/mnt", Device: "253:3", What: "ext4 from /dev/dm-3", Owner: volume.Elsewhere})
		}}, []string{"mounted-unknown data: mounted at /mnt|not one of flexd's|umount /mnt"}},
		{"mounted by another driver", []func(*Group){func(g *Group) {
			g.Mounts = append(g.Mounts, Mount{Dir: "/d", Device: "253:3", What: "ext4 from /dev/dm-3", Owner: volume.Elsewhere, Other: true})
		}}, []string{"mounted-unknown data: mounted at /d by another driver|Do not unmount it|Delete that pod"}},
		{"its btrfs has another device", []func(*Group){func(g *Group) { g.Mounts[0].Disks = []string{"/dev/sdx"} }},
			[]string{"faulty data: on /dev/dm-3 and on /dev/sdx|only filesystems on one device|btrfs device remove /dev/sdx " + pod}},
		{"its btrfs was moved to another device", []func(*Group){func(g *Group) {
			g.Claims[0].FSID, g.Mounts[0].FSID, g.Mounts[0].Device, g.Mounts[0].Source = "f", "f", "8:1", "/dev/sdx"
		}}, []string{"claimed-missing data: that flexd mounted at " + pod + ", for pod default/web-0, is on /dev/sdx now|btrfs replace start ID /dev/dm-3 " + pod}},
		{"its btrfs was moved to another device, and it is inactive", []func(*Group){inactive, func(g *Group) {
			g.Claims[0].FSID, g.Mounts[0].FSID, g.Mounts[0].Device, g.Mounts[0].Source = "f", "f", "8:1", "/dev/sdx"
		}}, []string{"claimed-missing data: is on /dev/sdx now|inactive: lvchange -ay vg0/data"}},
		{"its btrfs was moved to another device, and its file has none", []func(*Group){inactive, func(g *Group) {
			g.Kind, g.Directory = "loopdev", "/vg"
			g.Claims[0].FSID, g.Mounts[0].FSID, g.Mounts[0].Device, g.Mounts[0].Source = "f", "f", "8:1", "/dev/sdx"
		}}, []string{"claimed-missing data: is on /dev/sdx now|umount " + pod + "|attached to /vg/data, then: losetup -d /dev/sdx|mount /dev/sdx /mnt"}},
		{"another btrfs is mounted there", []func(*Group){func(g *Group) {
			g.Claims[0].FSID, g.Mounts[0].FSID, g.Mounts[0].Device = "f", "g", "8:1"
		}}, []string{"claimed-missing data: in place of the volume"}},
		{"a claim without its mount, and its subPath", []func(*Group){func(g *Group) {
			g.Claims[0].Pod = "u"
			g.Mounts[0] = Mount{Dir: "/p", Device: "253:3", Owner: volume.Elsewhere, BindLeft: true, Pod: "u"}
		}}, []string{"claimed-missing data: delete the pod|if a subPath of the pod is mounted after its end: umount /p", "mounted-unknown data: umount /p"}},
		{"mounted below a root of kubelet that is not configured", []func(*Group){unclaimed, func(g *Group) {
			g.Mounts = []Mount{{Dir: "/p", Device: "253:3", What: "ext4 from /dev/dm-3", Owner: volume.Elsewhere, OtherRoot: true}}
		}}, []string{"mounted-unknown data: ext4 from /dev/dm-3 is mounted at /p, a path as below a root directory of kubelet|none of kubeletRoots|If a kubelet runs with that root (--root-dir), delete the pod|If not: umount /p"}},
		{"a subPath is left", []func(*Group){unclaimed, func(g *Group) {
			g.Mounts = []Mount{{Dir: "/p", Device: "253:3", What: "/sub of the ext4 from /dev/dm-3", Owner: volume.Elsewhere, BindLeft: true}}
		}}, []string{"mounted-unknown data: mounted at /p, as a subPath of a pod whose own mount of the volume is gone|restart kubelet|umount /p"}},
		{"mounted below a former root of kubelet's", []func(*Group){func(g *Group) { g.Mounts[0].Outside = true }},
			[]string{"mounted-unknown data: mounted at " + pod + " for pod default/web-0, and that is not in kubelet's directories|kubeletRoots|umount " + pod}},
		{"mounted by the host only", []func(*Group){unclaimed, func(g *Group) {
			g.Mounts = []Mount{{Dir: "/mnt", Device: "253:3", What: "ext4 from /dev/dm-3", Owner: volume.Elsewhere}}
		}}, []string{"mounted-unknown data: /mnt"}},
		{"mounted for a pod without a note", []func(*Group){func(g *Group) { g.Claims = nil }}, []string{"mounted-unknown data: no note|runDir"}},
		{"mounted, while its claim is released", []func(*Group){func(g *Group) { g.Claims[0].Phase = volume.Releasing }}, nil},
		{"kubelet's subPath", []func(*Group){func(g *Group) {
			g.Mounts = append(g.Mounts, Mount{Dir: "/var/lib/kubelet/pods/a/volume-subpaths/x/0", Device: "253:3", Owner: volume.Kubelets})
		}}, nil},

		{"activated by hand", []func(*Group){unclaimed, func(g *Group) { g.Devices[0].Open = 0 }}, []string{"active-unclaimed data: no pod has asked|lvchange -an vg0/data"}},
		{"open for something else", []func(*Group){unclaimed}, []string{"active-unclaimed data: open (1 times)|lsblk /dev/dm-3"}},
		{"active and leased", []func(*Group){unclaimed, leased}, nil},
		{"active, with the name of another lease", []func(*Group){unclaimed, func(g *Group) {
			g.Leases = []Lease{{UUID: "u3", LV: "data"}}
		}}, []string{"active-unclaimed data: no pod has asked"}},
		{"active, its lease about to be ended", []func(*Group){unclaimed, func(g *Group) { g.Leases = []Lease{{UUID: "u1"}} }}, nil},
		{"active, in a group that is left active", []func(*Group){unclaimed, func(g *Group) { g.Keep = true }}, nil},
		{"active, the metadata unread", []func(*Group){unclaimed, func(g *Group) { g.Metadata, g.Volumes = "hangs", nil }}, nil},
		{"a loop device of another program", []func(*Group){unclaimed, func(g *Group) { g.Devices[0].UUID = "" }}, nil},

		{"unmounted by hand", []func(*Group){unmounted, func(g *Group) { g.Claims[0].Life = volume.Running }}, []string{"claimed-missing data: pod default/web-0 writes to the node's disk|unmounted the volume at " + pod + "|delete the pod, so that"}},
		{"unmounted, its pod dead", []func(*Group){unmounted, func(g *Group) { g.Claims[0].Life = volume.Ended }}, []string{"claimed-missing data: unmounted it at " + pod + ", for pod default/web-0, which has no process any more|flexd release --yes " + pod}},
		{"unmounted, its pod perhaps dead", []func(*Group){unmounted}, []string{"claimed-missing data: pod default/web-0, unless it has ended, writes to the node's disk|delete the pod, so that|if it has ended|flexd release --yes " + pod}},
		{"unmounted and deactivated", []func(*Group){unmounted, inactive}, []string{"claimed-missing data: the volume is inactive"}},
		{"unmounted and deactivated, with the lease that follows", []func(*Group){unmounted, inactive, leased}, []string{"claimed-missing data: the volume is inactive"}},
		{"unmounted and removed", []func(*Group){unmounted, inactive, func(g *Group) { g.Volumes = nil }}, []string{"claimed-missing data: the volume itself is gone, too"}},
		{"unmounted, the rest unread", []func(*Group){unmounted, inactive, func(g *Group) { g.Metadata, g.Kernel, g.Volumes = "hangs", "hangs", nil }}, []string{"claimed-missing data: something other than flexd unmounted"}},
		{"replaced by something else", []func(*Group){func(g *Group) { g.Mounts = []Mount{{Dir: pod, What: "tmpfs from tmpfs", Owner: volume.Ours}} }}, []string{"claimed-missing data: tmpfs from tmpfs is mounted at " + pod + " in place of the volume, for pod default/web-0|umount " + pod}},
		{"something is mounted, which may be it", []func(*Group){inactive, func(g *Group) { g.Kernel = "hangs" }}, nil},
		{"mounted from a device that is not where the group's are", []func(*Group){inactive, func(g *Group) { g.Mounts[0].UUID = "u1" }}, nil},
		{"another device with its bytes", []func(*Group){func(g *Group) {
			g.Devices[0].Rivals = []Rival{{"/dev/loop7 is attached to the same file", "losetup -d /dev/loop7"}}
		}}, []string{"stale-mapping data: /dev/loop7|losetup -d /dev/loop7. Until then flexd mounts the volume for no further pod"}},
		{"an unknown mount", []func(*Group){inactive, func(g *Group) { g.Mounts[0].Unknown = true }}, nil},
		{"covered by something else", []func(*Group){func(g *Group) { g.Mounts = append(g.Mounts, Mount{Dir: pod, What: "tmpfs from tmpfs"}) }}, nil},
		{"covered by itself", []func(*Group){func(g *Group) {
			g.Mounts = append(g.Mounts, g.Mounts[0])
			g.Mounts[0].Over, g.Mounts[0].Again = "ext4 from /dev/dm-3 at "+pod, true
		}}, []string{"covered data: " + pod + ", for pod default/web-0|the same volume|umount " + pod}},
		{"covered by a part of itself", []func(*Group){func(g *Group) {
			g.Mounts = append(g.Mounts, g.Mounts[0])
			g.Mounts[0].Over = "/sub of the ext4 from /dev/dm-3 at " + pod
			g.Mounts[1].Part, g.Mounts[1].Owner = true, volume.Elsewhere
		}}, []string{"covered data: " + pod + ", for pod default/web-0|/sub of the ext4|unmount what covers it"}},
		{"replaced by another volume", []func(*Group){func(g *Group) {
			g.Mounts = []Mount{{Dir: pod, What: "ext4 from /dev/dm-4", Owner: volume.Ours, UUID: "u2", Name: volume.Name{VG: "vg0", LV: "other"}}}
		}}, []string{"claimed-missing data: volume vg0/other (ext4 from /dev/dm-4) is mounted at"}},
		{"replaced by another volume of flexd", []func(*Group){func(g *Group) {
			g.Mounts = []Mount{{Dir: pod, What: "ext4 from /dev/dm-4", Owner: volume.Ours, UUID: "u2", Name: volume.Name{VG: "vg0", LV: "other"}}}
			g.Claims = append(g.Claims, Claim{UUID: "u2", LV: "other", Dir: pod, Phase: volume.Held, For: "pod default/web-1", VG: "vg1"})
		}}, []string{"claimed-missing data: volume vg0/other (ext4 from /dev/dm-4) is mounted at|for another claim of flexd|delete the pods"}},
		{"only a part of it is left", []func(*Group){func(g *Group) { g.Mounts[0].Part, g.Mounts[0].Owner = true, volume.Elsewhere }}, []string{"claimed-missing data: in place of the volume"}},
		{"covered, and a lookup does not reach it", []func(*Group){func(g *Group) { g.Mounts[0].Over = "tmpfs from none at /var/lib/kubelet" }}, []string{"covered data: " + pod + ", for pod default/web-0|tmpfs from none at /var/lib/kubelet|unmount what covers it"}},
		{"hidden, and mounted anew", []func(*Group){func(g *Group) {
			g.Mounts[0].Over = "tmpfs"
			g.Mounts = append(g.Mounts, Mount{Dir: pod, Device: "253:3", What: "ext4 from /dev/dm-3", Owner: volume.Ours})
		}}, nil},
		{"not mounted yet", []func(*Group){unmounted, func(g *Group) { g.Claims[0].Phase = volume.Making }}, nil},
		{"one of two", []func(*Group){func(g *Group) {
			g.Claims = append(g.Claims, Claim{UUID: "u1", LV: "data", Dir: "/var/lib/kubelet/b", Phase: volume.Held, For: "pod default/b"})
		}}, []string{"claimed-missing data: pod default/b|at /var/lib/kubelet/b"}},

		{"extended without a refresh", []func(*Group){func(g *Group) { g.Volumes[0].Size = 128 << 20 }}, []string{"stale-mapping data: says 128 MiB|(vg0-data) has 64 MiB|lvchange --refresh vg0/data"}},
		{"as large in older metadata", []func(*Group){func(g *Group) {
			g.Volumes[0].Size = 128 << 20
			g.Devices = append(g.Devices, Device{UUID: "u8", Name: "new", Kernel: "vg0-new", Path: "/dev/dm-4", Number: "253:4", Size: 8 << 20, Link: "/dev/vg0/new"})
		}}, []string{"stale-mapping data: restore the newest file that differs from the current metadata|Do not lvchange --refresh before", "dm-only new: dmsetup remove vg0-new"}},
		{"renamed, in older metadata", []func(*Group){func(g *Group) {
			g.Devices[0].Kernel, g.Devices[0].Name, g.Devices[0].Misplaced = "vg0-old", "old", "lies on another disk"
		}}, []string{"stale-mapping data: lies on another disk|copy the data off now|Do not lvchange --refresh before"}},
		{"older metadata", []func(*Group){func(g *Group) { g.Volumes[0].Size = 32 << 20 }}, []string{"stale-mapping data: says 32 MiB|(vg0-data) has 64 MiB|vgcfgrestore --list vg0"}},
		{"a snapshot's store", []func(*Group){func(g *Group) { g.Volumes[0].Size = 0 }}, nil},
		{"a file that was extended", []func(*Group){func(g *Group) { g.Kind, g.Volumes[0].Size = "loopdev", 128<<20 }}, []string{"stale-mapping data: says 128 MiB|losetup -c /dev/dm-3"}},
		{"a file that was truncated", []func(*Group){func(g *Group) { g.Kind, g.Directory, g.Volumes[0].Size = "loopdev", "/srv/vg0", 1000 }}, []string{"stale-mapping data: says 1000 bytes|restore a backup of /srv/vg0/data|truncate -s 67108864 /srv/vg0/data, and check all of it (e2fsck -f"}},
		{"an empty file", []func(*Group){func(g *Group) { g.Kind, g.Volumes[0].Size = "loopdev", 0 }}, []string{"stale-mapping data: says 0 bytes|the file was truncated"}},
		{"renamed in the kernel only", []func(*Group){func(g *Group) { g.Devices[0].Name, g.Devices[0].Kernel = "", "mine" }}, []string{"stale-mapping data: and the kernel mine"}},
		{"its deactivation fails", []func(*Group){unclaimed, func(g *Group) { g.Leases = []Lease{{UUID: "u1", LV: "data", Kept: "dd has it open"}} }}, []string{"still-active data: cannot be deactivated: dd has it open|end that use"}},
		{"moved from another group", []func(*Group){func(g *Group) { g.Claims[0].VG = "vg1" }}, []string{"stale-mapping data: it is in use as vg1/data, and vg0 has it now|do not get it, nor another volume of that name|vgrename"}},
		{"a file moved from another group", []func(*Group){func(g *Group) { g.Kind, g.Claims[0].VG = "loopdev", "vg1" }}, []string{"stale-mapping data: it is in use as vg1/data, and vg0 has it now|move it back"}},
		{"unmounted, of another group, which reports it", []func(*Group){func(g *Group) { g.Claims[0].VG, g.Mounts = "vg1", nil }}, []string{"stale-mapping data: vg1/data"}},
		{"renamed by lvrename", []func(*Group){func(g *Group) { g.Volumes[0].Name, g.Devices[0].Name = "other", "other" }}, []string{"stale-mapping other: it was data when flexd set it up|ask for vg0/data do not get it, nor another"}},
		{"a file renamed", []func(*Group){func(g *Group) {
			g.Kind, g.Directory, g.Volumes[0].Name, g.Devices[0].Name = "loopdev", "/srv/vg0", "other", "other"
		}}, []string{"stale-mapping other: it was data when flexd set it up|mv -n /srv/vg0/other /srv/vg0/data"}},
		{"a file copied with its attributes", []func(*Group){copied}, []string{"stale-mapping data: the files /srv/vg0/data and /srv/vg0/copy have the same uuid|a copy|/srv/vg0/data is in use (/dev/dm-3)|flexd uuid --new /srv/vg0/copy"}},
		{"a file renamed, and copied back under its name", []func(*Group){copied, func(g *Group) { g.Devices[0].Name = "copy" }}, []string{"stale-mapping copy: /srv/vg0/copy is in use (/dev/dm-3)|flexd uuid --new /srv/vg0/data"}},
		{"a file copied with its attributes while it is inactive", []func(*Group){copied, unclaimed, inactive}, []string{"stale-mapping copy: the files /srv/vg0/copy and /srv/vg0/data have|flexd uuid --new COPY"}},
		{"renamed under a lease", []func(*Group){unclaimed, leased, func(g *Group) { g.Volumes[0].Name, g.Devices[0].Name = "other", "other" }}, []string{"stale-mapping other: it was data|ask for vg0/data do not get it: lvrename"}},
		{"renamed under a lease, and mounted by its new name", []func(*Group){leased, func(g *Group) {
			g.Volumes[0].Name, g.Devices[0].Name, g.Claims[0].LV = "other", "other", "other"
		}}, []string{"stale-mapping other: it was data|ask for vg0/data do not get it: lvrename"}},
		{"renamed and unmounted, and mounted by its new name", []func(*Group){func(g *Group) {
			g.Volumes[0].Name, g.Devices[0].Name = "other", "other"
			g.Claims = append(g.Claims, Claim{UUID: "u1", LV: "other", Dir: pod, Phase: volume.Held, For: "pod default/web-0"})
			g.Claims[0].Dir, g.Claims[0].Phase = pod+"-former", volume.Releasing
		}}, []string{"stale-mapping other: it was data|ask for vg0/data do not get it: lvrename"}},
		{"broken", []func(*Group){func(g *Group) { g.Devices[0].Broken = "vg0-data has an error target" }}, []string{"stale-mapping data: error target|dmesg"}},
		{"its contents are lost", []func(*Group){func(g *Group) { g.Devices[0].Broken, g.Devices[0].Repair = "its contents are lost", "lvremove it" }}, []string{"stale-mapping data: its contents are lost|lvremove it"}},
		{"broken, the metadata unread", []func(*Group){func(g *Group) { g.Devices[0].Broken, g.Metadata, g.Volumes = "no table", "hangs", nil }}, []string{"stale-mapping data: no table"}},
		{"broken and unclaimed is one thing", []func(*Group){unclaimed, func(g *Group) { g.Devices[0].Broken, g.Devices[0].Size = "no table", 0 }}, []string{"stale-mapping data: no table"}},
		{"on free space", []func(*Group){func(g *Group) { g.Devices[0].Misplaced = "lies on space that the metadata counts as free" }}, []string{"stale-mapping data: lies on space that the metadata counts as free|vgcfgrestore --list vg0|copy the data off now"}},
		{"suspended before the metadata was written", []func(*Group){func(g *Group) {
			g.Devices[0].Suspended, g.Devices[0].Placed = twoTables, true
		}}, []string{"stale-mapping data: is suspended|belongs to the metadata, so drop the second one first: dmsetup clear vg0-data && dmsetup resume vg0-data"}},
		{"suspended by an lvextend that failed after it", []func(*Group){func(g *Group) {
			g.Devices[0].Suspended, g.Devices[0].Placed, g.Volumes[0].Size = twoTables, true, 80<<20
		}}, []string{"stale-mapping data: is suspended|pvmove --abort. If no command of LVM runs| grep lv): dmsetup resume vg0-data; if the sizes still differ after the resume: lvchange --refresh vg0/data"}},
		{"suspended with two tables, without the place in the metadata", []func(*Group){func(g *Group) {
			g.Devices[0].Suspended = twoTables
		}}, []string{"stale-mapping data: is suspended|it is unknown which one belongs to the metadata|lvs -a -o+devices vg0 first"}},
		{"its pool suspended, without the place in the metadata", []func(*Group){func(g *Group) {
			g.Devices[0].Suspended = []Suspended{{"vg0-pool_tmeta", true}, {"vg0-pool_tdata", true}, {"vg0-data", false}}
		}}, []string{"stale-mapping data: are suspended|dmsetup table --inactive vg0-pool_tmeta vg0-pool_tdata)|To keep the first: dmsetup clear vg0-pool_tmeta && dmsetup resume vg0-pool_tmeta && dmsetup clear vg0-pool_tdata && dmsetup resume vg0-pool_tdata && dmsetup resume vg0-data. To make the second active in place of the first: dmsetup resume vg0-pool_tmeta && dmsetup resume vg0-pool_tdata && dmsetup resume vg0-data"}},
		{"suspended while a snapshot was made", []func(*Group){func(g *Group) {
			g.Devices[0].Suspended, g.Devices[0].Placed, g.Devices[0].Bypassed = twoTables, true, true
		}}, []string{"stale-mapping data: is suspended|only a new snapshot, which is lost, needs the second table|dmsetup clear vg0-data && "}},
		{"suspended after the metadata was written", []func(*Group){func(g *Group) {
			g.Devices[0].Suspended, g.Devices[0].Misplaced = twoTables, "has a raid table, and the metadata says linear"
		}}, []string{"stale-mapping data: is suspended|: dmsetup resume vg0-data; only if older metadata was restored, before the resume: vgcfgrestore --list vg0"}},
		{"a cache suspended before the metadata was written", []func(*Group){func(g *Group) {
			g.Devices[0].Suspended, g.Devices[0].Placed = []Suspended{{"vg0-data_cmeta", true}, {"vg0-data_corig", false}, {"vg0-data", true}}, true
		}}, []string{"stale-mapping data: the devices vg0-data_cmeta, vg0-data_corig, vg0-data are suspended|dmsetup clear vg0-data_cmeta && dmsetup resume vg0-data_cmeta && dmsetup resume vg0-data_corig && dmsetup clear vg0-data && dmsetup resume vg0-data"}},
		{"an origin that bypasses its snapshots", []func(*Group){func(g *Group) { g.Devices[0].Bypassed = true }}, []string{"stale-mapping data: is not the origin of a snapshot|lvremove"}},
		{"suspended", []func(*Group){func(g *Group) { g.Devices[0].Suspended = []Suspended{{Kernel: "vg0-data"}} }}, []string{"stale-mapping data: is suspended|dmsetup resume vg0-data"}},
		{"a leg of its RAID has failed", []func(*Group){func(g *Group) { g.Volumes[0].RAID, g.Devices[0].Degraded = true, "1 of 2 (AD)" }}, []string{"degraded data: 1 of 2 (AD)|lvconvert --repair vg0/data|lvchange --refresh vg0/data"}},
		{"a leg of its RAID is missing", []func(*Group){func(g *Group) { g.Volumes[0].RAID, g.Volumes[0].Missing = true, "PV p1" }}, []string{"degraded data: does not find (PV p1)|lvconvert --repair vg0/data"}},
		{"a leg of its pool's RAID has failed", []func(*Group){func(g *Group) {
			g.Devices[0].Degraded, g.Devices[0].RAID, g.Devices[0].Refresh = "1 of 2 (AD)", "vg0/pool_tdata", "vg0/pool"
		}}, []string{"degraded data: 1 of 2 (AD)|lvconvert --repair vg0/pool_tdata|lvchange --refresh vg0/pool;"}},
		{"a copy was split off its RAID", []func(*Group){func(g *Group) {
			g.Devices[0].Degraded, g.Devices[0].RAID, g.Devices[0].Split = "1 of 2 (A-)", "vg0/data", "vg0/data_rimage_1"
		}}, []string{"degraded data: 1 of 2 (A-)|lvconvert --merge vg0/data_rimage_1"}},
		{"the legs of its RAID differ", []func(*Group){func(g *Group) { g.Devices[0].Differ, g.Devices[0].RAID = "128 sectors differ", "vg0/data" }}, []string{"degraded data: 128 sectors differ|back the data up|lvchange --syncaction repair vg0/data"}},
		{"its cache has failed", []func(*Group){func(g *Group) {
			g.Devices[0].Failed, g.Devices[0].Remedy = "the cache has failed", "lvconvert --uncache"
		}}, []string{"faulty data: the cache has failed|lvconvert --uncache"}},
		{"its cache has failed, and nothing uses it", []func(*Group){unclaimed, leased, func(g *Group) { g.Devices[0].Failed = "the cache has failed" }}, nil},
		{"its device has larger blocks", []func(*Group){func(g *Group) { g.Sectors = map[volume.UUID]Sectors{"u1": {512, 4096}} }}, []string{"faulty data: its ext4 has sectors of 512 bytes, and its device /dev/dm-3 logical blocks of 4096|neither extend it nor mount it again|pvmove -n data DISK OTHER|vgextend vg0"}},
		{"its file's device has larger blocks", []func(*Group){func(g *Group) {
			g.Kind, g.Directory, g.Sectors = "loopdev", "/srv/vg0", map[volume.UUID]Sectors{"u1": {512, 4096}}
		}}, []string{"faulty data: attached with such blocks|losetup -d /dev/dm-3"}},
		{"its device has small blocks", []func(*Group){func(g *Group) { g.Sectors = map[volume.UUID]Sectors{"u1": {4096, 512}} }}, nil},
		{"its filesystem is in error", []func(*Group){func(g *Group) { g.Mounts[0].Fault = "ext4 counts 5 errors" }}, []string{"faulty data: its filesystem is in error: ext4 counts 5 errors|dmesg|delete its pods|fsck"}},
		{"a mount lacks a flag of the group", []func(*Group){func(g *Group) { g.Flags, g.Mounts[0].Options = []string{"nodev", "nosuid"}, []string{"rw", "nosuid"} }}, []string{"mount-flags data: lacks nodev, which|mount -o remount,bind,nodev " + pod}},
		{"a mount has the flags of the group", []func(*Group){func(g *Group) { g.Flags, g.Mounts[0].Options = []string{"nodev"}, []string{"rw", "nodev"} }}, nil},
		{"a mount that flexd did not make", []func(*Group){func(g *Group) { g.Flags, g.Claims[0].Found = []string{"nodev"}, true }}, nil},
		{"the kernel could not write data of it", []func(*Group){func(g *Group) { g.Mounts[0].Lost = "dm-3: writeback error on inode 131" }}, []string{`faulty data: a write to it has failed|data of it may be lost|the kernel logged "dm-3: writeback error on inode 131"|dmesg|until the volume is unmounted`}},
		{"a file has a copy in another group", []func(*Group){func(g *Group) {
			g.Kind, g.Directory, g.Copies = "loopdev", "/srv/vg0", map[volume.UUID][]string{"u1": {"/srv/vg1/data"}}
		}}, []string{"stale-mapping data: the files /srv/vg0/data and /srv/vg1/data have the same uuid|/srv/vg0/data is in use (/dev/dm-3)|flexd uuid --new /srv/vg1/data"}},
		{"its filesystem is in error, and read-only", []func(*Group){func(g *Group) {
			g.Mounts[0].Fault, g.Mounts[0].ReadOnly, g.Devices[0].ReadOnly = "ext4 counts 5 errors", true, true
		}}, []string{"faulty data: ext4 counts 5 errors|No fsck runs while the volume is read-only"}},
		{"its pool has failed, and so its filesystem is in error", []func(*Group){func(g *Group) {
			g.Devices[0].Failed, g.Devices[0].Remedy, g.Mounts[0].Fault = "the pool has failed", "repair the pool", "xfs has shut down"
		}}, []string{"faulty data: the pool has failed; its filesystem is in error: xfs has shut down|repair the pool; then, once its pods are deleted, the next mount runs fsck"}},
		{"its filesystem is in error, and was made read-only by that", []func(*Group){func(g *Group) { g.Mounts[0].Fault, g.Mounts[0].SuperReadOnly = "ext4 counts 5 errors", true }}, []string{"faulty data: 5 errors"}},
		{"a child found its filesystem in error", []func(*Group){faultyFS(volume.FS{Content: volume.FilesystemFailed, What: "xfs has shut down"})}, []string{"faulty data: xfs has shut down"}},
		{"its filesystem was in error, and is not mounted", []func(*Group){unmounted, leased, func(g *Group) { g.Claims = nil }, faultyFS(volume.FS{Content: volume.FilesystemFailed, What: "xfs has shut down"})}, nil},
		{"its filesystem is larger than its device", []func(*Group){faultyFS(volume.FS{Content: volume.Truncated, Type: "ext4", Size: 128 << 20})}, []string{"faulty data: its ext4 has 128 MiB and its device /dev/dm-3 only 64 MiB|do not run fsck|vgcfgrestore --list vg0;|lvextend -L 134217728b vg0/data"}},
		{"its metadata was restored after a reduction", []func(*Group){faultyFS(volume.FS{Content: volume.Truncated, Type: "ext4", Size: 128 << 20}), func(g *Group) { g.Volumes[0].Size = 128 << 20 }}, []string{
			"faulty data: only 64 MiB|the metadata has that size, so: lvchange --refresh vg0/data", "stale-mapping data: says 128 MiB|lvchange --refresh vg0/data"}},
		{"a file's filesystem is larger than its device", []func(*Group){func(g *Group) { g.Kind, g.Directory = "loopdev", "/srv/vg0" }, faultyFS(volume.FS{Content: volume.Truncated, Type: "xfs", Size: 128 << 20})}, []string{"faulty data: restore a backup of /srv/vg0/data|truncate -s 134217728 /srv/vg0/data|e2fsck -f"}},
		{"a leg of a RAID below it is missing", []func(*Group){func(g *Group) {
			v := &g.Volumes[0]
			v.Missing, v.Lost, v.Remedy = "PV p1", "a copy of vg0/pool_tdata", "lvconvert -y --repair vg0/pool_tdata"
			g.Devices[0].Degraded, g.Devices[0].RAID, g.Devices[0].Refresh = "1 of 2", "vg0/pool_tdata", "vg0/pool"
		}}, []string{"degraded data: a copy of vg0/pool_tdata is on a disk that LVM does not find (PV p1)|lvchange --refresh vg0/pool; or, if it is lost, lvconvert -y --repair vg0/pool_tdata|do not deactivate"}},
		{"a leg with checksums is missing", []func(*Group){func(g *Group) { g.Volumes[0].RAID, g.Volumes[0].Missing, g.Volumes[0].Stays = true, "PV p1", true }}, []string{"degraded data: does not find (PV p1)|lvconvert --repair vg0/data|do not deactivate"}},
		{"a disk of it is missing", []func(*Group){func(g *Group) { g.Volumes[0].Missing = "PV p1" }}, []string{"degraded data: does not find (PV p1)|copy the data off|do not deactivate"}},
		{"a disk of it is missing, and it is not used", []func(*Group){unclaimed, leased, func(g *Group) { g.Volumes[0].Missing = "PV p1" }}, nil},
		{"a disk ends before a part of it", []func(*Group){func(g *Group) { g.Volumes[0].CutOff = "the disk is short" }}, []string{"degraded data: beyond the end of a disk: the disk is short|do not deactivate"}},
		{"a disk ends before a part of it, and it is not used", []func(*Group){unclaimed, func(g *Group) { g.Volumes[0].CutOff = "the disk is short" }}, []string{"degraded data: beyond the end of a disk|do not deactivate"}},
		{"a disk ends before a part of it, and it is suspended with errors", []func(*Group){func(g *Group) {
			g.Volumes[0].CutOff, g.Devices[0].Broken, g.Devices[0].Suspended = "the disk is short", "an error target", []Suspended{{Kernel: "vg0-data"}}
		}}, []string{"degraded data: beyond the end of a disk|do not deactivate", "stale-mapping data: an error target; the device|first give the disk its size back; then: look at the disks"}},
		{"a disk ends before a part of it, and it is inactive", []func(*Group){unclaimed, inactive, func(g *Group) { g.Volumes[0].CutOff = "the disk is short" }}, []string{"degraded data: beyond the end of a disk|cannot be activated"}},
		{"a disk of it is missing, and it gives errors", []func(*Group){func(g *Group) { g.Volumes[0].Missing, g.Devices[0].Broken = "PV p1", "an error target" }}, []string{"stale-mapping data: error target"}},
		{"made read-only under a writable mount", []func(*Group){func(g *Group) { g.Volumes[0].ReadOnly = true }}, []string{"read-only data: ext4 from /dev/dm-3 is mounted read-write at " + pod + " for pod default/web-0|lvchange -prw vg0/data|readOnly: true"}},
		{"its device made read-only under a writable mount", []func(*Group){func(g *Group) { g.Devices[0].ReadOnly = true }}, []string{"read-only data: its device is read-only|: blockdev --setrw /dev/dm-3; |read_only_volume_list|lvchange -prw vg0/data"}},
		{"read-only under a read-only mount", []func(*Group){func(g *Group) {
			g.Volumes[0].ReadOnly, g.Devices[0].ReadOnly, g.Mounts[0].ReadOnly, g.Mounts[0].SuperReadOnly = true, true, true, true
		}}, nil},
		{"a loop device made read-only under a writable mount", []func(*Group){func(g *Group) { g.Kind, g.Devices[0].ReadOnly = "loopdev", true }}, []string{"read-only data: its device is read-only|: blockdev --setrw /dev/dm-3; if not"}},
		{"a file without write permission under a writable mount", []func(*Group){func(g *Group) { g.Kind, g.Directory, g.Volumes[0].ReadOnly = "loopdev", "/srv/vg0", true }}, []string{"read-only data: its file is read-only|no further pod can mount it read-write|chmod u+w /srv/vg0/data"}},
		{"its superblock remounted read-only", []func(*Group){func(g *Group) { g.Mounts[0].SuperReadOnly = true }}, []string{"read-only data: read-only on a writable device|for pod default/web-0|dmesg|fsck|mount -o remount,rw " + pod}},
		{"its mount remounted read-only", []func(*Group){func(g *Group) { g.Mounts[0].ReadOnly = true }}, []string{"read-only data: the mount at " + pod + ", for pod default/web-0|mount -o remount,bind,rw " + pod}},
		{"the superblock of two mounts remounted read-only", []func(*Group){func(g *Group) {
			g.Claims = append(g.Claims, Claim{UUID: "u1", LV: "data", Dir: "/var/lib/kubelet/b", Phase: volume.Held, For: "pod default/b"})
			g.Mounts[0].SuperReadOnly = true
			g.Mounts = append(g.Mounts, Mount{Dir: "/var/lib/kubelet/b", Device: "253:3", Owner: volume.Ours, ReadOnly: true, SuperReadOnly: true})
		}}, []string{"read-only data: mount -o remount,rw " + pod}},
		{"a read-only mount remounted read-write", []func(*Group){func(g *Group) { g.Claims[0].ReadOnly = true }}, []string{"read-only data: the mount at " + pod + ", for pod default/web-0|requested read-only|mount -o remount,bind,ro " + pod}},
		{"a loop device without a sector", []func(*Group){unclaimed, leased, func(g *Group) { g.Kind, g.Devices[0].Size = "loopdev", 0 }}, []string{"stale-mapping data: 64 MiB|has 0 bytes|losetup -c /dev/dm-3"}},
		{"a loop device without a node", []func(*Group){func(g *Group) {
			g.Kind, g.Devices[0].NoNode, g.Devices[0].MakeNode = "loopdev", "/dev/dm-3 does not exist", "mknod /dev/dm-3"
		}}, []string{"stale-mapping data: /dev/dm-3 does not exist|mknod /dev/dm-3"}},
		{"of another size than the file in place of its own", []func(*Group){func(g *Group) {
			g.Kind, g.Devices[0].Size, g.Devices[0].Rivals = "loopdev", 8<<20, []Rival{{"/vg/data and /vg/data (deleted) have the same uuid", "copy"}}
		}}, []string{"stale-mapping data: /vg/data and /vg/data (deleted) have the same uuid|copy"}},
		{"a loop device with a size limit", []func(*Group){func(g *Group) { g.Kind, g.Devices[0].Size, g.Devices[0].Part = "loopdev", 8<<20, true }}, []string{"stale-mapping data: size limit|losetup -d /dev/dm-3"}},
		{"mounted read-only as it was asked", []func(*Group){func(g *Group) { g.Claims[0].ReadOnly, g.Mounts[0].ReadOnly = true, true }}, nil},
		{"remounted read-only while its claim is released", []func(*Group){func(g *Group) { g.Claims[0].Phase, g.Mounts[0].ReadOnly = volume.Releasing, true }}, nil},
		{"not looked at", []func(*Group){func(g *Group) {
			g.Devices[0] = Device{UUID: "u1", Name: "data", Kernel: "vg0-data", Number: "253:3", Open: -1, LinkBad: true, Unknown: "EIO"}
		}}, nil},
		{"not looked at, and unmounted", []func(*Group){unmounted, func(g *Group) { g.Devices[0].Unknown = "EIO" }}, []string{"claimed-missing data: " + pod}},
		{"not looked at, and unclaimed", []func(*Group){unclaimed, func(g *Group) { g.Devices[0].Unknown = "EIO" }}, nil},
		{"no link", []func(*Group){func(g *Group) { g.Devices[0].LinkBad = true }}, []string{"stale-mapping data: /dev/vg0/data does not lead to /dev/dm-3|vgmknodes vg0"}},
		{"a file in its place", []func(*Group){func(g *Group) { g.Devices[0].LinkBad, g.Devices[0].Obstacle = true, "/dev/vg0/data" }}, []string{"stale-mapping data: /dev/vg0/data does not lead to /dev/dm-3|move it away (mv), then vgmknodes vg0"}},
		{"no link, for loopdev", []func(*Group){func(g *Group) { g.Kind, g.Devices[0].LinkBad = "loopdev", true }}, nil},
		{"the mount of a gone device, the volume gone, too", []func(*Group){inactive, func(g *Group) { g.Volumes, g.Mounts[0].Gone = nil, true }}, []string{"stale-mapping data: 253:3, which the kernel does not have"}},
		{"the mount of another, gone device", []func(*Group){func(g *Group) { g.Mounts[0].Device, g.Mounts[0].Gone = "253:9", true }}, []string{"stale-mapping data: 253:9"}},

		{"being made", []func(*Group){unclaimed, func(g *Group) { g.Volumes[0].Making, g.Devices[0].LinkBad = true, true }}, nil},
	} {
		t.Run(row.about, func(t *testing.T) {
			g := well()
			for _, do := range row.do {
				do(&g)
			}
			got := Findings(g)
			if len(got) != len(row.want) {
				t.Fatalf("got %+v, want %q", got, row.want)
			}
			for i, d := range got {
				head, words, _ := strings.Cut(row.want[i], ": ")
				if fmt.Sprintf("%s %s", d.Class, d.LV) != head || d.Hint == "" {
					t.Errorf("got %+v, want %q", d, row.want[i])
				}
				if g.Kind == "loopdev" && strings.Contains(d.Hint, "lvrename") {
					t.Errorf("a command of LVM for a file: %+v", d)
				}
				for w := range strings.SplitSeq(words, "|") {
					if !strings.Contains(d.Text+" "+d.Hint, w) {
						t.Errorf("%+v does not say %q", d, w)
					}
				}
			}
			// What is being worked on is not judged.
			for _, u := range []volume.UUID{"u1", "u2", "u8", "u9"} {
				g.Busy[u] = true
			}
			if got := Findings(g); len(got) > 0 {
				t.Errorf("busy, and got %+v", got)
			}
		})
	}
}

// Ensure that in no combination of facts a volume is reported twice for one cause, and that
// nothing unknown is reported.
func TestEveryCombination(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	coin := func() bool { return r.IntN(2) == 0 }
	classes := map[Class]int{}
	for range 200_000 {
		var g Group
		g.Name, g.Kind = "vg0", []string{"lvm", "loopdev"}[r.IntN(2)]
		if coin() {
			g.Volumes = []Volume{{Name: "data", UUID: "u1", Size: int64(r.IntN(3)) << 20, Making: r.IntN(9) == 0,
				Missing: []string{"", "PV"}[r.IntN(2)], RAID: coin(), ReadOnly: coin(), Merging: []string{"", "s"}[r.IntN(2)], Into: []string{"", "", "", "o"}[r.IntN(4)]}}
		}
		if g.Kind == "loopdev" && len(g.Volumes) == 1 && coin() {
			g.Volumes = append(g.Volumes, Volume{Name: "x", UUID: "u1"})
		}
		if coin() {
			g.Devices = []Device{{UUID: "u1", Unknown: []string{"", "EIO"}[r.IntN(2)], Name: []string{"data", "", "x"}[r.IntN(3)], Kernel: "k", Path: "/dev/dm-1", Number: "253:1",
				Size: 1 << 20, Open: r.IntN(2), Degraded: []string{"", "AD"}[r.IntN(2)], Differ: []string{"", "8"}[r.IntN(2)], ReadOnly: coin(), Suspended: [][]Suspended{nil, nil, nil, nil, {{Kernel: "k"}}}[r.IntN(5)], LinkBad: r.IntN(5) == 0}}
		}
		if r.IntN(5) == 0 {
			g.Metadata, g.Volumes = "unread", nil
		}
		if r.IntN(5) == 0 {
			g.Kernel = "unread"
		}
		if coin() {
			g.Leases = []Lease{{UUID: "u1", LV: "data", Live: coin(), Kept: []string{"", "busy"}[r.IntN(2)]}}
		}
		for i := range r.IntN(3) {
			g.Claims = append(g.Claims, Claim{UUID: "u1", LV: "data", Dir: fmt.Sprint("/pod", i), Phase: []volume.Phase{volume.Making, volume.Held, volume.Releasing}[r.IntN(3)], For: "a pod"})
		}
		for range r.IntN(3) {
			m := Mount{Dir: fmt.Sprint("/pod", r.IntN(3)), Device: []string{"253:1", "253:2", ""}[r.IntN(3)], Owner: volume.Owner(1 + r.IntN(3)), ReadOnly: coin(), SuperReadOnly: coin()}
			m.Gone = m.Device == "253:2" && coin()
			m.Fault = []string{"", "5 errors"}[r.IntN(2)]
			m.Lost = []string{"", "a lost write"}[r.IntN(2)]
			m.Nested = [][]string{nil, {"/pod1/a"}}[r.IntN(2)]
			g.Mounts = append(g.Mounts, m)
		}
		got := Findings(g)
		bad := func(why string) { t.Fatalf("seed %d: %s\n%+v\n%+v", seed, why, g, got) }
		for i, d := range got {
			classes[d.Class]++
			has := func(c Class) bool { return slices.ContainsFunc(got, func(o Finding) bool { return o.Class == c }) }
			switch {
			case i > 0 && d.Same(got[i-1]):
				bad("reported twice")
			case d.Text == "" || d.Hint == "" || d.LV == "" || strings.Contains(d.Text+d.Hint, "%!"):
				bad("without words")
			case g.Metadata != "" && (d.Class == DMOnly || d.Class == LVOnly || d.Class == ActiveUnclaimed):
				bad("a finding about metadata that was not read")
			case g.Kernel != "" && d.Class == LVOnly:
				bad("a finding about a device that was not observed")
			case d.Class == DMOnly && len(got) > 1, d.Class == ActiveUnclaimed && len(got) > 1:
				bad("one cause, two names")
			case d.Class == LVOnly && (has(ClaimedMissing) || len(g.Devices) > 0):
				bad("lv-only with a device or beside claimed-missing")
			case d.Class == ClaimedMissing && slices.ContainsFunc(g.Mounts, func(m Mount) bool {
				return m.Dir == d.Dir && len(g.Devices) > 0 && m.Device == "253:1"
			}):
				bad("claimed-missing, and mounted")
			}
		}
	}
	for _, c := range []Class{LVOnly, DMOnly, MountedUnknown, ActiveUnclaimed, StillActive, ClaimedMissing, StaleMapping, Degraded, Faulty, MergePending, NestedMount, ReadOnly} {
		if classes[c] == 0 {
			t.Errorf("seed %d: no %s came up", seed, c)
		}
	}
}
