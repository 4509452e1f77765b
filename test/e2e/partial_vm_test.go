//go:build vm

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// A disk fails. A thin volume with its pool on RAIDs, and the origin of a snapshot on that disk, have all
// their data: pods get them while they are active, flexd does not deactivate them, since LVM would not
// activate them again, and the commands of the refusal repair them.
func TestDeadDisk(t *testing.T) {
	const dead, other = "/dev/mapper/dead", "/dev/mapper/other"
	h := newHost(t, func(h *host) {
		h.sh("dmsetup", "create", "dead", "--table", "0 524288 linear "+disks[3]+" 2048")
		h.sh("dmsetup", "create", "other", "--table", "0 524288 linear "+disks[3]+" 526336")
		h.storage.(*groups).groupOn("vg1", disks[2], dead)
		for _, part := range []string{"-L 64M -n pool", "-L 8M -n meta"} {
			h.lvm("lvcreate", append(strings.Fields("-y --type raid1 --nosync "+part+" vg1"), disks[2], dead)...)
		}
		h.lvm("lvconvert", strings.Fields("-y --type thin-pool --poolmetadata vg1/meta vg1/pool")...)
		h.lvm("lvcreate", strings.Fields("-y -V 32M -T vg1/pool -n t")...)
		h.lvm("lvcreate", "-y", "-L", "32M", "-n", "o", "vg1", disks[2])
		h.sh("mkfs.ext4", "-q", "/dev/vg1/t")
		h.sh("mkfs.ext4", "-q", "/dev/vg1/o")
		h.lvm("lvcreate", "-y", "-s", "-L", "8M", "-n", "os", "vg1/o", dead)
		h.lvm("vgchange", "-an", "vg1")
		h.settings.groups = "  - {name: vg1, provider: lvm, namespaces: ['*']}\n"
	})
	p, q := podN(1), podN(2)
	names, all, ids := []string{"t", "o"}, []vol{}, []string{}
	for _, name := range names {
		v := h.vol(name, "ext4").With("volumegroup", "vg1", "size", "-")
		h.ok(h.up(noAttach, v, p))
		h.write(v, p, "f", name)
		all, ids = append(all, v), append(ids, h.identity("vg1/"+name))
	}
	h.sh("sh", "-c", "sync; dmsetup reload dead --table '0 524288 error'; dmsetup suspend --nolockfs dead; dmsetup resume dead")
	where := []string{"a copy of vg1/pool_tdata and vg1/pool_tmeta", "the space of its snapshot vg1/os"}
	for i, v := range all {
		h.ok(h.up(noAttach, v, q))
		h.disagrees("degraded", ids[i], where[i]+" is on a disk that LVM does not find (PV ", "could not be activated again")
		h.end(noAttach, v, p, q)
	}
	for i, v := range all {
		h.eventually(names[i]+" stays active", func() string {
			if s := h.storyOf("vg1/" + names[i]); s.State != "failed" || s.Error == nil || !strings.Contains(s.Error.Message, "it stays active") || !strings.Contains(s.Error.Message, where[i]) {
				return h.show("vg1/" + names[i])
			}
			return ""
		})
		h.ok(h.up(noAttach, v, p))
		h.reads(v, p, "f", names[i])
		h.end(noAttach, v, p)
	}

	// Deactivated by hand.
	h.lvm("vgchange", "-an", "vg1")
	for i, v := range all {
		a := h.up(noAttach, v, p)
		h.refused(a, "vg1/"+names[i]+" is partial", where[i])
		_, remedy, _ := strings.Cut(a.Message, "only if it is lost: ")
		for command := range strings.SplitSeq(remedy, ", then ") {
			if command == "give the group another disk (vgextend)" {
				command = "vgextend vg1 " + other
			}
			h.sh("sh", "-c", "yes | "+command) // a repair asks
		}
		h.ok(h.up(noAttach, v, p))
		h.reads(v, p, "f", names[i])
		h.end(noAttach, v, p)
	}
	h.lvm("vgreduce", "--removemissing", "vg1")
	h.eventually("both are deactivated", func() string {
		if got := h.Active(); len(got) > 2 {
			return fmt.Sprint(got)
		}
		return ""
	})
	h.sh("dmsetup", "remove", "--retry", "dead", "other")
}
