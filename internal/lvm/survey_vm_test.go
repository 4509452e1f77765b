//go:build vm

package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// differ surveys vg0, and joins the result with claims, leases, and the present mounts. A claim is kubelet's
// if its directory is.
func (l *lab) differ(claims []join.Claim, leases []join.Lease) []join.Finding {
	l.Helper()
	g := join.Group{Name: "vg0", Claims: claims, Leases: leases, Survey: l.Survey(l.Context(), "vg0", true)}
	if g.Metadata != "" || g.Kernel != "" {
		l.Fatalf("unknown: %q %q", g.Metadata, g.Kernel)
	}
	table, err := mounttable.Own()
	if err != nil {
		l.Fatal(err)
	}
	for _, d := range g.Devices {
		for _, e := range table.OfDevice(d.Number, d.Path) {
			m := join.Mount{Dir: e.Dir, Device: d.Number, What: e.Type + " from " + d.Path, Owner: volume.Elsewhere, ReadOnly: e.ReadOnly, SuperReadOnly: e.SuperReadOnly}
			if slices.ContainsFunc(claims, func(c join.Claim) bool { return c.Dir == e.Dir }) {
				m.Owner = volume.Ours
			}
			g.Mounts = append(g.Mounts, m)
		}
	}
	return join.Findings(g)
}

// found compares findings with a list of "class name: words".
func (l *lab) found(about string, got []join.Finding, want ...string) {
	l.Helper()
	var heads []string
	for _, d := range got {
		heads = append(heads, fmt.Sprintf("%s %s: %s (%s)", d.Class, d.LV, d.Text, d.Hint))
	}
	ok := len(got) == len(want)
	for i := 0; ok && i < len(want); i++ {
		head, words, _ := strings.Cut(want[i], ": ")
		ok = strings.HasPrefix(heads[i], head+": ") && strings.Contains(heads[i], words)
	}
	if !ok {
		l.Errorf("%s: got\n  %s\nwant\n  %s", about, strings.Join(heads, "\n  "), strings.Join(want, "\n  "))
	}
}

