package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/host"
)

// The credits are the kernel's: Linux 6.1 extended the filesystems of the first sizes, and panicked at the
// others.
func TestExt4Credits(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.ext4")
	for _, row := range []struct {
		mkfs     string
		to       int64 // KiB
		tooSmall bool
	}{
		{"31360k", 40000, false},
		{"31488k", 40000, true},
		{"31744k", 32767, false}, // no group is added
		{"31744k", 40000, true},
		{"31744k -E resize=1000000", 40000, false},
		{"31744k -b 4096", 64512, false},
		{"31744k -J size=2", 64512, false},
		{"31744k -J size=4", 900 << 10, false},
		{"31744k -J size=4 -O fast_commit", 64512, false},
		{"32768k", 8 << 20, false},
		{"2097152k -J size=4", 4 << 20, true},
		{"2097152k", 4 << 20, false},
	} {
		file := t.TempDir() + "/image"
		size, opts, _ := strings.Cut(row.mkfs, " ")
		r := &rig{T: t}
		r.sh(append(append([]string{"mkfs.ext4", "-q", "-F"}, strings.Fields(opts)...), file, size)...)
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1024)
		_, err = f.ReadAt(b, 1024)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		sb, err := parseSuperblock(b, "ext4")
		if err != nil {
			t.Fatal(err)
		}
		block := int64(1024) << b[24]
		if need, most := ext4Credits(b, sb.Size/block, row.to<<10/block); (need > most) != row.tooSmall {
			t.Errorf("%s to %dk: %d of %d blocks", row.mkfs, row.to, need, most)
		}
	}
}

// A volume of 32 MiB can grow while it is mounted. Another ext4 of that size has a journal so small that some
// kernels panic: it is refused, and grows after the remedy.
func TestSmallJournal(t *testing.T) {
	need(t, "mkfs.ext4", "resize2fs")
	const size, grown = 32 * mib, 64 * mib
	r := newRig(t, size)
	r.format("ext4")
	dir := r.mkdir("made")
	r.mount(r.spec(dir))
	r.resize(grown)
	if err := r.Grow(t.Context(), r.lock, r.dev, "ext4", dir); err != nil && host.GrowsExt4() {
		t.Error(err)
	} else if refused := new(Refusal); errors.As(err, &refused) {
		t.Error(err)
	}
	r.unmount(dir)

	r = newRig(t, size)
	r.sh("mkfs.ext4", "-q", "-F", r.dev.Path, fmt.Sprint((size-volume.Tail)>>10, "k"))
	dir = r.mkdir("other")
	r.mount(r.spec(dir))
	before := r.probe(dir).Size
	r.resize(grown)
	refused := new(Refusal)
	if err := r.Grow(t.Context(), r.lock, r.dev, "ext4", dir); !errors.As(err, &refused) || refused.Code() != volume.Conflict {
		t.Fatalf("got %v", err)
	}
	if err := os.WriteFile(dir+"/file", []byte("hello"), 0o600); err != nil || r.probe(dir).Size != before {
		t.Errorf("%v, %+v", err, r.probe(dir))
	}
	r.unmount(dir)
	_, remedy, _ := strings.Cut(refused.Hint, "then: ")
	r.sh("sh", "-c", strings.TrimSuffix(strings.ReplaceAll(remedy, "e2fsck ", "e2fsck -y "), "; losetup -d $L")) // it is the test's device
	if got := r.probe("").Size; got != volume.Room(grown) {
		t.Errorf("%d bytes after %s", got, refused.Hint)
	}
}

// A filesystem that was remounted read-only is not in error, and is extended after the remedy; one with errors is in error.
func TestGrowReadOnly(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs"} {
		need(t, "mkfs."+fs)
		r := newRig(t, 320*mib)
		r.format(fs)
		dir := r.mkdir("m")
		r.mount(r.spec(dir))
		r.sh("mount", "-o", "remount,ro", dir)
		r.resize(400 * mib)
		err := r.Grow(t.Context(), r.lock, r.dev, fs, dir)
		if errors.Is(err, ErrFailed) || volume.CodeOf(err) != volume.Conflict || !strings.Contains(err.Error(), "mount -o remount,rw "+dir) {
			t.Errorf("%s: got %v", fs, err)
		}
		if fs == "ext4" {
			sys := "/sys/fs/ext4/" + filepath.Base(r.dev.Path)
			if err := os.WriteFile(sys+"/trigger_fs_error", []byte("flexd test"), 0o200); err != nil {
				t.Fatal(err)
			}
			waitFor(t, func() bool { b, _ := os.ReadFile(sys + "/errors_count"); return string(b) != "0\n" })
			if err := r.Grow(t.Context(), r.lock, r.dev, fs, dir); !errors.Is(err, ErrFailed) {
				t.Errorf("in error: got %v", err)
			}
		} else {
			r.sh("mount", "-o", "remount,rw", dir)
			if err := r.Grow(t.Context(), r.lock, r.dev, fs, dir); err != nil {
				t.Error(err)
			}
		}
		r.unmount(dir)
	}
}

// A scan in a container's /dev gives a mounted btrfs the name of another disk. That disk's volume is not
// considered extended, nor the mount its mount, when it is probed.
func TestRenamedBtrfs(t *testing.T) {
	need(t, "mkfs.btrfs", "btrfs", "unshare")
	r, other := newRig(t, 320*mib), newRig(t, 320*mib)
	r.format("btrfs")
	other.format("btrfs")
	dir := r.mkdir("m")
	r.mount(r.spec(dir))
	r.sh("unshare", "-m", "sh", "-ec", `mount -t tmpfs none /dev; mkdir -p ${1%/*}; mknod /dev/btrfs-control c 10 234; mknod $1 b ${2%:*} ${2#*:}; btrfs device scan $1`, "sh", other.dev.Path, r.dev.Number)
	tab, err := mounttable.Own()
	if err != nil {
		t.Fatal(err)
	}
	if e := tab.Top(dir); e == nil || e.Source != other.dev.Path {
		t.Logf("this kernel keeps the name: %v", e)
		return
	}
	other.resize(640 * mib)
	if err := other.Grow(t.Context(), other.lock, other.dev, "btrfs", dir); !errors.Is(err, ErrForeign) && !errors.Is(err, ErrChanged) {
		t.Errorf("grow: got %v", err)
	}
	if fs, err := other.Probe(t.Context(), other.lock, other.dev, dir, created, ""); err == nil {
		t.Errorf("probe: got %+v", fs)
	}
	r.sh("btrfs", "device", "scan", r.dev.Path)
	r.unmount(dir)
}
