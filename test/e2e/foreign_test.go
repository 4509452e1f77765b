package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/flexd/flexd/test/umount"
	"golang.org/x/sys/unix"
)

// A new pod may have the volume while an unmount for an old pod fails as busy.
func TestBusyThenWantedAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, old, fresh := h.vol("again", "ext4"), podN(1), podN(2)
	h.ok(h.up(byKubelet, v, old))
	c := h.holder(h.PodDir(old, v))
	h.refused(h.unmount(v, old), "busy")
	h.ok(h.up(byKubelet, v, fresh))
	h.write(v, fresh, "f", "mine")
	c.Process.Kill()
	c.Wait()
	h.ok(h.unmount(v, old))
	h.reads(v, fresh, "f", "mine")
	h.end(byKubelet, v, fresh)
}

// A mount covers a directory of kubelet with flexd's mounts: they stay in the mount table, and no path leads
// to them.
func TestMountedOverKubeletsDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p, q := h.vol("a", "ext4"), podN(1), podN(2)
	h.ok(h.up(byKubelet, v, p))
	h.write(v, p, "f", "x")
	for _, below := range []string{"pods", "plugins"} {
		dir, again, release := h.PodDir(p, v), func() answer { return h.call("mount", h.PodDir(p, v), v.Blob(&p)) }, func() answer { return h.call("unmount", h.PodDir(p, v)) }
		if below == "plugins" {
			dir, again, release = h.GlobalDir(v), func() answer { return h.call("mountdevice", h.GlobalDir(v), "", v.Blob(nil)) }, func() answer { return h.call("unmountdevice", h.GlobalDir(v)) }
		}
		over := h.Root + "/" + below
		h.must(unix.Mount("foreign-source", over, "tmpfs", 0, "size=64k"))
		h.must(os.MkdirAll(dir, 0o750))
		h.refused(again(), "vg0/a", dir, "tmpfs", "foreign-source", over)
		h.refused(release(), "vg0/a", "tmpfs", over, "unmount that first")
		if below == "plugins" {
			h.must(os.MkdirAll(h.PodDir(q, v), 0o750))
			h.refused(h.call("mount", h.PodDir(q, v), v.Blob(&q)), "global mount", "covered", over)
		}
		h.eventually("status shows it", func() string {
			s := h.story("a")
			for _, c := range s.Claims {
				if c.Dir == dir && strings.Contains(c.Note, "covered") && strings.Contains(c.Note, over) {
					return ""
				}
			}
			return fmt.Sprintf("%+v", s)
		})
		h.must(umount.Plain(over))
		h.ok(again())
		h.reads(v, p, "f", "x")
	}
	h.end(byKubelet, v, p)
}

