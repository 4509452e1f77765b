//go:build vm

package reboot

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/umount"
)

const (
	lease   = 2 * time.Second
	place   = "/srv/node" // on a disk of its own: kubelet's root directory, flexd's state
	foreign = "/srv/host" // where the host mounts its own volume
)

// A life is the machine from a boot to its end.
type life struct {
	*testing.T
	*host.Node
	attach bool
	fsType string // of the wanted volume

	uuids  map[string]volume.UUID // by LV
	seqno  string                 // of the group's metadata: LVM counts its changes
	before state                  // when it had booted
}

// A state has the facts that only flexd would change.
type state struct {
	mounts  string
	devices []devmapper.Mapped
}

func newLife(t *testing.T, attach bool) *life {
	l := &life{T: t, attach: attach, fsType: "xfs"}
	if attach {
		l.fsType = "ext4"
	}
	return l
}

// makeDisks makes the volume group and its volumes, as an operator does, and the
// filesystem that the node lives on.
func (l *life) makeDisks() {
	l.run("mkfs.ext4", "-q", "/dev/vdb")
	l.run("vgcreate", "-q", host.VG, "/dev/vda")
	for _, lv := range []string{"wanted 320m", "unwanted 16m", "cut 512m --setautoactivation n --addtag flexd", "idle 16m", "host 16m"} {
		name, rest, _ := strings.Cut(lv, " ")
		l.run("lvcreate", append([]string{"-q", "-y", "-Wy", host.VG, "-n", name, "-L"}, strings.Fields(rest)...)...)
	}
	l.run("mkfs.ext4", "-q", l.device("host"))
	l.must(os.MkdirAll(foreign, 0o755))
	l.must(unix.Mount(l.device("host"), foreign, "ext4", 0, ""))
	l.write(foreign+"/own", kept, true)
	l.must(umount.Plain(foreign))
	l.must(os.WriteFile(l.device("idle"), unsynced, 0))
	l.run("vgchange", "-q", "-an", host.VG)
}

// up is a boot: LVM activates what it should, the host mounts what is its own.
func (l *life) up() {
	l.run("vgchange", "-q", "-aay", host.VG)
	for dir, device := range map[string]string{place: "/dev/vdb", foreign: l.device("host")} {
		l.must(os.MkdirAll(dir, 0o755))
		l.must(unix.Mount(device, dir, "ext4", 0, ""))
	}
	l.uuids = map[string]volume.UUID{}
	for line := range strings.Lines(l.run("lvs", "--noheadings", "-o", "lv_name,vg_uuid,lv_uuid,vg_seqno", host.VG)) {
		w := strings.Fields(line)
		l.uuids[w[0]], l.seqno = volume.UUID(w[1]+"_"+w[2]), w[3]
	}
	var err error
	if l.Node, err = host.Reopen(os.Getenv("FLEXD_TEST_BIN"), lease, place, "/run/flexd"); err != nil {
		l.Fatal(err)
	}
	if !l.attach {
		l.must(os.WriteFile(filepath.Dir(l.Driver)+"/.lvm.init.json", []byte(`{"attach": false}`), 0o644))
	}
	want := []string{"host", "idle", "unwanted", "wanted"}
	if got := l.active(); !slices.Equal(got, want) {
		l.Fatalf("LVM activated %v at boot, not %v", got, want)
	}
	l.before = l.state()
}

// start starts flexd, and what it said is shown when the test has failed.
func (l *life) start() {
	l.Helper()
	l.must(l.Start())
	l.Cleanup(func() {
		if l.Failed() {
			l.Logf("flexd:\n%s", l.LogTail(60))
		}
	})
}

// startQuietly starts flexd and sees that it does nothing before kubelet asks.
func (l *life) startQuietly(start func()) {
	l.Helper()
	start()
	time.Sleep(time.Second)
	after := l.state()
	if after.mounts != l.before.mounts {
		l.Errorf("flexd started, and the mounts are\n%s\nand were\n%s", after.mounts, l.before.mounts)
	}
	if !slices.EqualFunc(after.devices, l.before.devices, func(a, b devmapper.Mapped) bool { return a.Name == b.Name && a.Number == b.Number }) {
		l.Errorf("flexd started, and the devices are %v and were %v", after.devices, l.before.devices)
	}
}

