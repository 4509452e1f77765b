package e2e

import (
	"os"
	"strings"
	"testing"
)

// A refusal by the configuration names the key, and nothing is created.
func TestRefusedByConfiguration(t *testing.T) {
	t.Parallel()
	var nowhere string // as a refusal calls a group that is not there
	h := newHost(t, func(h *host) {
		var config string
		config, nowhere = h.missing("lost")
		h.settings.vg = `create: true, maxSize: 64MiB, namespaces: [default, "team-*"]`
		h.settings.groups = `  - {name: vg1, ` + h.group("vg1") + `, volumes: ["db-[0-9]*"]}
  - {name: lost, ` + config + "}\n"
	})
	v, p := h.vol("a", "ext4"), podN(1)
	other := func(vg, lv string) vol { return v.With("volumegroup", vg, "volumeID", lv) }
	for _, row := range []struct {
		v     vol
		p     pod
		words []string
	}{
		{v.With("size", "-"), p, []string{"vg0/a: mount", "does not exist", "option size"}},
		{v.With("size", "65Mi"), p, []string{"vg0/a: mount", "option size", "65 MiB", "maxSize", "64 MiB"}},
		{v, pod{Namespace: "kube-system", Name: "x", UID: "uid-x"}, []string{"vg0/a: mount", `namespace "kube-system"`, "team-*"}},
		{v, pod{Namespace: "", Name: "x", UID: "uid-x"}, []string{"vg0/a: mount", `namespace ""`}},
		{v, pod{Namespace: "team", Name: "x", UID: "uid-x"}, []string{`namespace "team"`}},
		{other("vg1", "db-1"), p, []string{"vg1/db-1: mount", "does not exist", "create: true", "names of the volume group"}},
		{other("vg1", "web"), p, []string{"vg1/web: mount", `volume "web"`, "db-[0-9]*"}},
		{other("vg9", "a"), p, []string{"vg9/a: mount", `"vg9" is not configured`, node, "check its name", "volumeGroups"}},
		{other("lost", "a"), p, []string{"lost/a: mount", "not found", nowhere}},
	} {
		h.refused(h.up(noAttach, row.v, row.p), row.words...)
		if row.p == p { // namespaces are only known to mount
			for i := range row.words {
				row.words[i] = strings.ReplaceAll(row.words[i], "mount", "waitforattach")
			}
			h.refused(h.call("waitforattach", "", row.v.Blob(nil)), row.words...)
		}
	}
	if all := h.volumes(); len(all) != 0 {
		t.Errorf("volumes: %q", all)
	}
	for _, s := range h.list().Volumes {
		if s.State != "refused" && s.State != "failed" || s.Error == nil {
			t.Errorf("status: %+v", s)
		}
	}
	if _, err := h.Get("/v1/volumes/vg0/other"); err == nil || !strings.Contains(err.Error(), ": 404 ") {
		t.Errorf("%v", err)
	}
	good := pod{Namespace: "team-a", Name: "x", UID: "uid-x"}
	h.refused(h.call("waitforattach", "", v.Blob(nil)), "vg0/a: waitforattach", "kubelet passes the namespace only at mount", "without attach")
	h.ok(h.up(noAttach, v, good))
	h.refused(h.call("expandfs", v.Blob(nil), "", h.PodDir(good, v), "67108865", "0"), "vg0/a: expandfs", "67108865 bytes", "maxSize", "64 MiB")
	// Mounted volumes are released, whatever the configuration contains.
	h.stop()
	h.settings.vg = `volumes: []`
	h.settings.groups = ""
	h.configure()
	h.start()
	h.refused(h.up(noAttach, v, p), "does not allow volume")
	h.ok(h.unmount(v, good))
	h.quiet()
}

// A volume group that is no longer configured: its mounts are released.
func TestGroupTakenFromConfiguration(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(byKubelet, v, p))
	h.stop()
	text, err := os.ReadFile(h.Config())
	h.must(err)
	h.must(os.WriteFile(h.Config(), []byte(strings.Split(string(text), "volumeGroups:")[0]), 0o600))
	h.start()
	h.refused(h.up(noAttach, v, podN(2)), "is not configured")
	h.end(byKubelet, v, p)
	if m := mounts(h.Dir); len(m) != 0 {
		t.Errorf("mounted: %q", m)
	}
	// Its device is released when the group is there again.
	h.stop()
	h.must(os.WriteFile(h.Config(), text, 0o600))
	h.start()
	h.quiet()
}
