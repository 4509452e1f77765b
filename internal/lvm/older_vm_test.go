//go:build vm

package lvm

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// Ensure that no operation in a group with older metadata lets LVM write to the space of an active volume, or
// change its tables.
func TestVMOlderMetadata(t *testing.T) {
	l := newLab(t)
	for _, m := range []string{"dm-thin-pool", "dm-mirror", "dm-raid", "raid1", "dm-snapshot"} {
		l.sh("modprobe", m)
	}
	old, newest := filepath.Join(l.dir, "old"), filepath.Join(l.dir, "newest")
	restore := func(file string) {
		l.sh("vgcfgrestore", "-q", "-y", "--force", "-f", file, "vg0")
		l.Invalidate("")
	}
	data := filepath.Join(l.dir, "data")
	l.sh("dd", "if=/dev/urandom", "of="+data, "bs=1M", "count=60")
	first, second := l.disks[0], l.disks[1]
	activate := func(name string) func(context.Context) error {
		return func(ctx context.Context) error { return l.Activate(ctx, l.lock, l.present(name)) }
	}
	create := func(name string, size int64) func(context.Context) error {
		return func(ctx context.Context) error {
			return l.Create(ctx, l.lock, volume.Name{VG: "vg0", LV: name}, size, "")
		}
	}
	for _, c := range []struct {
		name, before string // the metadata that is restored
		change       string
		used         string // the volume that a pod uses then
		do           map[string]func(context.Context) error
	}{
		{"pool", "lvcreate -qy -L64M -T vg0/pool " + first + "; lvcreate -qy -V64M -T vg0/pool -n thin1; lvcreate -qy -V32M -T vg0/pool -n thin2; lvchange -q -an vg0/thin2",
			"pvmove -q -i1 " + first + " " + second, "thin1", map[string]func(context.Context) error{
				"activate": activate("thin2"),
				"create":   create("thin3", 16*mib),
				"extend": func(ctx context.Context) error {
					lv := l.present("thin1")
					return l.Extend(ctx, l.lock, lv, l.device(lv), 128*mib)
				},
			}},
		{"thin device", "lvcreate -qy -L64M -T vg0/pool " + first + "; lvcreate -qy -V64M -T vg0/pool -n thin1; lvcreate -qy -V64M -T vg0/pool -n twin; lvchange -q -an vg0/twin",
			"lvremove -q -y vg0/twin; lvcreate -qy -V64M -T vg0/pool -n new", "new", map[string]func(context.Context) error{
				"use": func(ctx context.Context) error {
					lv := l.present("twin")
					if err := l.Activate(ctx, l.lock, lv); err != nil {
						return err
					}
					if d := l.device(lv); d.Unusable && strings.Contains(d.Reason, "vg0-new") {
						return volume.Errorf(volume.Unusable, "%s", d.Reason)
					}
					return nil
				},
			}},
		{"RAID", "lvcreate -qy -an -Zn -Wn --type raid1 -m1 -L64M -n r vg0", "lvremove -q -y vg0/r; lvcreate -qy -L64M -n new vg0", "new",
			map[string]func(context.Context) error{"activate": activate("r")}},
		{"snapshot", "lvcreate -qy -Zn -Wn -L64M -n o vg0 " + second + "; lvcreate -qy -s -L64M -n s vg0/o " + first, "lvremove -q -y vg0/s; lvchange -q -an vg0/o; lvcreate -qy -L64M -n new vg0 " + first, "new",
			map[string]func(context.Context) error{"activate": activate("o")}},
		{"interrupted creation", "lvcreate -qy -an -Zn -Wn -L16M -n w vg0 " + first + "; lvcreate -qy -an -Zn -Wn -L32M --addtag flexd.creating -n x vg0 " + first, "lvremove -q -y vg0/w vg0/x; lvcreate -qy -L64M -n new vg0 " + first, "new",
			map[string]func(context.Context) error{"create": create("x", 32*mib)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.restart(Group{})
			if c.name == "pool" {
				l.restart(Group{ThinPool: "pool"})
			}
			l.sh("sh", "-ec", c.before)
			l.sh("vgcfgbackup", "-q", "-f", old, "vg0")
			l.sh("sh", "-ec", c.change)
			l.sh("vgcfgbackup", "-q", "-f", newest, "vg0")
			l.sh("dd", "if="+data, "of=/dev/vg0/"+c.used, "bs=1M", "oflag=direct")
			tables := l.sh("sh", "-c", "dmsetup table | grep -v '^vg0-\\(x\\|w\\|twin\\):' | sort")
			restore(old)
			for name, do := range c.do {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				if err := do(ctx); volume.CodeOf(err) != volume.Unusable {
					t.Errorf("%s: %v", name, err)
				}
				cancel()
			}
			l.sh("blockdev", "--flushbufs", "/dev/vg0/"+c.used)
			if !l.try("cmp", "-n", fmt.Sprint(60*mib), data, "/dev/vg0/"+c.used) {
				t.Error("the volume in use has other data")
			}
			if now := l.sh("sh", "-c", "dmsetup table | grep -v '^vg0-\\(x\\|w\\|twin\\):' | sort"); now != tables {
				t.Errorf("tables:\n%s\nnow:\n%s", tables, now)
			}
			l.try("dmsetup", "remove", "--noudevsync", "vg0-x")
			l.try("dmsetup", "remove", "--noudevsync", "vg0-twin")
			restore(newest)
			l.sh("vgchange", "-q", "-an", "vg0")
			l.sh("lvremove", "-q", "-y", "vg0")
			l.Invalidate("")
		})
	}
	// The origin of a sparse snapshot is zero, and not left by an interrupted activation.
	l.sh("lvcreate", "-q", "-y", "--type", "snapshot", "-V", "64M", "-L", "16M", "-n", "sparse", "vg0")
	l.Invalidate("")
	sparse := l.present("sparse")
	if d := l.device(sparse); d.Unusable || d.Activity != volume.Active {
		t.Errorf("got %+v", d)
	}
}
