package hosttest

import (
	"strings"
	"time"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/flexserve"
	"github.com/flexd/flexd/internal/run"
)

// A Machine is the machine of a flexd: the simulated one, or this one.
type Machine interface {
	// For flexd.
	Runner(started func()) run.Runner
	Mounts() asw.MountSource
	Hook(o *asw.Observer)
	Boot() time.Duration
	BootID() string
	Self() flexserve.Namespaces
	Held(lock string) *run.LockedError

	// Actions of kubelet and pods.
	IsMountPoint(dir string) bool
	Exists(dir string) bool
	Mkdir(dir string) error
	Remove(dir string) error
	Write(dir string) error

	// Actions of an operator.
	Umount(dir string) error
	MountTmpfs(dir string) error
	Bind(from, dir string) error
	Hold(dir string) (release func())

	// State.
	Text() string // the mount table
}

// simulated fits a Host to Machine.
type simulated struct{ *Host }

func (s simulated) Runner(started func()) run.Runner {
	return startedRunner{s.Host, started}
}
func (s simulated) Self() flexserve.Namespaces { return flexserve.Namespaces{} }

func (s simulated) Hook(o *asw.Observer) {
	o.Gone = func(dir string) bool { return !s.Exists(dir) }
	o.MountID = s.MountID
	o.NoDevice = func(number string) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range s.loops {
			if l.Number == number {
				return false
			}
		}
		return strings.HasPrefix(number, "7:") || strings.HasPrefix(number, dmMajor)
	}
	o.FSError = func(path, _ string) string {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range s.loops {
			if "/dev/"+l.Name == path && l.file.State == Failed {
				return l.file.Note
			}
		}
		return ""
	}
}
