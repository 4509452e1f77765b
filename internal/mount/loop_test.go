//go:build !vm

package mount

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/test/umount"
)

// everyKindOnce reports whether TestNeverFormat tries one content of each kind only. Here it tries all with
// every filesystem.
const everyKindOnce = false

// leftOut are the tests that this build skips: none.
const leftOut = ""

// A disk is a loop device.
type disk struct{ file string }

func newRig(t *testing.T, size int64) *rig {
	t.Helper()
	need(t, "losetup")
	r := bareRig(t)
	r.file = filepath.Join(r.dir, "disk")
	if err := os.WriteFile(r.file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(r.file, size); err != nil {
		t.Fatal(err)
	}
	r.attach()
	return r
}

func (r *rig) resize(size int64) {
	r.Helper()
	if err := os.Truncate(r.file, size); err != nil {
		r.Fatal(err)
	}
	r.sh("losetup", "-c", r.dev.Path)
	r.observe(r.dev.Path)
}

func (r *rig) setReadOnly() {
	r.Helper()
	r.detach(r.dev.Path)
	r.attach("-r")
}

// twin returns a copy of the present content of the device, which may be mounted.
func (r *rig) twin() *rig {
	r.Helper()
	c := bareRig(r.T)
	c.file = filepath.Join(c.dir, "disk")
	r.sh("cp", "--sparse=always", r.file, c.file)
	c.attach()
	return c
}

func (r *rig) attach(flags ...string) {
	r.Helper()
	path := strings.TrimSpace(r.sh(append(append([]string{"losetup", "--show", "-f"}, flags...), r.file)...))
	r.Cleanup(func() { r.detach(path) })
	r.observe(path)
}

func (r *rig) detach(path string) {
	for attempt := range 3000 { // the kernel closes a descriptor in a socket's queue some time after the socket
		b, err := os.ReadFile("/sys/block/" + filepath.Base(path) + "/loop/backing_file")
		if err != nil || !strings.HasPrefix(string(b), r.dir) {
			return
		}
		if exec.Command("losetup", "-d", path).Run() != nil || attempt > 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}
	r.Errorf("%s can't be detached", path)
}

// Ensure that an unreadable device is unknown, and not blank.
func TestUnreadableHead(t *testing.T) {
	r := newRig(t, 96*mib)
	if err := os.Truncate(r.file, 0); err != nil { // the loop device keeps its size: reads fail
		t.Fatal(err)
	}
	if fs, err := r.Probe(t.Context(), r.lock, r.dev, "", created, ""); err == nil {
		t.Errorf("probe: got %+v", fs)
	}
	if err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4"}, yes); err == nil {
		t.Error("it was formatted")
	}
	if err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4", Repeat: true}, yes); err == nil {
		t.Error("it was formatted again")
	}
	if fi, err := os.Stat(r.file); err != nil || fi.Size() != 0 {
		t.Errorf("the file was written: %v, %v", fi.Size(), err)
	}
}

// With queue/iostats=0 flexd does not know whether another program has written since mkfs ended, so it erases
// nothing. For device-mapper Linux 6.1 counts in spite of 0: see TestClean of the VM.
func TestCleanUncounted(t *testing.T) {
	r := newRig(t, 16*mib)
	iostats := func(value string) {
		t.Helper()
		if err := os.WriteFile("/sys/dev/block/"+r.dev.Number+"/queue/iostats", []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	r.write([]byte("of another program"), 2*mib)
	dev, err := openDevice(r.dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	iostats("0")
	defer iostats("1")
	f := Formatting{Device: r.dev, Type: "ext4"}
	if err := clean(dev, f, coverage{}); err == nil || !strings.Contains(err.Error(), "counts no writes") {
		t.Errorf("got %v", err)
	}
	if got := string(r.read(18, 2*mib)); got != "of another program" {
		t.Errorf("its data is %q", got)
	}
	iostats("1")
	if err := clean(dev, f, coverage{}); err != nil {
		t.Error(err)
	}
}

// Two btrfs with one fsid may be mounted at once; the kernel distinguishes them by a temporary fsid. Then
// further pods get both.
func TestTwins_temporaryFSID(t *testing.T) {
	need(t, "mkfs.btrfs")
	r := newRig(t, 400*mib)
	r.format("btrfs")
	if _, err := os.Stat("/sys/fs/btrfs/features/temp_fsid"); err != nil {
		t.Skip("needs temporary fsids of btrfs (Linux 6.7)")
	}
	c := r.twin()
	for _, v := range []*rig{r, c} {
		l := v.spec(v.mkdir("more"))
		dir := v.mkdir("m")
		v.sh("mount", v.dev.Path, dir) // as if the look at the mounted devices had seen none
		v.Cleanup(func() { umount.NoFollow(dir) })
		if err := os.WriteFile(dir+"/file", []byte(v.dev.Path), 0o600); err != nil {
			t.Fatal(err)
		}
		v.mount(l)
		if b, err := os.ReadFile(l.Dir + "/file"); err != nil || string(b) != v.dev.Path {
			t.Errorf("%s: got %q, %v", v.dev.Path, b, err)
		}
		defer umount.NoFollow(dir)
		defer v.unmount(l.Dir)
	}
}

// The mount of a volume that became read-only while it was active does not change it.
func TestReadOnlyUnchanged(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			need(t, "mkfs."+fsType)
			r := newRig(t, 400*mib)
			defer r.sh("blockdev", "--setrw", r.dev.Path) // for the next file of that loop device
			r.format(fsType)
			l := r.spec(r.mkdir("m"))
			l.First, l.FSType = true, fsType
			r.mount(l)
			r.unmount(l.Dir)
			before := r.written()
			l.Device.ReadOnly, l.ReadOnly = true, true
			r.mount(l)
			r.unmount(l.Dir)
			if after := r.written(); after != before {
				t.Errorf("before %s, then %s", before, after)
			}
		})
	}
}
