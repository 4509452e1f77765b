package config

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReload(t *testing.T) {
	before := Default()
	before.VolumeGroups = []VolumeGroup{{Name: "vg0", Provider: "lvm", Namespaces: []string{"a"}, MaxSize: 1}, {Name: "old", Provider: "lvm"},
		{Name: "moved", Provider: "loopdev", Directory: "/a", Namespaces: []string{"a"}}}
	l := NewLive(before)
	next := *before
	next.Lease, next.LogLevel, next.RunDir, next.KubeletRoots = time.Hour, "debug", "/run/other", []string{"/other"}
	next.VolumeGroups = []VolumeGroup{{Name: "new", Provider: "lvm"}, {Name: "vg0", Provider: "lvm", Namespaces: []string{"b"}, MaxSize: 2},
		{Name: "moved", Provider: "loopdev", Directory: "/b", Namespaces: []string{"*"}}}
	want := []string{"kubeletRoots", "runDir", "volumeGroups: old is removed",
		"volumeGroups: directory of moved, and so its other keys", "volumeGroups: new is new"}
	if d := cmp.Diff(want, l.Reload(&next)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	c := *before
	c.Lease, c.LogLevel = time.Hour, "debug"
	c.VolumeGroups = []VolumeGroup{{Name: "vg0", Provider: "lvm", Namespaces: []string{"b"}, MaxSize: 2}, {Name: "old", Provider: "lvm"},
		{Name: "moved", Provider: "loopdev", Directory: "/a", Namespaces: []string{"a"}}}
	if d := cmp.Diff(&c, l.Get()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if before.Lease == time.Hour || len(next.VolumeGroups) != 3 {
		t.Error("an argument was changed")
	}
	if rest := l.Reload(&c); len(rest) != 0 {
		t.Errorf("%q", rest)
	}
	c.VolumeGroups[0].ZeroAll = true
	if rest := l.Reload(&c); len(rest) != 1 || l.VG("vg0").ZeroAll {
		t.Errorf("zero: %q", rest)
	}
}

// A reload either applies a changed key or reports it.
func TestEveryKeyReloads(t *testing.T) {
	var fields func(v reflect.Value) []reflect.Value
	fields = func(v reflect.Value) (all []reflect.Value) {
		for i := range v.NumField() {
			if f := v.Field(i); v.Type().Field(i).Anonymous {
				all = append(all, fields(f)...)
			} else if f.Type() != reflect.TypeFor[[]VolumeGroup]() {
				all = append(all, f)
			}
		}
		return all
	}
	for i := range fields(reflect.ValueOf(Default()).Elem()) {
		c, next := Default(), Default()
		f := fields(reflect.ValueOf(next).Elem())[i]
		switch f.Kind() {
		case reflect.String:
			f.SetString("other")
		case reflect.Int, reflect.Int64:
			f.SetInt(f.Int() + 1)
		case reflect.Slice:
			f.Set(reflect.ValueOf([]string{"other"}))
		default:
			t.Fatal(f.Type())
		}
		applied, restart := c.with(next)
		if taken := reflect.DeepEqual(applied, next); taken == slices.Contains([]int{1}, len(restart)) {
			t.Errorf("field %d: applied %v, restart %q", i, taken, restart)
		}
	}
}
