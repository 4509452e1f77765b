//go:build vm

package lvm

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// An origin and its thick snapshots, which device-mapper shows, are deactivated together, unless one of them
// is unknown or open.
func TestVMThickSnapshots(t *testing.T) {
	l := newLab(t)
	l.lvm("lvcreate -q -y -an -Zn -Wn -L 8M -n or-igin vg0", "lvcreate -q -y -s -L 4M -n s1 vg0/or-igin", "lvcreate -q -y -s -L 4M -n s2 vg0/or-igin",
		"lvcreate -q -y -Zn -Wn -L 8M -n other vg0", "lvcreate -q -y -s -L 4M -n s3 vg0/other")
	l.sh("lvchange", "-y", "-an", "vg0/or-igin")
	names := []string{"or-igin", "s1", "s2"}
	if got := l.present("s1").Family; len(got) != 2 {
		t.Errorf("family: %+v", got)
	}
	l.activate(l.present("s1"))
	for _, name := range names {
		var got []string
		for _, r := range l.device(l.present(name)).Relatives {
			got = append(got, r.Name.LV)
		}
		want := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
		if !slices.Equal(got, want) {
			t.Errorf("relatives of %s: got %v, want %v", name, got, want)
		}
	}

	s1 := l.present("s1")
	f, err := os.Open(l.device(l.present("or-igin")).Path)
	if err != nil {
		t.Fatal(err)
	}
	l.count("")
	d := l.device(s1)
	if r := d.Relatives[0]; r.Open != 1 {
		t.Errorf("got %+v", r)
	}
	if err := l.Deactivate(t.Context(), l.lock, s1, d); err == nil || !strings.Contains(err.Error(), "vg0/or-igin") || errors.As(err, new(*mount.BusyError)) {
		t.Errorf("the origin is open: %v", err)
	}
	f.Close()
	if err := l.Deactivate(t.Context(), l.lock, s1, volume.Device{}); err == nil || !strings.Contains(err.Error(), "together with vg0/or-igin") {
		t.Errorf("the origin is not known: %v", err)
	}
	if n := l.count(""); n != 0 {
		t.Errorf("%d commands", n)
	}
	l.deactivate(s1)
	for _, name := range names {
		if d := l.device(l.present(name)); d.Activity != volume.Inactive {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if d := l.device(l.present("s3")); d.Activity != volume.Active {
		t.Errorf("s3 belongs to another origin: %+v", d)
	}
}