func TestForeignMounts(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	tmpfs := func(dir string) {
		t.Helper()
		h.must(unix.Mount("foreign-source", dir, "tmpfs", 0, "size=64k"))
	}
	for _, m := range []mode{noAttach, byKubelet} {
		v, p, q := h.vol(fmt.Sprintf("foreign-%d", len(m)), "ext4"), podN(1), podN(2)
		h.ok(h.up(m, v, q))
		h.write(v, q, "f", "data")
		name := "vg0/" + v.Options["volumeID"]

		// Under: where a mount is to be made there is one.
		dir, set, release := h.PodDir(p, v), func() answer { return h.call("mount", h.PodDir(p, v), v.Blob(&p)) }, func() answer { return h.call("unmount", h.PodDir(p, v)) }
		if m != noAttach {
			h.ok(h.unmount(v, q))
			h.ok(h.down(m, v))
			dir = h.GlobalDir(v)
			set, release = func() answer { return h.call("mountdevice", dir, "", v.Blob(nil)) }, func() answer { return h.call("unmountdevice", dir) }
		}
		h.sh("mkdir", "-p", dir)
		tmpfs(dir)
		h.must(os.WriteFile(dir+"/theirs", []byte("theirs"), 0o644))
		var before []byte
		if m != noAttach { // it is mounted nowhere
			h.eventually("the lease ends", func() string { return strings.Join(h.Active(), "; ") })
			before = h.content(name)
		}
		h.refused(set(), "vg0/"+v.Options["volumeID"], dir, "tmpfs", "foreign-source")
		h.refused(release(), dir, "tmpfs", "foreign-source", "unmount it by hand")
		if n := len(mounts(dir)); n != 1 {
			t.Errorf("%d mounts at %s", n, dir)
		}
		if got, err := os.ReadFile(dir + "/theirs"); string(got) != "theirs" {
			t.Errorf("the foreign mount holds %q, %v", got, err)
		}
		if before != nil && !bytes.Equal(h.content(name), before) {
			t.Errorf("%s was written", name)
		}
		h.must(umount.Plain(dir))

		// Over: ours is covered.
		h.ok(set())
		h.must(os.WriteFile(dir+"/ours", []byte("ours"), 0o644))
		tmpfs(dir)
		h.must(os.WriteFile(dir+"/theirs", []byte("theirs"), 0o644))
		h.refused(release(), "vg0/"+v.Options["volumeID"], dir, "tmpfs", "foreign-source", "unmount that first")
		h.refused(set(), dir, "tmpfs")
		if n := len(mounts(dir)); n != 2 {
			t.Errorf("%d mounts at %s", n, dir)
		}
		h.eventually("status shows it", func() string {
			s := h.story(v.Options["volumeID"])
			for _, c := range s.Claims {
				if c.Dir == dir && strings.Contains(c.Note, "covered") && strings.Contains(c.Note, "tmpfs") {
					return ""
				}
			}
			return fmt.Sprintf("%+v", s)
		})
		if got, err := os.ReadFile(dir + "/theirs"); string(got) != "theirs" {
			t.Errorf("the foreign mount holds %q, %v", got, err)
		}
		h.must(umount.Plain(dir))
		h.ok(release())
		h.ok(h.up(m, v, q))
		h.reads(v, q, "f", "data")
		h.reads(v, q, "ours", "ours")
		h.end(m, v, p, q)
	}
}

// If a volume is mounted by something else, anywhere, no pod gets it meanwhile, and the findings are
// reported.
func TestMountedBySomethingElse(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(h *host) { h.shared(h.Root) })
	p, q := podN(1), podN(2)
	const others = 3 // of other drivers, whose pods may run: those are not to be unmounted by hand
	for i, below := range []string{
		"pods/" + p.UID + "/volumes/kubernetes.io~csi/data/mount",
		"plugins/kubernetes.io/csi/x.example.org/0123/globalmount",
		"pods/" + p.UID + "/volumes/other~lvm/data",
		"pods/" + p.UID + "/volume-subpaths/data/c",
		"pods",
	} {
		for _, bind := range []bool{false, true} {
			v := h.vol(fmt.Sprintf("foreign-%d-%v", i, bind), "ext4")
			lv, dir := v.Options["volumeID"], h.Root+"/"+below
			h.must(os.MkdirAll(dir, 0o755))
			h.ok(h.up(noAttach, v, p))
			source, flags, kind := h.PodDir(p, v), uintptr(unix.MS_BIND), ""
			if !bind {
				source, flags, kind = strings.TrimSpace(h.sh("findmnt", "-no", "SOURCE", source)), 0, "ext4"
			}
			h.must(unix.Mount(source, dir, kind, flags, ""))
			if below == "pods" { // covers p's
				h.must(os.MkdirAll(h.PodDir(q, v), 0o755))
			}
			by, hint := " by something else", "umount "+dir
			if i < others {
				by, hint = " by another driver of kubelet: delete the pod", "Do not unmount it by hand"
			}
			h.refused(h.up(noAttach, v, q), "vg0/"+lv, "mounted at "+dir+by)
			h.disagrees("mounted-unknown", h.story(lv).UUID, dir, hint)
			h.must(umount.Plain(dir))
			h.ok(h.up(noAttach, v, q))
			h.end(noAttach, v, p, q)
		}
	}
	v := h.vol("foreign-left", "ext4") // an operator has unmounted the volume of a pod with a subPath
	h.ok(h.up(noAttach, v, p))
	dir := h.Root + "/pods/" + p.UID + "/volume-subpaths/data/c/0"
	h.must(os.MkdirAll(dir, 0o755))
	h.must(unix.Mount(h.PodDir(p, v), dir, "", unix.MS_BIND, ""))
	h.must(umount.Plain(h.PodDir(p, v)))
	h.refused(h.up(noAttach, v, q), "vg0/"+v.Options["volumeID"], "mounted at "+dir+", as a subPath of a pod whose own mount of the volume is gone: delete that pod")
	h.disagrees("mounted-unknown", h.story(v.Options["volumeID"]).UUID, dir, "restart kubelet")
	h.must(umount.Plain(dir))
	h.ok(h.up(noAttach, v, q))
	h.end(noAttach, v, p, q)
	h.eventually("the leases end", func() string { return strings.Join(append(h.Active(), h.Notes()...), "; ") })
	h.take(h.Root)
}

