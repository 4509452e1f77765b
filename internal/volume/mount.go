package volume

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

func kindFor(c Call) Kind {
	if c.Verb == Stage {
		return Staged
	}
	return Published
}

// mount plans the mounts of the calls, which do not conflict with existing mounts. Calls with another
// filesystem or other superblock options than the first call wait, and are refused when its mount is
// observed.
func (p *planner) mount(calls []Call) {
	if len(calls) == 0 {
		return
	}
	fsType := ""
	if live := p.live(); live != nil {
		fsType = live.Type
	} else {
		if p.h.Device.Activity == Inactive || p.h.Device.Unlocked {
			p.add(Step{Kind: Inspect, Calls: ids(calls)})
			return
		}
		first := calls[0]
		calls = slices.DeleteFunc(slices.Clone(calls), func(c Call) bool {
			return c.FSType != first.FSType || !slices.Equal(c.Super, first.Super)
		})
		var ok bool
		if fsType, ok = p.prepare(calls); !ok {
			return
		}
	}
	planned := map[string]bool{}
	for _, c := range calls {
		if planned[c.Dir] {
			continue
		}
		planned[c.Dir] = true
		same := p.calls(c.Dir, Stage, Publish)
		p.add(Step{Kind: MountVolume, Dir: c.Dir, Claim: kindFor(c), FSType: fsType, Calls: same})
		p.add(Step{Kind: NoteHeld, Dir: c.Dir, Claim: kindFor(c), Calls: same})
	}
}

func ids(calls []Call) (ids []string) {
	for _, c := range calls {
		ids = append(ids, c.ID)
	}
	return ids
}

// prepare plans the steps before the first mount of an active, unmounted volume: inspect it, make a
// filesystem if it is blank, check it. It returns the filesystem's type, and whether a mount may follow
// in this plan.
func (p *planner) prepare(calls []Call) (string, bool) {
	var (
		fs     = p.h.FS
		who    = ids(calls)
		wanted = calls[0].FSType
		refuse = func(why Refusal) (string, bool) {
			for _, c := range calls {
				p.refuseWith(c, why)
			}
			return "", false
		}
	)
	for _, c := range p.w.Claims {
		if s := p.h.Targets[c.Dir]; s.Moved {
			return refuse(refusal(Busy, "%s is mounted at %s: flexd check says how to move it back", s.Other, c.Dir))
		}
	}
	if p.h.Record == RecordUnknown {
		return refuse(refusal(Unknown, "its format record cannot be read, so flexd cannot know whether an earlier mkfs was interrupted%s; if that file is damaged, remove it after checking the volume's contents", Because(p.h.RecordReason)))
	}
	if fs.Content == ContentUnknown || fs.Use == UseUnknown {
		p.add(Step{Kind: Inspect, Calls: who})
		return "", false
	}
	switch fs.Use {
	case InUse:
		return refuse(refusal(Busy, "%s; flexd does not check, format or mount a device that something else uses: end that use first", orUnknown(fs.UsedBy)))
	case Unmounted:
		return refuse(refusal(Busy, "%s", orUnknown(fs.UsedBy)))
	}
	// A filesystem is not formatted again: its mkfs was not interrupted, and it may contain data.
	unzeroed := p.h.LV.Unzeroed > 0 && p.h.Record != Seen && fs.Content == ForeignContent
	if fs.Content == Blank || unzeroed || fs.Content == ForeignContent && p.h.Record == Formatting {
		calls = slices.DeleteFunc(slices.Clone(calls), func(c Call) bool {
			if c.NoFormat.Reason != "" {
				p.refuseWith(c, c.NoFormat)
			}
			return c.NoFormat.Reason != ""
		})
		if len(calls) == 0 {
			return "", false
		}
		return p.format(calls, refuse)
	}
	switch fs.Content {
	case FilesystemFailed:
		return refuse(failed(fs))
	case Truncated:
		return refuse(p.truncated())
	case ForeignContent:
		return refuse(refusal(NotBlank, "it is not blank: %s; %s", orUnknown(fs.What), p.dataAdvice()))
	}
	if wanted != "" && wanted != fs.Type {
		return refuse(otherType(fs.Type, wanted))
	}
	if !fs.Checked && !p.readOnlyLV() && fs.Type == "ext4" {
		p.add(Step{Kind: CheckFS, FSType: fs.Type, Calls: who})
	}
	if p.h.Record != Seen || p.h.RecordPartial {
		p.add(Step{Kind: RecordSeen, FSType: fs.Type, Calls: who})
	}
	return fs.Type, true
}

