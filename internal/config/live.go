package config

import (
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
)

// A Live holds the configuration in force. It changes at a reload.
type Live struct{ current atomic.Pointer[Config] }

// NewLive returns a Live with its first configuration.
func NewLive(c *Config) *Live {
	l := &Live{}
	l.current.Store(c)
	return l
}

// Get returns the configuration in force; a reload replaces it and does not change it.
func (l *Live) Get() *Config { return l.current.Load() }

// VG returns the volume group with a name from the configuration in force, or nil.
func (l *Live) VG(name string) *VolumeGroup { return l.Get().VG(name) }

// Reload applies a configuration, except for keys that need a restart. It returns
// those of these keys that differ.
func (l *Live) Reload(next *Config) (restart []string) {
	applied, restart := l.Get().with(next)
	l.current.Store(applied)
	return restart
}

// with returns next with the values of c for keys that need a restart, and the names of those that
// differ.
func (c *Config) with(next *Config) (*Config, []string) {
	applied, r := *next, &reader{}
	restart := keep(r.schema(c), r.schema(&applied))
	applied.VolumeGroups = nil
	for _, g := range c.VolumeGroups {
		n := next.VG(g.Name)
		if n == nil {
			applied.VolumeGroups = append(applied.VolumeGroups, g)
			restart = append(restart, fmt.Sprintf("volumeGroups: %s is removed", g.Name))
			continue
		}
		with := *n
		if fixed := keep(r.groupSchema(&g), r.groupSchema(&with)); len(fixed) > 0 {
			// Its other keys are for the new storage: its namespaces may not use the present one.
			with = g
			restart = append(restart, fmt.Sprintf("volumeGroups: %s of %s, and so its other keys", strings.Join(fixed, ", "), g.Name))
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

// keep copies the fields that need a restart to next, and returns the keys that differ.
func keep(now, next []key) (changed []string) {
	for i, k := range now {
		switch {
		case k.restart:
			now, next := reflect.ValueOf(k.into).Elem(), reflect.ValueOf(next[i].into).Elem()
			if !reflect.DeepEqual(now.Interface(), next.Interface()) {
				next.Set(now)
				changed = append(changed, k.name)
			}
		case k.show == nil: // a section
			for _, name := range keep(k.keys, next[i].keys) {
				changed = append(changed, k.name+"."+name)
			}
		}
	}
	return changed
}