// A bound directory of a btrfs, or another subvolume, is not the volume: no pod gets it, and check reports
// it. The default subvolume is, even if the notes are lost or it is changed.
func TestBtrfsSubvolumes(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.btrfs", "btrfs")
	h := newHost(t)
	v, p, q := h.vol("a", "btrfs"), podN(1), podN(2)
	h.ok(h.up(noAttach, v, p))
	dir, other := h.PodDir(p, v), h.PodDir(q, v)
	id, device := h.story("a").UUID, h.story("a").Device
	h.must(os.MkdirAll(dir+"/backup/old", 0o755))
	mount := func(p pod) answer { // kubelet itself asks only if nothing is mounted there
		h.must(os.MkdirAll(h.PodDir(p, v), 0o750))
		return h.call("mount", h.PodDir(p, v), v.Blob(&p))
	}
	h.must(os.MkdirAll(other, 0o755))
	h.sh("btrfs", "subvolume", "snapshot", dir, dir+"/snap")
	h.sh("btrfs", "subvolume", "snapshot", dir, dir+"/new, too")
	for _, source := range []string{"/backup/old", "/snap"} {
		h.must(unix.Mount(dir+source, other, "", unix.MS_BIND, ""))
		h.disagrees("mounted-unknown", id, source+" of the btrfs", other)
		h.refused(mount(q), "vg0/a", other, "by something else")
		h.restart()
		h.refused(mount(q), "vg0/a", other, "by something else")
		h.must(umount.Plain(other))

		h.must(unix.Mount(dir+source, dir, "", unix.MS_BIND, ""))
		h.disagrees("covered", id, source+" of the btrfs", "unmount what covers it")
		h.must(umount.Plain(dir))
	}

	h.must(umount.Plain(dir))
	h.sh("mount", "-o", "subvol=snap", device, dir)
	for range 2 {
		h.disagrees("claimed-missing", id, "/snap of the btrfs", "in place of the volume")
		h.refused(mount(p), "vg0/a", dir, "by something else")
		h.restart()
	}
	h.must(umount.Plain(dir))
	h.ok(mount(p))

	for _, lost := range []bool{false, true} {
		h.sh("btrfs", "subvolume", "set-default", dir+map[bool]string{false: "/snap", true: "/new, too"}[lost])
		h.ok(mount(q)) // it gets another subvolume than p
		h.write(v, q, "f", fmt.Sprint(lost))
		for range 2 {
			h.kill()
			if lost {
				h.must(os.RemoveAll(h.Run + "/notes"))
			}
			h.start()
			h.ok(mount(q))
			h.ok(mount(p))
			if out, code := h.check(); code != 0 {
				t.Errorf("notes lost %v:\n%s", lost, out)
			}
		}
		h.end(noAttach, v, p, q)
		h.ok(h.up(noAttach, v, p)) // the same as q
		h.reads(v, p, "f", fmt.Sprint(lost))
		h.must(os.MkdirAll(other, 0o755))
		h.sh("mount", "-o", "subvolid=5", h.story("a").Device, other)
		h.refused(mount(q), "vg0/a", other, "by something else")
		if !lost {
			h.sh("btrfs", "subvolume", "snapshot", other, dir+"/new, too")
		}
		h.must(umount.Plain(other))
	}
	h.end(noAttach, v, p)
}

