package lvm

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// An origin and its thick snapshots are active together or not at all: lvchange of one
// activates or deactivates all of them.

// family returns the other volumes that LVM activates together with l. It omits a snapshot that is
// being merged: its device has no data, and LVM removes it with its origin.
func (f *Facts) family(l Logical) (all []volume.LV) {
	if !l.thick() { // most volumes: a loop for each would make the cost quadratic
		return nil
	}
	origin := l.Name
	if l.thickSnapshot() {
		origin = l.Origin
	}
	for _, o := range f.LVs {
		if o.Name != l.Name && !o.Hidden && (o.Name == origin || o.Origin == origin) && o.thick() {
			all = append(all, volume.LV{Name: volume.Name{VG: f.Name, LV: o.Name}, UUID: o.UUID})
		}
	}
	return all
}

// thickSnapshot reports whether a volume is a thick snapshot.
func (l Logical) thickSnapshot() bool { return slices.Contains(l.Role, "thicksnapshot") }

// thick reports whether a volume has thick snapshots or is one.
func (l Logical) thick() bool { return l.thickSnapshot() || slices.Contains(l.Role, "thickorigin") }

// relatives returns the other volumes that LVM deactivates together with the volume of
// device m.
func (p *Provider) relatives(m devmapper.Mapped) (all []volume.Relative, err error) {
	real := realOf(m)
	if real == "" {
		return nil, nil
	}
	numbers, err := p.devicesOn(real)
	if err == nil && !slices.Contains(numbers, m.Number) {
		err = errors.New("sysfs does not list it")
	}
	if err != nil {
		now, nerr := p.DM.Device(devmapper.Key{UUID: m.UUID})
		switch {
		case errors.Is(nerr, devmapper.ErrNoDevice):
			return nil, nil // deactivated meanwhile
		case nerr == nil && realOf(now) != real: // its last snapshot was removed or merged meanwhile
			return p.relatives(now)
		}
		return nil, fmt.Errorf("the origin or the snapshots of %s are not known: %w", m.Name, err)
	}
	for _, number := range numbers {
		if number == m.Number {
			continue
		}
		d, err := p.DM.Device(devmapper.Key{Number: number})
		if errors.Is(err, devmapper.ErrNoDevice) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		uuid, ok := parseDMUUID(d.UUID)
		if !ok || realOf(d) != real {
			continue
		}
		name, layer, ok := parseDMName(d.Name)
		if !ok || layer != "" {
			name = volume.Name{LV: d.Name} // renamed by hand
		}
		state, err := p.status(d)
		all = append(all, volume.Relative{Name: name, UUID: uuid, Open: d.Open, Lost: err == nil && len(state.Targets) == 1 && d.Targets[0].Type == "snapshot" && lost[state.Targets[0].Params]})
	}
	slices.SortFunc(all, func(a, b volume.Relative) int { return strings.Compare(a.Name.String(), b.Name.String()) })
	return all, nil
}

// devicesOn returns the numbers of the devices directly above a device.
func devicesOn(number string) (on []string, err error) {
	dir := "/sys/dev/block/" + number + "/holders"
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		n, nerr := sysfs.Line(filepath.Join(dir, e.Name(), "dev"))
		if errors.Is(nerr, fs.ErrNotExist) || errors.Is(nerr, unix.ENODEV) {
			continue // it was removed meanwhile
		}
		err = cmp.Or(err, nerr)
		on = append(on, n)
	}
	return on, err
}

// realOf returns the number of the device with the data of an origin, if m is the origin or one of
// its snapshots; "" otherwise.
func realOf(m devmapper.Mapped) string {
	for _, t := range m.Targets {
		switch t.Type {
		case "snapshot", "snapshot-origin", "snapshot-merge":
			real, _, _ := strings.Cut(t.Params, " ")
			return real
		}
	}
	return ""
}