func (l *life) state() state {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	l.must(err)
	devices, err := devmapper.New().List()
	l.must(err)
	return state{string(mounts), devices}
}

// device is where LVM puts a volume's device.
func (l *life) device(lv string) string { return "/dev/" + host.VG + "/" + lv }

// active lists the volumes that have a device.
func (l *life) active() []string {
	all, err := devmapper.New().List()
	l.must(err)
	var lvs []string
	for _, d := range all {
		lvs = append(lvs, strings.TrimPrefix(d.Name, host.VG+"-"))
	}
	slices.Sort(lvs)
	return lvs
}

func (l *life) isActive(lv string) bool { return slices.Contains(l.active(), lv) }

// untouched sees that the host's own volume is mounted as it was, with its data, that these
// are active, and volumes that were never used are unchanged.
func (l *life) untouched(active ...string) {
	l.Helper()
	for _, lv := range active {
		if !l.isActive(lv) {
			l.Errorf("%s was deactivated", lv)
		}
	}
	if !host.Mounted(foreign) {
		l.Errorf("%s was unmounted", foreign)
	}
	l.holds(foreign+"/own", kept)
	text := make([]byte, len(unsynced))
	if err := l.read("idle", text, 0); err != nil || !bytes.Equal(text, unsynced) {
		l.Errorf("idle was written to: %v", err)
	}
}

// unchanged sees that flexd changed no metadata: nothing was made, extended or
// tagged in this life.
func (l *life) unchanged() {
	l.Helper()
	if seqno := strings.TrimSpace(l.run("vgs", "--noheadings", "-o", "vg_seqno", host.VG)); seqno != l.seqno {
		l.Errorf("the metadata of the group was changed: %s, and was %s", seqno, l.seqno)
	}
}

// record is what flexd will remember of a volume's filesystem.
func (l *life) record(lv string) volume.Record {
	l.Helper()
	records, err := dsw.OpenRecords(place+"/state/formats", "", func() time.Duration { return 0 })
	l.must(err)
	r, err := records.Get(l.uuids[lv])
	l.must(err)
	return r.State
}

// fsUUID is that of an ext4; needsRecovery is that its journal is to be replayed.
// A volume that LVM did not activate is looked at and left as it was.
func (l *life) fsUUID(lv string) string {
	l.Helper()
	if !l.isActive(lv) {
		l.run("lvchange", "-q", "-ay", host.VG+"/"+lv)
		defer l.run("lvchange", "-q", "-an", host.VG+"/"+lv)
	}
	id := make([]byte, 16)
	l.must(l.read(lv, id, 1024+0x68))
	return fmt.Sprintf("%x", id)
}

func (l *life) needsRecovery(lv string) bool {
	l.Helper()
	incompat := make([]byte, 4)
	l.must(l.read(lv, incompat, 1024+0x60))
	return incompat[0]&4 != 0
}

func (l *life) read(lv string, into []byte, at int64) error {
	f, err := os.Open(l.device(lv))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.ReadAt(into, at)
	return err
}

// zero wipes a whole volume.
func (l *life) zero(lv string) {
	l.Helper()
	f, err := os.OpenFile(l.device(lv), os.O_WRONLY, 0)
	l.must(err)
	_, err = f.Write(make([]byte, 16<<20))
	l.must(err)
	l.must(f.Sync())
	l.must(f.Close())
}

func (l *life) write(path string, text []byte, sync bool) {
	l.Helper()
	f, err := os.Create(path)
	l.must(err)
	_, err = f.Write(text)
	l.must(err)
	if sync {
		l.must(f.Sync())
	}
	l.must(f.Close())
}

// call is kubelet calling the driver; the answer must be the wanted status.
func (l *life) call(status string, args ...string) host.Answer {
	l.Helper()
	a, err := l.Call(l.Context(), args...)
	l.must(err)
	if a.Status != status {
		l.Fatalf("%s: %s", strings.Join(args, " "), a.Text)
	}
	return a
}

// run runs a command of the operator's and returns what it printed.
func (l *life) run(name string, args ...string) string {
	l.Helper()
	c := exec.CommandContext(l.Context(), name, args...)
	c.Env = append(os.Environ(), "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		l.Fatalf("%s: %v: %s", strings.Join(c.Args, " "), err, stderr.Bytes())
	}
	return string(out)
}

func (l *life) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}
