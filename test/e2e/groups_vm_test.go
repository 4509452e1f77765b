//go:build vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/test/umount"
	"golang.org/x/sys/unix"
)

// One group has thin volumes and another thick ones, at once, with every character that LVM allows in names.
// A volume that does not fit is refused with numbers, and nothing of it remains.
func TestThinAndThick(t *testing.T) {
	const odd = "a-b.c+d_e"
	h := newHost(t, func(h *host) {
		h.lvm("lvcreate", "-y", "-an", "-L", "64M", "-T", "vg0/pool")
		h.lvm("lvchange", "--errorwhenfull", "y", "vg0/pool")
		h.settings.vg = "thinPool: pool, create: true, maxSize: 10GiB"
		h.settings.groups = "  - {name: " + odd + ", " + h.group(odd) + ", create: true, maxSize: 10GiB}\n"
	})
	p := podN(1)
	thin := h.vol("thin", "ext4").With("size", "100Mi")
	thick := h.vol(odd, "xfs").With("volumegroup", odd)
	h.ok(h.up(byKubelet, thin, p))
	h.ok(h.up(byKubelet, thick, p))
	h.write(thin, p, "f", "thin")
	h.write(thick, p, "f", "thick")
	layout := strings.Fields(h.lvm("lvs", "--noheadings", "--separator", ":", "-o", "vg_name,lv_name,lv_layout,pool_lv", "-S", "lv_layout!=pool"))
	for _, want := range []string{"vg0:thin:thin,sparse:pool", odd + ":" + odd + ":linear:"} {
		if !slices.Contains(layout, want) {
			t.Errorf("volumes %q, want %s", layout, want)
		}
	}
	for name, fs := range map[string]string{"vg0/thin": "ext4", odd + "/" + odd: "xfs"} {
		if s := h.storyOf(name); s.VG+"/"+s.LV != name || s.State != "mounted" || s.Filesystem != fs || len(s.Pods) != 1 {
			t.Errorf("%s: status: %+v", name, s)
		}
	}
	h.eventually("the space is in the metrics", func() string {
		text, err := h.Get("/metrics")
		for _, sample := range []string{
			`flexd_volume_groups{vg="` + odd + `",state="ok"} 1`, `flexd_volume_group_free_bytes{vg="` + odd + `"} `,
			fmt.Sprintf(`flexd_thin_pool_data_size_bytes{vg="vg0",pool="pool"} %v`, float64(64*mib)), `flexd_thin_pool_metadata_used_bytes{vg="vg0",pool="pool"} `,
		} {
			if err != nil || !strings.Contains(text, "\n"+sample) {
				return fmt.Sprintf("no %s: %v %s", sample, err, text)
			}
		}
		return ""
	})
	expand := func(v vol, size int64) answer {
		return h.call("expandfs", v.Blob(nil), "", h.PodDir(p, v), fmt.Sprint(size), "0")
	}
	for _, v := range []vol{thin, thick} {
		h.ok(expand(v, 400*mib))
		if c := capacity(t, h.PodDir(p, v)); c < 300*mib {
			t.Errorf("%s: the filesystem has %d bytes", v.Name, c)
		}
	}

	// No space.
	have := h.volumes()
	refused := func(a answer, words ...string) {
		t.Helper()
		h.refused(a, append(words, "no space", " wanted, ", " free")...)
		if got := h.volumes(); !slices.Equal(got, have) {
			t.Errorf("%s\n\tleft %q, before %q", a, got, have)
		}
	}
	refused(h.up(noAttach, h.vol("big", "ext4").With("volumegroup", odd, "size", "4Gi"), p), odd+"/big: mount", "volume group "+odd, "4 GiB")
	refused(expand(thick, 4<<30), odd+"/"+odd+": expandfs", "volume group "+odd)
	h.lvm("lvcreate", "-y", "-V", "100M", "-T", "vg0/pool", "-n", "hog")
	h.fill("/dev/vg0/hog")
	have = h.volumes()
	refused(h.up(noAttach, h.vol("more", "ext4"), p), "vg0/more: mount", "thin pool vg0/pool", "is full", "lvextend", "16 MiB")
	h.lvm("lvremove", "-y", "vg0/hog")
	h.ok(h.up(noAttach, h.vol("more", "ext4"), p))
	h.end(noAttach, h.vol("more", "ext4"), p)

	h.reads(thin, p, "f", "thin")
	h.reads(thick, p, "f", "thick")
	h.end(byKubelet, thin, p)
	h.end(byKubelet, thick, p)
}

