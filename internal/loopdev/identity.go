package loopdev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// mark begins the kernel-side file name of a loop device that flexd attached.
// LOOP_CONFIGURE sets it together with the backing file, so that every device of flexd has
// it.
const mark = "flexd:"

// An identity is that of one incarnation of a loop device. It changes only when its file is deleted with its btrfs
// subvolume: then the file has no device number any more.
type identity struct {
	UUID volume.UUID `json:"uuid,omitempty"` // "" = not attached by flexd
	Inode
}

// deleted reports whether the file was deleted with its btrfs subvolume, as of the last answer.
func (id identity) deleted() bool { return id.Dev == 0 && id.Ino != 0 }

// Identify returns the volume of the loop device with that number, for a mount table entry. Its name is
// empty if it is no longer known.
func (p *Provider) Identify(ctx context.Context, number string) (volume.Identity, error) {
	if !strings.HasPrefix(number, "7:") {
		return volume.Identity{}, nil
	}
	l, id, err := p.loop(ctx, number)
	if errors.Is(err, fs.ErrNotExist) {
		return volume.Identity{}, nil
	}
	if err != nil || id.UUID == "" {
		return volume.Identity{}, err
	}
	return volume.Identity{UUID: id.UUID, Name: p.nameOf(l.BackingFile)}, nil
}

// loop returns a loop device, by name or number, and its identity. For one that has no file
// errors.Is(err, fs.ErrNotExist) holds, also if it has another file at each of three looks: a device that a volume has
// or keeps does not change, so other programs use it.
func (p *Provider) loop(ctx context.Context, name string) (l Loop, id identity, err error) {
	for range 3 {
		l, err = p.kernel.Loop(name)
		if err == nil && l.BackingFile == "" {
			err = fs.ErrNotExist
		}
		if err == nil {
			id, err = p.identity(ctx, l)
		}
		if !errors.Is(err, errChanging) {
			return l, id, err
		}
	}
	return l, id, fs.ErrNotExist
}

// identity returns the identity of a loop device: from memory if this incarnation was seen
// before, otherwise from a child that opens it.
func (p *Provider) identity(ctx context.Context, l Loop) (identity, error) {
	if id, ok := p.remembered(l.Seq); ok {
		return id, nil
	}
	// After a restart no identity is known: a scan reads all of them at once.
	if _, err := p.look(ctx); err != nil {
		return identity{}, err
	}
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return identity{}, ctx.Err()
	}
	if _, ok := p.remembered(l.Seq); !ok {
		if err := p.ask(ctx, []Loop{l}, time.Minute); err != nil {
			return identity{}, err
		}
	}
	if id, ok := p.remembered(l.Seq); ok {
		return id, nil
	}
	now, err := p.kernel.Loop(l.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && (now.Seq != l.Seq || now.BackingFile == ""):
		return identity{}, errChanging
	case err != nil:
		return identity{}, err
	}
	return identity{}, fmt.Errorf("/dev/%s does not return its identity: check dmesg and the filesystem of its file (cat /sys/block/%[1]s/loop/backing_file)", l.Name)
}

// saved returns the path of a symlink with the identity of a device that this node's flexd attached. Otherwise
// only the kernel has the identity, and does not return it while the file's filesystem is shut down: kubelet
// could not unmount the volume after a restart of flexd.
func (p *Provider) saved(seq uint64) string {
	return filepath.Join(p.linkDir, ".identity", strconv.FormatUint(seq, 10))
}

func (p *Provider) save(seq uint64, id identity) {
	boot, err := procfs.BootID()
	link := p.saved(seq)
	if err != nil || os.MkdirAll(filepath.Dir(link), 0o700) != nil {
		return
	}
	_ = os.Remove(link)
	_ = os.Symlink(fmt.Sprintf("%s %s %d %d", boot, id.UUID, id.Dev, id.Ino), link)
}

// saveAgain saves the identity of a volume's device after the loss of runDir.
func (p *Provider) saveAgain(seq uint64) {
	id, known := p.remembered(seq)
	if saved, ok := p.restore(seq); known && (!ok || saved != id) {
		p.save(seq, id)
	}
}

// noteRival notes the name in a group that another file with a device's uuid has; the empty name = none has. That sign of newer
// data in the device may disappear before an operator has decided.
func (p *Provider) noteRival(seq uint64, name volume.Name) {
	note := p.saved(seq) + "-rival"
	p.mu.Lock()
	p.rivals[seq] = name
	if name.LV == "" {
		delete(p.rivals, seq)
	}
	p.mu.Unlock()
	if name.LV == "" {
		_ = os.Remove(note)
		return
	}
	if boot, err := procfs.BootID(); err == nil {
		_ = makeLink(note, boot+" "+name.String())
	}
}

