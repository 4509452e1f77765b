//go:build !vm

package e2e

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What the configuration does not allow is refused by name, and nothing is made.
func TestRefusedByConfiguration(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(h *host) {
		h.must(os.MkdirAll(h.dir+"/vg1", 0o755))
		h.settings.vg = `create: true, maxSize: 64MiB, namespaces: [default, "team-*"]`
		h.settings.groups = `  - {name: vg1, provider: loopdev, directory: ` + h.dir + `/vg1, volumes: ["db-[0-9]*"]}
  - {name: lost, provider: loopdev, directory: ` + h.dir + "/not-there}\n"
	})
	v, p := h.vol("a", "ext4"), podN(1)
	other := func(vg, lv string) vol { return v.with("volumegroup", vg, "volumeID", lv) }
	for _, row := range []struct {
		v     vol
		p     pod
		words []string
	}{
		{v.with("size", "-"), p, []string{"vg0/a: mount", "does not exist", "option size"}},
		{v.with("size", "65Mi"), p, []string{"vg0/a: mount", "option size", "68157440", "maxSize", "67108864"}},
		{v, pod{"kube-system", "x", "uid-x"}, []string{"vg0/a: mount", `namespace "kube-system"`, "team-*"}},
		{v, pod{"", "x", "uid-x"}, []string{"vg0/a: mount", `namespace ""`}},
		{v, pod{"team", "x", "uid-x"}, []string{`namespace "team"`}},
		{other("vg1", "db-1"), p, []string{"vg1/db-1: mount", "does not exist", "create: true", "volumeID"}},
		{other("vg1", "web"), p, []string{"vg1/web: mount", `volume "web"`, "db-[0-9]*"}},
		{other("vg9", "a"), p, []string{"vg9/a: mount", `"vg9" is not configured`, node, "volumegroup", "volumeGroups"}},
		{other("lost", "a"), p, []string{"lost/a: mount", "not found", h.dir + "/not-there"}},
	} {
		h.refused(h.up(noAttach, row.v, row.p), row.words...)
		if row.p == p { // namespaces are only known to mount
			for i := range row.words {
				row.words[i] = strings.ReplaceAll(row.words[i], "mount", "waitforattach")
			}
			h.refused(h.call("waitforattach", "", row.v.blob(nil)), row.words...)
		}
	}
	for _, dir := range []string{h.dir + "/vg0", h.dir + "/vg1"} {
		if files, _ := os.ReadDir(dir); len(files) != 0 {
			t.Errorf("%s has %v", dir, files)
		}
	}
	for _, name := range []string{"a/b", "vg0/none"} {
		if code, body, err := h.get("/v1/volumes/" + name); code != 404 || err != nil {
			t.Errorf("%s: %d %s %v", name, code, body, err)
		}
	}
	good := pod{"team-a", "x", "uid-x"}
	h.refused(h.call("waitforattach", "", v.blob(nil)), "vg0/a: waitforattach", "only for some namespaces", "attach:false")
	h.ok(h.up(noAttach, v, good))
	h.refused(h.call("expandfs", v.blob(nil), "", h.podDir(v, good), "67108865", "0"), "vg0/a: expandfs", "67108865", "maxSize", "67108864")
	// What is mounted is let go, whatever the configuration says by now.
	h.stop()
	h.settings.vg = `volumes: []`
	h.settings.groups = ""
	h.configure()
	h.start()
	h.refused(h.up(noAttach, v, p), "does not allow volume")
	h.ok(h.unmount(v, good))
	h.quiet()
}

// A volume group that is no longer configured: its mounts are let go.
func TestGroupTakenFromConfiguration(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(byKubelet, v, p))
	h.stop()
	text, err := os.ReadFile(h.cfg)
	h.must(err)
	h.must(os.WriteFile(h.cfg, []byte(strings.Split(string(text), "volumeGroups:")[0]), 0o600))
	h.start()
	h.refused(h.up(noAttach, v, podN(2)), "is not configured")
	h.end(byKubelet, v, p)
	if m := mounts(h.dir); len(m) != 0 {
		t.Errorf("mounted: %q", m)
	}
	// Its device is let go when the group is there again.
	h.stop()
	h.must(os.WriteFile(h.cfg, text, 0o600))
	h.start()
	h.quiet()
}

