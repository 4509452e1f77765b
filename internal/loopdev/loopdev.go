// Package loopdev is the embedded block device provider, for a machine without
// LVM: a volume group is a directory, a logical volume a sparse file, and
// activation a loop device.
//
// A file is a volume of flexd if it carries a uuid in an extended attribute, and a loop
// device is flexd's if its kernel-side file name says so. Neither the loop number nor the
// file's name identifies anything. The package does not read the contents of devices.
package loopdev

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// A Provider manages the volumes of some directories.
type Provider struct {
	// Limits returns the current limits of a volume group; nil = there are none, the default. Set before
	// the first Create.
	Limits func(vg string) *volume.Limits

	dirs    map[string]string // VG → directory
	linkDir string
	runner  run.Runner
	kernel  Kernel

	asking   chan struct{} // semaphore of size 1; full while a child reads one device's identity
	mu       sync.Mutex
	known    map[uint64]identity    // guarded by mu: by diskseq
	rivals   map[uint64]volume.Name // guarded by mu: noted names, by diskseq: the note's directory may be full
	asked    map[uint64]*question   // guarded by mu: by diskseq: of the devices without an answer
	clock    uint64                 // guarded by mu: orders calls and scans
	scanning *scan                  // guarded by mu
	last     *scan                  // guarded by mu: the last one that ended
	sole     map[volume.UUID]sole   // guarded by mu
	newest   uint64                 // guarded by mu: the largest diskseq that a scan has shown
	nextScan time.Time              // guarded by mu: when the next scan may begin
	rewatch  map[string]func()      // guarded by mu: by VG: watches the directory again

	admitting sync.Mutex                   // held while files are read
	groups    map[string]*groupFiles       // guarded by admitting: by VG
	pending   map[volume.Name]*reservation // guarded by admitting: what children create or extend
}

// New returns a provider for the volume groups vgs (name → directory), with their stable
// device links in linkDir. It reads the kernel through k.
func New(vgs map[string]string, linkDir string, r run.Runner, k Kernel) *Provider {
	return &Provider{
		Limits: func(string) *volume.Limits { return nil },

		dirs: vgs, linkDir: linkDir, runner: r, kernel: k,
		asking:  make(chan struct{}, 1),
		known:   map[uint64]identity{},
		rivals:  map[uint64]volume.Name{},
		asked:   map[uint64]*question{},
		sole:    map[volume.UUID]sole{},
		rewatch: map[string]func(){},
		groups:  map[string]*groupFiles{},
		pending: map[volume.Name]*reservation{},
	}
}

// isUUID uses no regular expression: every child of flexd would compile it at its start.
func isUUID(s string) bool {
	return len(s) >= 8 && len(s) <= 40 && strings.Trim(s, "0123456789abcdefABCDEF-") == ""
}

// directory returns the directory of a volume group, with the path that the kernel shows for a loop
// device's backing file.
func (p *Provider) directory(vg string) (string, error) {
	dir, ok := p.dirs[vg]
	if !ok {
		return "", fmt.Errorf("volume group %q is not configured", vg)
	}
	return p.kernel.Directory(dir)
}

// SameDirectory reports whether two groups are of one directory, as through a bind mount.
func (p *Provider) SameDirectory(a, b string) bool {
	var at [2]Inode
	for i, vg := range []string{a, b} {
		dir, err := p.directory(vg)
		if err != nil {
			return false
		}
		f, err := p.kernel.File(dir)
		if err != nil || !f.Exists {
			return false
		}
		at[i] = f.Inode
	}
	return at[0] == at[1]
}

// file returns the path of a volume's file.
func (p *Provider) file(name volume.Name) (string, error) {
	if name.LV == "" || strings.HasPrefix(name.LV, ".") || strings.ContainsAny(name.LV, "/\x00\n") {
		return "", volume.Errorf(volume.Invalid, "%q is not a valid volume name: the name of its file has no leading dot, slash or line break", name.LV)
	}
	dir, err := p.directory(name.VG)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, name.LV), nil
}

// nameOf returns the volume of a file; empty if the file is in no configured directory. The group configured with the
// path of its directory is asked first: another group's directory that hangs must not delay it.
func (p *Provider) nameOf(file string) volume.Name {
	parent := filepath.Dir(file)
	for _, first := range []bool{true, false} {
		for vg, path := range p.dirs {
			if (path == parent) != first {
				continue
			}
			if dir, err := p.directory(vg); err == nil && dir == parent {
				return volume.Name{VG: vg, LV: filepath.Base(file)}
			}
		}
	}
	return volume.Name{}
}
