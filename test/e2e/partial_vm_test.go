//go:build vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
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

// A partition is made smaller under volumes that pods use, which no event reports. The volume with a part beyond
// its end stays active, is given to no further pod and reported, also without a pod, until the disk has its
// size back; then all its data is there. So is a volume that pvmove moves from the disk meanwhile.
func TestShortDisk(t *testing.T) {
	t.Cleanup(func() { exec.Command("sh", "-c", "sfdisk -q --delete "+disks[2]+"; wipefs -qa "+disks[2]).Run() })
	part := disks[2] + "1"
	h := newHost(t, func(h *host) {
		h.sh("sh", "-c", "echo ',200M' | sfdisk -q "+disks[2])
		h.storage.(*groups).groupOn("vg1", part, disks[3])
		for _, name := range []string{"rest", "cut"} {
			h.lvm("lvcreate", "-y", "-L", "96M", "-n", name, "vg1", part)
			h.sh("mkfs.ext4", "-q", "/dev/vg1/"+name)
		}
		h.lvm("vgchange", "-an", "vg1")
		h.settings.groups = "  - {name: vg1, provider: lvm, namespaces: ['*']}\n"
	})
	p, q, data := podN(1), podN(2), strings.Repeat("data", 80*mib/4)
	rest, cut := h.vol("rest", "ext4").With("volumegroup", "vg1", "size", "-"), h.vol("cut", "ext4").With("volumegroup", "vg1", "size", "-")
	for _, v := range []vol{rest, cut} {
		h.ok(h.up(noAttach, v, p))
		h.write(v, p, "f", data)
	}
	readsAll := func(v vol, p pod) {
		t.Helper()
		if b, err := os.ReadFile(h.PodDir(p, v) + "/f"); err != nil || string(b) != data {
			t.Errorf("%s: not its data: %v", v.Name, err)
		}
	}
	id := h.identity("vg1/cut")
	resize := func(size int) {
		h.sh("sh", "-c", fmt.Sprintf("sync; echo 3 > /proc/sys/vm/drop_caches; resizepart %s 1 %d", disks[2], size*mib/512))
	}
	resize(188)
	why := []string{"a part of vg1/cut is beyond the end of a disk", "the disk " + part + " has 188 MiB", "give the disk its size back"}
	h.refused(h.up(noAttach, cut, q), why...)
	h.ok(h.up(noAttach, rest, q))
	readsAll(rest, q)
	h.disagrees("degraded", id, "beyond the end of a disk", "do not deactivate")
	h.end(noAttach, cut, p)
	h.refused(h.up(noAttach, cut, q), why...) // within the lease
	h.end(noAttach, cut, q)
	h.end(noAttach, rest, p, q)
	h.eventually("it stays active", func() string {
		s := h.storyOf("vg1/cut")
		if active := h.Active(); s.Error == nil || !strings.Contains(s.Error.Message, "it stays active") || !strings.Contains(s.Error.Message, why[0]) || len(active) != 1 {
			return fmt.Sprint(active, h.show("vg1/cut"))
		}
		return ""
	})
	h.disagrees("degraded", id, "beyond the end of a disk", "do not deactivate")

	h.lvm("vgchange", "-an", "vg1")
	h.refused(h.up(noAttach, cut, p), why...)
	h.disagrees("degraded", id, "beyond the end of a disk", "it cannot be activated before that")

	resize(200)
	h.ok(h.up(noAttach, cut, p))
	readsAll(cut, p)
	h.sh("sh", "-c", "pvmove -b -i 600 -n cut "+part+" "+disks[3]+" >/dev/null 2>&1")
	resize(188)
	h.refused(h.up(noAttach, cut, q), why...)
	h.disagrees("degraded", id, "beyond the end of a disk", "do not cancel a pvmove from it")
	resize(200)
	h.lvm("pvmove", "--abort")
	h.ok(h.up(noAttach, cut, q))
	readsAll(cut, q)
	h.end(noAttach, cut, q)
	h.eventually("all agree", func() string {
		if l := h.list(); len(l.Disagreements) > 0 {
			return fmt.Sprintf("%+v", l.Disagreements)
		}
		return ""
	})
	h.end(noAttach, cut, p)
	h.quiet()
}
