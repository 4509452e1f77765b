//go:build vm

package lvm

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// segments returns the segments of the group's volumes, as `lvs` prints them: type,
// stripes, stripe size, and disks without the extents on them.
func (l *lab) segments() map[string][]string {
	l.Helper()
	all := map[string][]string{}
	out := l.sh("lvs", "--noheadings", "--separator", " ", "-o", "lv_name,segtype,stripes,stripe_size,devices", "vg0")
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 5 {
			l.Fatalf("lvs: %q", out)
		}
		var disks []string
		for d := range strings.SplitSeq(f[4], ",") {
			d, _, _ = strings.Cut(d, "(")
			disks = append(disks, d)
		}
		all[f[0]] = slices.Compact(append(all[f[0]], strings.Join(append(f[1:4], disks...), " ")))
	}
	return all
}

// Ensure that volumes are created and extended in the configured layout, on disks with its tag; and that an
// owner's volumes keep their layout.
func TestVMLayouts(t *testing.T) {
	l := newLab(t)
	first, second, third := l.disks[0], l.disks[1], l.disks[2]
	l.lvm(
		"pvchange -q --addtag fast "+second,
		"lvcreate -q -y -Zn -Wn -i 2 -I 128k -L 8M -n their-stripes vg0",
		"lvcreate -q -y -Zn -Wn --type raid1 -m 1 -L 8M -n their-mirror vg0",
		"lvcreate -q -y -Zn -Wn -L 8M -n their-line vg0 "+first,
	)
	were := l.segments()
	extend := func(name string, size int64) error {
		t.Helper()
		lv := l.present(name)
		return l.Extend(t.Context(), l.lock, lv, l.device(lv), size)
	}
	larger := func(name string, size int64) {
		t.Helper()
		if err := extend(name, size); err != nil {
			t.Fatal(err)
		}
		if d := l.device(l.present(name)); d.Size != size {
			t.Errorf("%s: got %+v, want %d bytes", name, d, size)
		}
	}
	create := func(name string, size int64, layout Layout) error {
		l.Groups["vg0"] = Group{Layout: layout}
		return l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: name}, size, "")
	}
	mirrored := Layout{Type: "raid1", Mirrors: 1}
	for _, layout := range []Layout{{}, {PVTag: "fast"}, {Type: "striped", Stripes: 2}, {Type: "raid0"}, {Type: "raid1"}} {
		l.Groups["vg0"] = Group{Layout: layout}
		l.lookUp("their-line")
		s, err := l.Space(t.Context(), "vg0", 1<<40)
		_, data, _ := layout.shape()
		fits := func(size int64) bool {
			argv := createArgs(l.Groups["vg0"], volume.Name{VG: "vg0", LV: "most"}, size/(4*mib), 4*mib, "")
			return l.try(append([]string{"lvm", argv[0], "--test"}, argv[1:]...)...)
		}
		if err != nil || s.Largest == 0 || !fits(s.Largest) || fits(s.Largest+int64(data)*4*mib) {
			t.Errorf("%+v: the largest volume is not of %d bytes: %v", layout, s.Largest, err)
		}
	}
	for name, layout := range map[string]Layout{
		"stripes": {Type: "striped", Stripes: 2, StripeSize: 65536},
		"mirror":  mirrored,
		"tagged":  {PVTag: "fast"},
	} {
		if err := create(name, 8*mib, layout); err != nil {
			t.Fatal(err)
		}
		larger(name, 24*mib)
	}
	is(t, create("large", 2500*mib, mirrored), ErrNoSpace, "volume group vg0", "free") // once there is
	l.save(t, "nospace-mirror", 1)

	// An owner's, and a configuration that would have had them made otherwise.
	l.Groups["vg0"] = Group{Layout: Layout{PVTag: "fast"}}
	for name := range were {
		larger(name, 16*mib)
	}
	are := l.segments()
	for name, want := range were {
		if !slices.Equal(are[name], want) {
			t.Errorf("%s was %q, and is %q", name, want, are[name])
		}
	}
	for name, want := range map[string]string{
		"stripes": "striped 2 64.00k " + first + " " + second,
		"mirror":  "raid1 2 0 mirror_rimage_0 mirror_rimage_1",
		"tagged":  "linear 1 0 " + second,
	} {
		if got := are[name]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}

	// No room on the disks of its tag, but on others.
	l.lvm("lvcreate -q -y -an -Zn -Wn -l 100%PVS -n fill vg0 " + second)
	is(t, extend("tagged", 64*mib), ErrNoSpace, "volume group vg0", "pvTag")
	l.save(t, "nospace-tag", 2)
	if lv := l.present("tagged"); lv.Size != 24*mib {
		t.Errorf("half extended: %+v", lv)
	}
	l.lvm("vgextend -q vg0 "+third, "pvchange -q --addtag fast "+third)
	larger("tagged", 64*mib)
	if got, want := l.segments()["tagged"], []string{"linear 1 0 " + second, "linear 1 0 " + third}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Ensure that groups on flexd's own volumes and on files are not seen.
func TestVMFilter(t *testing.T) {
	l := newLab(t)
	guests := l.lv("guest", "32M")
	l.activate(guests)
	// A guest's group on it, of the same name. LVM would not make it beside a
	// directory of that name.
	l.sh("mv", "/dev/vg0", "/dev/aside")
	inner := `--config 'devices{scan_lvs=1 filter=["a|^/dev/mapper/vg0-guest$|","r|.*|"]}'`
	l.lvm("vgcreate -q "+inner+" vg0 /dev/mapper/vg0-guest",
		"lvcreate -q -y -an -Zn -Wn -L 4M -n theirs "+inner+" vg0")
	l.sh("mv", "/dev/aside", "/dev/vg0")
	file := l.dir + "/file"
	l.sh("truncate", "-s", "32M", file)
	loop := l.sh("losetup", "-f", "--show", file)
	defer l.sh("losetup", "-d", loop)
	l.lvm("vgcreate -q vg1 "+loop, "lvcreate -q -y -an -Zn -Wn -L 4M -n data vg1")

	os.Remove("/run/lvm/hints") // in which LVM remembers where it need not look
	if !l.try("lvm", "lvs", "vg1/data") || l.try("lvm", "lvs", "--config", "devices/scan_lvs=1", "vg0/guest") {
		t.Fatal("LVM does not see it at all: the test proves nothing")
	}
	os.Remove("/run/lvm/hints")
	l.restart(Group{})
	if lv := l.present("guest"); lv.UUID != guests.UUID {
		t.Errorf("got %+v", lv)
	}
	if lv := l.lookUp("theirs"); lv.Presence != volume.Absent {
		t.Errorf("got %+v", lv)
	}
	_, err := l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: "data"})
	is(t, err, ErrNoVG, "vg1")
	l.deactivate(guests)
	l.activate(guests)

	// The host's own filter changes: no restart is needed.
	restore := l.host(`devices/filter=["r|^` + l.disks[0] + `$|"]`)
	l.Invalidate("")
	if lv := l.lookUp("guest"); lv.Presence != volume.Foreign {
		t.Errorf("its disk is rejected: got %+v", lv)
	}
	restore()
	l.present("guest")
}
