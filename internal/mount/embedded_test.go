package mount

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// Ensure that mount options in a pod's image are refused by name, even if they appear after the probe, and
// that the remedy works.
func TestEmbeddedOptions(t *testing.T) {
	need(t, "mkfs.ext4", "tune2fs", "debugfs")
	r := newRig(t, 64*mib)
	r.sh("mkfs.ext4", "-q", r.dev.Path)
	clean := r.spec(r.mkdir("m"))
	for _, tt := range []struct {
		name, option string
		tool         []string
	}{
		{"mount_opts", "errors=panic", []string{"tune2fs", "-E", "mount_opts=errors=panic"}},
		{"second of mount_opts", "journal_path=/dev/sda", []string{"debugfs", "-w", "-R", "ssv mount_opts commit=7,journal_path=/dev/sda"}},
		{"all of mount_opts", "x", []string{"debugfs", "-w", "-R", "ssv mount_opts " + strings.Repeat("nobarrier,", 6) + "x"}},
		{"errors", "errors=panic", []string{"tune2fs", "-e", "panic"}},
		{"debug", "debug", []string{"tune2fs", "-o", "debug"}},
		{"uid16", "nouid32", []string{"tune2fs", "-o", "uid16"}},
		{"writeback", "data=writeback", []string{"tune2fs", "-o", "journal_data_writeback"}},
		{"writeback of mount_opts", "data=writeback", []string{"tune2fs", "-E", "mount_opts=data=writeback"}},
		{"nobarrier", "nobarrier", []string{"tune2fs", "-o", "nobarrier"}},
		{"barrier=0 of mount_opts", "barrier=0", []string{"tune2fs", "-E", "mount_opts=barrier=0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.sh(append(slices.Clone(tt.tool), r.dev.Path)...)
			_, probed := r.Probe(t.Context(), r.lock, r.dev, "", created, "")
			mounted := r.Mount(t.Context(), r.lock, firstOf(clean), yes)
			for _, err := range []error{probed, mounted} {
				var refusal *Refusal
				if !errors.As(err, &refusal) || refusal.Why != volume.NotAllowed || !strings.Contains(refusal.What, `"`+tt.option+`"`) {
					t.Fatalf("got %v, want a refusal of %q", err, tt.option)
				}
				_, command, _ := strings.Cut(refusal.Hint, ": ")
				r.sh("sh", "-c", strings.TrimSuffix(command, "; losetup -d $L")) // it is the test's device
			}
			r.probe("")
		})
	}
	r.sh("debugfs", "-w", "-R", "ssv mount_opts commit=7,nodelalloc", r.dev.Path)
	r.sh("tune2fs", "-o", "journal_data_ordered,acl,discard", r.dev.Path)
	r.mount(firstOf(clean))
	if got := r.ext4Options(); !slices.Contains(got, "commit=7") {
		t.Errorf("the allowed option does not hold: %v", got)
	}
	r.unmount(clean.Dir)
}

// A read-write mount is refused if the kernel makes the filesystem read-only.
func TestReadOnlyFilesystem(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	r.sh("tune2fs", "-O", "read-only", r.dev.Path)
	l := r.spec(r.mkdir("m"))
	l.First = true
	err := r.Mount(t.Context(), r.lock, l, yes)
	var refusal *Refusal
	if !errors.As(err, &refusal) || !strings.Contains(refusal.What, "only read-only") {
		t.Fatalf("got %v", err)
	}
	_, command, _ := strings.Cut(refusal.Hint, "feature read-only: ")
	l.ReadOnly = true
	r.mount(l)
	r.unmount(l.Dir)
	r.sh("sh", "-c", strings.TrimSuffix(command, "; losetup -d $L")) // it is the test's device
	l.ReadOnly = false
	r.mount(l)
	r.unmount(l.Dir)
}

// Ensure that the remedy for an xfs that the kernel finds damaged works as written.
func TestDamagedXFS(t *testing.T) {
	r := newRig(t, 320*mib)
	r.format("xfs")
	r.sh("dd", "if=/dev/urandom", "of="+r.dev.Path, "bs=512", "seek=2", "count=1", "conv=notrunc,fsync") // AGI 0
	l := r.spec(r.mkdir("m"))
	l.First, l.FSType = true, "xfs"
	err := r.Mount(t.Context(), r.lock, l, yes)
	if !errors.Is(err, ErrFailed) {
		t.Fatalf("got %v", err)
	}
	remedy := regexp.MustCompile(`its log: ((?:L=|xfs_repair ).*)`).FindStringSubmatch(err.Error())
	if remedy == nil {
		t.Fatalf("got %v", err)
	}
	r.sh("sh", "-c", strings.TrimSuffix(remedy[1], "; losetup -d $L")) // it is the test's device
	r.mount(l)
	r.unmount(l.Dir)
}

// Ensure that an ext4 with an error in the image becomes read-only, whatever its superblock sets, and that a
// request may ask for another behaviour.
func TestErrorsBehaviour(t *testing.T) {
	need(t, "mkfs.ext4", "debugfs")
	for _, tt := range []struct {
		name, embedded string
		super          []string
		readOnly       bool
	}{
		{"default", "ssv errors 1", nil, true},
		{"superblock's mount_opts", "ssv mount_opts errors=continue", nil, true},
		{"asked for", "ssv errors 2", []string{"errors=continue"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 64*mib)
			r.sh("mkfs.ext4", "-q", "-O", "^metadata_csum", r.dev.Path)
			r.sh("debugfs", "-w", "-R", tt.embedded, r.dev.Path)
			r.sh("debugfs", "-w", "-R", "mkdir d", r.dev.Path)
			r.sh("debugfs", "-w", "-R", "sif d block[0] 7", r.dev.Path) // no directory there
			l := firstOf(r.spec(r.mkdir("m")))
			l.Super = tt.super
			r.mount(l)
			if _, err := os.ReadDir(filepath.Join(l.Dir, "d")); err == nil {
				t.Fatal("the directory is not damaged")
			}
			// Some kernels do not show in the mount table that it is read-only now.
			if err := os.Mkdir(filepath.Join(l.Dir, "new"), 0o700); (err != nil) != tt.readOnly {
				t.Errorf("after the error: %v, with %v", err, r.mounts()[0].Super)
			}
			r.unmount(l.Dir)
		})
	}
}

func firstOf(l MountSpec) MountSpec {
	l.First = true
	return l
}

// ext4Options returns the options in force.
func (r *rig) ext4Options() []string {
	r.Helper()
	b, err := os.ReadFile("/proc/fs/ext4/" + filepath.Base(r.dev.Path) + "/options")
	if err != nil {
		r.Fatal(err)
	}
	return strings.Split(string(b), "\n")
}
