package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A shortage is a resource that a filesystem lacks.
type shortage struct {
	name  string
	mount string // options of the tmpfs
	says  string // how a refusal calls it
}

var shortages = []shortage{
	{"full", "size=256k", "no space left on device"},
	{"out of inodes", "nr_inodes=64", "no space left on device"},
	{"read-only", "size=256k", "read-only file system"},
}

// disk mounts a small filesystem for flexd's files at dir until the test ends.
func (h *host) disk(dir, options string) {
	h.must(os.MkdirAll(dir, 0o700))
	h.must(unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,"+options))
	h.disks = append(h.disks, dir)
}

// use uses up the resource; giveBack ends that. A repeated call also uses up what flexd has freed meanwhile.
func (s shortage) use(h *host, dir string) {
	h.t.Helper()
	if s.name == "read-only" {
		h.must(unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		return
	}
	data := make([]byte, 4096) // a page; none where inodes are short
	if s.name != "full" {
		data = nil
	}
	if err := os.Mkdir(dir+"/hog", 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		h.t.Fatal(err)
	}
	for i := 0; ; i++ {
		if err := os.WriteFile(fmt.Sprintf("%s/hog/%d", dir, i), data, 0o600); errors.Is(err, unix.ENOSPC) {
			return
		} else if err != nil || i > 10_000 {
			h.t.Fatalf("%s does not fill up: %v", dir, err)
		}
	}
}

func (s shortage) giveBack(h *host, dir string) {
	h.t.Helper()
	if s.name == "read-only" {
		h.must(unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	}
	h.must(os.RemoveAll(dir + "/hog"))
}

// begins starts flexd and returns its output when it is ready or has ended.
func (h *host) begins() (said string, running bool) {
	h.t.Helper()
	c := exec.Command(h.Flexd(), "serve", "--config", h.Config())
	out, err := c.StderrPipe()
	h.must(err)
	h.must(c.Start())
	for lines := bufio.NewScanner(out); !running && lines.Scan(); {
		said += lines.Text() + "\n"
		running = strings.Contains(said, "flexd is ready")
	}
	if running {
		h.must(c.Process.Kill())
	}
	if err := c.Wait(); err == nil {
		h.t.Errorf("flexd exited with status 0 without a signal: %s", said)
	}
	return said, running
}

// The filesystem of flexd's run directory or of its state directory is full, out of inodes, or read-only.
// Set-up is refused with the path and the remedy; flexd starts, and every unmount works. When there is space,
// everything works, and nothing remains.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	eachShortage(t, func(_ *testing.T, h *host, s shortage, where string) { h.noRoom(s, where) })
}

// eachShortage has a host for each shortage of "run" and of "state".
func eachShortage(t *testing.T, test func(t *testing.T, h *host, s shortage, where string)) {
	for _, s := range shortages {
		for _, where := range []string{"run", "state"} {
			if where == "run" && s.name == "read-only" {
				continue // TestReadOnlyRun
			}
			t.Run(where+" is "+s.name, func(t *testing.T) {
				t.Parallel()
				test(t, newHost(t, func(h *host) { h.disk(h.Dir+"/"+where, s.mount) }), s, where)
			})
		}
	}
}

func (h *host) noRoom(s shortage, where string) {
	h.t.Helper()
	dir := h.Dir + "/" + where
	v, fresh := h.vol("a", "ext4"), h.vol("fresh", "ext4")
	p, q, r := podN(1), podN(2), podN(3)
	h.ok(h.up(byKubelet, v, p))
	h.ok(h.up(byKubelet, v, q))
	h.write(v, p, "f", "x")
	refusing := func(when string) {
		h.t.Helper()
		s.use(h, dir)
		words := []string{dir + "/", s.says, "make room", "unmount"}
		if s.name == "read-only" {
			words[2] = "remount"
		}
		if where == "run" {
			h.refused(h.mount(v, r), append(slices.Clone(words), "vg0/a: mount", "note")...)
			h.refused(h.call("waitforattach", "", fresh.Blob(nil)), append(words[:3], "vg0/fresh: waitforattach")...)
		} else { // what was seen before needs no record
			h.ok(h.mount(v, r))
			h.reads(v, r, "f", "x")
			h.ok(h.unmount(v, r))
			h.ok(h.call("waitforattach", "", fresh.Blob(nil)))
			h.must(os.MkdirAll(h.GlobalDir(fresh), 0o750))
			h.refused(h.call("mountdevice", h.GlobalDir(fresh), "", fresh.Blob(nil)), append(words, "vg0/fresh: mountdevice", "format record")...)
		}
		if h.t.Failed() {
			h.t.Fatal(when)
		}
	}

	refusing("while it runs")
	h.ok(h.unmount(v, q))
	h.restart()
	refusing("after a restart")
	if n := len(mounts(h.Root)); n != 2 {
		h.t.Errorf("%d mounts after a restart: %q", n, mounts(h.Root))
	}
	h.reads(v, p, "f", "x")
	h.end(byKubelet, v, p)
	h.ok(h.call("unmount", h.PodDir(p, v))) // and again
	if m := mounts(h.Root); len(m) != 0 {
		h.t.Errorf("mounted: %q", m)
	}
	h.eventually("no device is left", func() string { return strings.Join(h.Active(), " ") })
	if where == "run" && slices.Contains(h.volumes(), "vg0/fresh") {
		h.t.Error("vg0/fresh was created")
	}

	s.giveBack(h, dir)
	h.ok(h.up(byKubelet, v, p))
	h.reads(v, p, "f", "x")
	h.ok(h.up(byKubelet, fresh, q))
	h.end(byKubelet, v, p)
	h.end(byKubelet, fresh, q)
	h.quiet()
	h.eventually("status has no problem left", func() string { return strings.Join(h.list().Problems, "; ") })
}

// On a read-only /run no socket can be made: flexd ends with an error, kubelet's calls fail, mounts stay.
func TestReadOnlyRun(t *testing.T) {
	t.Parallel()
	s := shortages[2]
	h := newHost(t, func(h *host) { h.disk(h.Run, s.mount) })
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(byKubelet, v, p))
	h.write(v, p, "f", "x")
	h.kill()
	s.use(h, h.Run)
	if said, running := h.begins(); running || !strings.Contains(said, h.Run+"/") || !strings.Contains(said, s.says) {
		t.Errorf("flexd's last words: %s", said)
	}
	h.refused(h.callWith([]string{"FLEXD_CONNECT_TIMEOUT=300ms"}, "unmount", h.PodDir(p, v)), "flexd is not running", h.DriverSocket())
	h.reads(v, p, "f", "x")
	s.giveBack(h, h.Run)
	h.start()
	h.end(byKubelet, v, p)
}

// The filesystem is full at flexd's start, with nothing to free. flexd starts if its directories exist;
// otherwise the error names those that it could not make.
func TestNoRoomAtTheStart(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		where string
		lose  []string // what is lost of flexd's files
		s     shortage
		runs  bool
		stuck []string // what an unmount says that cannot be made
	}{
		{"run", []string{"flexd.lock"}, shortages[0], true, nil}, // bytes: a file, a directory and a socket need none
		{"run", []string{"flexd.lock", "notes", "lanes", "dev", "driver.sock", "status.sock"}, shortages[0], true, nil},
		{"run", []string{"flexd.lock"}, shortages[1], false, nil},
		{"run", []string{"notes"}, shortages[1], false, nil},
		{"run", []string{"driver.sock"}, shortages[1], false, nil},
		{"run", []string{"lanes"}, shortages[1], true, []string{"vg0/a: unmount: ", "lock: ", "/run/lanes", "has no inode left: make room there"}},
		{"state", []string{"formats"}, shortages[0], true, nil},
		{"state", []string{"formats"}, shortages[1], true, nil},
		{"state", []string{"formats"}, shortages[2], true, nil},
	} {
		t.Run(fmt.Sprintf("%s %s %s", row.where, row.s.name, strings.Join(row.lose, " ")), func(t *testing.T) {
			h := newHost(t, func(h *host) { h.disk(h.Dir+"/"+row.where, row.s.mount) })
			dir := h.Dir + "/" + row.where
			v, p := h.vol("a", "ext4"), podN(1)
			h.ok(h.up(noAttach, v, p))
			h.kill()
			for _, name := range row.lose {
				h.must(os.RemoveAll(dir + "/" + name))
			}
			row.s.use(h, dir)
			said, running := h.begins()
			if running != row.runs || !running && (!strings.Contains(said, dir+"/"+row.lose[0]) || !strings.Contains(said, row.s.says)) {
				t.Errorf("it runs: %v; it says: %s", running, said)
			}
			if running {
				h.start()
				if a := h.unmount(v, p); row.stuck == nil {
					h.ok(a)
				} else {
					h.refused(a, row.stuck...)
					if strings.Contains(a.Message, "unmount works") {
						t.Error(a)
					}
				}
			}
			row.s.giveBack(h, dir)
			if !running {
				h.start()
			}
			h.ok(h.unmount(v, p))
			w := h.vol("b", "ext4")
			h.eventually("a new volume", func() string { return h.up(noAttach, w, p).Message })
			h.ok(h.unmount(w, p))
		})
	}
}