// notedRival returns the name that another file had when flexd last looked; empty = none had.
func (p *Provider) notedRival(seq uint64) (name volume.Name) {
	p.mu.Lock()
	name, noted := p.rivals[seq]
	p.mu.Unlock()
	note, err := os.Readlink(p.saved(seq) + "-rival")
	if noted || err != nil {
		return name
	}
	of, text, _ := strings.Cut(note, " ")
	if boot, err := procfs.BootID(); err == nil && of == boot {
		name.VG, name.LV, _ = strings.Cut(text, "/")
	}
	return name
}

// restore returns a saved identity of this boot.
func (p *Provider) restore(seq uint64) (id identity, ok bool) {
	to, err := os.Readlink(p.saved(seq))
	if err != nil {
		return identity{}, false
	}
	var of string
	_, err = fmt.Sscan(to, &of, &id.UUID, &id.Dev, &id.Ino)
	boot, berr := procfs.BootID()
	return id, err == nil && berr == nil && of == boot && isUUID(string(id.UUID))
}

func (p *Provider) remembered(seq uint64) (identity, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, ok := p.known[seq]
	return id, ok
}

func (p *Provider) remember(seq uint64, id identity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known[seq] = id
}

// askDeleted asks a device of this node whether its file was deleted, if that is not known: the result is Deleted, or
// Silent.
func (p *Provider) askDeleted(ctx context.Context, l Loop) Loop {
	p.askHidden(ctx, []Loop{l})
	id, _ := p.remembered(l.Seq)
	l.Deleted = l.Deleted || id.deleted()
	l.Silent = p.silent(l, id)
	return l
}

// silent reports whether it is unknown if the file of a device of this node was deleted with its btrfs subvolume: its
// path shows another file, or none, and the device does not answer.
func (p *Provider) silent(l Loop, id identity) bool {
	p.mu.Lock()
	asked := p.asked[l.Seq] != nil
	p.mu.Unlock()
	if _, saved := p.restore(l.Seq); !asked || !saved || l.Deleted || id.deleted() || !id.subvolume() {
		return false
	}
	f, err := p.kernel.File(l.BackingFile)
	return err == nil && f.Inode != id.Inode
}

// askHidden reads the identities of this node's devices again whose paths show another file, or none: the kernel does
// not say that a file was deleted with its btrfs subvolume. A path that cannot be read is no sign of that.
func (p *Provider) askHidden(ctx context.Context, loops []Loop) {
	var hidden []Loop
	hung := 0
	for _, l := range loops {
		id, known := p.remembered(l.Seq)
		if _, saved := p.restore(l.Seq); !saved || !known || l.Deleted || id.deleted() || !id.subvolume() {
			continue
		}
		f, err := p.kernel.File(l.BackingFile)
		if _, hangs := errors.AsType[*hangError](err); hangs {
			if hung++; hung == maxHung { // each takes seconds
				break
			}
		}
		if err == nil && f.Inode != id.Inode {
			hidden = append(hidden, l)
		}
	}
	p.askAgain(ctx, hidden)
}

type identifyArg struct {
	Names       []string `json:"names"`
	Seqs        []uint64 `json:"seqs"`
	Directories []string `json:"directories,omitempty"` // of the groups
}

// An identified is the child's answer for one device.
type identified struct {
	Seq    uint64 `json:"seq"`
	Silent bool   `json:"silent,omitempty"` // it was asked and has not answered within answerTimeout, or is gone
	identity
}

// ask reads the identities of devices in one child.
func (p *Provider) ask(ctx context.Context, loops []Loop, deadline time.Duration) error {
	arg := identifyArg{Directories: slices.Sorted(maps.Values(p.dirs))}
	for _, l := range loops {
		arg.Names, arg.Seqs = append(arg.Names, l.Name), append(arg.Seqs, l.Seq)
	}
	var bad error
	c := run.Cmd{
		Step:     "identify",
		Argv:     run.Self("loop-identify", arg),
		Deadline: deadline,
		Line:     func(line []byte) { bad = cmp.Or(bad, p.answered(line)) },
	}
	if _, err := p.runner.Run(ctx, c); err != nil {
		return err // bad may still be written
	}
	return bad
}

// answered takes a line that the child has printed.
func (p *Provider) answered(line []byte) error {
	var got []identified
	if err := run.Parse("identify", line, &got); err != nil {
		return err
	}
	for _, g := range got {
		known := !g.Silent
		if g.Silent {
			g.identity, known = p.restore(g.Seq)
		}
		p.mu.Lock()
		if known {
			p.known[g.Seq] = g.identity
		}
		if q := p.asked[g.Seq]; q != nil {
			if q.silent = q.silent || g.Silent; !g.Silent {
				delete(p.asked, g.Seq)
			}
			q.end()
		}
		p.mu.Unlock()
	}
	return nil
}