// Ensure that each disagreement, made by real commands, is reported in its class, and not any more after its
// repair.
func TestVMSurvey(t *testing.T) {
	l := newLab(t)
	lv := l.lv("da-ta", "16M")
	lease := []join.Lease{{UUID: lv.UUID, LV: "da-ta", Live: true}}
	l.found("inactive and unclaimed", l.differ(nil, nil))
	l.found("inactive under a lease", l.differ(nil, lease), "lv-only da-ta: no device of it")
	d := l.activate(lv)
	l.found("active under a lease", l.differ(nil, lease))
	l.found("active", l.differ(nil, nil), "active-unclaimed da-ta: lvchange -an vg0/da-ta")

	dir := t.TempDir()
	claim := []join.Claim{{UUID: lv.UUID, LV: "da-ta", Dir: dir, Phase: volume.Held, For: "pod a"}}
	l.found("not mounted", l.differ(claim, nil), "claimed-missing da-ta: at "+dir)
	l.sh("mkfs.ext4", "-q", d.Path)
	l.sh("mount", d.Path, dir)
	l.found("mounted", l.differ(claim, nil))
	l.found("mounted without a claim", l.differ(nil, lease), "mounted-unknown da-ta: mounted at "+dir)

	for _, c := range []struct{ harm, want, mend string }{
		// What a command of LVM leaves that is killed before it has written the metadata. It comes first:
		// Linux 6.1.192 crashes at such a load after the others.
		{"dmsetup suspend --nolockfs vg0-da--ta; dmsetup load vg0-da--ta --table '0 32768 zero'", "stale-mapping da-ta: dmsetup clear vg0-da--ta && dmsetup resume vg0-da--ta", "dmsetup clear vg0-da--ta && dmsetup resume vg0-da--ta"},
		{"lvextend -q --driverloaded n -L +8M vg0/da-ta", "stale-mapping da-ta: the metadata says 24 MiB, and the device " + d.Path + " (vg0-da--ta) has 16 MiB", "lvchange --refresh vg0/da-ta"},
		{"dmsetup rename vg0-da--ta vg0-other", "stale-mapping da-ta: and the kernel vg0-other", "dmsetup rename vg0-other vg0-da--ta"},
		{"dmsetup suspend --nolockfs vg0-da--ta", "stale-mapping da-ta: is suspended", "dmsetup resume vg0-da--ta"},
		{"rm /dev/vg0/da-ta", "stale-mapping da-ta: /dev/vg0/da-ta does not lead to " + d.Path, "vgmknodes vg0"},
		{"lvrename -q vg0/da-ta vg0/new", "stale-mapping new: it was da-ta when flexd set it up", "lvrename -q vg0/new vg0/da-ta"},
	} {
		l.sh("sh", "-c", c.harm)
		l.found(c.harm, l.differ(claim, nil), c.want)
		l.sh("sh", "-c", c.mend)
	}
	l.found("mended", l.differ(claim, nil))
	l.sh("umount", dir)
	l.sh("dmsetup", "wipe_table", "--noflush", "--nolockfs", "vg0-da--ta")
	l.found("wiped", l.differ(nil, lease), `stale-mapping da-ta: "error" target`)

	l.sh("lvremove", "-q", "-y", "--driverloaded", "n", "vg0/da-ta")
	l.found("removed in the metadata", l.differ(nil, lease), "dm-only da-ta: dmsetup remove vg0-da--ta")
	l.Invalidate("")
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "more"}, 8*mib, ""); err == nil || !strings.Contains(err.Error(), "dmsetup remove vg0-da--ta") {
		t.Errorf("its extents are free: %v", err)
	}
	l.sh("dmsetup", "remove", "vg0-da--ta")
	l.found("removed", l.differ(nil, nil))

	// Metadata that cannot be read is unknown, and what the kernel has is not
	// held against it.
	if err := os.MkdirAll("/run/lock/lvm", 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create("/run/lock/lvm/V_vg0")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("its time was up"))
	defer cancel()
	if s := l.Survey(ctx, "vg0", true); !strings.Contains(s.Metadata, "its time was up") || !strings.Contains(s.Metadata, fmt.Sprint("pid ", os.Getpid())) || s.Kernel != "" {
		t.Errorf("locked: %+v", s)
	}
}