// Notes and records are truncated, and nothing can be written. flexd starts, reports them, and unmounts.
func TestTornWithoutRoom(t *testing.T) {
	t.Parallel()
	eachShortage(t, func(t *testing.T, h *host, s shortage, where string) {
		v, w, p, q := h.vol("a", "ext4"), h.vol("b", "ext4"), podN(1), podN(2)
		h.ok(h.up(noAttach, w, p)) // has a record
		h.end(noAttach, w, p)
		h.quiet()
		h.ok(h.up(byKubelet, v, p))
		h.write(v, p, "f", "x")
		h.kill()
		torn := map[string][]string{"run": h.files(h.Run + "/notes/*"), "state": h.files(h.State + "/formats/*")}[where]
		for _, file := range torn {
			info, err := os.Stat(file)
			h.must(err)
			h.must(os.Truncate(file, info.Size()/2))
		}
		s.use(h, h.Dir+"/"+where)
		h.start()
		if len(torn) == 0 {
			t.Fatal("nothing is torn")
		}
		if said := strings.Join(h.list().Problems, "\n"); where == "run" && !strings.Contains(said, torn[0]) {
			t.Errorf("status does not name %s: %s", torn[0], said)
		}
		if where == "state" {
			h.refused(h.mount(w, q), "vg0/b: mount", "format record "+h.State+"/formats/")
		}
		h.reads(v, p, "f", "x")
		h.end(byKubelet, v, p)
		if m := mounts(h.Root); len(m) != 0 {
			t.Errorf("mounted: %q", m)
		}
		s.giveBack(h, h.Dir+"/"+where)
		for _, file := range append(h.files(h.Run+"/notes/*.damaged"), torn...) {
			os.Remove(file) // the owner has looked at it
		}
		h.ok(h.up(byKubelet, v, q))
		h.reads(v, q, "f", "x")
		h.end(byKubelet, v, q)
	})
}

// The disk of stateDir fails while flexd runs. A restarted flexd unmounts, and formats nothing.
func TestStateDiskFails(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.xfs")
	image := t.TempDir() + "/image"
	h := newHost(t, func(h *host) {
		h.sh("truncate", "-s", "320M", image)
		h.sh("mkfs.xfs", "-q", image)
		h.must(os.MkdirAll(h.State, 0o700))
		h.sh("mount", "-o", "loop", image, h.State)
		h.disks = append(h.disks, h.State)
	})
	v, w, p := h.vol("a", "ext4"), h.vol("b", "ext4"), podN(1)
	h.ok(h.up(byKubelet, v, p))
	f, err := os.Open(h.State)
	h.must(err)
	h.must(unix.IoctlSetPointerInt(int(f.Fd()), 0x8004587d, 2)) // XFS_IOC_GOINGDOWN
	f.Close()
	h.restart()
	h.end(byKubelet, v, p)
	h.refused(h.up(byKubelet, w, p), "vg0/b", "input/output error", "make it readable again")
	if said := strings.Join(h.list().Problems, "\n"); !strings.Contains(said, h.State+"/formats") {
		t.Errorf("status says %q", said)
	}
}
