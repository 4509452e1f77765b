package loopdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// mark begins the kernel-side file name of a loop device that flexd attached.
// LOOP_CONFIGURE sets it together with the backing file, so that every device of flexd has
// it.
const mark = "flexd:"

// An identity is that of one incarnation of a loop device: it never changes.
type identity struct {
	UUID volume.UUID `json:"uuid,omitempty"` // "" = not attached by flexd
	Inode
}

// Identify says which volume the device of that number is, for a mount table
// entry. The name is empty if it is no longer known.
func (p *Provider) Identify(ctx context.Context, number string) (volume.Identity, error) {
	if !strings.HasPrefix(number, "7:") {
		return volume.Identity{}, nil
	}
	l, err := p.kernel.Loop(number)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && l.BackingFile == "") {
		return volume.Identity{}, nil
	}
	if err != nil {
		return volume.Identity{}, err
	}
	id, err := p.identity(ctx, l)
	if err != nil || id.UUID == "" {
		return volume.Identity{}, err
	}
	return volume.Identity{UUID: id.UUID, Name: p.nameOf(l.BackingFile)}, nil
}

// identity returns the identity of a loop device: from memory if this incarnation was seen
// before, otherwise from a child that opens it.
func (p *Provider) identity(ctx context.Context, l Loop) (identity, error) {
	if id, ok := p.remembered(l.Seq); ok {
		return id, nil
	}
	// After a restart none is known: a scan reads all of them at once.
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
		if err := p.ask(ctx, []string{l.Name}, time.Minute); err != nil {
			return identity{}, err
		}
	}
	id, ok := p.remembered(l.Seq)
	if !ok {
		return identity{}, fmt.Errorf("/dev/%s changed during the look-up", l.Name)
	}
	return id, nil
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

type identifyArg struct {
	Names []string `json:"names"`
}

// An identified is the child's answer for one device.
type identified struct {
	Seq uint64 `json:"seq"`
	identity
}

func (p *Provider) ask(ctx context.Context, names []string, deadline time.Duration) error {
	var got []identified
	err := mount.Ask(ctx, p.runner, run.Cmd{
		Step:     "identify",
		Argv:     run.Self("loop-identify", identifyArg{Names: names}),
		Deadline: deadline,
	}, &got)
	if err != nil {
		return err
	}
	for _, g := range got {
		p.remember(g.Seq, g.identity)
	}
	return nil
}