// Ensure that LVM's hidden volumes of every type are not reported as volumes, and
// that a disk that was removed is reported.
func TestVMSurveyParts(t *testing.T) {
	l := newLab(t)
	l.sh("lvcreate", "-q", "-y", "-L", "32M", "-T", "vg0/pool", "-V", "64M", "-n", "thin")
	l.sh("lvcreate", "-q", "-y", "-L", "8M", "-n", "origin", "-Zn", "-Wn", "vg0")
	l.sh("lvcreate", "-q", "-y", "-L", "4M", "-s", "vg0/origin", "-n", "cow")
	l.sh("lvcreate", "-q", "-y", "--type", "raid1", "-m1", "-L", "8M", "-n", "mirrored", "vg0")
	l.found("all kinds", l.differ(nil, nil), "active-unclaimed cow", "active-unclaimed mirrored", "active-unclaimed origin", "active-unclaimed thin")
	s := l.Survey(t.Context(), "vg0", false)
	for _, v := range s.Volumes {
		if (v.Name == "thin") != (v.Pool == "pool") {
			t.Errorf("its pool: %+v", v)
		}
	}
	l.count("")
	if l.Survey(t.Context(), "vg0", false); l.count("") != 0 {
		t.Error("a survey of what is known starts a process")
	}
	// The parts of a RAID have uuids like everybody's: without metadata they are
	// known by their names.
	if all, err := l.devicesOf("vg0", nil, false); err != nil || len(all) != 4 {
		t.Errorf("without metadata: %+v %v", all, err)
	}
	l.sh("lvremove", "-q", "-y", "vg0")

	if !l.try("modprobe", "sd_mod") || !l.try("modprobe", "scsi_debug", "dev_size_mb=64") {
		t.Fatal("no scsi_debug")
	}
	var disk string
	for range 100 {
		if found, _ := filepath.Glob("/sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*/block/*"); len(found) == 1 {
			disk = filepath.Base(found[0])
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if disk == "" {
		t.Fatal("no disk of scsi_debug's")
	}
	if _, err := os.Stat("/dev/" + disk); err != nil {
		number, _ := os.ReadFile("/sys/block/" + disk + "/dev")
		major, minor, _ := strings.Cut(strings.TrimSpace(string(number)), ":")
		l.sh("mknod", "/dev/"+disk, "b", major, minor)
	}
	l.sh("vgextend", "-q", "-y", "vg0", "/dev/"+disk)
	l.sh("lvcreate", "-q", "-y", "-L", "8M", "-n", "pulled", "-Zn", "-Wn", "vg0", "/dev/"+disk)
	l.found("on its disk", l.differ(nil, nil), "active-unclaimed pulled")
	l.sh("sh", "-c", "echo 1 > /sys/block/"+disk+"/device/delete; rm -f /dev/"+disk)
	l.found("its disk is pulled", l.differ(nil, nil), "stale-mapping pulled: which is gone")
	l.sh("vgreduce", "-q", "-y", "--removemissing", "--force", "--driverloaded", "n", "vg0")
	l.found("its disk is given up", l.differ(nil, nil), "dm-only pulled: dmsetup remove vg0-pulled")
}

// A failed leg of a RAID, also below a thin pool, a failed cache, a missing disk and lvchange -pr under a
// mount are reported until they are repaired.
func TestVMDegraded(t *testing.T) {
	l := newLab(t)
	leg, reload := l.fragile("leg", l.disks[2])
	l.sh("vgextend", "-q", "vg0", leg)
	l.sh("lvcreate", "-q", "-y", "--type", "raid1", "-m1", "-L", "16M", "-n", "mirrored", "vg0", l.disks[0], leg)
	l.sh("lvcreate", "-q", "-y", "-Zn", "-Wn", "-L", "8M", "-n", "plain", "vg0", l.disks[1])
	l.sh("modprobe", "dm-cache")
	l.lvm("lvcreate -q -y --type raid1 -m1 -L 16M -n pool vg0 "+l.disks[0]+" "+leg, "lvconvert -q -y --type thin-pool vg0/pool", "lvcreate -q -y -V 16M -T vg0/pool -n thin",
		"lvcreate -q -y -Zn -Wn -L 16M -n cached vg0 "+l.disks[0], "lvcreate -q -y -L 12M -n fast vg0 "+l.disks[0],
		"lvconvert -q -y --type cache --cachevol fast --cachemode writeback vg0/cached")
	l.Invalidate("")
	var claims []join.Claim
	for _, name := range []string{"mirrored", "plain", "thin", "cached"} {
		lv, dir := l.present(name), t.TempDir()
		d := l.activate(lv)
		l.sh("mkfs.ext4", "-q", d.Path)
		l.sh("mount", d.Path, dir)
		t.Cleanup(func() { exec.Command("umount", dir).Run() })
		claims = append(claims, join.Claim{UUID: lv.UUID, LV: name, Dir: dir, Phase: volume.Held, For: "pod " + name})
	}
	l.found("all is well", l.differ(claims, nil))
	reload(true)
	for _, i := range []int{0, 2} {
		l.sh("sh", "-c", "echo x > "+claims[i].Dir+"/x && sync -f "+claims[i].Dir)
	}
	l.found("a leg fails", l.differ(claims, nil), "degraded mirrored: 1 of 2 devices of its raid1 have failed or are missing (AD); a part of it is on a disk that LVM does not find (PV ",
		"degraded thin: 1 of 2 devices of the raid1 vg0/pool_tdata below it have failed or are missing (AD)")
	reload(false)
	for device, lv := range map[string]string{"vg0-mirrored": "vg0/mirrored", "vg0-pool_tdata": "vg0/pool"} {
		l.sh("lvchange", "-q", "--refresh", lv)
		for end := time.Now().Add(time.Minute); time.Now().Before(end) && !strings.Contains(l.sh("dmsetup", "status", device), " AA "); time.Sleep(100 * time.Millisecond) {
		}
	}
	l.found("the leg is back", l.differ(claims, nil))

	l.sh("lvconvert", "-q", "-y", "--splitmirrors", "1", "--trackchanges", "vg0/mirrored")
	l.found("a copy was split off", l.differ(claims, nil), "degraded mirrored: 1 of 2 devices of its raid1 have failed or are missing (A-) (vg0/mirrored_rimage_1 was split off")
	l.sh("lvconvert", "-q", "-y", "--merge", "vg0/mirrored_rimage_1")
	l.found("it was merged again", l.differ(claims, nil))

	l.sh("lvchange", "-q", "-pr", "vg0/mirrored")
	l.found("read-only", l.differ(claims, nil), "read-only mirrored: is mounted read-write at "+claims[0].Dir+" for pod mirrored")
	l.sh("lvchange", "-q", "-prw", "vg0/mirrored")
	l.found("read-write again", l.differ(claims, nil))

	// A disk that gives errors for a moment is enough: a cache stays in that mode.
	l.sh("sh", "-c", `d=vg0-fast_cvol-cmeta; good=$(dmsetup table $d); swap() { dmsetup suspend --noflush --nolockfs $d; echo "$1" | dmsetup load $d; dmsetup resume --noudevsync $d; }
		swap "0 $(blockdev --getsz /dev/mapper/$d) error"; (echo x > `+claims[3].Dir+`/x && sync -f `+claims[3].Dir+`); swap "$good"`)
	l.found("the cache fails", l.differ(claims[3:], nil)[:1], "faulty cached: the cache of vg0/cached has failed")

	l.sh("dd", "if=/dev/zero", "of="+l.disks[1], "bs=1M", "count=1", "conv=fsync")
	l.found("a disk is missing", l.differ(claims, nil), "faulty cached", "degraded plain: does not find (PV ")
}

// Ensure that a pool that fills is reported without starting a process, and that a full pool is reported for
// each of its volumes.
func TestVMPoolFills(t *testing.T) {
	l := newLab(t)
	l.sh("lvcreate", "-q", "-y", "-L", "64M", "-T", "vg0/pool", "-V", "256M", "-n", "thin", "--errorwhenfull", "y")
	thin := l.present("thin")
	l.count("")
	state := func() Pool {
		t.Helper()
		all, err := l.PoolStates("vg0", []string{"pool", "none"})
		if err != nil || len(all) != 1 || !all[0].Active || all[0].Data.Total != 64*mib {
			t.Fatalf("got %+v %v", all, err)
		}
		return all[0]
	}
	fill := func(mb int) bool {
		return exec.Command("dd", "if=/dev/zero", "of="+l.device(thin).Path, "bs=1M", "count="+fmt.Sprint(mb), "oflag=direct", "conv=notrunc,fsync").Run() == nil
	}
	if p := state(); p.Trouble(80) != "" || p.Data.Used != 0 {
		t.Errorf("empty: %+v", p)
	}
	fill(54)
	if p := state(); !strings.Contains(p.Trouble(80), "84.4 % of the pool's data are used: lvextend -L +SIZE vg0/pool") || p.Full() != "" {
		t.Errorf("beyond the threshold: %q %+v", p.Trouble(80), p)
	}
	if d := l.device(thin); d.Unusable || d.Unsound != "" {
		t.Errorf("beyond the threshold: %+v", d)
	}
	if fill(100) {
		t.Error("100 MB fit into a pool of 64")
	}
	if p := state(); !strings.Contains(p.Full(), "the pool is full: writes fail") || p.Mode != "out_of_data_space" {
		t.Errorf("full: %q %+v", p.Full(), p)
	}
	if d := l.device(thin); !d.Unusable || !strings.Contains(d.Reason, "vg0/pool: the pool is full") || !strings.Contains(d.Reason, "lvextend -L +SIZE vg0/pool") {
		t.Errorf("full: %+v", d)
	}
	if n := l.count(""); n != 0 {
		t.Errorf("%d processes", n)
	}
	l.restart(Group{ThinPool: "pool"})
	var space *SpaceError
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "more"}, 8*mib, ""); !errors.As(err, &space) || !strings.Contains(err.Error(), "the pool is full") {
		t.Errorf("create: %v", err)
	}
	l.sh("lvextend", "-q", "-L", "+64M", "vg0/pool")
	if all, err := l.PoolStates("vg0", []string{"pool"}); err != nil || all[0].Full() != "" {
		t.Errorf("extended: %+v %v", all, err)
	}
	if d := l.device(thin); d.Unusable {
		t.Errorf("extended: %+v", d)
	}
	// A volume that has all its blocks may share them with one that is inactive.
	l.sh("lvcreate", "-q", "-y", "-V", "8M", "-T", "vg0/pool", "-n", "whole")
	l.Invalidate("")
	whole := l.present("whole")
	used := func() Usage {
		t.Helper()
		all, err := l.PoolStates("vg0", []string{"pool"})
		if err != nil || len(all) != 1 {
			t.Fatalf("got %+v %v", all, err)
		}
		return all[0].Data
	}
	write := func(lv volume.LV, seek, mb int64) {
		t.Helper()
		l.sh("dd", "if=/dev/zero", "of="+l.device(lv).Path, "bs=1M", fmt.Sprint("seek=", seek), fmt.Sprint("count=", mb), "oflag=direct", "conv=notrunc,fsync")
	}
	write(whole, 0, 8)
	write(thin, 64, used().Free()/mib)
	if p := used(); p.Free() != 0 {
		t.Errorf("%d bytes are free", p.Free())
	}
	for _, lv := range []volume.LV{whole, thin} {
		if d := l.device(lv); !d.Unusable {
			t.Errorf("no block is free: %+v", d)
		}
	}
	// A killed lvextend of a pool leaves its metadata device suspended.
	l.sh("sh", "-c", "dmsetup suspend --nolockfs vg0-pool_tmeta; dmsetup table vg0-pool_tmeta | dmsetup load vg0-pool_tmeta; dmsetup suspend --noflush vg0-whole")
	if d := l.device(whole); d.Unusable || !d.Suspended || !d.Loaded || d.SuspendedBelow != "/dev/mapper/vg0-pool_tmeta" {
		t.Errorf("its metadata device is suspended: %+v", d)
	}
	leases := []join.Lease{{UUID: thin.UUID, LV: "thin", Live: true}, {UUID: whole.UUID, LV: "whole", Live: true}}
	resume := "dmsetup clear vg0-pool_tmeta && dmsetup resume vg0-pool_tmeta && dmsetup resume vg0-whole"
	l.found("its metadata device is suspended", l.differ(nil, leases), "stale-mapping thin: the device vg0-pool_tmeta is suspended", "stale-mapping whole: "+resume)
	l.sh("sh", "-c", resume)
	l.found("resumed", l.differ(nil, leases))
	// What has failed is good for nothing.
	l.sh("sh", "-c", "dmsetup message vg0-pool-tpool 0 'reserve_metadata_snap' && dmsetup suspend vg0-pool-tpool && dmsetup table vg0-pool-tpool | sed 's/ error_if_no_space/ error_if_no_space read_only/; s/ 1 error/ 2 error/' | dmsetup load vg0-pool-tpool && dmsetup resume vg0-pool-tpool")
	if d := l.device(thin); !d.Unusable || !strings.Contains(d.Reason, "vg0/pool: the pool is read-only") {
		t.Errorf("read-only: %+v; %s", d, l.sh("dmsetup", "status", "vg0-pool-tpool"))
	}
}
