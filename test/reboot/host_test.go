//go:build vm

package reboot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/node"
)

const (
	lease   = 2 * time.Second
	place   = "/srv/node" // on a disk of its own: kubelet's root directory, flexd's state
	foreign = "/srv/host" // where the host mounts its own volume
)

// A host is the machine in one of its lives.
type host struct {
	*testing.T
	*node.Node
	attach bool
	fsType string // of the wanted volume

	uuids  map[string]volume.UUID // by LV
	seqno  string                 // of the group's metadata: LVM counts its changes
	before state                  // when it had booted
}

// A state is what nobody but flexd would change.
type state struct {
	mounts  string
	devices []lvm.Mapped
}

func newHost(t *testing.T, attach bool) *host {
	h := &host{T: t, attach: attach, fsType: "xfs"}
	if attach {
		h.fsType = "ext4"
	}
	return h
}

// makeDisks makes the volume group and its volumes, as an operator does, and the
// filesystem that the node lives on.
func (h *host) makeDisks() {
	h.run("mkfs.ext4", "-q", "/dev/vdb")
	h.run("vgcreate", "-q", node.VG, "/dev/vda")
	for _, lv := range []string{"wanted 320m", "unwanted 16m", "cut 512m --setautoactivation n", "idle 16m", "host 16m"} {
		name, rest, _ := strings.Cut(lv, " ")
		h.run("lvcreate", append([]string{"-q", "-y", "-Wy", node.VG, "-n", name, "-L"}, strings.Fields(rest)...)...)
	}
	h.run("mkfs.ext4", "-q", h.device("host"))
	h.must(os.MkdirAll(foreign, 0o755))
	h.must(unix.Mount(h.device("host"), foreign, "ext4", 0, ""))
	h.write(foreign+"/own", kept, true)
	h.must(unix.Unmount(foreign, 0))
	h.must(os.WriteFile(h.device("idle"), unsynced, 0))
	h.run("vgchange", "-q", "-an", node.VG)
}

// up is a boot: LVM activates what it should, the host mounts what is its own.
func (h *host) up() {
	h.run("vgchange", "-q", "-aay", node.VG)
	for dir, device := range map[string]string{place: "/dev/vdb", foreign: h.device("host")} {
		h.must(os.MkdirAll(dir, 0o755))
		h.must(unix.Mount(device, dir, "ext4", 0, ""))
	}
	h.uuids = map[string]volume.UUID{}
	for line := range strings.Lines(h.run("lvs", "--noheadings", "-o", "lv_name,lv_uuid,vg_seqno", node.VG)) {
		w := strings.Fields(line)
		h.uuids[w[0]], h.seqno = volume.UUID(w[1]), w[2]
	}
	var err error
	if h.Node, err = node.Again(os.Getenv("FLEXD_TEST_BIN"), lease, place, "/run/flexd"); err != nil {
		h.Fatal(err)
	}
	if !h.attach {
		h.must(os.WriteFile(filepath.Dir(h.Driver)+"/.lvm.init.json", []byte(`{"attach": false}`), 0o644))
	}
	want := []string{"host", "idle", "unwanted", "wanted"}
	if got := h.active(); !slices.Equal(got, want) {
		h.Fatalf("LVM activated %v at boot, not %v", got, want)
	}
	h.before = h.state()
}

// start starts flexd, and what it said is shown when the test has failed.
func (h *host) start() {
	h.Helper()
	h.must(h.Start())
	h.Cleanup(func() {
		if h.Failed() {
			h.Logf("flexd:\n%s", h.LogTail(60))
		}
	})
}

// startQuietly starts flexd and sees that it does nothing before kubelet asks.
func (h *host) startQuietly() {
	h.Helper()
	h.start()
	time.Sleep(time.Second)
	after := h.state()
	if after.mounts != h.before.mounts {
		h.Errorf("flexd started, and the mounts are\n%s\nand were\n%s", after.mounts, h.before.mounts)
	}
	if !slices.EqualFunc(after.devices, h.before.devices, func(a, b lvm.Mapped) bool { return a.Name == b.Name && a.Number == b.Number }) {
		h.Errorf("flexd started, and the devices are %v and were %v", after.devices, h.before.devices)
	}
}

func (h *host) state() state {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	h.must(err)
	devices, err := lvm.NewKernel().List()
	h.must(err)
	return state{string(mounts), devices}
}

