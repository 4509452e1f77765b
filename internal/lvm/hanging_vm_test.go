//go:build vm

package lvm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// A disk hangs without being suspended, and flexd does not know its group: the first report of another group
// hangs and is repeated without the disk, and later reports do not read it, although the host's filter
// accepts any name.
func TestVMHangingDisk(t *testing.T) {
	l := newLab(t)
	sectors, err := strconv.Atoi(l.sh("blockdev", "--getsz", l.disks[2]))
	if err != nil {
		t.Fatal(err)
	}
	l.sh("dmsetup", "create", "--noudevsync", "under", "--table", fmt.Sprintf("0 %d linear %s 2048", sectors-2048, l.disks[2]))
	l.sh("dmsetup", "create", "--noudevsync", "over", "--table", fmt.Sprintf("0 %d linear /dev/mapper/under 2048", sectors-4096))
	l.sh("dmsetup", "mknodes")
	t.Cleanup(func() { exec.Command("dmsetup", "resume", "--noudevsync", "under").Run() })
	l.sh("vgcreate", "-q", "vg1", "/dev/mapper/over")
	l.lv("data", "8M")
	restore := l.host(`devices/filter=["a|.*|"]`)
	defer restore()
	l.restart(Group{})
	l.CallDeadline = 20 * time.Second
	l.sh("rm", "-f", "/run/lvm/hints")
	l.sh("dmsetup", "suspend", "--nolockfs", "--noudevsync", "under")
	begun := time.Now()
	lv := l.present("data")
	if took := time.Since(begun); took > l.CallDeadline/2+2*time.Second {
		t.Errorf("it took %s", took)
	}
	if n := l.count("fullreport"); n != 2 {
		t.Errorf("%d reports", n)
	}
	var names []string
	list, err := l.DM.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range l.pending("/dev", list) {
		names = append(names, d.path)
	}
	if got := strings.Join(names, " "); got != "/dev/mapper/over" {
		t.Errorf("in flight: %q", got)
	}
	begun = time.Now()
	l.Invalidate("")
	l.activate(l.present("data"))
	l.deactivate(lv)
	_, err = l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: "there"})
	is(t, err, ErrFailed, "PVs are missing", "/dev/mapper/over")
	if took := time.Since(begun); took > l.CallDeadline/2 || errors.Is(err, ErrNoVG) || l.count("fullreport") != 2 {
		t.Errorf("%v, it took %s", err, took)
	}
	if blocks := l.Blocks(); len(blocks) != 0 {
		t.Errorf("blocked: %v", blocks)
	}
	l.sh("dmsetup", "resume", "--noudevsync", "under")
	if there, err := l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: "there"}); err != nil || there.Presence != volume.Absent {
		t.Errorf("got %+v %v", there, err)
	}
}

// The original of a disk hangs, and its clone responds: after a restart LVM finds the whole group on the clone.
func TestVMHangingOriginal(t *testing.T) {
	l := newLab(t)
	lv := l.lv("data", "8M")
	for i, disk := range [][2]string{{"below", l.disks[2]}, {"original", "/dev/mapper/below"}, {"clone", l.disks[3]}} {
		l.sh("dmsetup", "create", "--noudevsync", disk[0], "--table", fmt.Sprintf("0 %d linear %s 2048", 204800-2048*min(i, 1), disk[1]))
		l.sh("dmsetup", "mknodes")
	}
	t.Cleanup(func() { exec.Command("dmsetup", "resume", "--noudevsync", "original").Run() })
	l.sh("vgcreate", "-q", "vg1", "/dev/mapper/original")
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "8M", "-n", "there", "vg1")
	there := func() (volume.LV, error) { return l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: "there"}) }
	if lv, err := there(); err != nil || lv.Presence != volume.Present {
		t.Fatalf("got %+v %v", lv, err)
	}
	l.sh("dd", "if=/dev/mapper/original", "of=/dev/mapper/clone", "bs=1M", "conv=fsync")
	l.sh("dmsetup", "suspend", "--nolockfs", "--noudevsync", "original")
	l.restart(Group{})
	_, err := there()
	is(t, err, ErrFailed, "/dev/mapper/clone may be a copy", "/dev/mapper/original")
	l.activate(lv) // of another group
	l.deactivate(lv)
	l.sh("dmsetup", "resume", "--noudevsync", "original")
	if lv, err := there(); err != nil || lv.Presence != volume.Foreign || !strings.Contains(lv.Reason, "visible twice") {
		t.Errorf("both respond: got %+v %v", lv, err)
	}
	l.sh("wipefs", "-qaf", "/dev/mapper/clone")
	lv, err = there()
	if err != nil || lv.Presence != volume.Present {
		t.Fatalf("got %+v %v", lv, err)
	}

	// It fails instead, which no event reports.
	number, uuid := blockNumber("/dev/mapper/original"), l.sh("pvs", "--noheadings", "-o", "pv_uuid", "/dev/mapper/original")
	l.sh("dd", "if=/dev/mapper/original", "of=/dev/mapper/clone", "bs=1M", "conv=fsync")
	l.sh("mkdir", "-p", "/dev/block")
	l.sh("ln", "-sf", "/dev/mapper/original", "/dev/block/"+number)
	l.udevDir = l.dir
	if err := os.WriteFile(l.dir+"/b"+number, []byte("E:ID_FS_TYPE=LVM2_member\nE:ID_FS_UUID="+strings.TrimSpace(uuid)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.sh("sh", "-c", "dmsetup suspend --nolockfs --noudevsync below && dmsetup load below --table '0 204800 error' && dmsetup resume --noudevsync below")
	if err := l.Activate(t.Context(), l.lock, lv); err == nil || !strings.Contains(err.Error(), "/dev/mapper/clone may be a copy") || !strings.Contains(err.Error(), "/dev/block/"+number) {
		t.Errorf("got %v", err)
	}
	l.sh("lvchange", "-an", "vg1/there")
}

// A multipath disk loses its last path, and keeps its requests, which the kernel does not count: after a restart
// the other groups work, and the errors of its own group name it.
func TestVMHangingMultipath(t *testing.T) {
	l := newLab(t)
	lv := l.lv("data", "8M")
	restore := l.host(`devices/global_filter=["r|^` + l.disks[2] + `$|"]`) // LVM recognizes only paths of SCSI, NVMe and DASD
	defer restore()
	l.sh("modprobe", "-a", "dm-multipath", "dm-round-robin")
	path := blockNumber(l.disks[2])
	l.sh("dmsetup", "create", "--noudevsync", "mpatha", "-u", "mpath-test", "--table", fmt.Sprintf("0 %s multipath 1 queue_if_no_path 0 1 1 round-robin 0 1 1 %s 1", l.sh("blockdev", "--getsz", l.disks[2]), path))
	l.sh("dmsetup", "mknodes")
	t.Cleanup(func() { exec.Command("dmsetup", "message", "mpatha", "0", "fail_if_no_path").Run() })
	l.sh("vgcreate", "-q", "vg1", "/dev/mapper/mpatha")
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "8M", "-n", "there", "vg1")
	l.restart(Group{})
	l.CallDeadline = 20 * time.Second
	there := func() (volume.LV, error) { return l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: "there"}) }
	l.sh("dmsetup", "message", "mpatha", "0", "fail_path "+path)
	l.sh("rm", "-f", "/run/lvm/hints")
	l.activate(l.present("data"))
	l.deactivate(lv)
	if blocks := l.Blocks(); len(blocks) != 0 {
		t.Errorf("blocked: %v", blocks)
	}
	_, err := there()
	is(t, err, ErrFailed, "PVs are missing", "/dev/mapper/mpatha")
	l.sh("dmsetup", "message", "mpatha", "0", "reinstate_path "+path)
	if lv, err := there(); err != nil || lv.Presence != volume.Present {
		t.Fatalf("got %+v %v", lv, err)
	}

	// Its own group's commands must read it.
	l.sh("dmsetup", "message", "mpatha", "0", "fail_path "+path)
	l.Invalidate("")
	_, err = there()
	is(t, err, nil, "vg1 is blocked", "do not respond or are suspended: /dev/mapper/mpatha")
	l.activate(lv)
	l.deactivate(lv)
	l.sh("dmsetup", "message", "mpatha", "0", "reinstate_path "+path)
	eventually(t, "the group works again", func() bool { _, err := there(); return err == nil })
}

