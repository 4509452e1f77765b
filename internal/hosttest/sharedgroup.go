package hosttest

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// NewShared returns a simulated node with flexd running, whose volume group is on a disk
// that other nodes see. Its number is its host id.
func NewShared(t testing.TB, tmp string, d *Disk, id int) *Env {
	e := &Env{T: t, Restart: time.Second, Limit: 15 * time.Minute, tmp: filepath.Join(tmp, fmt.Sprint(id)), Root: "/sim/kubelet"}
	e.Sim = NewSharedHost(e.broke, d, id)
	e.M = simulated{e.Sim}
	e.Storage = sharedVolumes{e.Sim}
	_ = e.Sim.Mkdir(e.Root)
	e.Sim.dirs = e.dirs
	e.configure()
	e.Config.NodeName = fmt.Sprintf("node%d", id)
	e.Start()
	return e
}

// Locking returns the lock manager of a node with a shared volume group.
func (e *Env) Locking() *LockManager { return e.Sim.locking }

// PowerOff ends the machine at once, with the kernel's memory and /run.
func (e *Env) PowerOff() {
	e.mu.Lock()
	e.off = true
	e.mu.Unlock()
	e.Sim.locking.PowerOff()
	e.Reboot()
}

// PowerOn boots the machine: flexd and the lockspace start.
func (e *Env) PowerOn() {
	e.mu.Lock()
	e.off = false
	e.mu.Unlock()
	e.Sim.locking.PowerOn()
	e.Begin()
}

// sharedVolumes are the volumes of LVM on a disk that several hosts see.
type sharedVolumes struct{ h *Host }

func (s sharedVolumes) Make(lv string, size int64) error {
	d := s.h.locking.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(path.Join(groupDir, lv), File{FileInfo: loopdev.FileInfo{Size: size}})
	return nil
}

func (s sharedVolumes) Shell(string, string) error { return errors.ErrUnsupported }
func (s sharedVolumes) sweep(*Env)                 {}

func (s sharedVolumes) configure(c *config.Config, vg *config.VolumeGroup) {
	c.LVMFilter = lvm.DefaultFilter
	vg.Provider, vg.Shared = "lvm", true
}

func (s sharedVolumes) provider(c *config.Config, r run.Runner) reconcile.Provider {
	s.h.locking.notReported()
	p := lvm.New(lvm.Options{
		Runner: r, DM: deviceMapper(s), LockDir: filepath.Join(c.RunDir, "lanes"), Groups: map[string]lvm.Group{VG: {Shared: true}},
		Sys:    filepath.Join(c.RunDir, "sys"), // it has no disks: requests to this machine's do not end in simulated time
		Filter: c.LVMFilter, Locks: &locks{m: s.h.locking}, Leads: func(string, string) bool { return true }, Earlier: s.h.earlier, Host: c.NodeName,
	})
	return sharedGroup{p, s.h}
}

func (s sharedVolumes) active() (all []volume.LV, err error) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	for _, name := range s.h.loopNames() {
		f := s.h.loops[name].file
		all = append(all, volume.LV{Name: volume.Name{VG: VG, LV: path.Base(f.path)}, UUID: volume.UUID(f.UUID)})
	}
	return all, nil
}

// A sharedGroup receives the simulated events of its host. No event reports changes by another host.
type sharedGroup struct {
	*lvm.Provider
	h *Host
}

// Watch calls changed as lvm.Provider does.
func (g sharedGroup) Watch(ctx context.Context, changed func(vg string, volumes map[volume.UUID]time.Time)) error {
	g.h.mu.Lock()
	seen := len(g.h.events)
	g.h.mu.Unlock()
	for {
		g.h.mu.Lock()
		events, more := g.h.events[seen:], g.h.more
		seen = len(g.h.events)
		g.h.mu.Unlock()
		volumes := map[volume.UUID]time.Time{}
		for _, e := range events {
			if e.uuid == "" {
				g.Invalidate(VG)
				changed(VG, nil)
			} else {
				volumes[volume.UUID(e.uuid)] = e.at
			}
		}
		if len(volumes) > 0 {
			changed(VG, volumes)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil
		}
	}
}

// earlier returns the command of LVM that holds a lock file.
func (h *Host) earlier(lock string) *lvm.Block {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.locks[lock]
	if l == nil {
		return nil
	}
	b := &lvm.Block{Step: "an LVM command of an earlier flexd", Pids: []int{l.pid}, Done: l.done}
	for _, word := range l.argv {
		if strings.HasPrefix(word, VG+"/") {
			b.Volumes = append(b.Volumes, word)
		}
	}
	return b
}
