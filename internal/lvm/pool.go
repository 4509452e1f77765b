package lvm

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// A Pool is the state of a thin pool in device-mapper.
type Pool struct {
	Name       volume.Name
	Size       int64 // in LVM's metadata
	MetaSize   int64 // likewise
	Active     bool  // otherwise the other fields are not known
	Data       Usage
	Metadata   Usage
	Mode       string // "rw", "ro", "out_of_data_space", "Fail", "Error"
	ErrorFull  bool   // writes to a full pool fail at once; otherwise they wait
	NeedsCheck bool
}

// A Usage has used and total bytes.
type Usage struct{ Used, Total int64 }

// Free returns the unused bytes.
func (u Usage) Free() int64 { return max(u.Total-u.Used, 0) }

// Percent returns the used part, from 0 to 100.
func (u Usage) Percent() float64 {
	if u.Total <= 0 {
		return 0
	}
	return 100 * float64(u.Used) / float64(u.Total)
}

// Failed returns why the pool cannot be used at all; "" = it can.
func (p Pool) Failed() string {
	// With LVM's own options thin_check does not remove the needs_check flag, and lvconvert --repair keeps it.
	check := fmt.Sprintf(`if a disk of it is missing or has become too small (pvs, dmesg, flexd check), bring that back first: until then nothing that is deactivated becomes active again. Unmount and deactivate its volumes, then lvchange -an %s; lvchange -ay --config 'global/thin_check_options=["-q","--clear-needs-check-flag"]' %[1]s. Only if that reports a failed check: lvconvert --repair %[1]s, then the same lvchange -ay`, p.Name)
	switch {
	case !p.Active:
		return ""
	case p.Mode == "Fail" || p.Mode == "Error":
		return "the pool has failed: " + check
	case p.NeedsCheck:
		return "the pool's metadata must be checked: " + check
	case p.Metadata.Total > 0 && p.Metadata.Free() == 0: // the kernel detects this at the next write
		return "the pool's metadata is full: lvextend --poolmetadatasize +SIZE " + p.Name.String()
	case p.Mode == "ro":
		return "the pool is read-only: its metadata is full or broken; if full: lvextend --poolmetadatasize +SIZE " + p.Name.String()
	}
	return ""
}

// Full returns why nothing can be written to the pool; "" = it can.
func (p Pool) Full() string {
	switch failed := p.Failed(); {
	case !p.Active || failed != "":
		return failed
	case p.Mode == "out_of_data_space" || p.Data.Free() == 0:
		if p.ErrorFull {
			return "the pool is full: writes fail; lvextend -L +SIZE " + p.Name.String()
		}
		return "the pool is full: writes wait for a minute, then fail; lvextend -L +SIZE " + p.Name.String()
	}
	return ""
}

// Trouble describes a problem of a pool, also a usage above percent; "" = no problem.
func (p Pool) Trouble(percent float64) string {
	if why := p.Full(); why != "" || !p.Active {
		return why
	}
	for _, u := range []struct {
		what, extend string
		Usage
	}{{"data", "lvextend -L +SIZE", p.Data}, {"metadata", "lvextend --poolmetadatasize +SIZE", p.Metadata}} {
		if u.Percent() >= percent {
			return fmt.Sprintf("%.1f %% of the pool's %s are used: %s %s, or remove volumes that are not needed", u.Percent(), u.what, u.extend, p.Name)
		}
	}
	return ""
}

func (l Logical) thinPool() bool {
	return slices.Contains(l.Layout, "thin") && slices.Contains(l.Layout, "pool")
}

// PoolStates returns the state of the named pools (nil = all) in the cached metadata. It starts no
// process and does not wait for a report.
func (p *Provider) PoolStates(vg string, names []string) ([]Pool, error) {
	g, err := p.configured(vg)
	if err != nil {
		return nil, err
	}
	f := g.lastFacts()
	if f == nil {
		return nil, nil
	}
	if names == nil {
		for name, l := range f.LVs {
			if l.thinPool() {
				names = append(names, name)
			}
		}
		slices.Sort(names)
	}
	var (
		all    []Pool
		failed error // the failure of one pool does not affect the others
	)
	for _, name := range names {
		l, known := f.LVs[name]
		if !known {
			continue
		}
		one, err := p.pool(f, l)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		all = append(all, one)
	}
	return all, failed
}

// pool returns the state of one pool. If volumes use the pool, it has a hidden device (-tpool).
func (p *Provider) pool(f *Facts, l Logical) (Pool, error) {
	one := Pool{Name: volume.Name{VG: f.Name, LV: l.Name}, Size: l.Size, MetaSize: f.LVs[l.Name+"_tmeta"].Size}
	for _, layer := range []string{"-tpool", ""} {
		m, err := p.DM.Device(devmapper.Key{UUID: dmUUID(l.UUID) + layer})
		if err == nil {
			m, err = p.status(m)
		}
		if errors.Is(err, devmapper.ErrNoDevice) {
			continue
		}
		if err != nil {
			return one, err
		}
		if len(m.Targets) == 1 && m.Targets[0].Type == "thin-pool" {
			return one, one.parse(m.Targets[0].Params, m.Targets[0].Length)
		}
	}
	return one, nil
}

// parse reads the status of a thin-pool target: transaction, used/total metadata blocks of
// 4 KiB, used/total data blocks, held root, mode, discards, behaviour when full,
// needs_check or "-", low water mark.
func (p *Pool) parse(s string, size int64) error {
	p.Active = true
	w := strings.Fields(s)
	if len(w) > 0 && (w[0] == "Fail" || w[0] == "Error") {
		p.Mode = w[0]
		return nil
	}
	if len(w) < 5 {
		return fmt.Errorf("thin pool %s: its status does not parse: %.200q", p.Name, s)
	}
	meta, ok1 := fraction(w[1])
	data, ok2 := fraction(w[2])
	if !ok1 || !ok2 {
		return fmt.Errorf("thin pool %s: its status does not parse: %.200q", p.Name, s)
	}
	p.Metadata = Usage{meta.Used * 4096, meta.Total * 4096}
	if data.Total > 0 {
		block := size / data.Total
		p.Data = Usage{data.Used * block, data.Total * block}
	}
	p.Mode = w[4]
	p.ErrorFull = slices.Contains(w, "error_if_no_space")
	p.NeedsCheck = slices.Contains(w, "needs_check")
	return nil
}

func fraction(s string) (Usage, bool) {
	a, b, _ := strings.Cut(s, "/")
	x, err1 := strconv.ParseInt(a, 10, 64)
	y, err2 := strconv.ParseInt(b, 10, 64)
	return Usage{x, y}, err1 == nil && err2 == nil && x >= 0 && y >= 0
}