// The subvolume that a pod has mounted is deleted: check reports it, and kubelet can unmount it, also if the notes are lost.
func TestSubvolumeDeleted(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.btrfs", "btrfs")
	h := newHost(t)
	v, p, q := h.vol("a", "btrfs"), podN(1), podN(2)
	h.ok(h.up(noAttach, v, p))
	dir := h.PodDir(p, v)
	for _, lost := range []bool{false, true} {
		h.sh("btrfs", "subvolume", "create", dir+"/sub")
		h.sh("btrfs", "subvolume", "set-default", dir+"/sub")
		h.ok(h.up(noAttach, v, q))
		h.sh("btrfs", "subvolume", "set-default", "5", dir)
		h.sh("btrfs", "subvolume", "delete", dir+"/sub")
		h.eventually("check reports it", func() string { // no event does
			if out, _ := h.check(); !strings.Contains(out, "vg0/a  faulty") || !strings.Contains(out, h.PodDir(q, v)) || !strings.Contains(out, "was deleted") {
				return out
			}
			return ""
		})
		if lost {
			h.kill()
			h.must(os.RemoveAll(h.Run + "/notes"))
			h.start()
		}
		h.ok(h.unmount(v, q))
		h.ok(h.up(noAttach, v, q))
		h.ok(h.unmount(v, q))
	}
	h.end(noAttach, v, p)
}

// leak runs a program in a new mount namespace, which has a copy of all mounts of this test, until it is
// killed; first it runs a command there.
func (h *host) leak(first ...string) *exec.Cmd {
	h.t.Helper()
	// Not the mounts of other tests, which run at the same time.
	own := `awk '$5 ~ "^/.*/flexd-e2e-" && index($5, "` + filepath.Dir(h.Run) + `/") != 1 {print $5}' /proc/self/mountinfo | tac | xargs -r -n 1 umount -l; `
	c := exec.Command("unshare", append([]string{"-m", "--propagation", "private", "sh", "-c", own + `"$@" && echo && exec sleep 1000`, "sh"}, first...)...)
	out, err := c.StdoutPipe()
	h.must(err)
	h.must(c.Start())
	h.t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	out.Read(make([]byte, 1)) // the copy is made
	return c
}

// namespace returns the mount namespace of a process, as lsns(8) numbers it.
func namespace(t *testing.T, pid int) string {
	t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// Another mount namespace has a copy of the mount, as a container runtime may leave one: no other pod gets
// its superblock, and the error names its holder.
func TestHeldInOtherNamespace(t *testing.T) {
	t.Parallel()
	need(t, "unshare")
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()
			heldInOtherNamespace(t, fsType)
		})
	}
}

func heldInOtherNamespace(t *testing.T, fsType string) {
	h := newHost(t)
	v, p := h.vol("held", fsType), podN(1)
	h.ok(h.up(noAttach, v, p))
	c := h.leak("true")
	// Kubelet's rmdir of the directory would take the copy away with it.
	mount := func(p pod) answer {
		h.must(os.MkdirAll(h.PodDir(p, v), 0o750))
		return h.call("mount", h.PodDir(p, v), v.Blob(&p))
	}
	h.ok(h.call("unmount", h.PodDir(p, v)))
	words := []string{fmt.Sprintf("is busy: pid %d (", c.Process.Pid), "mounted in its mount namespace " + namespace(t, c.Process.Pid) + " at " + h.PodDir(p, v)}
	h.refused(mount(p), append(words, "vg0/held: mount: ")...)
	h.eventually("status shows why it stays active", func() string {
		if s := h.story("held"); s.State == "failed" && s.Error.Step == "deactivate" && strings.Contains(s.Error.Message, words[0]) && strings.Contains(s.Error.Message, words[1]) {
			return ""
		} else {
			return fmt.Sprintf("%+v %+v", s, s.Error)
		}
	})
	// Several calls that wait for one step get the same answer.
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			a := mount(podN(i))
			h.refused(a, words...)
			if strings.Count(a.Message, "is busy") != 1 {
				t.Errorf("it stutters: %s", a)
			}
		})
	}
	all.Wait()
	c.Process.Kill()
	c.Wait()
	h.ok(h.up(noAttach, v, p))
	h.end(noAttach, v, p)
}