// An NVMe disk hangs, with the kernel's multipath as by default: Linux 6.1 counts its requests only for its
// path.
func TestVMHangingNVMe(t *testing.T) {
	l := newLab(t)
	lv := l.lv("data", "8M")
	l.sh("dmsetup", "create", "--noudevsync", "under", "--table", "0 409600 linear "+l.disks[2]+" 0")
	l.sh("dmsetup", "mknodes")
	t.Cleanup(func() {
		l.sh("dmsetup", "resume", "--noudevsync", "under")
		l.sh("sh", "-ec", `echo 1 > /sys/class/nvme/nvme0/delete_controller
			cd /sys/kernel/config/nvmet; rm ports/1/subsystems/*; rmdir ports/1 subsystems/hanging/namespaces/1 subsystems/hanging`)
	})
	l.sh("sh", "-ec", `modprobe nvmet-tcp; modprobe nvme-tcp; ip link set lo up; mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
		cd /sys/kernel/config/nvmet; mkdir subsystems/hanging subsystems/hanging/namespaces/1 ports/1
		echo 1 > subsystems/hanging/attr_allow_any_host; echo -n /dev/mapper/under > subsystems/hanging/namespaces/1/device_path; echo 1 > subsystems/hanging/namespaces/1/enable
		cd ports/1; echo tcp > addr_trtype; echo ipv4 > addr_adrfam; echo 127.0.0.1 > addr_traddr; echo 4420 > addr_trsvcid; ln -s ../../subsystems/hanging subsystems/
		echo -n transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=hanging > /dev/nvme-fabrics
		for i in $(seq 50); do [ -b /dev/nvme0n1 ] && exit; sleep 0.1; done; exit 1`)
	l.Invalidate("")
	l.present("data")
	l.sh("dmsetup", "suspend", "--nolockfs", "--noudevsync", "under")
	if err := exec.Command("dd", "if=/dev/nvme0n1", "of=/dev/null", "bs=4k", "count=1", "iflag=direct").Start(); err != nil {
		t.Fatal(err)
	}
	l.sh("sh", "-ec", `for i in $(seq 50); do [ "$(tr -d ' 0\n' < /sys/block/nvme0c0n1/inflight)" = 1 ] && exit; sleep 0.1; done; exit 1`)
	l.sh("rm", "-f", "/run/lvm/hints")
	list, err := l.DM.List()
	if err != nil {
		t.Fatal(err)
	}
	if all := l.pending("/dev", list); len(all) != 1 || all[0].path != "/dev/nvme0n1" {
		t.Fatalf("in flight: %+v", all)
	}
	l.activate(lv)
	l.deactivate(lv)
	if blocks := l.Blocks(); len(blocks) != 0 {
		t.Errorf("blocked: %v", blocks)
	}
}
