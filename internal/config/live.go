package config

import (
	"fmt"
	"reflect"
	"sync/atomic"
)

// A Live is the configuration in force. It changes at a reload.
type Live struct{ current atomic.Pointer[Config] }

// NewLive returns a Live with its first configuration.
func NewLive(c *Config) *Live {
	l := &Live{}
	l.current.Store(c)
	return l
}

// Get returns the configuration in force, which does not change.
func (l *Live) Get() *Config { return l.current.Load() }

// VG returns the volume group of that name as it is configured now, or nil.
func (l *Live) VG(name string) *VolumeGroup { return l.Get().VG(name) }

// Reload applies a configuration, except for the keys that need a restart. It returns
// these, as far as they differ.
func (l *Live) Reload(next *Config) (restart []string) {
	applied, restart := l.Get().with(next)
	l.current.Store(applied)
	return restart
}

// with returns next with the keys of c that cannot change, and the names of those that
// differ.
func (c *Config) with(next *Config) (*Config, []string) {
	applied, restart := *next, []string{}
	for _, k := range []struct {
		name     string
		now, new any // pointers
	}{
		{"driver", &c.Driver, &applied.Driver},
		{"nodeName", &c.NodeName, &applied.NodeName},
		{"kubeletRoots", &c.KubeletRoots, &applied.KubeletRoots},
		{"runDir", &c.RunDir, &applied.RunDir},
		{"stateDir", &c.StateDir, &applied.StateDir},
		{"statusGroup", &c.StatusGroup, &applied.StatusGroup},
		{"historySize", &c.HistorySize, &applied.HistorySize},
		{"maxChecks", &c.MaxChecks, &applied.MaxChecks},
		{"checkMemory", &c.CheckMemory, &applied.CheckMemory},
		{"callDeadline", &c.CallDeadline, &applied.CallDeadline},
		{"cgroupDir", &c.CgroupDir, &applied.CgroupDir},
		{"log.format", &c.LogFormat, &applied.LogFormat},
		{"lvmFilter", &c.LVMFilter, &applied.LVMFilter},
	} {
		now, new := reflect.ValueOf(k.now).Elem(), reflect.ValueOf(k.new).Elem()
		if !reflect.DeepEqual(now.Interface(), new.Interface()) {
			new.Set(now)
			restart = append(restart, k.name)
		}
	}
	applied.VolumeGroups = nil
	for _, g := range c.VolumeGroups {
		n := next.VG(g.Name)
		if n == nil {
			applied.VolumeGroups = append(applied.VolumeGroups, g)
			restart = append(restart, fmt.Sprintf("volumeGroups: %s is removed", g.Name))
			continue
		}
		with := *n
		with.Provider, with.Directory, with.ThinPool, with.Layout, with.ZeroAll = g.Provider, g.Directory, g.ThinPool, g.Layout, g.ZeroAll
		if !reflect.DeepEqual(with, *n) {
			// Its other keys are for the other storage: these namespaces may not use the present one.
			with = g
			restart = append(restart, fmt.Sprintf("volumeGroups: provider, directory, thinPool, layout or zero of %s, and so its other keys", g.Name))
		}
		applied.VolumeGroups = append(applied.VolumeGroups, with)
	}
	for _, n := range next.VolumeGroups {
		if c.VG(n.Name) == nil {
			restart = append(restart, fmt.Sprintf("volumeGroups: %s is new", n.Name))
		}
	}
	return &applied, restart
}
