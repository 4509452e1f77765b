package volume

import "fmt"

// creations serves the calls that wait for the creation or the look-up of a volume, in the lane of its
// name. There h.LV is the volume with that name, and h.Record says whether a volume with that name was
// seen with a filesystem.
func (p *planner) creations() {
	var size int64
	var calls []string
	for _, c := range p.w.Calls {
		switch lv := p.h.LV; {
		case c.Verb != Create && c.Verb != Find:
		case lv.Presence == Present:
			p.done(c)
		case c.Verb == Find && c.Refusal.Reason != "":
			p.refuseWith(c, c.Refusal)
		case p.waits(c):
		case lv.Presence == Foreign:
			p.refuse(c, Unusable, "not usable: %s", orUnknown(lv.Reason))
		case lv.Presence == PresenceUnknown:
			p.refuse(c, Unknown, "it could not be looked up: %s", orUnknown(lv.Reason))
		case c.Verb == Find:
			p.done(c)
		case c.Refusal.Reason != "":
			p.refuse(c, c.Refusal.Code, "create: %s", c.Refusal.Reason)
		case p.h.Record == Seen:
			copied, remove := p.copyOfMissing()
			p.refuse(c, DataMissing, "create: it does not exist, but flexd has seen a filesystem on a volume of that name (uuid %s%s): an empty one in its place would hide that its data is missing. Is the disk of volume group %s there? If it was removed while it was in use, flexd check names the device that still has its data. If the data is not needed: %s", lv.UUID, copied, lv.Name.VG, remove)
		case p.h.Record == RecordUnknown:
			p.refuse(c, Unknown, "create: it does not exist, and flexd cannot know whether a volume of that name has had data: %s; make it readable again. A file that is damaged may be removed if the volume it is about (its name is the uuid) is not missing; if the directory was removed, restore it from a backup. Without one, see that its filesystem is writable and has space, and restart flexd, which makes an empty one: volumes that are missing are then created empty, unless their group has `create: false`", orUnknown(p.h.RecordReason))
		default:
			if len(calls) == 0 {
				size = c.Size
			}
			calls = append(calls, c.ID)
		}
	}
	if len(calls) > 0 {
		p.add(Step{Kind: CreateVolume, Size: size, Calls: calls})
	}
}

// copyOfMissing names the volume that has the uuid of a missing one ("" = none is known), and returns how to give up
// the data of the missing one.
func (p *planner) copyOfMissing() (copied, remove string) {
	remove = "remove " + p.h.RecordFile
	if now := p.h.RecordName; now != (Name{}) && now != p.h.LV.Name { // it may be the record of a volume in use
		copied = fmt.Sprintf("; %s has this uuid, and may be a copy: if so, rename it to this name", now)
		remove = fmt.Sprintf("while nothing uses %s, give its file a uuid of its own (flexd uuid --new), then %s", now, remove)
	}
	return copied, remove
}
