package lvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Tags with the format record of a volume, in groups that nodes share:
//
//	flexd.formatting=ext4/2026-11-23T09:32:24Z/node-a    before mkfs
//	flexd.fs=ext4                                        before the first mount
//
// They are read in every group, because a group may have been shared before.
const (
	tagFormatting = "flexd.formatting="
	tagSeen       = "flexd.fs="
)

// tagWord returns the name of a node without the characters that a tag cannot contain.
func tagWord(node string) string {
	if node == "" {
		return "unknown"
	}
	return strings.Map(func(r rune) rune {
		if alphanumeric(r) || r == '.' || r == '-' {
			return r
		}
		return '_'
	}, node)
}

func formattingTag(fsType, node string, at time.Time) string {
	return tagFormatting + fsType + "/" + at.UTC().Format(time.RFC3339) + "/" + node
}

// recordTag returns the format record in the tags of a volume; here is this node. A tag in an unknown
// form can only prevent a format.
func recordTag(tags []string, here string) volume.RecordTag {
	t := volume.RecordTag{State: volume.NoRecord}
	var formatting []string
	for _, tag := range tags {
		if fsType, ok := strings.CutPrefix(tag, tagSeen); ok {
			if t.State != volume.Seen {
				t.State, t.Type = volume.Seen, fsType
			}
			t.Tags = append(t.Tags, tag)
		}
		if _, ok := strings.CutPrefix(tag, tagFormatting); ok {
			formatting = append(formatting, tag)
		}
	}
	if t.State == volume.Seen || len(formatting) == 0 {
		return t
	}
	t.State, t.Tags = volume.Formatting, formatting
	words := strings.Split(strings.TrimPrefix(formatting[0], tagFormatting), "/")
	t.Type = words[0]
	if len(formatting) > 1 {
		t.Bad = "it has more than one tag of an mkfs (" + strings.Join(formatting, ", ") + ")"
		return t
	}
	var err error
	if len(words) == 3 {
		t.Here = words[2] == here
		t.At, err = time.Parse(time.RFC3339, words[1])
	}
	if len(words) != 3 || err != nil {
		t.Here, t.Bad = false, "its tag "+formatting[0]+" does not say when and where that mkfs was started"
	}
	return t
}

// recordTag returns the format record in a volume's tags. A read-only volume counts as not shared: no
// node formats it, and since many nodes may have it active, none may change its tags.
func (f *Facts) recordTag(l Logical) volume.RecordTag {
	t := recordTag(l.Tags, f.host)
	t.Shared = f.Shared() && !l.ReadOnly
	return t
}

// SetRecord writes the format record of a volume into its tags: Formatting, Seen, or NoRecord after
// an mkfs that ended by itself. Volumes whose records are written at the same time share a command. It
// verifies the result with a new report.
func (p *Provider) SetRecord(ctx context.Context, lv volume.LV, state volume.Record, fsType string) error {
	g, err := p.configured(lv.Name.VG)
	if err != nil {
		return err
	}
	if err = g.changeable(ctx); err == nil {
		_, err = g.share(ctx, tagging, &member{name: lv.Name, uuid: lv.UUID, record: state, fsType: fsType})
	}
	if err == nil || hangs(err) || errors.As(err, new(*run.LockedError)) || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("its format record cannot be written as an LVM tag for the other nodes of the shared volume group, so %s: %w", consequence[state], g.mustWait(err))
}

// changeable returns why the metadata of the group cannot be changed, or must not be.
func (g *group) changeable(ctx context.Context) error {
	if err := g.ready(ctx); err != nil {
		return err
	}
	f, _, err := g.look(ctx, false)
	if err != nil {
		return err
	}
	return f.lacking()
}

// retag changes the tags of one volume.
func (g *group) retag(ctx context.Context, name volume.Name, uuid volume.UUID, options ...string) (run.Result, error) {
	if err := g.changeable(ctx); err != nil {
		return run.Result{}, err
	}
	release, err := g.take(ctx)
	if err != nil {
		return run.Result{}, err
	}
	defer release()
	defer g.invalidate()
	return g.change(steps[tagging], changeArgs(name, uuid, options...), 0)
}

// changeArgs returns the arguments of lvchange for one volume.
func changeArgs(name volume.Name, uuid volume.UUID, options ...string) []string {
	return slices.Concat([]string{"lvchange", "-y"}, options, []string{"-S", selection(uuid), name.String()})
}

var consequence = map[volume.Record]string{
	volume.Formatting: "nothing was formatted",
	volume.Seen:       "nothing was mounted",
	volume.NoRecord:   "the tag of an mkfs that has ended remains",
}

// writeTags runs the commands for the members, one for each record and filesystem. LVM reports no
// error if a tag to add exists, or a tag to remove does not.
func (g *group) writeTags(members []*member) error {
	known := g.lastFacts()
	var errs []error
	for len(members) > 0 {
		first := members[0]
		var same, others []*member
		for _, m := range members {
			if m.record == first.record && m.fsType == first.fsType {
				same = append(same, m)
			} else {
				others = append(others, m)
			}
		}
		members = others
		if args := tagArgs(known, g.p.Host, same); args != nil {
			_, err := g.change(steps[tagging], args, time.Duration(len(same))*perMember)
			errs = append(errs, err)
		}
	}
	g.invalidate()
	return errors.Join(errs...)
}

// tagArgs returns the arguments of the command that replaces the mkfs tags of the members by one
// record; nil = there is nothing to change.
func tagArgs(known *Facts, node string, members []*member) []string {
	var old []string
	add := ""
	switch m := members[0]; m.record {
	case volume.Formatting:
		add = formattingTag(m.fsType, node, time.Now())
	case volume.Seen:
		add = tagSeen + m.fsType
	}
	_, selected := selectAll(members)
	for _, m := range members {
		for _, tag := range known.lv(m.uuid).Tags {
			if strings.HasPrefix(tag, tagFormatting) && tag != add && !slices.Contains(old, tag) {
				old = append(old, tag)
			}
		}
	}
	args := []string{"lvchange", "-y"}
	if add != "" {
		args = append(args, "--addtag", add)
	}
	for _, tag := range old {
		args = append(args, "--deltag", tag)
	}
	if len(args) == 2 {
		return nil
	}
	return append(args, selected...)
}

// verifyTags returns the result of a command for one volume by a later report.
func (g *group) verifyTags(m *member, cmdErr error) error {
	if hangs(cmdErr) {
		return cmdErr
	}
	f, _, err := g.look(context.Background(), false)
	if err != nil {
		return errors.Join(cmdErr, err)
	}
	if f.unlocked != nil {
		return cmp.Or(cmdErr, f.unlocked)
	}
	l, there := f.LVs[f.names[m.uuid]]
	now := recordTag(l.Tags, g.p.Host)
	switch {
	case !there:
		return fmt.Errorf("%s does not exist any more (uuid %s)", m.name, m.uuid)
	case m.record == volume.Formatting && now.State == volume.Seen:
		return volume.Errorf(volume.DataMissing, "its tag %s says that another node has seen a filesystem on it: a volume with data is never formatted; look at its disks first (dmesg, pvs)", strings.Join(now.Tags, ", "))
	case now.State == m.record && (m.record != volume.Formatting || now.Here && now.Type == m.fsType && now.Bad == ""):
		return nil
	case m.record == volume.NoRecord && now.State == volume.Seen:
		return nil
	case cmdErr != nil:
		return cmdErr
	}
	return fmt.Errorf("LVM reported success, but its tags are %q: was it renamed (%s now), or does another program change its tags?", l.Tags, volume.Name{VG: g.name, LV: l.Name})
}