// A thin pool fails while a pod uses it. No other pod gets a volume in it, even if the volume was deactivated
// meanwhile, and the remedy works as written.
func TestFailedPool(t *testing.T) {
	need(t, "mkfs.xfs")
	const disk = "/dev/mapper/meta"
	h := newHost(t, func(h *host) {
		h.sh("dmsetup", "create", "meta", "--table", "0 65536 linear "+disks[3]+" 2048")
		h.storage.(*groups).groupOn("vg1", disks[2], disk)
		h.lvm("lvcreate", "-y", "-L", "400M", "-n", "pool", "vg1", disks[2])
		h.lvm("lvcreate", "-y", "-L", "8M", "-n", "metadata", "vg1", disk)
		h.lvm("lvconvert", "-y", "--type", "thin-pool", "--poolmetadata", "vg1/metadata", "vg1/pool")
		h.lvm("lvcreate", "-y", "-an", "-V", "320M", "-T", "vg1/pool", "-n", "a")
		h.lvm("lvchange", "-ay", "vg1/pool") // it stays failed without a volume
		h.settings.groups = "  - {name: vg1, provider: lvm, namespaces: ['*']}\n"
	})
	v, p, q := h.vol("a", "xfs").With("volumegroup", "vg1").With("size", "-"), podN(1), podN(2)
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "x")
	h.sh("sync")
	replace := func(table string) {
		h.sh("sh", "-c", "dmsetup suspend meta; dmsetup reload meta --table '"+table+"'; dmsetup resume meta")
	}
	replace("0 65536 error")
	exec.Command("dmsetup", "message", "vg1-pool-tpool", "0", "create_thin 77").Run() // it has to write its metadata
	replace("0 65536 linear " + disks[3] + " 2048")
	if table := h.sh("dmsetup", "table", "vg1-a"); !strings.Contains(table, "thin Fail") {
		t.Fatalf("the pool has not failed: %s", table)
	}

	failed := []string{"it is in the thin pool vg1/pool: the pool has failed", "lvchange -an vg1/pool; lvchange -ay --config", "lvconvert --repair vg1/pool"}
	h.eventually("its disk is seen again", func() string { // a report may have begun while it failed
		if a := h.mount(v, q); !strings.Contains(a.Message, failed[0]) {
			return a.Message
		}
		return ""
	})
	h.refused(h.mount(v, q), append(failed, "vg1/a: mount")...)
	h.disagrees("faulty", h.identity("vg1/a"), failed...)
	if err := os.WriteFile(h.PodDir(p, v)+"/g", nil, 0o600); err == nil {
		exec.Command("sync", "-f", h.PodDir(p, v)).Run()
	}
	h.disagrees("faulty", h.identity("vg1/a"), append(failed, "its filesystem is in error", "then, once its pods are deleted, the next mount runs fsck")...)
	h.refused(h.mount(v, q), append(failed, "vg1/a: mount")...)

	h.ok(h.unmount(v, p))
	h.eventually("it is deactivated", func() string {
		if slices.Contains(h.Active(), "vg1/a") {
			return h.show("vg1/a")
		}
		return ""
	})
	a := h.mount(v, q)
	h.refused(a, append(failed, "vg1/a: mount", "activate")...)
	h.sh("sh", "-c", regexp.MustCompile(`lvchange -an \S+; lvchange -ay --config '[^']*' vg1/pool`).FindString(a.Message))
	h.ok(h.mount(v, q))
	h.reads(v, q, "f", "x")
	h.end(noAttach, v, q)
	h.eventually("its lease ends", func() string {
		return strings.Join(slices.DeleteFunc(h.Active(), func(name string) bool { return name != "vg1/a" }), " ")
	})
	h.lvm("lvchange", "-an", "vg1/pool")
	h.sh("dmsetup", "remove", "--retry", "meta")
}

// fill writes to a device until it takes no more.
func (h *host) fill(path string) {
	h.t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_DSYNC, 0)
	h.must(err)
	defer f.Close()
	some := []byte(strings.Repeat("x", mib))
	for range 1 << 10 {
		if _, err := f.Write(some); err != nil {
			return
		}
	}
	h.t.Fatalf("%s takes forever", path)
}

