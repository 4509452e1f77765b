package main

import (
	"testing"

	"github.com/flexd/flexd/internal/config"
	children "github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Both providers have the limits of the configuration in force, also after a reload.
func TestLimitsAfterReload(t *testing.T) {
	parse := func(limits string) *config.Config {
		t.Helper()
		c, err := config.Parse("test", []byte("runDir: "+t.TempDir()+"\nvolumeGroups:\n"+
			"- {name: files, provider: loopdev, directory: /srv/files, namespaces: [a], "+limits+"}\n"+
			"- {name: vg0, provider: lvm, thinPool: pool, namespaces: [a], "+limits+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	live := config.NewLive(parse("maxVolumes: 3, perNamespace: {maxTotalSize: 1GiB}"))
	k := providers(live, children.NewExec(), locks{})
	check := func(want volume.Limits) {
		t.Helper()
		if got := *k.loop.Limits("files"); got != want {
			t.Errorf("loopdev: %+v, want %+v", got, want)
		}
		if want.Reserve == 10 {
			want.Overcommit = true // the default with a thin pool
		}
		if got := *k.lvm.Limits("vg0"); got != want {
			t.Errorf("lvm: %+v, want %+v", got, want)
		}
		if k.lvm.Limits("none") != nil {
			t.Error("a group that is not configured has limits")
		}
	}
	check(volume.Limits{Group: volume.Limit{MaxVolumes: 3}, Namespace: volume.Limit{MaxTotalSize: 1 << 30}, Reserve: 10})
	live.Reload(parse("maxTotalSize: 2GiB, perNamespace: {maxVolumes: 1}, reserve: 0%, overcommit: false"))
	check(volume.Limits{Group: volume.Limit{MaxTotalSize: 2 << 30}, Namespace: volume.Limit{MaxVolumes: 1}})
}
