//go:build vm

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// vgimportclone makes a copy of a volume group whose volumes and filesystems keep their uuids. They are other
// volumes.
func TestCopiedGroup(t *testing.T) {
	h := newHost(t, func(h *host) {
		h.settings.groups = "  - {name: vg1, " + h.group("vg1") + "}\n  - {name: vg2, provider: lvm, namespaces: ['*']}\n"
	})
	h.volume("vg1/data", 16*mib, func(path string) { h.sh("mkfs.ext4", "-q", path) })
	h.sh("dd", "if="+disks[2], "of="+disks[3], "bs=1M", "count=32", "conv=fsync")
	h.storage.(*groups).more = append(h.storage.(*groups).more, "vg2")
	os.Remove("/run/lvm/hints")
	h.lvm("vgimportclone", "-n", "vg2", disks[3])
	p, q := podN(1), podN(2)
	original := h.vol("data", "ext4").With("volumegroup", "vg1", "size", "-")
	clone := original.With("volumegroup", "vg2")
	clone.Name = "pv-clone"
	active := func(name string) bool { return slices.Contains(h.Active(), name) }

	h.ok(h.up(byKubelet, clone, q)) // the copy first
	h.ok(h.up(byKubelet, original, p))
	h.write(clone, q, "f", "clone")
	h.write(original, p, "f", "original")
	h.restart()
	h.end(byKubelet, original, p)
	h.eventually("the original alone is inactive", func() string {
		if active("vg1/data") || !active("vg2/data") {
			return strings.Join(h.Active(), " ")
		}
		return ""
	})
	h.reads(clone, q, "f", "clone")
	h.end(byKubelet, clone, q)
	h.quiet()

	// A lease of the original, and only the copy is active, by an operator.
	h.ok(h.mount(original, p))
	h.ok(h.unmount(original, p))
	h.kill()
	if active("vg1/data") {
		h.lvm("lvchange", "-an", "vg1/data")
	}
	h.lvm("lvchange", "-ay", "vg2/data")
	h.start()
	h.eventually("the lease ends", func() string { return strings.Join(h.Notes(), " ") })
	time.Sleep(3 * lease)
	if !active("vg2/data") {
		t.Error("the copy was deactivated for the original")
	}
	h.lvm("lvchange", "-an", "vg2/data")
}

// The notes and records of an earlier version have the second half of the uuid.
func TestEarlierNotes(t *testing.T) {
	h := newHost(t, func(h *host) { h.settings.lease = time.Hour })
	p := podN(1)
	v, idle := h.vol("a", "ext4"), h.vol("idle", "ext4")
	h.ok(h.up(byKubelet, v, p))
	h.write(v, p, "f", "text")
	h.ok(h.up(noAttach, idle, p))
	h.ok(h.unmount(idle, p))
	want := h.Notes()
	h.kill()
	h.earlier()
	h.start()
	if got := h.Notes(); !slices.Equal(got, want) {
		t.Errorf("notes: %q, want %q", got, want)
	}
	for _, lv := range []string{"a", "idle"} {
		h.eventually(lv+" is known", func() string {
			s := h.story(lv)
			if s.UUID == h.identity("vg0/"+lv) && (lv == "idle" && s.State == "active" || s.State == "mounted" && len(s.Pods) == 1 && s.Pods[0].Name == p.Name) {
				return ""
			}
			return h.show("vg0/" + lv)
		})
	}
	if l := h.list(); len(l.Problems) > 0 {
		t.Errorf("problems: %q", l.Problems)
	}
	h.end(byKubelet, v, p)
	h.ok(h.call("detach", v.Name, node))
	h.ok(h.call("detach", idle.Name, node))
	h.quiet()

	// The record of a filesystem holds.
	h.open("vg0/a", func(path string) { h.sh("blkdiscard", "-f", "-z", path) })
	h.refused(h.mount(v, p), "flexd has seen a filesystem on it before")
	h.ok(h.call("detach", v.Name, node))
}

// earlier changes flexd's files to those of an earlier version.
func (h *host) earlier() {
	h.t.Helper()
	files, _ := filepath.Glob(h.Run + "/notes/*.json")
	records, _ := filepath.Glob(h.State + "/formats/*.json")
	for _, file := range append(files, records...) {
		b, err := os.ReadFile(file)
		h.must(err)
		var note map[string]any
		h.must(json.Unmarshal(b, &note))
		uuid := note["uuid"].(string)
		_, lv, _ := strings.Cut(uuid, "_")
		sum := func(uuid string) string {
			s := sha256.Sum256([]byte(note["dir"].(string) + "\x00" + uuid))
			return hex.EncodeToString(s[:6])
		}
		name := strings.ReplaceAll(file, uuid, lv)
		if note["dir"] != nil {
			name = strings.ReplaceAll(file, sum(uuid), sum(lv))
		}
		h.must(os.Remove(file))
		h.must(os.WriteFile(name, []byte(strings.ReplaceAll(string(b), uuid, lv)), 0o600))
	}
}