// Each group and volume that must not be used is refused with its own reason and remedy.
func TestNotUsable(t *testing.T) {
	p := podN(1)
	h := newHost(t, func(h *host) {
		h.sh("blkdiscard", "-f", "-z", disks[3]) // another test's data
		h.storage.(*groups).groupOn("vg1", disks[2], disks[3])
		h.lvm("lvcreate", "-y", "-an", "-L", "8M", "-T", "vg1/pool", disks[3])
		h.lvm("lvcreate", "-y", "-an", "-Zn", "-Wn", "-L", "16M", "-n", "a", "vg1", disks[2])
		h.settings.groups = "  - {name: vg1, provider: lvm, create: true, maxSize: 1GiB, namespaces: ['*']}\n  - {name: vg9, provider: lvm, create: true, maxSize: 1GiB, namespaces: ['*']}\n"
	})
	ask := func(vg, lv string, words ...string) {
		t.Helper()
		v := h.vol(lv, "ext4").With("volumegroup", vg)
		h.refused(h.up(noAttach, v, p), append(words, vg+"/"+lv+": mount")...)
		if len(h.Active()) != 0 {
			t.Errorf("active: %q", h.Active())
		}
	}
	ask("vg9", "a", "volume group vg9", "LVM does not find it", "disks may be missing")
	ask("vg1", "pool", "vg1/pool is a pool (thin, pool), not a volume")

	h.lvm("vgexport", "vg1")
	ask("vg1", "a", "volume group vg1 is exported", "vgimport vg1")
	h.lvm("vgimport", "vg1")
	h.lvm("vgchange", "-y", "--systemid", "other", "vg1")
	ask("vg1", "a", "belongs to another machine", "other")
	h.lvm("vgchange", "-y", "--config", `global/system_id_source="lvmlocal" local/system_id="other"`, "--systemid", "", "vg1")

	// One disk is missing: what lies on the other can be used.
	h.lvm("lvcreate", "-y", "-an", "-Zn", "-Wn", "-L", "16M", "-n", "whole", "vg1", disks[3])
	h.must(writeAt(disks[2], make([]byte, 2*mib)))
	os.Remove("/run/lvm/hints")
	ask("vg1", "a", "vg1/a is partial", "a disk that is missing", "PV ")
	ask("vg1", "none", "vg1")
	whole := h.vol("whole", "ext4").With("volumegroup", "vg1")
	h.ok(h.up(noAttach, whole, p))
	h.end(noAttach, whole, p)
}

func writeAt(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return err
	}
	return f.Sync()
}

// A volume in use is refused, and its user is named; a volume that was active before kubelet asked stays
// active until a claim or lease of flexd has ended.
func TestUsedByOthers(t *testing.T) {
	h := newHost(t, func(h *host) {
		mkfs := func(path string) { h.sh("mkfs.ext4", "-q", path) }
		h.volume("vg0/a", 16*mib, mkfs)
		h.volume("vg0/blank", 16*mib, nil)
		h.volume("vg0/kept", 16*mib, nil)
		h.lvm("lvchange", "-ay", "vg0/a", "vg0/blank", "vg0/kept")
	})
	time.Sleep(3 * lease)
	if got := h.Active(); len(got) != 3 {
		t.Errorf("active: %q, of three that were so before", got)
	}
	p := podN(1)
	a, blank := h.vol("a", "ext4"), h.vol("blank", "ext4")
	me := fmt.Sprintf("pid %d (", os.Getpid())

	h.must(os.Mkdir(h.Dir+"/elsewhere", 0o755))
	h.must(unix.Mount("/dev/vg0/a", h.Dir+"/elsewhere", "ext4", 0, ""))
	for _, m := range []mode{noAttach, byKubelet} {
		h.refused(h.up(m, a, p), "vg0/a: ", "it is mounted at "+h.Dir+"/elsewhere by something else", "umount it there")
	}
	h.must(umount.Plain(h.Dir + "/elsewhere"))

	for _, v := range []vol{a, blank} {
		name := "vg0/" + v.Options["volumeID"]
		for _, exclusive := range []int{unix.O_EXCL, 0} {
			fd, err := unix.Open("/dev/"+name, unix.O_RDWR|exclusive|unix.O_CLOEXEC, 0)
			h.must(err)
			h.refused(h.up(noAttach, v, p), name+": mount", "busy", me)
			unix.Close(fd)
		}
		l := strings.TrimSpace(h.sh("losetup", "-f", "--show", "/dev/"+name))
		h.refused(h.up(noAttach, v, p), name+": mount", "busy", l+" is a loop device on it")
		h.sh("losetup", "-d", l)
	}
	h.sh("cmp", "-n", fmt.Sprint(16*mib), "/dev/vg0/blank", "/dev/zero") // nothing was written
	h.ok(h.up(noAttach, a, p))
	h.write(a, p, "f", "x")

	// Open when flexd deactivates it: flexd waits, and names the process.
	f, err := os.Open("/dev/vg0/a")
	h.must(err)
	h.end(noAttach, a, p)
	h.eventually("status shows why it stays active", func() string {
		if s := h.story("a"); s.State == "failed" && s.Error.Step == "deactivate" && strings.Contains(s.Error.Message, "busy") && strings.Contains(s.Error.Message, me) {
			return ""
		} else {
			return fmt.Sprintf("%+v %+v", s, s.Error)
		}
	})
	f.Close()
	onlyKept := func() string {
		if got := h.Active(); !slices.Equal(got, []string{"vg0/kept"}) {
			return fmt.Sprint(got)
		}
		return ""
	}
	h.eventually("only volumes without a claim are active", onlyKept)

	// Activated by hand while flexd runs: the same, also without a mount.
	h.lvm("lvchange", "-ay", "vg0/a")
	h.ok(h.call("waitforattach", "", a.Blob(nil)))
	h.eventually("only volumes without a claim are active", onlyKept)
	h.lvm("lvchange", "-ay", "vg0/a")
	time.Sleep(3 * lease)
	if got := h.Active(); !slices.Equal(got, []string{"vg0/a", "vg0/kept"}) {
		t.Errorf("active: %q, and no call has asked for one of them since it was activated", got)
	}
	h.deactivate("vg0/a")
	h.deactivate("vg0/kept")

	h.volume("vg0/swap", 16*mib, nil)
	h.lvm("lvchange", "-ay", "vg0/swap")
	h.sh("mkswap", "/dev/vg0/swap")
	h.sh("swapon", "/dev/vg0/swap")
	h.refused(h.up(noAttach, h.vol("swap", "ext4"), p), "vg0/swap: mount", "busy", "it is swap space in use (swapoff /dev/")
	h.sh("swapoff", "/dev/vg0/swap")
}

