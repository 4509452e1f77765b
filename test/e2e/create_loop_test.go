//go:build !vm

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Files and loop devices that are not flexd's are not changed.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("mine", "ext4"), podN(1)
	file := h.Dir + "/vg0/mine"
	h.must(os.WriteFile(file, []byte("an operator's"), 0o600))
	h.must(os.Truncate(file, 16*mib))
	before := h.hash(file)
	for _, a := range []answer{h.up(noAttach, v, p), h.up(byKubelet, v, p), h.call("waitforattach", "", v.Blob(nil))} {
		h.refused(a, "vg0/mine", file+" was not created by flexd", "flexd uuid --new "+file)
	}
	// It is blank and has flexd's attribute, but was attached by hand.
	h.must(os.Truncate(file, 0))
	h.must(os.Truncate(file, 16*mib))
	h.sh(h.Flexd(), "uuid", "--new", file)
	dev := strings.TrimSpace(h.sh("losetup", "-f", "--show", file))
	h.refused(h.up(noAttach, v, p), "vg0/mine", dev, "not by flexd", "losetup -d "+dev)
	if n := len(h.Active()); n != 1 {
		t.Errorf("%d loop devices", n)
	}
	h.ok(h.call("detach", v.Name, node))
	if n := len(h.Active()); n != 1 {
		t.Errorf("%d loop devices", n)
	}
	if h.hash(file) == before {
		t.Error("the truncation of this test was undone")
	}
	h.losetupD(dev)
	h.ok(h.up(noAttach, v, p))
	h.end(noAttach, v, p)

	// A symlink, a directory, a fifo, a hard link.
	for _, row := range []struct {
		name string
		make func(file string) error
		word string
	}{
		{"symlink", func(f string) error { return os.Symlink(h.Dir+"/vg0/mine", f) }, "not a regular file"},
		{"directory", func(f string) error { return os.Mkdir(f, 0o755) }, "not a regular file"},
		{"fifo", func(f string) error { return unix.Mkfifo(f, 0o600) }, "not a regular file"},
		{"twice", func(f string) error { return os.Link(h.Dir+"/vg0/mine", f) }, "hard links"},
	} {
		h.must(row.make(h.Dir + "/vg0/" + row.name))
		h.refused(h.up(noAttach, h.vol(row.name, "ext4"), p), "vg0/"+row.name, row.word)
	}
}

// A file that was deleted and created again under its name is another volume, which no pod gets while the
// device of the first has the only copy of its data.
func TestRecreated(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p, q := podN(1), podN(2)
	for lv, m := range map[string]mode{"a": noAttach, "b": byKubelet} {
		v := h.vol(lv, "ext4")
		h.ok(h.up(m, v, p))
		h.write(v, p, "f", "old")
		old, device := h.story(lv).UUID, h.story(lv).Device
		h.must(os.Remove(h.Dir + "/vg0/" + lv))
		if m == byKubelet { // staged: kubelet would bind the new pod to the old volume
			h.refused(h.up(m, v, q), old)
		} else { // not unasked: its data may only be on a disk that is not there
			record := h.State + "/formats/" + old + ".json"
			h.refused(h.up(m, v, q), "does not exist", old, "vg0", record, "flexd check names the device")
			h.disagrees("dm-only", old, "only /dev/loop", "has its data", "cp --sparse=always /dev/loop")
			h.must(os.Remove(record))
		}
		h.restart()
		h.refused(h.up(m, v, q), old)
		h.reads(v, p, "f", "old")
		h.end(m, v, p)
		h.eventually("the device is kept", func() string {
			s := h.storyOf("-/" + old)
			if s.State == "failed" && s.Error != nil && strings.Contains(s.Error.Message, "the file of "+device+" was deleted") {
				return ""
			}
			return fmt.Sprintf("%+v", s)
		})
		h.refused(h.up(m, v, q), old)
		h.losetupD(device)
		if m == noAttach {
			h.ok(h.up(m, v, q))
			if _, err := os.Stat(h.PodDir(q, v) + "/f"); err == nil {
				t.Error("the new volume has the old one's file")
			}
			h.end(m, v, q)
		}
		h.quiet()
	}
}

// An mkfs that finds no space in the directory returns the space that it has taken, and the refusal names the
// directory: the tools print different causes, or none.
func TestMkfsWithoutRoom(t *testing.T) {
	t.Parallel()
	for _, fs := range []string{"xfs", "btrfs"} {
		h := newHost(t, func(h *host) { h.disk(h.Dir+"/vg0", "size=8m") })
		hog := h.Dir + "/vg0/.hog"
		h.must(os.WriteFile(hog, make([]byte, 7<<20), 0o600))
		h.volume("vg0/big", 400<<20, nil)
		v := h.vol("big", fs)
		h.refused(h.mount(v, podN(1)), "vg0/big: mount: mkfs", "the filesystem of "+h.Dir+"/vg0/big is full: make room there")
		h.must(os.Remove(hog))
		var st unix.Statfs_t
		h.must(unix.Statfs(h.Dir+"/vg0", &st))
		if st.Bfree+16 < st.Blocks {
			t.Errorf("%s: %d of %d blocks are free", fs, st.Bfree, st.Blocks)
		}
	}
}