// Between waitforattach and mountdevice the volume is renamed, and a blank volume gets its name. The blank
// one is not formatted in its place.
func TestReplacedAfterWaitForAttach(t *testing.T) {
	h := newHost(t, func(h *host) { h.settings.lease = time.Hour })
	p := podN(1)
	v := h.vol("a", "ext4")
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "text")
	h.ok(h.unmount(v, p))
	h.ok(h.call("detach", v.Name, node))
	h.quiet()

	waitForAttach := func() answer { return h.call("waitforattach", "", v.Blob(nil)) }
	a := h.ok(waitForAttach())
	was := h.story("a").UUID
	h.lvm("lvrename", "vg0/a", "vg0/b")
	h.volume("vg0/a", 16*mib, nil)
	fresh := h.identity("vg0/a")
	h.must(os.MkdirAll(h.GlobalDir(v), 0o750))
	h.refused(h.call("mountdevice", h.GlobalDir(v), a.Device, v.Blob(nil)), "is not the volume that was activated last", was, fresh, "vg0/b")
	h.refused(waitForAttach(), was, fresh)
	h.open("vg0/a", func(path string) {
		if out, _ := exec.Command("blkid", "-p", path).CombinedOutput(); len(out) > 0 {
			t.Errorf("the other volume: %s", out)
		}
	})
	h.lvm("lvrename", "vg0/a", "vg0/c")
	h.lvm("lvrename", "vg0/b", "vg0/a")
	h.ok(h.stage(v, a.Device))
	h.ok(h.mount(v, p))
	h.reads(v, p, "f", "text")
	h.end(byKubelet, v, p)
	h.ok(h.call("detach", v.Name, node))
}

// A volume that LVM activates as read-only cannot be completed. It is not left active.
func TestCreatedReadOnly(t *testing.T) {
	h := newHost(t)
	const file = "/etc/lvm/lvmlocal.conf"
	was, err := os.ReadFile(file)
	h.must(err)
	t.Cleanup(func() { h.must(os.WriteFile(file, was, 0o644)) })
	h.must(os.WriteFile(file, append(was, "\nactivation/read_only_volume_list=[\"vg0/a\"]\n"...), 0o644))
	v, p := h.vol("a", "ext4"), podN(1)
	h.refused(h.mount(v, p), "vg0/a", "read_only_volume_list")
	h.quiet()
}

// The refusal of a snapshot has the reason and the remedy.
func TestUnusableSnapshots(t *testing.T) {
	h := newHost(t)
	p := podN(1)
	h.volume("vg0/o", 16*mib, func(path string) { h.sh("mkfs.ext4", "-q", path) })
	h.lvm("lvcreate", "-y", "-s", "-L", "4m", "-n", "full", "vg0/o")
	h.lvm("lvcreate", "-y", "-s", "-L", "16m", "-n", "merging", "vg0/o")
	h.lvm("lvchange", "-y", "-ay", "vg0/o")
	h.sh("dd", "if=/dev/urandom", "of=/dev/vg0/full", "bs=1M", "count=8", "conv=nocreat")
	full, merging := h.vol("full", "ext4").With("size", "-"), h.vol("merging", "ext4").With("size", "-")
	h.refused(h.mount(readOnly(full), p), "too small for the changes", "lvremove")
	origin := h.vol("o", "ext4").With("size", "-")
	h.ok(h.up(noAttach, origin, p))
	h.lvm("lvconvert", "-y", "--merge", "vg0/merging")
	h.disagrees("merge-pending", h.identity("vg0/o"), "the snapshot merging", "will be lost")
	h.refused(h.mount(readOnly(merging), p), "vg0/merging is being merged into vg0/o", "use vg0/o")
	h.end(noAttach, origin, p)
	h.lvm("lvremove", "-y", "vg0/full")
	h.lvm("lvchange", "-y", "-an", "vg0/o")
}

