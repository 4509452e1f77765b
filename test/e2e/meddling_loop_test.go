//go:build !vm

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/test/umount"
	"golang.org/x/sys/unix"
)

// actions returns changes of a loop device, at any point of a volume's life.
func (h *host) actions() []action {
	return []action{{"losetup -d", func(_ vol, device string) trace {
		if out, err := exec.Command("losetup", "-d", device).CombinedOutput(); err != nil && !strings.Contains(string(out), "No such device") { // flexd may have been faster
			h.t.Fatalf("losetup -d %s: %v: %s", device, err, out)
		}
		return trace{}
	}}}
}

// losetupD is losetup -d, and waits for its effect: another test may have the device open.
func (h *host) losetupD(device string) {
	h.t.Helper()
	h.sh("losetup", "-d", device)
	h.eventually(device+" is detached", func() string {
		file, _ := os.ReadFile("/sys/block/" + filepath.Base(device) + "/loop/backing_file")
		return string(file)
	})
}

// The files of volumes in use are renamed, replaced and removed. flexd reports this at once, without a mount
// or a call; a mounted volume stays until kubelet unmounts it.
func TestMeddlingWithFiles(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p, q := podN(1), podN(2)
	v, a, b := h.vol("a", "ext4"), h.Dir+"/vg0/a", h.Dir+"/vg0/b"
	h.ok(h.up(byKubelet, v, p))
	h.write(v, p, "f", "x")
	id := h.story("a").UUID
	uuid := "-/" + id

	h.must(os.Rename(a, b))
	h.noticed("renamed", uuid, func(s volumeStatus) bool { return s.State == "missing" })
	h.disagrees("stale-mapping", id, "renamed to b")
	h.refused(h.mount(v, q), "vg0/a", "does not exist", id, "vg0/b")
	h.must(os.Rename(b, a))
	h.noticed("renamed back", uuid, func(s volumeStatus) bool { return s.State == "mounted" })

	other := "bbbbbbbb-0000-4000-8000-00000000000b"
	h.must(unix.Setxattr(a, "trusted.flexd.uuid", []byte(other), 0))
	h.noticed("made another volume", uuid, func(s volumeStatus) bool { return s.sees("is another volume by now", other) })
	h.must(unix.Setxattr(a, "trusted.flexd.uuid", []byte(id), 0))
	h.noticed("the same again", uuid, func(s volumeStatus) bool { return s.State == "mounted" })

	// Copied with its attributes: nothing was renamed.
	h.sh("cp", "-a", a, b)
	h.disagrees("stale-mapping", id, "the files "+a+" and "+b+" have the same uuid", a+" is in use", "flexd uuid --new "+b)
	if out, _ := h.check(); strings.Contains(out, "renamed to") || strings.Contains(out, "lvrename") {
		t.Errorf("a copy, and flexd check says\n%s", out)
	}
	if out, err := exec.Command(h.Flexd(), "uuid", "--new", a).CombinedOutput(); err == nil || !strings.Contains(string(out), "its uuid must stay while it is used") {
		t.Errorf("a new uuid for a volume in use: %v: %s", err, out)
	}
	if out := h.sh(h.Flexd(), "uuid", "--new", b); !strings.Contains(out, "it was "+id) {
		t.Error(out)
	}
	if out, code := h.check(); code != 0 {
		t.Errorf("the copy has a uuid of its own; flexd check: exit status %d, want 0:\n%s", code, out)
	}
	h.reads(v, p, "f", "x")

	h.must(os.Remove(a))
	h.noticed("removed", uuid, func(s volumeStatus) bool { return s.State == "missing" && s.sees("does not exist") })
	h.refused(h.up(byKubelet, v, q), "vg0/a")
	h.reads(v, p, "f", "x")
	device := h.storyOf("-/" + id).Device
	h.end(byKubelet, v, p)
	h.sh("losetup", "-d", device)
	h.eventually("it is released", func() string { return strings.Join(h.Active(), " ") })
}

