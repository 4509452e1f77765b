package reconcile

import (
	"context"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/volume"
)

// Ensure that a device's change wakes its own lane, and only if that has not
// looked since, while a group's change wakes all of it.
func TestStirredWakesWhoMustLook(t *testing.T) {
	heard := time.Now()
	for _, c := range []struct {
		what    string
		volumes []volume.UUID
		looked  time.Time
		want    string
	}{
		{"a device", []volume.UUID{"a"}, heard.Add(-1), "a"},
		{"a device, looked at since", []volume.UUID{"a"}, heard.Add(1), ""},
		{"another device", []volume.UUID{"elsewhere"}, heard.Add(-1), ""},
		{"the group", nil, heard.Add(1), "ab"},
	} {
		n := New(Parts{Config: &config.Config{}})
		n.stop(context.Canceled) // lanes do not run: they only note that they should
		for _, uuid := range []volume.UUID{"a", "b"} {
			n.lanes[uuid] = &lane{n: n, uuid: uuid, name: volume.Name{VG: "vg0", LV: string(uuid)}, watched: &watchedMounts{began: c.looked}}
		}
		n.NotifyChanged("vg0", c.volumes, heard)
		got := ""
		for _, uuid := range []volume.UUID{"a", "b"} {
			if n.lanes[uuid].dirty {
				got += string(uuid)
			}
		}
		if got != c.want {
			t.Errorf("%s: wakes %q, want %q", c.what, got, c.want)
		}
	}
}