// A process or a loop device that has the device open, as for a VM's disk or a volumeMode: Block volume,
// counts as a user: nothing is written below it.
func TestPlainOpen(t *testing.T) {
	t.Parallel()
	need(t, "losetup")
	h := newHost(t)
	p := podN(1)
	for _, fsType := range []string{"ext4", "xfs"} {
		v := h.vol("open-"+fsType, fsType)
		name := v.Options["volumeID"]
		h.ok(h.up(noAttach, v, p))
		h.write(v, p, "f", "x")
		dev := h.story(name).Device
		for _, by := range []string{"process", "loop device"} {
			var word string
			var end func()
			if by == "process" {
				f, err := os.OpenFile(dev, os.O_RDWR, 0)
				h.must(err)
				word, end = fmt.Sprintf("pid %d (", os.Getpid()), func() { f.Close() }
			} else {
				l := strings.TrimSpace(h.sh("losetup", "-f", "--show", dev))
				word, end = l+" is a loop device on it", func() { h.sh("losetup", "-d", l) }
			}
			h.ok(h.call("unmount", h.PodDir(p, v)))
			h.sh("sync", dev)
			before := h.sh("cksum", dev)
			h.must(os.MkdirAll(h.PodDir(p, v), 0o750))
			h.refused(h.call("mount", h.PodDir(p, v), v.Blob(&p)), "vg0/"+name+": mount: ", "is busy", word, "end that use first")
			h.eventually("status shows why it stays active", func() string {
				if s := h.story(name); s.State == "failed" && s.Error.Step == "deactivate" && strings.Contains(s.Error.Message, word) {
					return ""
				} else {
					return fmt.Sprintf("%+v %+v", s, s.Error)
				}
			})
			if now := h.sh("cksum", dev); now != before {
				t.Errorf("%s: the device was written below a %s", fsType, by)
			}
			end()
			h.ok(h.up(noAttach, v, p))
			h.reads(v, p, "f", "x")
			dev = h.story(name).Device
		}
		h.end(noAttach, v, p)
	}
}

// An unmount while a backup has the filesystem frozen leaves the filesystem active without a mount: no pod
// gets it, and the remedy thaws it.
func TestFrozen(t *testing.T) {
	t.Parallel()
	need(t, "fsfreeze")
	h := newHost(t)
	p := podN(1)
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		v := h.vol("frozen-"+fsType, fsType)
		name := v.Options["volumeID"]
		h.ok(h.up(noAttach, v, p))
		h.write(v, p, "f", "x")
		dir, dev := h.PodDir(p, v), h.story(name).Device
		h.sh("fsfreeze", "-f", dir)
		h.ok(h.call("unmount", dir))
		thaw := fmt.Sprintf("mount %s /mnt; fsfreeze -u /mnt; umount /mnt", dev)
		h.must(os.MkdirAll(dir, 0o750))
		h.refused(h.call("mount", dir, v.Blob(&p)), "the "+fsType+" on it is active in the kernel, but not mounted in the namespace of any process", thaw)
		h.eventually("status shows why it stays active", func() string {
			if s := h.story(name); s.State == "failed" && s.Error.Step == "deactivate" && strings.Contains(s.Error.Message, thaw) {
				return ""
			} else {
				return fmt.Sprintf("%+v %+v", s, s.Error)
			}
		})
		h.must(os.MkdirAll(h.Dir+"/thaw", 0o700))
		h.sh("sh", "-ec", strings.ReplaceAll(thaw, "/mnt", h.Dir+"/thaw"))
		h.ok(h.up(noAttach, v, p))
		h.reads(v, p, "f", "x")
		h.end(noAttach, v, p)
	}
}