// An operator makes a volume in use smaller than its filesystem: this is reported, no other pod gets it, it
// is not checked or extended, and the remedy restores its extents.
func TestShrunk(t *testing.T) {
	h := newHost(t)
	p, q := podN(1), podN(2)
	for _, fsType := range []string{"ext4", "xfs"} {
		name, size := "shrunk-"+fsType, int64(400*mib)
		v := h.vol(name, fsType).With("size", "320Mi")
		h.ok(h.up(noAttach, v, p))
		expand := func() answer {
			return h.call("expandfs", v.Blob(nil), "", h.PodDir(p, v), fmt.Sprint(size), fmt.Sprint(320*mib))
		}
		h.volume("vg0/"+name+"-gap", 16*mib, nil) // lvextend would take other extents than those cut off
		h.ok(expand())
		h.volume("vg0/"+name+"-next", 16*mib, nil)
		h.lvm("lvremove", "-y", "vg0/"+name+"-gap")
		extents := h.lvm("lvs", "--noheadings", "-o", "seg_pe_ranges", "--segments", "vg0/"+name)
		text := strings.Repeat("0123456789abcdef", 310*mib/16)
		h.write(v, p, "f", text)
		h.sh("sync")
		h.lvm("lvreduce", "-f", "-y", "-L", "320M", "vg0/"+name)
		h.refused(expand(), name, "do not run fsck")
		remedy := fmt.Sprintf("lvextend -L %db vg0/%s PV:FIRST-LAST", size-mib, name)
		h.eventually("status shows it", func() string {
			s := h.story(name)
			if slices.ContainsFunc(s.Refused, func(r string) bool { return strings.Contains(r, remedy) && strings.Contains(r, "320 MiB") }) {
				return ""
			}
			return fmt.Sprintf("%+v", s)
		})
		h.disagrees("faulty", h.story(name).UUID, "do not run fsck", remedy)
		h.refused(h.up(noAttach, v, q), name, "do not run fsck", "vgcfgrestore --list vg0;", remedy)
		if fsType == "ext4" {
			h.ok(h.unmount(v, p))
			h.refused(h.up(noAttach, v, p), name, "do not run fsck", remedy)
		}
		h.sh("sh", "-c", `vgcfgrestore -y -f $(grep -l "before.*lvreduce.*vg0/`+name+`'" /etc/lvm/archive/vg0_*.vg | tail -1) vg0`)
		refresh := "the metadata has that size, so: lvchange --refresh vg0/" + name
		if fsType != "ext4" { // which has no mount now, and may be inactive already
			h.refused(h.up(noAttach, v, q), name, "do not run fsck", refresh)
			h.refused(expand(), name, refresh)
		}
		h.lvm("lvchange", "--refresh", "vg0/"+name)
		if got := h.lvm("lvs", "--noheadings", "-o", "seg_pe_ranges", "--segments", "vg0/"+name); got != extents {
			t.Errorf("it has %s, before: %s", got, extents)
		}
		h.ok(h.unmount(v, p))
		h.ok(h.up(noAttach, v, p))
		if got, err := os.ReadFile(filepath.Join(h.PodDir(p, v), "f")); err != nil || string(got) != text {
			t.Errorf("its file has other contents: %v", err)
		}
		h.end(noAttach, v, p)
	}
}
