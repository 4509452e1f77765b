//go:build vm

package lvm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// Both copies of a part of a raid10 fail one after the other, and return: the kernel would take the one that failed
// first for current.
func TestVMRAID10CopiesInTurn(t *testing.T) {
	l := newLab(t)
	l.wipe()
	l.sh("modprobe", "raid10")
	var disks []string
	var reloads []func(bool)
	for i, disk := range l.disks[:4] {
		path, reload := l.fragile(fmt.Sprint("disk", i), disk)
		disks, reloads = append(disks, path), append(reloads, reload)
	}
	reload := func(i int, fails bool) { t.Helper(); reloads[i](fails) }
	l.sh(append([]string{"vgcreate", "-q", "vg0"}, disks...)...)
	l.sh("lvcreate", "-q", "-y", "-Zn", "-Wn", "--type", "raid10", "-i2", "-m1", "-L", "32M", "-n", "a", "vg0")
	synced := func(letters string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !strings.Contains(l.sh("dmsetup", "status", "vg0-a"), " "+letters+" "); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(l.sh("dmsetup", "status", "vg0-a"))
			}
		}
	}
	synced("AAAA")
	write := func(text string) error {
		cmd := fmt.Sprintf("yes %s | dd of=/dev/vg0/a bs=1M count=32 iflag=fullblock oflag=direct conv=fsync status=none", text)
		if !l.try("sh", "-c", cmd) {
			return fmt.Errorf("dd failed")
		}
		return nil
	}
	if err := write("first"); err != nil {
		t.Fatal(err)
	}
	reload(0, true)
	if err := write("newer"); err != nil {
		t.Fatal(err)
	}
	reload(1, true)
	if write("lost") == nil {
		t.Fatal("a write without both copies succeeded: this proves nothing")
	}
	t.Log(l.sh("dmsetup", "status", "vg0-a"))
	l.sh("lvchange", "-q", "-an", "vg0/a")
	reload(0, false)
	reload(1, false)
	l.restart(Group{})

	lv := l.present("a")
	err := l.Activate(t.Context(), l.lock, lv)
	if volume.CodeOf(err) != volume.Damaged || !strings.HasSuffix(err.Error(), ": lvchange -ay vg0/a, then lvchange -y --rebuild "+disks[0]+" vg0/a") {
		t.Errorf("got %v", err)
	}
	l.sh("lvchange", "-q", "-ay", "vg0/a") // as it says
	l.sh("lvchange", "-q", "-y", "--rebuild", disks[0], "vg0/a")
	synced("AAAA")
	l.activate(lv)
	if got := l.sh("sh", "-c", "grep -c first /dev/vg0/a || true"); got != "0" {
		t.Errorf("%s lines are old", got)
	}
	l.deactivate(lv)
	l.activate(lv) // all legs have the same state again
	l.deactivate(lv)

	// One copy is out, and returns.
	l.activate(lv)
	reload(2, true)
	if err := write("newest"); err != nil {
		t.Fatal(err)
	}
	l.sh("lvchange", "-q", "-an", "vg0/a")
	reload(2, false)
	l.activate(lv)
	if got := l.sh("sh", "-c", "grep -cv newest /dev/vg0/a || true"); got > "1" {
		t.Errorf("%s lines are not the newest", got)
	}

	// More legs fail than a raid5 copes with.
	l.sh("lvremove", "-q", "-y", "vg0/a")
	l.sh("lvcreate", "-q", "-y", "-Zn", "-Wn", "--type", "raid5", "-i2", "-L", "32M", "-n", "a", "vg0", disks[0], disks[1], disks[2])
	synced("AAA")
	reload(0, true)
	reload(1, true)
	if write("lost") == nil {
		t.Fatal("a write without two legs succeeded: this proves nothing")
	}
	reload(0, false)
	reload(1, false)
	l.sh("lvchange", "-q", "-an", "vg0/a")
	l.restart(Group{})
	lv = l.present("a")
	err = l.Activate(t.Context(), l.lock, lv)
	if is(t, err, nil, "2 legs of the raid5 vg0/a have failed", "lvchange -y --resync vg0/a"); volume.CodeOf(err) != volume.Damaged {
		t.Errorf("got %v", err)
	}
	l.sh("lvchange", "-q", "-y", "--resync", "vg0/a") // as it says
	l.activate(lv)
}
