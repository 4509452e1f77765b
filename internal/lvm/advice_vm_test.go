//go:build vm

package lvm

import (
	"os"
	"reflect"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// The report settings of the host's lvm.conf have no effect.
func TestVMReportSettings(t *testing.T) {
	l := newLab(t)
	lv := l.lv("data", "8M")
	for _, settings := range []string{
		"report/prefixes=1", "report/buffered=0",
		"report { prefixes=1 quoted=0 aligned=0 headings=0 columns_as_rows=1 buffered=0 output_format=\"basic\" separator=\"|\" binary_values_as_numeric=1 compact_output=1 }\nlog { report_command_log=1 command_names=1 prefix=\" -- \" indent=0 }\nglobal { suffix=1 units=\"k\" }",
	} {
		restore := l.host(settings)
		l.restart(Group{})
		if got := l.present("data"); !reflect.DeepEqual(got, lv) {
			t.Errorf("%s: got %+v, want %+v", settings, got, lv)
		}
		restore()
	}
}

// An activation that lvm.conf forbids, and a group without an allocatable disk,
// fail with the setting to change.
func TestVMAdvice(t *testing.T) {
	l := newLab(t)
	lv := l.lv("data", "8M")
	restore := l.host(`activation/volume_list=["vg9","@here"]`)
	is(t, l.Activate(t.Context(), l.lock, lv), errNoDevice, `activation/volume_list=["vg9","@here"]`, `add "vg0" or "vg0/data"`)
	is(t, l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "new"}, 8*mib, ""), ErrFailed, `activation/volume_list=["vg9","@here"]`, `add "vg0" or "vg0/new"`)
	restore()
	l.activate(lv)

	l.sh("dmsetup", "create", "--noudevsync", "vg0-new", "--table", "0 8 error")
	is(t, l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "new"}, 8*mib, ""), ErrFailed, "another device with its name")
	l.save(t, "nametaken", 1)
	l.sh("dmsetup", "remove", "--noudevsync", "vg0-new")

	l.sh("pvchange", "-q", "-xn", l.disks[0], l.disks[1])
	l.Invalidate("")
	name := volume.Name{VG: "vg0", LV: "new"}
	advice := "are free on disks that are not allocatable: pvchange -xy " + l.disks[0] + " " + l.disks[1]
	is(t, l.Create(t.Context(), l.lock, name, 8*mib, ""), ErrNoSpace, " 0 bytes free", advice)
	is(t, l.Extend(t.Context(), l.lock, lv, l.device(lv), 64*mib), ErrNoSpace, advice)
	l.restart(Group{Layout: Layout{Type: "striped", Stripes: 2}}) // where LVM itself refuses
	l.sh("pvchange", "-q", "-xy", l.disks[0])
	l.Invalidate("")
	is(t, l.Create(t.Context(), l.lock, name, 8*mib, ""), ErrNoSpace, "are free on disks that are not allocatable: pvchange -xy "+l.disks[1])
}

// LVM does not activate a thin pool whose metadata was restored from before its last thin volume, until the
// newer metadata is restored.
func TestVMTransaction(t *testing.T) {
	l := newLab(t)
	dir := t.TempDir()
	l.sh("modprobe", "dm-thin-pool")
	l.lvm("lvcreate -q -y --type thin-pool -L 64M -n pool vg0", "lvcreate -q -y -V 16M -T vg0/pool -n data", "vgcfgbackup -q -f "+dir+"/older vg0",
		"lvcreate -q -y -V 16M -T vg0/pool -n later", "vgcfgbackup -q -f "+dir+"/newer vg0", "vgchange -q -an vg0",
		"vgcfgrestore -q -y --force -f "+dir+"/older vg0")
	lv := l.present("data")
	is(t, l.Activate(t.Context(), l.lock, lv), ErrFailed, "vgcfgrestore --force", "transaction_id is 2, while expected 1")
	l.save(t, "transaction", 2)
	l.lvm("vgcfgrestore -q -y --force -f " + dir + "/newer vg0")
	l.activate(lv)

	// While the pool is active, the volume whose creation made the newer metadata may be used.
	l.lvm("vgcfgrestore -q -y --force -f " + dir + "/older vg0")
	l.restart(Group{ThinPool: "pool"})
	name := volume.Name{VG: "vg0", LV: "new"}
	is(t, l.Create(t.Context(), l.lock, name, 16*mib, ""), ErrFailed, "vgcfgrestore --force", "unexpected transaction id 2, expecting 1")
	l.save(t, "transaction-active", 1)
	l.lvm("vgcfgrestore -q -y --force -f " + dir + "/newer vg0")

	// A thin volume that lvm.conf does not let LVM activate is created, but has no device.
	restore := l.host(`activation/volume_list=["vg9"]`)
	for range 2 {
		is(t, l.Create(t.Context(), l.lock, name, 16*mib, ""), errNoDevice, "activation/volume_list=", `add "vg0" or "vg0/new"`)
	}
	restore()
	if err := l.Create(t.Context(), l.lock, name, 16*mib, ""); err != nil {
		t.Error(err)
	}

	// A snapshot in use is to be merged into its inactive origin.
	l.lvm("lvcreate -q -y -s -n snap vg0/data", "lvchange -q -an vg0/data", "lvchange -q -ay -K vg0/snap")
	l.Invalidate("")
	snap := l.present("snap")
	f, err := os.Open(l.device(snap).Path)
	if err != nil {
		t.Fatal(err)
	}
	l.lvm("lvconvert -q -y --merge vg0/snap")
	l.Invalidate("")
	is(t, l.Activate(t.Context(), l.lock, lv), ErrFailed, "delete the pods that use the snapshot")
	l.save(t, "merging", 2)
	f.Close()
}