// A volume group is renamed while a pod uses it.
func TestRenamedGroup(t *testing.T) {
	h := newHost(t, func(h *host) {
		h.settings.groups = "  - {name: vg1, " + h.group("vg1") + "}\n"
	})
	h.storage.(*groups).more = append(h.storage.(*groups).more, "vg9")
	h.volume("vg1/data", 16*mib, func(path string) { h.sh("mkfs.ext4", "-q", path) })
	v, p := h.vol("data", "ext4").With("volumegroup", "vg1", "size", "-"), podN(1)
	h.ok(h.up(byKubelet, v, p))
	h.lvm("vgrename", "vg1", "vg9")
	h.eventually("it is said", func() string {
		if s := h.storyOf("vg1/data"); s.State == "missing" && strings.Contains(fmt.Sprint(s.Observed), "it is now named vg9/data") {
			return ""
		}
		return h.show("vg1/data")
	})
	h.refused(h.mount(v, podN(2)), "is now named vg9/data", "vgrename vg9 vg1")
	h.lvm("vgcreate", "-y", "vg1", disks[3])
	h.check() // no event reports an empty group
	h.disagrees("stale-mapping", h.identity("vg9/data"), "it was vg1/data when flexd set it up, and is now vg9/data", "vgrename vg9 vg1")
	h.lvm("vgremove", "vg1")
	h.end(byKubelet, v, p)
	h.quiet()
	h.lvm("vgrename", "vg9", "vg1")
}

// The group of an idle volume is renamed, and the volume is removed there: it is not replaced by an
// empty one.
func TestRenamedGroupRecord(t *testing.T) {
	h := newHost(t, func(h *host) {
		h.settings.groups = "  - {name: vg1, " + h.group("vg1") + ", create: true, maxSize: 1GiB}\n  - {name: vg9, provider: lvm, create: true, maxSize: 1GiB, namespaces: ['*']}\n"
	})
	h.storage.(*groups).more = append(h.storage.(*groups).more, "vg9")
	v, p := h.vol("data", "ext4").With("volumegroup", "vg1"), podN(1)
	h.ok(h.up(noAttach, v, p))
	h.end(noAttach, v, p)
	h.quiet()
	h.lvm("vgrename", "vg1", "vg9")
	h.stop()
	h.start()
	h.eventually("the record has the new name", func() string {
		return h.sh("sh", "-c", "grep -L '\"vg\": \"vg9\"' "+h.State+"/formats/*.json; true")
	})
	h.lvm("lvremove", "-y", "vg9/data")
	h.refused(h.up(noAttach, v.With("volumegroup", "vg9"), p), "flexd has seen a filesystem on a volume of that name")
	h.lvm("vgrename", "vg9", "vg1")
}

