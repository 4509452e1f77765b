package hosttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// A Storage provides the volumes of an Env.
type Storage interface {
	// Make makes a blank, inactive volume, as an administrator would.
	Make(lv string, size int64) error
	// Shell is a volume's owner at a prompt: a script that finds the volume's
	// device in $L, also where flexd has none, and lets it go at its end.
	Shell(lv, script string) error

	configure(c *config.Config, vg *config.VolumeGroup)
	provider(c *config.Config, r run.Runner) reconcile.Provider
	// active returns the volumes that have a device. Volumes that are not flexd's have no uuid.
	active() ([]volume.LV, error)
	// sweep removes the remains of a test, except its mounts, which are already gone.
	sweep(e *Env)
}

// A watcher is a provider that receives events.
type watcher interface {
	Watch(ctx context.Context, changed func(vg string, volumes map[volume.UUID]time.Time)) error
}

// files are the volumes of loopdev.
type files struct {
	kernel loopdev.Kernel
	dir    string
}

// Dir is the directory that is the volume group, where volumes are files.
func (e *Env) Dir() string {
	switch s := e.Storage.(type) {
	case files:
		return s.dir
	case simulatedFiles:
		return s.dir
	case sharedVolumes:
		return groupDir
	}
	e.T.Fatal("volumes are no files here")
	return ""
}

// File is the path of a volume's file.
func (e *Env) File(lv string) string { return filepath.Join(e.Dir(), lv) }

func (s files) configure(_ *config.Config, vg *config.VolumeGroup) {
	vg.Provider, vg.Directory = "loopdev", s.dir
}

func (s files) provider(c *config.Config, r run.Runner) reconcile.Provider {
	p := loopdev.New(map[string]string{VG: s.dir}, filepath.Join(c.RunDir, "dev"), r, s.kernel)
	p.Limits = func(string) *volume.Limits {
		return &volume.Limits{Namespace: volume.Limit{MaxVolumes: 1 << 20, MaxTotalSize: 1 << 60}}
	}
	return p
}

// Make gives the file a uuid of its own: flexd refuses a second one with the same uuid, and
// sees the loop devices of other tests.
func (s files) Make(lv string, size int64) error {
	uuid, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(s.dir, lv))
	if err != nil {
		return err
	}
	defer f.Close()
	return errors.Join(f.Truncate(size), unix.Fsetxattr(int(f.Fd()), "trusted.flexd.uuid", bytes.TrimSpace(uuid), 0))
}

// Shell has a loop device of its own.
func (s files) Shell(lv, script string) error {
	return shell("L=$(losetup -f --show " + filepath.Join(s.dir, lv) + "); trap 'losetup -d $L' EXIT; " + script)
}

func shell(script string) error {
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", script, err, out)
	}
	return nil
}

func (s files) active() (all []volume.LV, err error) {
	loops, err := s.kernel.Loops()
	for _, l := range loops {
		if filepath.Dir(l.BackingFile) != s.dir {
			continue
		}
		lv := volume.LV{Name: volume.Name{VG: VG, LV: filepath.Base(l.BackingFile)}}
		if f, err := s.kernel.File(l.BackingFile); err == nil {
			lv.UUID = volume.UUID(f.UUID)
		}
		all = append(all, lv)
	}
	return all, err
}

func (s files) sweep(e *Env) {
	loops, _ := s.kernel.Loops()
	for _, l := range loops {
		if strings.HasPrefix(l.BackingFile, e.tmp+"/") {
			_ = exec.Command("losetup", "-d", "/dev/"+l.Name).Run()
		}
	}
}

// simulatedFiles are those of a Host.
type simulatedFiles struct {
	files
	h *Host
}

// madeUUID is that of a volume that an administrator made; there is one in a simulation.
const madeUUID = "aaaaaaaa-0000-4000-8000-000000000001"

func (s simulatedFiles) Make(lv string, size int64) error {
	s.h.AddFile(File{FileInfo: loopdev.FileInfo{UUID: madeUUID, Size: size}}, filepath.Join(s.dir, lv))
	return nil
}

func (s simulatedFiles) provider(c *config.Config, r run.Runner) reconcile.Provider {
	return simulatedGroup{s.files.provider(c, r).(*loopdev.Provider), s.h}
}

func (s simulatedFiles) Shell(string, string) error { return errors.ErrUnsupported }
func (s simulatedFiles) sweep(*Env)                 {}

// A simulatedGroup delays look-ups as the test requests.
type simulatedGroup struct {
	*loopdev.Provider
	h *Host
}

func (g simulatedGroup) LookUp(ctx context.Context, name volume.Name) (volume.LV, error) {
	if err := g.h.lookUp(ctx); err != nil {
		return volume.LV{}, err
	}
	return g.Provider.LookUp(ctx, name)
}