// device is where LVM puts a volume's device.
func (h *host) device(lv string) string { return "/dev/" + node.VG + "/" + lv }

// active lists the volumes that have a device.
func (h *host) active() []string {
	all, err := lvm.NewKernel().List()
	h.must(err)
	var lvs []string
	for _, d := range all {
		lvs = append(lvs, strings.TrimPrefix(d.Name, node.VG+"-"))
	}
	slices.Sort(lvs)
	return lvs
}

func (h *host) isMountPoint(dir string) bool {
	h.Helper()
	mounted, err := node.IsMountPoint(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.Fatal(err)
	}
	return mounted
}

func (h *host) isActive(lv string) bool { return slices.Contains(h.active(), lv) }

// untouched sees that the host's own volume is mounted as it was, with its data,
// that these are active, and what nobody ever used is as it was.
func (h *host) untouched(active ...string) {
	h.Helper()
	for _, lv := range active {
		if !h.isActive(lv) {
			h.Errorf("%s was deactivated", lv)
		}
	}
	if !h.isMountPoint(foreign) {
		h.Errorf("%s was unmounted", foreign)
	}
	h.holds(foreign+"/own", kept)
	text := make([]byte, len(unsynced))
	if err := h.read("idle", text, 0); err != nil || !bytes.Equal(text, unsynced) {
		h.Errorf("idle was written to: %v", err)
	}
}

// unchanged sees that flexd changed no metadata: nothing was made, extended or
// tagged in this life.
func (h *host) unchanged() {
	h.Helper()
	if seqno := strings.TrimSpace(h.run("vgs", "--noheadings", "-o", "vg_seqno", node.VG)); seqno != h.seqno {
		h.Errorf("the metadata of the group was changed: %s, and was %s", seqno, h.seqno)
	}
}

// record is what flexd will remember of a volume's filesystem.
func (h *host) record(lv string) volume.Record {
	h.Helper()
	records, err := dsw.OpenRecords(place + "/state/formats")
	h.must(err)
	r, _, err := records.Get(h.uuids[lv])
	h.must(err)
	return r
}

// fsUUID is that of an ext4; needsRecovery is that its journal is to be replayed.
// A volume that LVM did not activate is looked at and left as it was.
func (h *host) fsUUID(lv string) string {
	h.Helper()
	if !h.isActive(lv) {
		h.run("lvchange", "-q", "-ay", node.VG+"/"+lv)
		defer h.run("lvchange", "-q", "-an", node.VG+"/"+lv)
	}
	id := make([]byte, 16)
	h.must(h.read(lv, id, 1024+0x68))
	return fmt.Sprintf("%x", id)
}

func (h *host) needsRecovery(lv string) bool {
	h.Helper()
	incompat := make([]byte, 4)
	h.must(h.read(lv, incompat, 1024+0x60))
	return incompat[0]&4 != 0
}

func (h *host) read(lv string, into []byte, at int64) error {
	f, err := os.Open(h.device(lv))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.ReadAt(into, at)
	return err
}

// zero wipes a whole volume.
func (h *host) zero(lv string) {
	h.Helper()
	f, err := os.OpenFile(h.device(lv), os.O_WRONLY, 0)
	h.must(err)
	_, err = f.Write(make([]byte, 16<<20))
	h.must(err)
	h.must(f.Sync())
	h.must(f.Close())
}

func (h *host) write(path string, text []byte, sync bool) {
	h.Helper()
	f, err := os.Create(path)
	h.must(err)
	_, err = f.Write(text)
	h.must(err)
	if sync {
		h.must(f.Sync())
	}
	h.must(f.Close())
}

// call is kubelet calling the driver; the answer must be the wanted status.
func (h *host) call(status string, args ...string) node.Answer {
	h.Helper()
	a, err := h.Call(h.Context(), args...)
	h.must(err)
	if a.Status != status {
		h.Fatalf("%s: %s", strings.Join(args, " "), a.Text)
	}
	return a
}

// run runs a command of the operator's and returns what it printed.
func (h *host) run(name string, args ...string) string {
	h.Helper()
	c := exec.CommandContext(h.Context(), name, args...)
	c.Env = append(os.Environ(), "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		h.Fatalf("%s: %v: %s", strings.Join(c.Args, " "), err, stderr.Bytes())
	}
	return string(out)
}

func (h *host) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}