// Two groups have one directory: no file there counts as a copy, and the refusal and flexd check name the
// groups. The second group gets the volume after the first.
func TestOneDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(h *host) {
		again := h.Dir + "/again"
		h.must(os.Mkdir(again, 0o755))
		h.must(os.MkdirAll(h.Dir+"/vg0", 0o755))
		h.must(unix.Mount(h.Dir+"/vg0", again, "", unix.MS_BIND, ""))
		h.settings.groups = "  - {name: vg1, provider: loopdev, directory: " + again + ", create: true, maxSize: 1GiB" + everyNamespace + "}\n"
	})
	defer h.take(h.Dir + "/again")
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(byKubelet, v, p))
	h.end(byKubelet, v, p)
	const why = "the volume groups vg0 and vg1 have one directory"
	a := h.up(byKubelet, v.With("volumegroup", "vg1"), p)
	h.refused(a, "vg1/a", why, "correct the `directory`")
	if strings.Contains(a.Message, "copy") {
		t.Error(a.Message)
	}
	if out, code := h.check(); code != 1 || !strings.Contains(out, "one-directory") || !strings.Contains(out, why) || strings.Contains(out, "copy") {
		t.Errorf("flexd check: exit status %d:\n%s", code, out)
	}
}

// A loop device is attached to the file of a volume in use by another name, and a file is moved away and
// copied back: no other pod gets the volume, and its pod keeps it.
func TestSecondDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p, q := podN(1), podN(2)
	v, a, b := h.vol("a", "ext4"), h.Dir+"/vg0/a", h.Dir+"/other"
	h.ok(h.up(byKubelet, v, p))
	h.write(v, p, "f", "x")
	id := h.story("a").UUID

	h.must(os.WriteFile(b, nil, 0o600))
	h.must(unix.Mount(a, b, "", unix.MS_BIND, ""))
	device := strings.TrimSpace(h.sh("losetup", "--show", "-f", b))
	time.Sleep(1100 * time.Millisecond) // a scan of loop devices counts for a second
	h.refused(h.up(byKubelet, v, q), "vg0/a", device, b, "losetup -d "+device)
	h.restart()
	h.refused(h.up(byKubelet, v, q), "vg0/a", device, b, "losetup -d "+device)
	h.disagrees("stale-mapping", id, device, b)
	h.losetupD(device)
	h.must(umount.Plain(b))
	h.must(os.Remove(b))
	h.ok(h.up(byKubelet, v, q))
	h.end(byKubelet, v, q)

	h.sh("mv", a, b)
	h.sh("cp", "-a", b, a)
	h.refused(h.up(byKubelet, v, q), "vg0/a", a+" and "+b+" have the same uuid "+id)
	h.disagrees("stale-mapping", id, a+" and "+b+" have the same uuid")
	h.restart()
	h.refused(h.up(byKubelet, v, q), "vg0/a", a+" and "+b+" have the same uuid "+id)
	h.reads(v, p, "f", "x")
	h.write(v, p, "f", "newer")
	h.end(byKubelet, v, p)
	h.eventually("it is kept", func() string {
		if s := h.story("a"); s.State != "failed" || s.Error == nil || !strings.Contains(s.Error.Message, "it stays active") {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	h.refused(h.up(byKubelet, v, q), "vg0/a", "the first is the volume", "mv "+b+" "+a)
	h.sh("mv", a, b+".copy") // and it is kept without the copy
	h.restart()
	h.eventually("it is kept", func() string {
		if s := h.storyOf("-/" + id); s.State != "failed" || s.Error == nil || !strings.Contains(s.Error.Message, "attached to "+b+", and another file with the uuid "+id+" had the name vg0/a") {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	h.disagrees("dm-only", id, b, "[ ! -e "+a+" ] && mv "+b+" "+a)
	h.sh("mv", b+".copy", a)
	h.refused(h.up(byKubelet, v, q), "vg0/a", a+" and "+b+" have the same uuid "+id)
	h.sh("mv", b, a)
	h.ok(h.up(byKubelet, v, q))
	h.reads(v, q, "f", "newer")
	h.end(byKubelet, v, q)
}

// A volume's file is renamed, then moved away and copied back, and the copy is missing when the pod ends: the device
// with the newest data is kept, although no call has asked for the new name.
func TestSecondFile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := podN(1)
	v, a, b, c := h.vol("a", "ext4"), h.Dir+"/vg0/a", h.Dir+"/other", h.Dir+"/vg0/c"
	h.ok(h.up(byKubelet, v, p))
	id := h.story("a").UUID
	h.must(os.Rename(a, c))
	h.disagrees("stale-mapping", id, "renamed to c")
	h.sh("mv", c, b)
	h.sh("cp", "-a", b, c)
	h.disagrees("stale-mapping", id, c+" and "+b+" have the same uuid")
	h.write(v, p, "f", "newer")
	h.sh("mv", c, b+".copy")
	h.end(byKubelet, v, p)
	h.eventually("it is kept", func() string {
		if s := h.storyOf("-/" + id); s.Error == nil || !strings.Contains(s.Error.Message, "another file with the uuid "+id+" had the name vg0/c") {
			return fmt.Sprintf("%+v; active: %s", s, h.Active())
		}
		return ""
	})
	h.sh("mv", b, a)
	h.ok(h.up(byKubelet, v, p))
	h.reads(v, p, "f", "newer")
	h.end(byKubelet, v, p)
}

// The remedy for a damaged file excludes kubelet's retries: e2fsck waits for an answer while kubelet asks
// repeatedly.
func TestRemedyBesideRetries(t *testing.T) {
	t.Parallel()
	need(t, "script", "debugfs", "e2fsck")
	h := newHost(t)
	p, v, file := podN(1), h.vol("a", "ext4"), h.Dir+"/vg0/a"
	h.ok(h.up(byKubelet, v, p))
	h.write(v, p, "f", strings.Repeat("x", 5000))
	h.write(v, p, "g", strings.Repeat("y", 5000))
	h.end(byKubelet, v, p)
	for _, attached := range []bool{true, false} {
		if !attached {
			h.eventually("it is deactivated", func() string { return strings.Join(h.Active(), " ") })
		}
		block := strings.Fields(h.sh("debugfs", "-R", "blocks /g", file))
		h.sh("debugfs", "-w", "-R", "sif /f block[5] "+block[len(block)-1], file) // f and g share it
		h.sh("debugfs", "-w", "-R", "ssv state 2", file)                          // in error: e2fsck -p looks
		refused := h.up(byKubelet, v, p)
		_, remedy, found := strings.Cut(refused.Message, "then: ")
		if !found || !strings.Contains(refused.Message, "may not repair by itself") {
			t.Fatalf("got %+v", refused)
		}
		if !attached {
			h.eventually("it is deactivated again", func() string { return strings.Join(h.Active(), " ") })
		}
		repair := exec.Command("script", "-qefc", remedy, "/dev/null") // e2fsck wants a terminal
		in, err := repair.StdinPipe()
		h.must(err)
		out, err := repair.StdoutPipe()
		h.must(err)
		h.must(repair.Start())
		var said strings.Builder
		b := make([]byte, 4096)
		for !strings.Contains(said.String(), "? ") {
			n, err := out.Read(b)
			h.must(err)
			said.Write(b[:n])
		}
		for range 3 {
			if got := h.up(byKubelet, v, p); got.Status == "Success" || strings.Contains(got.Message, "e2fsck found") {
				t.Errorf("beside e2fsck: %+v", got)
			}
			time.Sleep(400 * time.Millisecond)
		}
		_, err = in.Write([]byte("a\n")) // yes to all
		h.must(err)
		rest, err := io.ReadAll(out)
		h.must(err)
		if err := repair.Wait(); err != nil {
			t.Fatalf("%s: %v\n%s%s", remedy, err, said.String(), rest)
		}
		h.ok(h.up(byKubelet, v, p))
		h.reads(v, p, "g", strings.Repeat("y", 5000))
		h.end(byKubelet, v, p)
		h.sh("e2fsck", "-fn", file)
	}
}

// A read-only copy of a file in use has a journal that must be replayed: otherwise synced data is missing.
// Read-only pods get it after the remedy.
func TestUnreplayedJournal(t *testing.T) {
	t.Parallel()
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			t.Parallel()
			need(t, "mkfs."+fs)
			h := newHost(t, func(h *host) { h.settings.lease = 2 * time.Second })
			v, p, q := h.vol("a", fs), podN(1), podN(2)
			h.ok(h.up(noAttach, v, p))
			h.write(v, p, "f", "x")
			h.sh("sync", h.PodDir(p, v)+"/f", h.PodDir(p, v)) // fsync, of the file and of its directory
			file := h.Dir + "/vg0/a"
			h.sh("cp", "--sparse=always", "--preserve=all", file, h.Dir+"/copy")
			h.end(noAttach, v, p)
			h.quiet()
			h.must(os.Rename(h.Dir+"/copy", file))
			h.must(os.Chmod(file, 0o444))
			v = readOnly(v)
			a := h.mount(v, q)
			h.refused(a, "vg0/a: mount", "not unmounted cleanly", "chmod u+w "+file)
			_, remedy, _ := strings.Cut(a.Message, "replays it: ")
			h.sh("sh", "-c", remedy)
			h.ok(h.mount(v, q))
			h.reads(v, q, "f", "x")
			h.end(noAttach, v, q)
			h.quiet()
			h.must(os.Chmod(file, 0o444)) // it was unmounted cleanly
			h.ok(h.up(noAttach, v, q))
			h.reads(v, q, "f", "x")
			h.end(noAttach, v, q)
		})
	}
}

// A copy of a volume's file in the directory of another group is refused beside it, and flexd check
// names both.
func TestCopiedIntoOtherGroup(t *testing.T) {
	t.Parallel()
	var dir string
	h := newHost(t, func(h *host) {
		dir = h.Dir + "/other"
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		h.settings.groups = "  - {name: other, provider: loopdev, directory: " + dir + ", namespaces: ['*']}\n"
	})
	p, q, v := podN(1), podN(2), h.vol("a", "ext4")
	file, copied := h.Dir+"/vg0/a", dir+"/b"
	h.ok(h.up(noAttach, v, p))
	h.sh("cp", "-a", file, copied)
	h.refused(h.up(noAttach, v.With("volumegroup", "other", "volumeID", "b"), q), "have the same uuid")
	if out, code := h.check(); code != 1 || !strings.Contains(out, "have the same uuid") || !strings.Contains(out, file) || !strings.Contains(out, copied) {
		t.Errorf("flexd check: %d\n%s", code, out)
	}
	h.must(os.Remove(copied))
	h.eventually("its end", func() string {
		out, code := h.check()
		return out[:len(out)*code]
	})
	h.end(noAttach, v, p)
}

// Each pod, not only the first, gets a read-only ext4 whose superblock counts errors, and each time the
// errors are reported.
func TestReadOnlyWithErrors(t *testing.T) {
	t.Parallel()
	need(t, "debugfs")
	h := newHost(t)
	p, q, v := podN(1), podN(2), h.vol("a", "ext4")
	ro, file := v.With("kubernetes.io/readwrite", "ro"), h.Dir+"/vg0/a"
	h.ok(h.up(noAttach, v, p))
	h.end(noAttach, v, p)
	h.eventually("it is inactive", func() string { return h.story("a").Device })
	h.sh("debugfs", "-w", "-R", "ssv state 2", file)
	h.sh("debugfs", "-w", "-R", "ssv error_count 5", file)
	h.must(os.Chmod(file, 0o444))
	for _, pod := range []pod{p, q} {
		h.ok(h.up(noAttach, ro, pod))
		h.disagrees("faulty", h.story("a").UUID, "ext4 counts 5 errors", "No fsck runs while the volume is read-only")
	}
	h.end(noAttach, ro, p)
	h.end(noAttach, ro, q)
	h.eventually("it is inactive again", func() string { return h.story("a").Device })
	h.must(os.Chmod(file, 0o600))
	h.ok(h.up(noAttach, v, p)) // with fsck
	h.eventually("fsck has cleared them", func() string {
		if s := h.story("a"); s.State != "mounted" {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	h.end(noAttach, v, p)
}

// A volume that becomes writable while read-only pods use it: further ones get it, and a writer after
// their end.
func TestMadeWritable(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs")
	h := newHost(t)
	for i, fs := range []string{"ext4", "xfs", "ext4"} {
		m := []mode{noAttach, noAttach, byKubelet}[i]
		p, q, v := podN(1), podN(2), h.vol(fmt.Sprint("a", i), fs).With("size", "320Mi")
		ro, lv := v.With("kubernetes.io/readwrite", "ro"), v.Options["volumeID"]
		h.ok(h.up(m, v, p))
		h.end(m, v, p)
		h.ok(h.call("waitforattach", "", v.Blob(nil)))
		h.sh("blockdev", "--setro", h.story(lv).Device)
		h.ok(h.up(m, ro, p))
		h.sh("blockdev", "--setrw", h.story(lv).Device)
		h.ok(h.up(m, ro, q))
		h.refused(h.up(m, v, podN(3)), lv, "its "+fs+" is mounted read-only", "delete the pods that use it")
		h.eventually("check agrees", func() string {
			out, code := h.check()
			return out[:len(out)*code]
		})
		h.end(m, ro, p, q)
		h.eventually("a writer", func() string { return h.up(m, v, p).Message })
		h.write(v, p, "f", "x")
		h.end(m, v, p)
	}
}

// A file loses its write permission while a pod writes to it: a reader gets the volume beside it, a further
// writer a refusal with the remedy, and flexd check reports it.
func TestFileMadeReadOnly(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs")
	h := newHost(t)
	for i, fs := range []string{"ext4", "xfs"} {
		m := []mode{noAttach, byKubelet}[i]
		p, q, v := podN(1), podN(2), h.vol(fmt.Sprint("a", i), fs).With("size", "320Mi")
		lv := v.Options["volumeID"]
		file := h.Dir + "/vg0/" + lv
		h.ok(h.up(m, v, p))
		h.write(v, p, "f", "x")
		h.must(os.Chmod(file, 0o400))
		h.refused(h.up(m, v, q), lv, "is read-only", "chmod u+w "+file)
		h.disagrees("read-only", h.story(lv).UUID, "chmod u+w "+file)
		h.ok(h.up(m, readOnly(v), q))
		h.reads(v, q, "f", "x")
		if err := os.WriteFile(h.PodDir(q, v)+"/g", nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: the reader writes: %v", fs, err)
		}
		h.write(v, p, "f", "y")
		h.must(os.Chmod(file, 0o600))
		h.eventually("check agrees", func() string {
			out, code := h.check()
			return out[:len(out)*code]
		})
		h.end(m, v, p, q)
	}
}

// losetup -d was run on the device of a pod before its file is replaced, removed or copied: the kernel detaches it after
// the unmount, unless the remedy is followed.
func TestDetachedInUse(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ lose, class, rescue string }{
		"replaced": {`cp -a "$0" "$0.backup" && sync && mv "$0.backup" "$0"`, "stale-mapping", `\[ ! -e .*? losetup -d /dev/loop\d+`},
		"removed":  {`rm "$0"`, "dm-only", `cp --sparse=always /dev/loop\d+ COPY`},
		"copied":   {`mv "$0" "${0%/vg0/a}/away" && cp -a "${0%/vg0/a}/away" "$0"`, "stale-mapping", `mv \S+ \S+ && losetup -d /dev/loop\d+`},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			v, p, q, a := h.vol("a", "ext4"), podN(1), podN(2), h.Dir+"/vg0/a"
			h.ok(h.up(noAttach, v, p))
			id, device := h.story("a").UUID, h.story("a").Device
			h.sh("losetup", "-d", device)
			h.sh("sh", "-c", row.lose, a)
			h.write(v, p, "f", "newest")
			h.disagrees(row.class, id, "losetup -d was run on "+device+", so the kernel detaches it when nothing uses it any more")
			out, _ := h.check()
			hold := regexp.MustCompile(`exec 9<` + device).FindString(out)
			rescue := strings.ReplaceAll(regexp.MustCompile(row.rescue).FindString(out), "COPY", a)
			if hold == "" || rescue == "" || strings.Contains(out, "flexd keeps") {
				t.Fatalf("flexd check says\n%s", out)
			}
			if row.class == "dm-only" {
				rescue += " && flexd uuid --new " + a + " && losetup -d " + device
				h.must(os.Remove(h.State + "/formats/" + id + ".json"))
			}
			shell := exec.Command("bash", "-ec", hold+"; read; "+rescue+"; exec 9<&-")
			shell.Env = append(os.Environ(), "PATH="+filepath.Dir(h.Flexd())+":"+os.Getenv("PATH"))
			in, err := shell.StdinPipe()
			h.must(err)
			var said bytes.Buffer
			shell.Stdout, shell.Stderr = &said, &said
			h.must(shell.Start())
			h.eventually("the shell has "+device, func() string {
				to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/9", shell.Process.Pid))
				return strings.TrimPrefix(to, device)
			})
			h.end(noAttach, v, p)
			h.refused(h.up(noAttach, v, q), device)
			_, err = in.Write([]byte("\n"))
			h.must(err)
			if err := shell.Wait(); err != nil {
				t.Fatalf("%s: %v: %s", rescue, err, said.String())
			}
			h.eventually(device+" is detached", func() string {
				file, _ := os.ReadFile("/sys/block/" + filepath.Base(device) + "/loop/backing_file")
				return string(file)
			})
			if name == "replaced" {
				rescued, _ := filepath.Glob(a + "-rescued-*")
				h.must(os.Rename(rescued[0], a))
				h.must(os.Remove(h.State + "/formats/" + id + ".json"))
			}
			h.ok(h.up(noAttach, v, q))
			h.reads(v, q, "f", "newest")
			h.end(noAttach, v, q)
		})
	}
}

// The file of a mounted volume, and with it its device, is made smaller: flexd check reports that without a call, and
// agrees again once the file has its size back.
func TestDeviceMadeSmaller(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(noAttach, v, p))
	s, file := h.story("a"), h.Dir+"/vg0/a"
	resize := func(size int64) {
		h.must(os.Truncate(file, size))
		h.sh("losetup", "-c", s.Device)
	}
	smaller := func() {
		t.Helper()
		resize(s.Size - 8*mib)
		h.eventually("check reports it", func() string {
			if out, code := h.check(); code != 1 || !strings.Contains(out, "vg0/a  faulty") || !strings.Contains(out, "was made smaller than its filesystem") {
				return out
			}
			return ""
		})
	}
	smaller()
	resize(s.Size)
	h.ok(h.up(noAttach, v, podN(2))) // only this call has seen the size between
	smaller()
	resize(s.Size)
	h.eventually("check agrees", func() string {
		if out, code := h.check(); code != 0 {
			return out
		}
		return ""
	})
	h.end(noAttach, v, p, podN(2))
}