// A disk returns under another name, as after a new login to an iSCSI target: its devices are dead until they
// are activated again, and no other pod gets one. An encrypted disk is opened again.
func TestReplugged(t *testing.T) {
	for _, row := range []struct {
		fs   string
		luks bool
	}{{"ext4", false}, {"xfs", false}, {"ext4", true}} {
		fs := row.fs
		t.Run(fmt.Sprintf("%s, encrypted %t", fs, row.luks), func(t *testing.T) {
			key := filepath.Join(t.TempDir(), "key")
			open := func(h *host, disk, name string) {
				h.sh("cryptsetup", "open", "--key-file", key, disk, name)
			}
			h := newHost(t, func(h *host) {
				disk := disks[2]
				if row.luks {
					h.must(os.WriteFile(key, []byte("secret"), 0o600))
					h.sh("modprobe", "dm-crypt")
					h.sh("cryptsetup", "luksFormat", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", disk, key)
					open(h, disk, "crypt0")
					disk = "/dev/mapper/crypt0"
				}
				h.storage.(*groups).groupOn("vg1", disk)
				h.settings.groups = "  - {name: vg1, provider: lvm, create: true, maxSize: 1GiB, deactivate: never, namespaces: ['*']}\n"
			})
			v, p, q := h.vol("a", fs).With("volumegroup", "vg1"), podN(1), podN(2)
			h.ok(h.up(noAttach, v, p))
			h.write(v, p, "f", "x")
			h.sh("sync")
			device, err := os.Readlink("/sys/block/" + filepath.Base(disks[2]) + "/device")
			h.must(err)
			replug := func() { // the kernel gives it the first free name
				for _, what := range []string{"unbind", "bind"} {
					h.must(os.WriteFile("/sys/bus/virtio/drivers/virtio_blk/"+what, []byte(filepath.Base(device)), 0))
				}
				os.Remove("/run/lvm/hints")
			}
			replug()
			if row.luks {
				found, err := filepath.Glob("/sys/bus/virtio/devices/" + filepath.Base(device) + "/block/*")
				if err != nil || len(found) != 1 {
					t.Fatalf("%q, %v", found, err)
				}
				open(h, "/dev/"+filepath.Base(found[0]), "crypt1")
			}
			gone := []string{"vg1/a: mount", "vg1-a has a part", "which is gone", "lvchange -an vg1/a"}
			h.refused(h.mount(v, q), gone...)
			h.ok(h.unmount(v, p))
			h.refused(h.mount(v, q), gone...)
			h.lvm("lvchange", "-an", "vg1/a")
			h.ok(h.mount(v, q))
			h.reads(v, q, "f", "x")
			h.end(noAttach, v, q)
			h.lvm("lvchange", "-an", "vg1/a")
			if row.luks {
				h.lvm("vgremove", "-y", "vg1")
				h.sh("cryptsetup", "close", "crypt0")
				h.sh("cryptsetup", "close", "crypt1")
			}
			replug()
			h.sh("test", "-b", disks[2])
			if row.luks {
				h.sh("wipefs", "-qa", disks[2])
			}
		})
	}
}

// A disk of the group is smaller than its physical volume, as after its clone to a smaller one: an extension
// would leave the pod's device suspended. flexd also does not let LVM make that device read-only, or give a
// filesystem larger sectors.
func TestUnsafeExtension(t *testing.T) {
	h := newHost(t, func(h *host) {
		h.sh("dmsetup", "create", "short", "--table", "0 2252800 linear "+disks[2]+" 2048") // 1100 MiB
		h.storage.(*groups).groupOn("vg1", "/dev/mapper/short")
		h.settings.groups = "  - {name: vg1, provider: lvm, create: true, maxSize: 1GiB, namespaces: ['*']}\n"
	})
	v, p := h.vol("a", "ext4").With("volumegroup", "vg1").With("size", "64Mi"), podN(1)
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "x")
	expand := func(size int64) answer {
		return h.call("expandfs", v.Blob(nil), "", h.PodDir(p, v), fmt.Sprint(size), fmt.Sprint(64*mib))
	}
	writable := func(about string) {
		t.Helper()
		if state := strings.TrimSpace(h.sh("dmsetup", "info", "-c", "--noheadings", "-o", "suspended,read_only", "vg1-a")); state != "Active:Writeable" {
			t.Errorf("%s: the device is %s", about, state)
		}
	}

	was := h.bytes("/etc/lvm/lvmlocal.conf")
	t.Cleanup(func() { os.WriteFile("/etc/lvm/lvmlocal.conf", was, 0o644) })
	h.must(os.WriteFile("/etc/lvm/lvmlocal.conf", []byte(string(was)+"\nactivation/read_only_volume_list=[\"vg1\"]\n"), 0o644))
	h.refused(expand(100*mib), "vg1/a", "extend", "activation/read_only_volume_list")
	h.must(os.WriteFile("/etc/lvm/lvmlocal.conf", was, 0o644))
	writable("the list has it")
	h.ok(expand(100 * mib))

	resize := func(sectors string) {
		h.sh("sh", "-c", "dmsetup suspend short; dmsetup reload short --table '0 "+sectors+" linear "+disks[2]+" 2048'; dmsetup resume short")
	}
	resize("1945600") // 950 MiB
	short := []string{"/dev/mapper/short has 950 MiB", "give the disk its size back"}
	h.refused(expand(180*mib), append(short, "vg1/a", "extend", "pvresize /dev/mapper/short")...)
	h.refused(h.mount(h.vol("b", "ext4").With("volumegroup", "vg1").With("size", "64Mi"), podN(2)), append(short, "vg1/b")...)
	writable("its disk is short")
	h.lvm("lvcreate", "-y", "-an", "-Wn", "-Zn", "-L", "900m", "-n", "big", "vg1")
	h.refused(h.mount(h.vol("big", "ext4").With("volumegroup", "vg1").With("size", "-"), podN(2)), append(short, "vg1/big")...)
	h.refused(expand(180*mib), append(short, "Do not pvmove the whole disk")...)
	h.lvm("lvremove", "-y", "vg1/big")
	resize("2252800")

	h.sh("truncate", "-s", "128M", h.Dir+"/disk")
	loop := strings.TrimSpace(h.sh("losetup", "-f", "--show", "--sector-size", "4096", h.Dir+"/disk"))
	t.Cleanup(func() { exec.Command("losetup", "-d", loop).Run() })
	h.sh("dmsetup", "create", "large", "--table", "0 260096 linear "+loop+" 2048")
	const large = "/dev/mapper/large"
	h.lvm("vgextend", "-y", "--config", "devices{allow_mixed_block_sizes=1}", "vg1", large)
	h.refused(expand(180*mib), "vg1/a", "extend", large+" has larger logical blocks", "on a disk like its present ones, such as /dev/mapper/short (blockdev --getss DISK: 512)", "pvchange -xn "+large, "vgextend vg1 DISK")
	h.lvm("pvchange", "-xn", large)
	h.ok(expand(180 * mib))
	h.lvm("vgreduce", "vg1", large)
	h.sh("dmsetup", "remove", "--retry", "large")
	h.reads(v, p, "f", "x")
	h.end(noAttach, v, p)
	h.eventually("its lease ends", func() string { return strings.TrimPrefix(strings.Join(h.Active(), " "), "short") })
	h.sh("dmsetup", "remove", "--retry", "short")
}