// sameFamily returns an error if a deactivation would include a volume that the caller has not
// checked, or a volume that is open now.
func (p *Provider) sameFamily(m devmapper.Mapped, known []volume.Relative) error {
	now, err := p.relatives(m)
	if err != nil {
		return err
	}
	for _, r := range now {
		if !slices.ContainsFunc(known, func(k volume.Relative) bool { return k.UUID == r.UUID }) {
			return fmt.Errorf("deactivate: LVM deactivates it only together with %s, which became active just now", r.Name)
		}
		if r.Open > 0 {
			return fmt.Errorf("deactivate: LVM deactivates it only together with %s, which was opened just now", r.Name)
		}
	}
	return nil
}

// lost has the states of a snapshot whose contents are lost.
var lost = map[string]bool{"Invalid": true, "Overflow": true}

// lossRecorded returns an error if m is a snapshot whose contents are lost, or an origin that is merged with one, unless
// the snapshot's disk says so, too. After an error of that disk the kernel could not write it there: the next activation
// would take the snapshot for valid, and give wrong contents, in a shared group on another node.
func (g *group) lossRecorded(ctx context.Context, lock string, m devmapper.Mapped, uuid volume.UUID) error {
	if len(m.Targets) != 1 {
		return nil
	}
	p := g.p
	var what, remedy string
	name, _, _ := parseDMName(m.Name)
	l := g.lastFacts().lv(uuid)
	switch target := m.Targets[0].Type; {
	case target == "snapshot" && l.merging():
		what, remedy = fmt.Sprintf("the contents of the snapshot %s, which is to be merged into %s, are lost", name, l.Origin), join.CancelMerge(name.VG, name.LV)
	case target == "snapshot":
		what, remedy = fmt.Sprintf("the contents of the snapshot %s are lost", name), fmt.Sprintf("if nothing needs it, lvremove %s (while its disk is missing with --config activation/activation_mode=partial)", name)
	case target == "snapshot-merge": // the merge would continue, over what was written since
		what, remedy = fmt.Sprintf("%s was being merged with a snapshot whose contents are lost", name), fmt.Sprintf("copy its data off, then lvchange -an %s", name)
	default:
		return nil
	}
	state, err := p.status(m)
	switch {
	case errors.Is(err, devmapper.ErrNoDevice):
		return nil // deactivated meanwhile
	case err != nil:
		return fmt.Errorf("the state of %s cannot be read: %w", name, err)
	case len(state.Targets) != 1 || !lost[state.Targets[0].Params]:
		return nil
	}
	valid, err := p.validOnDisk(ctx, lock, m.Targets[0])
	switch {
	case err != nil:
		return fmt.Errorf("%s, and whether the disk of the snapshot says so cannot be read: %s: %w", what, remedy, err)
	case valid:
		return fmt.Errorf("%s, but the disk of the snapshot says that it is valid, as it would look after the next activation: %s", what, remedy)
	}
	return nil
}

// validOnDisk returns whether the header of a snapshot says that it is valid.
func (p *Provider) validOnDisk(ctx context.Context, lock string, table devmapper.Target) (valid bool, err error) {
	words := strings.Fields(table.Params) // the origin's data, the snapshot's data ...
	if len(words) < 2 {
		return false, fmt.Errorf("its table is %q", table.Params)
	}
	m, err := p.DM.Device(devmapper.Key{Number: words[1]})
	if err != nil {
		return false, err
	}
	valid = true
	err = mount.Ask(ctx, p.Runner, run.Cmd{
		Step:     "read the header of a snapshot",
		Argv:     run.Self("lvm-snapshot-valid", p.node(m)),
		Lock:     lock,
		Deadline: holdersDeadline,
	}, &valid)
	return valid, err
}

// readValid is the child of validOnDisk.
func readValid(path string) (bool, error) {
	b, err := newBlock()
	if err == nil {
		err = readBlock(b, path, 0)
	}
	if err != nil {
		return false, err
	}
	return validHeader(b)
}

// validHeader reads the header of dm-snapshot's persistent store: magic, valid, version, chunk size.
func validHeader(b []byte) (bool, error) {
	const magic = 0x70416e53 // "SnAp"
	if len(b) < 16 || binary.LittleEndian.Uint32(b) != magic {
		return false, errors.New("it has no header of a snapshot")
	}
	return binary.LittleEndian.Uint32(b[4:]) != 0, nil
}