// The file of a mounted volume is moved out of its group, and flexd's notes are lost: its record has the name. If the
// records are lost, too, the volume is known by its uuid until the file is back.
func TestFileMovedWithoutNotes(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(noAttach, v, p))
	id, aside := h.story("a").UUID, h.Dir+"/aside"
	for _, records := range []bool{true, false} {
		h.must(os.Rename(h.Dir+"/vg0/a", aside))
		h.kill()
		h.must(os.RemoveAll(h.Run + "/notes"))
		if records {
			h.start()
			h.disagrees("dm-only", id, "has no file of that volume", "put it back")
			h.state("a", "missing")
		} else {
			h.must(os.RemoveAll(h.State))
			h.start()
			h.noticed("without a name", "-/"+id, func(s volumeStatus) bool { return s.LV == id && s.State == "uncertain" })
			if out, code := h.check(); code == 0 || !strings.Contains(out, "are in no group's directory") {
				t.Errorf("flexd check: exit status %d:\n%s", code, out)
			}
		}
		h.must(os.Rename(aside, h.Dir+"/vg0/a"))
		h.noticed("back", "-/"+id, func(s volumeStatus) bool { return s.LV == "a" && s.State == "mounted" })
	}
	h.end(noAttach, v, p)
}

// A plain copy has the place of a mounted volume's file: the refusal names the volume, before it says how to use the copy.
// With the attribute, the file is that volume.
func TestCopyWithoutAttributes(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(noAttach, v, p))
	id, a, aside := h.story("a").UUID, h.Dir+"/vg0/a", h.Dir+"/aside"
	h.must(os.Rename(a, aside))
	h.sh("cp", "--sparse=always", aside, a)
	h.refused(h.up(noAttach, v, podN(2)), "was not created by flexd", "flexd has seen a filesystem", id, "flexd check")
	h.must(os.Rename(aside, a))
	h.end(noAttach, v, p)
	h.eventually("the lease ends", func() string { return strings.Join(h.Active(), " ") })
	h.must(unix.Removexattr(a, "trusted.flexd.uuid"))
	h.refused(h.up(noAttach, v, p), "setfattr -n trusted.flexd.uuid -v "+id)
	h.must(unix.Setxattr(a, "trusted.flexd.uuid", []byte(id), 0))
	h.ok(h.up(noAttach, v, p))
	h.end(noAttach, v, p)
	h.eventually("the lease ends", func() string { return strings.Join(h.Active(), " ") })
	h.must(os.Rename(a, aside))
	h.must(os.Symlink(aside, a))
	if got := h.up(noAttach, v, p); got.Status != "Failure" || strings.Contains(got.Message, "setfattr") {
		t.Errorf("a link in its place: %+v", got)
	}
}

// The driver has another name after a restart: a mount of the former one is reported, and refuses other pods until it ends.
func TestDriverRenamed(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(noAttach, v, p))
	id, dir := h.story("a").UUID, h.PodDir(p, v)
	h.settings.extra = "driver: acme/vols"
	h.configure()
	h.restart()
	h.disagrees("mounted-unknown", id, dir, "`driver`", "Delete that pod")
	h.unmount(v, p)
}