// An administrator extends a mounted xfs with sectors of 512 bytes onto a disk with blocks of 4096. flexd reports it,
// extends nothing, and does not try its mount. The remedy works, also while it is mounted.
func TestSmallSectors(t *testing.T) {
	need(t, "mkfs.xfs")
	const large = "/dev/mapper/large"
	h := newHost(t, func(h *host) {
		h.sh("truncate", "-s", "128M", h.Dir+"/disk")
		loop := strings.TrimSpace(h.sh("losetup", "-f", "--show", "--sector-size", "4096", h.Dir+"/disk"))
		t.Cleanup(func() { exec.Command("losetup", "-d", loop).Run() })
		h.sh("dmsetup", "create", "large", "--table", "0 260096 linear "+loop+" 2048")
		h.settings.groups = "  - {name: vg1, " + h.group("vg1") + ", create: true, maxSize: 1GiB}\n"
		h.lvm("vgextend", "-y", "--config", "devices{allow_mixed_block_sizes=1}", "vg1", large)
	})
	v, p := h.vol("a", "xfs").With("volumegroup", "vg1").With("size", "320Mi"), podN(1)
	h.lvm("pvchange", "-xn", large)
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "x")
	h.lvm("pvchange", "-xy", large)
	move := func() { h.lvm("pvmove", "-i", "1", "-n", "a", large, disks[2]) }
	says := []string{"sectors of 512 bytes", "logical blocks of 4096", "pvmove -n a DISK OTHER", "vgextend vg1 OTHER"}
	for size := int64(360); size <= 400; size += 40 {
		h.lvm("lvextend", "-y", "-L", fmt.Sprint(size, "m"), "vg1/a", large)
		h.disagrees("faulty", h.identity("vg1/a"), says...)
		for _, wanted := range []int64{size, size + 40} {
			h.refused(h.call("expandfs", v.Blob(nil), "", h.PodDir(p, v), fmt.Sprint(wanted*mib), "0"), append(says, "vg1/a")...)
		}
		if got := strings.TrimSpace(h.lvm("lvs", "--noheadings", "--units", "m", "--nosuffix", "-o", "lv_size", "vg1/a")); got != fmt.Sprint(size, ".00") {
			t.Errorf("its size is %s, not %d", got, size)
		}
		if size == 360 {
			move()
			h.ok(h.call("expandfs", v.Blob(nil), "", h.PodDir(p, v), fmt.Sprint(size*mib), "0"))
			continue
		}
		h.end(noAttach, v, p)
		h.refused(h.mount(v, p), append(says, "vg1/a")...)
		move()
		h.ok(h.mount(v, p))
		h.reads(v, p, "f", "x")
		h.end(noAttach, v, p)
	}
	h.eventually("its lease ends", func() string { return strings.TrimPrefix(strings.Join(h.Active(), " "), "large") })

	// The device of a thin volume has the smaller blocks only after its next activation.
	h.lvm("lvcreate", "-y", "-L", "40M", "-T", "vg1/pool", disks[2])
	h.lvm("lvcreate", "-y", "-V", "40M", "-T", "vg1/pool", "-n", "t")
	v = h.vol("t", "ext4").With("volumegroup", "vg1")
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "x")
	h.end(noAttach, v, p)
	h.lvm("vgchange", "-an", "vg1")
	h.lvm("pvmove", "--config", "devices{allow_mixed_block_sizes=1}", "-i", "1", "-n", "pool_tdata", disks[2], large)
	h.lvm("vgchange", "-an", "vg1")
	says = []string{"sectors of 1024 bytes", "logical blocks of 4096", "lvchange -an each"}
	h.refused(h.mount(v, p), says...)
	h.lvm("pvmove", "-i", "1", large, disks[2])
	h.lvm("lvchange", "-an", "vg1/t")
	h.ok(h.mount(v, p))
	h.reads(v, p, "f", "x")
	h.end(noAttach, v, p)
	h.lvm("vgchange", "-an", "vg1")
	h.lvm("vgreduce", "vg1", large)
	h.sh("dmsetup", "remove", "--retry", "large")
}
