package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Extend makes lv and its device at least size bytes large, never smaller. One
// that is that large already is success; it goes on where one that was cut
// ended. The device need not be active.
func (p *Provider) Extend(ctx context.Context, _ string, lv volume.LV, _ volume.Device, size int64) error {
	g, err := p.configured(lv.Name.VG)
	if err != nil {
		return err
	}
	m := &member{name: lv.Name, uuid: lv.UUID, done: make(chan struct{})}
	if err := p.begin(m); err != nil {
		return err
	}
	go func() { p.end(m, g.extend(lv, size)) }()
	select {
	case <-m.done:
		return m.err
	case <-ctx.Done():
		return context.Cause(ctx) // the command goes on, and the volume is busy until it ends
	}
}

// extend does it, whether or not the caller still waits.
func (g *group) extend(lv volume.LV, size int64) error {
	ctx := context.Background()
	release, err := g.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	// lvextend takes a name only, and no selection by uuid: look what the name
	// means right before it, and again after it.
	f, l, err := g.now(ctx, lv)
	if err != nil {
		return err
	}
	wanted := f.extents(size) * f.ExtentSize
	if l.Size < wanted {
		if slices.Contains(l.Role, "thicksnapshot") {
			return fmt.Errorf("extend: %s is a snapshot with its origin's size; LVM could only give it more room for changes", lv.Name)
		}
		if l.Pool == "" {
			if err := g.checkUnknown(ctx, f); err != nil {
				return err
			}
		}
		more := wanted - l.Size
		if _, fenced := f.fenced(); slices.Equal(l.Layout, []string{"linear"}) && more > f.Free-fenced {
			return f.spaceError(more, "")
		}
		_, err := g.change("extend", extendArgs(g.p.Groups[g.name], l, lv.Name, wanted), 0)
		g.invalidate()
		var stuck *run.StuckError
		if errors.As(err, &stuck) {
			return err
		}
		var lerr error
		if f, l, lerr = g.now(ctx, lv); lerr != nil {
			return errors.Join(err, lerr)
		}
		if l.Size < wanted { // else it counts, whatever was said
			if err == nil {
				err = fmt.Errorf("extend: LVM says that it is done, but %s has %d bytes, not %d", lv.Name, l.Size, wanted)
			}
			return f.withNumbers(err, more)
		}
	}
	return g.fit(lv, l)
}

// extendArgs are the words of lvextend. It keeps the layout of what is there. A
// volume that flexd made stays on the disks that the configuration has it made
// on; an LV that flexd did not create goes where LVM puts it, and a thin one grows in its
// pool.
func extendArgs(c Group, l Logical, name volume.Name, size int64) []string {
	args := []string{"lvextend", "-y", "-L", strconv.FormatInt(size, 10) + "b", name.String()}
	ours := slices.Contains(l.Tags, tagCreated) || slices.Contains(l.Tags, tagCreating)
	if c.Layout.PVTag != "" && ours && l.Pool == "" {
		args = append(args, "@"+c.Layout.PVTag)
	}
	return args
}

// now looks at the metadata, and refuses if the name means another volume.
func (g *group) now(ctx context.Context, lv volume.LV) (*Facts, Logical, error) {
	f, _, err := g.look(ctx, true)
	if err != nil {
		return nil, Logical{}, err
	}
	l, ok := f.LVs[lv.Name.LV]
	switch {
	case !ok:
		return nil, Logical{}, fmt.Errorf("%s does not exist any more (it was %s)", lv.Name, lv.UUID)
	case l.UUID != lv.UUID:
		return nil, Logical{}, fmt.Errorf("%s is another volume by now (uuid %s; this one was %s)", lv.Name, l.UUID, lv.UUID)
	case f.refusal(l) != "":
		return nil, Logical{}, errors.New(f.refusal(l))
	}
	return f, l, nil
}

// fit makes an active device as large as its volume, where an extend was cut
// between the metadata and the device.
func (g *group) fit(lv volume.LV, l Logical) error {
	m, found, err := g.p.find(lv.UUID)
	if err != nil || !found || m.Size() >= l.Size {
		return err
	}
	if _, err := g.change("refresh", []string{"lvchange", "-y", "--refresh", "-S", selection(lv.UUID), lv.Name.String()}, 0); err != nil {
		return err
	}
	if m, found, err = g.p.find(lv.UUID); err == nil && found && m.Size() < l.Size {
		err = fmt.Errorf("extend: %s has %d bytes, but its volume has %d", g.p.node(m), m.Size(), l.Size)
	}
	return err
}