// Files and loop devices that are not flexd's are not touched.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("mine", "ext4"), podN(1)
	file := h.dir + "/vg0/mine"
	h.must(os.WriteFile(file, []byte("an operator's"), 0o600))
	h.must(os.Truncate(file, 16*mib))
	before := h.hash(file)
	for _, a := range []answer{h.up(noAttach, v, p), h.up(byKubelet, v, p), h.call("waitforattach", "", v.blob(nil))} {
		h.refused(a, "vg0/mine", file+" was not made by flexd", "setfattr -n trusted.flexd.uuid")
	}
	// It is blank and handed over, but somebody has attached it himself.
	h.must(os.Truncate(file, 0))
	h.must(os.Truncate(file, 16*mib))
	files{h}.handOver("vg0/mine")
	dev := strings.TrimSpace(h.sh("losetup", "-f", "--show", file))
	h.refused(h.up(noAttach, v, p), "vg0/mine", dev, "not by flexd", "losetup -d "+dev)
	if n := len(h.active()); n != 1 {
		t.Errorf("%d loop devices", n)
	}
	h.ok(h.call("detach", v.name, node))
	if n := len(h.active()); n != 1 {
		t.Errorf("%d loop devices", n)
	}
	if h.hash(file) == before {
		t.Error("the truncation of this test was undone")
	}
	h.sh("losetup", "-d", dev)
	h.ok(h.up(noAttach, v, p))
	h.end(noAttach, v, p)

	// A symlink, a directory, a fifo, a hard link.
	for _, row := range []struct {
		name string
		make func(file string) error
		word string
	}{
		{"symlink", func(f string) error { return os.Symlink(h.dir+"/vg0/mine", f) }, "no regular file"},
		{"directory", func(f string) error { return os.Mkdir(f, 0o755) }, "no regular file"},
		{"fifo", func(f string) error { return unix.Mkfifo(f, 0o600) }, "no regular file"},
		{"twice", func(f string) error { return os.Link(h.dir+"/vg0/mine", f) }, "hard links"},
	} {
		h.must(row.make(h.dir + "/vg0/" + row.name))
		h.refused(h.up(noAttach, h.vol(row.name, "ext4"), p), "vg0/"+row.name, row.word)
	}
}

// A file that was deleted and made again under its name is another volume.
func TestRecreated(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p, q := podN(1), podN(2)
	for lv, m := range map[string]mode{"a": noAttach, "b": byKubelet} {
		v := h.vol(lv, "ext4")
		h.ok(h.up(m, v, p))
		h.write(v, p, "f", "old")
		old := h.story(lv).UUID
		h.must(os.Remove(h.dir + "/vg0/" + lv))

		// A new pod gets a new, empty volume; the old pod keeps its own.
		if m == noAttach {
			// Not unasked: its data may only be on a disk that is not there.
			record := h.stateDir + "/formats/" + old + ".json"
			h.refused(h.up(m, v, q), "does not exist", old, "vg0", record)
			h.must(os.Remove(record))
			h.ok(h.up(m, v, q))
			if _, err := os.Stat(h.podDir(v, q) + "/f"); err == nil {
				t.Error("the new volume has the old one's file")
			}
			fresh := ""
			for _, s := range h.list().Volumes {
				if s.LV == lv && s.UUID != old {
					fresh = s.UUID
				}
			}
			if fresh == "" {
				t.Errorf("status: %+v", h.list())
			}
			h.refused(h.call("mount", h.podDir(v, p), v.blob(&p)), old, fresh, h.podDir(v, p))
			h.ok(h.up(m, v, podN(3)))
			h.ok(h.unmount(v, podN(3)))
			h.kill()
			h.start()
			for range 5 { // after a look at each
				h.eventually("the name means the new volume", func() string {
					if s := h.story(lv); s.UUID != fresh {
						return s.UUID
					}
					return ""
				})
			}
			h.refused(h.call("expandfs", v.blob(nil), "", h.podDir(v, p), "33554432", "0"), old, fresh)
			h.reads(v, p, "f", "old")
			if text := h.show(); strings.Count(text, "vg0/a") < 2 {
				t.Errorf("status:\n%s", text)
			}
			h.end(m, v, p, q)
		} else {
			// Staged: kubelet would bind the new pod to the old volume.
			a := h.up(m, v, q)
			h.refused(a, old)
			h.reads(v, p, "f", "old")
			h.end(m, v, p)
		}
		h.quiet()
	}

	// Deleted, and not made again: the pod keeps it; then its space is free.
	v := h.vol("c", "ext4")
	h.ok(h.up(noAttach, v, p))
	h.must(os.Remove(h.dir + "/vg0/c"))
	h.kill()
	h.start()
	h.refused(h.up(noAttach, v.with("size", "-"), q), "vg0/c: mount", "does not exist")
	h.write(v, p, "f", "x")
	h.ok(h.unmount(v, p))
	h.quiet()
}
