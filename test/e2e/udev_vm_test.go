//go:build vm && udev

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Names and metadata that pods write into their volumes have no effect on the host, neither at its boot, for
// volumes that it activates, nor when flexd activates them. A volume that no pod has used keeps its names.
func TestUdevRule(t *testing.T) {
	need(t, "mdadm", "udevadm")
	var files string
	h := newHost(t, func(h *host) {
		files = h.Dir + "/pods' files" // no plain path
		h.must(os.Mkdir(files, 0o755))
		h.settings.groups = "  - {name: files, provider: loopdev, directory: \"" + files + "\", namespaces: ['*'], create: true, maxSize: 1GiB}\n"
	})
	const (
		size   = 16 * mib
		own    = "11111111-1111-1111-1111-111111111111"
		member = "lvm-pv-uuid-333333-3333-3333-3333-3333-3333-333333"
	)
	settle := func() { h.sh("udevadm", "settle") }
	exists := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	there := func(paths ...string) { // systemd may run vgchange later
		t.Helper()
		for _, path := range paths {
			h.eventually("udev's work", func() string {
				if exists(path) {
					return ""
				}
				return path + " is missing"
			})
		}
	}
	online := func() { // as after a boot: LVM has seen no disk, and systemd has started no vgchange
		h.sh("sh", "-c", "rm -rf /run/lvm/pvs_online /run/lvm/vgs_online; systemctl reset-failed 2>/dev/null || true")
	}

	// An operator's volumes; pods use all but one. LVM activates them at boot.
	h.volume("vg0/own", size, func(path string) { h.sh("mkfs.ext4", "-q", "-L", "OWN", "-U", own, path) })
	for _, lv := range []string{"label", "md", "pv"} {
		h.volume("vg0/"+lv, size, func(path string) { h.sh("mkfs.ext4", "-q", path) })
		v := h.vol(lv, "ext4").With("size", "-")
		h.ok(h.up(noAttach, v, podN(1)))
		if lv == "label" {
			setLabel(t, h.PodDir(podN(1), v), "cloudimg-rootfs")
		}
		h.end(noAttach, v, podN(1))
	}
	label, file := h.vol("label", "ext4").With("size", "-"), h.vol("fs", "ext4").With("volumegroup", "files")
	h.ok(h.up(noAttach, file, podN(1)))
	setLabel(t, h.PodDir(podN(1), file), "file-rootfs")
	h.end(noAttach, file, podN(1))
	h.quiet()

	// What they write: superblocks of a RAID and of a volume group.
	raid := h.image("raid", size, func(loop string) {
		h.sh("mdadm", "--create", "/dev/md9", "--run", "--metadata=1.0", "--level=1", "--raid-devices=1", "--force", loop)
		h.sh("mdadm", "--stop", "/dev/md9")
	})
	group := h.image("group", size, func(loop string) {
		h.lvm("pvcreate", loop)
		h.lvm("vgcreate", "evil", loop)
		h.lvm("lvcreate", "-y", "-an", "-Zn", "-Wn", "-l", "1", "-n", "lv", "evil")
	})
	stop := func() {
		settle()
		h.sh("mdadm", "--stop", "--scan")
		settle()
	}
	h.open("vg0/md", func(path string) {
		h.sh("dd", "if="+raid, "of="+path, "bs=4096", "skip=4080", "seek=4080", "conv=notrunc", "status=none")
		stop()
	})
	h.open("vg0/pv", func(path string) {
		h.lvm("pvcreate", "-y", "--config", "devices{scan_lvs=1}", "--norestorefile", "-u", strings.TrimPrefix(member, "lvm-pv-uuid-"), path)
	})
	h.sh("cp", group, files+"/group")
	settle()

	// boot activates vg0 as at boot: the kernel announces its disks, and LVM's rule does it.
	boot := func() {
		t.Helper()
		stop()
		h.lvm("vgchange", "-an", "vg0")
		online()
		for _, disk := range disks[:2] {
			h.sh("udevadm", "trigger", "--action=add", "/sys/block/"+filepath.Base(disk))
		}
		there("/dev/vg0/label", "/dev/mapper/vg0-label", "/dev/vg0/md", "/dev/vg0/pv", "/dev/vg0/own", "/dev/disk/by-label/OWN", "/dev/disk/by-uuid/"+own)
	}
	// attacks are those that had an effect.
	attacks := func() (all []string) {
		settle()
		for _, name := range []string{"by-label/cloudimg-rootfs", "by-label/file-rootfs", "by-id/" + member} {
			if exists("/dev/disk/" + name) {
				all = append(all, name)
			}
		}
		if b, _ := os.ReadFile("/proc/mdstat"); strings.Contains(string(b), " active ") {
			all = append(all, "md")
		}
		return all
	}
	expect := func(when string, want ...string) {
		t.Helper()
		if got := attacks(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	// attach attaches the file with the volume group.
	attach := func(f func(loop string)) {
		t.Helper()
		online()
		loop := strings.TrimSpace(h.sh("losetup", "-f", "--show", files+"/group"))
		settle()
		f(loop)
		h.sh("losetup", "-d", loop)
	}

	// The attacks work.
	if out, code := h.check(); code != 1 || !strings.Contains(out, "udev-rule") || !strings.Contains(out, "flexd udev --install") {
		t.Errorf("flexd check: %d\n%s", code, out)
	}
	boot()
	h.ok(h.up(noAttach, file, podN(1)))
	expect("without the rule", "by-label/cloudimg-rootfs", "by-label/file-rootfs", "by-id/"+member, "md")
	h.end(noAttach, file, podN(1))
	attach(func(string) {
		there("/dev/evil/lv")
		h.lvm("vgchange", "-an", "evil")
	})

	h.sh(h.Flexd(), "udev", "--install", "--config", h.Config())
	t.Cleanup(func() { os.Remove("/etc/udev/rules.d/12-flexd.rules") })
	// Its next start repairs a rule that is not the one for the configuration.
	h.sh("sh", "-c", "echo '# of another configuration' >>/etc/udev/rules.d/12-flexd.rules")
	if out, _ := h.check(); !strings.Contains(out, "udev-rule") {
		t.Errorf("flexd check:\n%s", out)
	}
	h.restart()
	h.eventually("the rule is updated", func() string {
		if out, _ := h.check(); strings.Contains(out, "udev-rule") {
			return out
		}
		return ""
	})
	boot()
	expect("at boot")
	// A volume group on a device without a uuid is the operator's as well.
	h.sh("dmsetup", "create", "raw", "--table", "0 65536 linear "+disks[2]+" 2048")
	h.storage.(*groups).groupOn("vg9", "/dev/mapper/raw")
	h.lvm("lvcreate", "-y", "-l", "4", "-n", "other", "vg9")
	h.sh("mkfs.ext4", "-q", "-L", "OTHER", "/dev/vg9/other")
	h.lvm("lvchange", "-an", "vg9/other")
	h.lvm("lvchange", "-ay", "vg9/other")
	settle()
	if !exists("/dev/disk/by-label/OTHER") {
		t.Errorf("a volume that is not flexd's has no link:\n%s", h.sh("udevadm", "info", "/dev/vg9/other"))
	}
	h.lvm("vgremove", "-ff", "-y", "vg9")
	h.sh("dmsetup", "remove", "--retry", "raw")
	attach(func(loop string) {
		if out := h.sh("udevadm", "info", "--query=property", loop); strings.Contains(out, "ID_FS_") || exists("/dev/evil/lv") {
			t.Errorf("udev has read the file:\n%s", out)
		}
	})
	h.lvm("vgchange", "-an", "vg0")
	for _, v := range []vol{label, file} {
		h.ok(h.up(noAttach, v, podN(1)))
		expect("mounted")
		h.end(noAttach, v, podN(1))
	}
	expect("unmounted")

	// Other names and devices of the same volume.
	h.lvm("lvchange", "-ay", "vg0/label")
	h.lvm("lvcreate", "-y", "-s", "-L", "8m", "-n", "copy", "vg0/label")
	expect("thick snapshot")
	h.lvm("lvrename", "vg0/label", "vg0/renamed")
	h.sh("udevadm", "trigger", "--subsystem-match=block", "--action=add")
	expect("renamed")
	h.sh("udevadm", "trigger", "--subsystem-match=block", "--action=change")
	expect("changed")
	h.lvm("vgchange", "-an", "vg0")
}

// setLabel is a process in a pod that labels its mounted filesystem.
func setLabel(t *testing.T, dir, label string) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const setLabel = 0x41009432 // FS_IOC_SETFSLABEL
	text := [256]byte{}
	copy(text[:], label)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), setLabel, uintptr(unsafe.Pointer(&text))); errno != 0 {
		t.Fatalf("label of %s: %v", dir, errno)
	}
}

// image is a file that was filled as a loop device.
func (h *host) image(name string, size int64, fill func(loop string)) string {
	h.t.Helper()
	path := h.Dir + "/" + name
	h.must(os.WriteFile(path, nil, 0o600))
	h.must(os.Truncate(path, size))
	loop := strings.TrimSpace(h.sh("losetup", "-f", "--show", path))
	fill(loop)
	h.sh("udevadm", "settle")
	h.sh("losetup", "-d", loop)
	return path
}