// record plans the format record of a mounted volume that has none: stateDir may have been lost, or restored from a
// backup, since its first mount.
func (p *planner) record() {
	i := slices.IndexFunc(p.h.Mounts, func(m Mount) bool { return m.Owner == Ours && !slices.Contains(p.unmounts, m.Dir) })
	if i < 0 || len(p.w.Calls) > 0 || p.h.LV.Presence != Present || p.h.LV.Pending || p.h.Device.Activity != Active || p.h.Device.Unlocked {
		return
	}
	if p.h.Record == NoRecord || p.h.Record == Formatting {
		p.add(Step{Kind: RecordSeen, FSType: p.h.Mounts[i].Type})
	}
}

// format plans mkfs of a blank device, or over the remains of an interrupted mkfs of flexd.
func (p *planner) format(calls []Call, refuse func(Refusal) (string, bool)) (string, bool) {
	fsType, fs := cmp.Or(calls[0].FSType, DefaultFSType), p.h.FS
	switch {
	case fs.Made:
		return refuse(refusal(Failed, "mkfs succeeded, but afterwards the volume does not contain %s (%s)", fsType, orUnknown(fs.What)))
	case p.readOnlyLV():
		return refuse(refusal(Conflict, "it is blank and read-only: there is nothing to mount"))
	case p.h.Device.Unsound != "":
		return refuse(refusal(Unusable, "it is blank, but flexd does not format such a device: %s", p.h.Device.Unsound))
	case p.enlarged():
		return refuse(refusal(Unusable, "it is blank, and its device %s has %s, but the metadata of the volume group only %s: the metadata may be an older version (flexd check has the remedy)", p.h.Device.Path, Bytes(p.h.Device.Size), Bytes(p.h.LV.Size)))
	case p.h.Record == Seen:
		return refuse(refusal(DataMissing, "it is blank, but flexd has seen a filesystem on it before: its data may be lost, or it may have the wrong device. Look at its disks first (dmesg, pvs). Only to format it again, remove its record: %s", p.removal()))
	}
	repeat := fs.Content != Blank && p.h.LV.Unzeroed == 0
	if why := p.notRemains(fsType); repeat && why != "" {
		return refuse(refusal(NotBlank, "an mkfs of %s on it was interrupted, and is not repeated: %s; %s", p.h.RecordType, why, p.dataAdvice()))
	}
	// A wrong size may be corrected until the volume has a filesystem.
	size := max(calls[0].Size, p.h.LV.Size)
	if p.h.LV.Unzeroed > 0 || p.h.LV.Created && !repeat && size > p.h.LV.Size {
		if limit := calls[0].MaxSize; limit > 0 && size > max(limit, p.h.LV.Size) {
			return refuse(refusal(NoSpace, "option size wants %s, more than the volume group's maxSize (%s): ask for less, or raise maxSize in flexd's configuration", Bytes(size), Bytes(limit)))
		}
		former := cmp.Or(p.h.LV.Unzeroed, p.h.LV.Size)
		if p.h.LV.Zero && size > former { // the extension would zero only the places of labels
			return refuse(refusal(Conflict, "it is blank and has %s, and option size wants %s: with `zero: all` flexd extends it only once it has a filesystem. Remove it (lvremove %s), then ask again", Bytes(former), Bytes(size), p.h.LV.Name))
		}
		p.add(Step{Kind: Extend, Size: size, Blank: true, Calls: ids(calls)})
		return "", false
	}
	p.add(Step{Kind: Format, FSType: fsType, Repeat: repeat, Calls: ids(calls)})
	p.add(Step{Kind: Inspect, Calls: ids(calls)})
	return "", false
}

// notRemains returns why the device may contain more than the remains of the recorded mkfs; "" = it
// contains only these.
func (p *planner) notRemains(fsType string) string {
	fs := p.h.FS
	switch {
	case !fs.Leftover:
		return fmt.Sprintf("another program has written to it (%s)", orUnknown(fs.What))
	case !p.h.LV.Created:
		return fmt.Sprintf("flexd did not create this volume (%s)", orUnknown(fs.What))
	case p.h.RecordLate != "":
		return p.h.RecordLate
	case p.h.RecordType != fsType:
		return "fsType now asks for " + fsType
	}
	return ""
}

// dataAdvice returns the remedy for data that is not a filesystem.
func (p *planner) dataAdvice() string {
	if p.h.Record == Seen {
		return keepAdvice(p.h.LV.Handle(), p.h.RecordType)
	}
	return EraseAdvice(p.h.LV.Handle())
}

// device returns the device path for the owner's commands, if possible a link that always leads to this
// volume.
func (p *planner) device() string { return cmp.Or(p.h.Device.Link, p.h.Device.Path) }

// removal returns the commands that remove a volume's format record.
func (p *planner) removal() string {
	var how []string
	if p.h.RecordFile != "" {
		how = append(how, "rm "+p.h.RecordFile)
	}
	if len(p.h.RecordTags) > 0 {
		how = append(how, fmt.Sprintf("lvchange --deltag %s %s", strings.Join(p.h.RecordTags, " --deltag "), p.h.LV.Name))
	}
	return strings.Join(how, ", and ")
}
