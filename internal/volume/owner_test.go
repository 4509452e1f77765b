package volume

import (
	"os/exec"
	"strings"
	"testing"
)

// A path with any bytes is one word for the shell.
func TestQuote(t *testing.T) {
	for _, path := range []string{"/srv/vg0/data", "/srv/my vols/it's", "/a;b$(c)`d`\"e\\", "/ü*", "~x", ""} {
		out, err := exec.Command("sh", "-c", "printf %s "+Quote(path)).Output()
		if err != nil || string(out) != path {
			t.Errorf("%q: got %q, %v", path, out, err)
		}
	}
	if got := Quote("/srv/vg0/data"); got != "/srv/vg0/data" {
		t.Errorf("got %s", got)
	}
}

// The commands of the remedies work when the device of now is gone.
func TestDataAdvice(t *testing.T) {
	lvm := LV{Name: Name{"vg0", "data"}, Size: 64 << 20}
	file := lvm
	file.File.Path = "/srv/vg0/data"
	for _, c := range []struct {
		lv     LV
		record Record
		words  string
	}{
		{lvm, NoRecord, "first: lvchange -ay vg0/data; blkid -p /dev/vg0/data; only if nothing in it is needed: lvchange -ay vg0/data; wipefs -a /dev/vg0/data && blkdiscard -z /dev/vg0/data"},
		{file, Formatting, "first: blkid -p /srv/vg0/data; only if nothing in it is needed: L=$(losetup -Lf --show /srv/vg0/data); wipefs -a $L && blkdiscard $L; losetup -d $L"},
		{lvm, Seen, "seen ext4 on it before: its data may still be there. Look at it: lvchange -ay vg0/data; wipefs /dev/vg0/data; if the ext4 is among the signatures, erase only the others: lvchange -ay vg0/data; wipefs -o OFFSET /dev/vg0/data."},
		{file, Seen, "Look at it: wipefs /srv/vg0/data; if the ext4 is among the signatures, erase only the others: L=$(losetup -Lf --show /srv/vg0/data); wipefs -o OFFSET $L; losetup -d $L."},
	} {
		p := planner{h: Have{LV: c.lv, Record: c.record, RecordType: "ext4", Device: Device{Path: "/dev/dm-7", Link: "/dev/vg0/data"}}}
		if got := p.dataAdvice(); !strings.Contains(got, c.words) || strings.Contains(got, "dm-7") || c.record == Seen && strings.Contains(got, "blkdiscard") {
			t.Errorf("%v: %s", c, got)
		}
	}
}
