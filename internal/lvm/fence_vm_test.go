//go:build vm

package lvm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/host"
)

// A fence of volumes in use ends in time for any layout, and so do their unmount and deactivation. Nothing is
// written to the disks after it, and they can be used again.
func TestVMFence(t *testing.T) {
	kinds := []struct {
		name    string
		make    []string
		volumes []string
	}{
		{"linear", []string{"lvcreate -q -y -an -Zn -Wn -L 32M -n v vg0"}, []string{"v"}},
		{"raid1", []string{"lvcreate -q -y --nosync --type raid1 -m1 -L 32M -n v vg0", "lvcreate -q -y -s -L 32M -n w vg0/v"}, []string{"v", "w"}},
		{"integrity", []string{"lvcreate -q -y --type raid1 -m1 --raidintegrity y -L 32M -n v vg0"}, []string{"v"}},
		{"thin", []string{"lvcreate -q -y -L 96M -T vg0/pool", "lvcreate -q -y -V 32M -n v -T vg0/pool", "lvcreate -q -y -V 32M -n w -T vg0/pool", "lvcreate -q -y -s -L 32M -n s vg0/v", "vgchange -an vg0"}, []string{"v", "w", "s"}},
		{"snapshot", []string{"lvcreate -q -y -Zn -Wn -L 32M -n v vg0", "lvcreate -q -y -s -L 32M -n w vg0/v"}, []string{"v", "w"}},
		{"cache", []string{"lvcreate -q -y -an -Zn -Wn -L 32M -n v vg0", "lvcreate -q -y -an -Zn -Wn -L 16M -n fast vg0", "lvconvert -q -y --type cache --cachevol fast vg0/v"}, []string{"v"}},
		{"writecache", []string{"lvcreate -q -y -an -Zn -Wn -L 32M -n v vg0", "lvcreate -q -y -an -Zn -Wn -L 16M -n fast vg0", "lvconvert -q -y --type writecache --cachevol fast vg0/v"}, []string{"v"}},
	}
	if host.Times(len(kinds)) < len(kinds) { // some of them, drawn at random
		host.Random(t).Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		kinds = kinds[:3]
	}
	for _, kind := range kinds {
		if !t.Run(kind.name, func(t *testing.T) {
			l := newLab(t)
			l.lvm(kind.make...)
			var stop []func()
			for _, name := range kind.volumes {
				dir := filepath.Join(l.dir, name)
				d := l.activate(l.present(name))
				l.sh("sh", "-c", "mkdir "+dir+" && mkfs.ext4 -q "+d.Path+" && mount "+d.Path+" "+dir+" && cp /etc/services "+dir+"/kept && sync -f "+dir)
				write := exec.Command("sh", "-c", "while :; do dd if=/dev/zero of="+dir+"/busy bs=64k count=100 oflag=dsync conv=notrunc; done")
				if err := write.Start(); err != nil {
					t.Fatal(err)
				}
				stop = append(stop, func() { _ = write.Process.Kill(); _ = write.Wait() })
			}
			time.Sleep(500 * time.Millisecond)
			if kind.name == "integrity" { // its journal keeps only what is not synced
				stop[0]()
			}
			sector := func(name, number string) {
				l.try("dd", "if=/dev/zero", "of="+l.device(l.present(name)).Path, "bs=512", "count=1", "seek="+number, "oflag=direct", "conv=notrunc", "status=none")
			}
			for _, name := range kind.volumes {
				sector(name, "59904") // of a free block, and the first of a thin pool's chunk
			}
			within := func(what string, f func() error) {
				t.Helper()
				done := make(chan error, 1)
				go func() { done <- f() }()
				select {
				case err := <-done:
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
				case <-time.After(20 * time.Second):
					t.Fatalf("%s does not end", what)
				}
			}
			for i, name := range kind.volumes {
				began := time.Now()
				within("the fence of "+name, func() error { return l.Fence(t.Context(), volume.Taken{UUID: l.present(name).UUID}) })
				t.Logf("%s: fenced in %s", name, time.Since(began))
				if m, _, err := l.find(l.present(name).UUID); err != nil || !fenced(m) {
					t.Errorf("%s: %+v %v", name, m, err)
				}
				for _, other := range kind.volumes[i+1:] {
					sector(other, "60000") // a snapshot copies its own chunk first
				}
			}
			before := l.written()
			for i, name := range kind.volumes {
				stop[i]()
				within("the unmount of "+name, func() error {
					dir := filepath.Join(l.dir, name) // dmeventd unmounts an invalid snapshot, and a writer ends
					return exec.Command("sh", "-c", "while mountpoint -q "+dir+"; do umount "+dir+" || sleep 0.2; done").Run()
				})
			}
			for _, name := range kind.volumes {
				within("the deactivation of "+name, func() error {
					lv := l.present(name)
					return l.Deactivate(t.Context(), l.lock, lv, l.device(lv))
				})
			}
			if after := l.written(); after != before {
				t.Errorf("written after the fence: %s, then %s", before, after)
			}
			for _, name := range kind.volumes {
				d, dir := l.activate(l.present(name)), filepath.Join(l.dir, name)
				l.sh("sh", "-c", "e2fsck -fy "+d.Path+" >/dev/null; [ $? -lt 4 ] && mount "+d.Path+" "+dir+" && cmp /etc/services "+dir+"/kept && umount "+dir)
			}
			for _, name := range kind.volumes {
				if lv := l.present(name); l.device(lv).Activity == volume.Active {
					l.deactivate(lv)
				}
			}
		}) {
			break // it may have left what hangs
		}
	}
}

// written returns the numbers of sectors written to the disks.
func (l *lab) written() string {
	l.Helper()
	var all []string
	for _, d := range l.disks {
		stat, err := os.ReadFile("/sys/block/" + filepath.Base(d) + "/stat")
		if err != nil {
			l.Fatal(err)
		}
		all = append(all, strings.Fields(string(stat))[6])
	}
	return strings.Join(all, " ")
}
