package volume

import (
	"fmt"
	"slices"
	"strings"
)

// GrowSlack is how much smaller than its device a filesystem may be before it
// counts as not grown: ext4 rounds down to whole blocks, xfs drops a last
// allocation group of less than 64 blocks.
const GrowSlack = 1 << 20

// Plan returns the steps that lead from h to w, in order: releases, then
// set-up, then what flexd does by itself. It does not guess: a call that would
// need an unknown fact, or that is in conflict with what is there, is refused.
// After Inspect nothing more is planned for that purpose, because what follows
// depends on what it finds; after every step the caller observes and plans
// again, so that any prefix may be cut by a crash.
//
// Without a waiting call Plan never sets anything up.
func Plan(w Want, h Have) Verdict {
	p := planner{w: w, h: h}
	p.settle()
	p.releases()
	p.reclaims()
	p.setUps()
	p.growth()
	p.letGo()
	return p.v
}

type planner struct {
	w Want
	h Have
	v Verdict

	dropped  []string // directories whose claim goes in this plan
	unmounts []string // directories unmounted in this plan
	engaged  bool     // a set-up call is being served
	leased   bool     // a lease is noted in this plan
}

func (p *planner) add(s Step)  { p.v.Steps = append(p.v.Steps, s) }
func (p *planner) done(c Call) { p.v.Done = append(p.v.Done, c.ID) }
func (p *planner) refuse(c Call, f string, a ...any) {
	p.v.Refused = append(p.v.Refused, Refusal{Call: c.ID, Reason: fmt.Sprintf(f, a...)})
}

func (p *planner) claim(dir string) *Claim {
	for i := range p.w.Claims {
		if p.w.Claims[i].Dir == dir {
			return &p.w.Claims[i]
		}
	}
	return nil
}

// calls returns the IDs of the calls of the given verbs that are about dir.
func (p *planner) calls(dir string, verbs ...Verb) (ids []string) {
	for _, c := range p.w.Calls {
		if c.Dir == dir && slices.Contains(verbs, c.Verb) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// here says whether this volume is mounted at dir, on top or covered, or may be.
func (p *planner) here(dir string) bool {
	s := p.h.Spots[dir]
	return s.This || s.Under || s.Unknown != ""
}

// settle brings the notes in line with the mount table, which wins.
func (p *planner) settle() {
	for _, c := range p.w.Claims {
		var (
			here    = p.here(c.Dir)
			setUp   = p.calls(c.Dir, Stage, Publish)
			release = p.calls(c.Dir, Release, Reclaim)
		)
		if len(release) > 0 || p.h.Spots[c.Dir].Unknown != "" {
			continue // releases() decides, or nobody can
		}
		switch {
		case here && c.Phase == Making:
			// Its mount landed: whatever happened to the call, it is held.
			p.add(Step{Kind: NoteHeld, Dir: c.Dir, Claim: c.Kind, Calls: setUp})
		case here && c.Phase == Releasing:
			// Kubelet may have counted the mount as a new pod's by now.
			p.add(Step{Kind: NoteHeld, Dir: c.Dir, Claim: c.Kind, Calls: setUp, Why: "release failed"})
		case here || len(setUp) > 0:
		case c.Phase != Held:
			p.drop(c, nil, "")
		case p.h.Spots[c.Dir].Gone:
			p.drop(c, nil, "its directory is gone")
		}
	}
	for _, m := range p.h.Mounts {
		if m.Owner == Ours && p.claim(m.Dir) == nil && len(p.calls(m.Dir, Release, Reclaim)) == 0 {
			p.add(Step{Kind: NoteHeld, Dir: m.Dir, Claim: m.Kind, Why: "adopted from the mount table",
				Calls: p.calls(m.Dir, Stage, Publish)})
		}
	}
}

// drop plans the end of a claim. The last one leaves a lease, which is noted
// first: no instant goes by in which an active volume of ours has neither.
func (p *planner) drop(c Claim, calls []string, why string) {
	p.dropped = append(p.dropped, c.Dir)
	p.add(Step{Kind: Drop, Dir: c.Dir, Claim: c.Kind, Calls: calls, Why: why, Lease: p.h.Device.Activity != Inactive && !p.holding()})
}

// holding says whether anything but a lease keeps the volume.
func (p *planner) holding() bool {
	for _, c := range p.w.Claims {
		if slices.Contains(p.dropped, c.Dir) {
			continue
		}
		if p.here(c.Dir) && !slices.Contains(p.unmounts, c.Dir) || c.Phase != Held {
			return true
		}
	}
	for _, m := range p.h.Mounts {
		if m.Owner == Ours && !slices.Contains(p.unmounts, m.Dir) {
			return true
		}
	}
	return false
}

func (p *planner) releases() {
	seen := map[string]bool{}
	for _, call := range p.w.Calls {
		if call.Verb != Release {
			continue
		}
		spot, claim := p.h.Spots[call.Dir], p.claim(call.Dir)
		switch {
		case spot.Unknown != "":
			p.refuse(call, "it cannot be told which volume is mounted at %s: %s", call.Dir, spot.Unknown)
		case spot.Other != "":
			p.refuse(call, "%s is mounted at %s, not by flexd: unmount that first", spot.Other, call.Dir)
		case spot.This && !seen[call.Dir]:
			p.unmount(call.Dir, p.calls(call.Dir, Release), false)
		case spot.This:
		case claim != nil && !seen[call.Dir]:
			p.drop(*claim, p.calls(call.Dir, Release), "")
		case claim == nil:
			p.done(call)
		}
		seen[call.Dir] = true
	}
}

// unmount plans the end of a mount and of its claim.
func (p *planner) unmount(dir string, calls []string, alone bool) {
	kind := p.kindOf(dir)
	if c := p.claim(dir); c == nil || c.Phase != Releasing {
		p.add(Step{Kind: NoteReleasing, Dir: dir, Claim: kind, Calls: calls})
	}
	p.add(Step{Kind: Unmount, Dir: dir, Claim: kind, Alone: alone, Calls: calls})
	p.unmounts = append(p.unmounts, dir)
	p.drop(Claim{Kind: kind, Dir: dir}, calls, "")
}

func (p *planner) kindOf(dir string) Kind {
	if c := p.claim(dir); c != nil {
		return c.Kind
	}
	for _, m := range p.h.Mounts {
		if m.Dir == dir && m.Kind != "" {
			return m.Kind
		}
	}
	return Published
}

// readOnlyLV says whether nothing may be written to the volume at all.
func (p *planner) readOnlyLV() bool { return p.h.LV.ReadOnly || p.h.Device.ReadOnly }

// live returns a mount of the volume, whose superblock every further mount
// shares, or nil.
func (p *planner) live() *Mount {
	for i := range p.h.Mounts {
		if !slices.Contains(p.unmounts, p.h.Mounts[i].Dir) {
			return &p.h.Mounts[i]
		}
	}
	return nil
}

// obstacle says why no set-up may happen on this volume at all, or "".
func (p *planner) obstacle(c Call) string {
	lv, d := p.h.LV, p.h.Device
	switch {
	case c.Refusal != "":
		return c.Refusal
	case lv.Presence == PresenceUnknown:
		return "the volume could not be looked up: " + orUnknown(lv.Reason)
	case lv.Presence == Absent:
		return "the volume does not exist" + because(lv.Reason)
	case lv.Presence == Foreign:
		return "not usable: " + orUnknown(lv.Reason)
	case d.Unusable:
		return "its device is not usable: " + orUnknown(d.Reason)
	case d.Activity == ActivityUnknown:
		return "its device could not be looked at: " + orUnknown(d.Reason)
	case d.Suspended:
		return fmt.Sprintf("its device %s stays suspended: a snapshot or pvmove may be in progress, and every read waits for its end. If pvmove was interrupted: pvmove --abort. If no command of LVM runs: dmsetup resume %[1]s", d.Path)
	}
	for _, cl := range p.w.Claims {
		if why := p.h.Spots[cl.Dir].Unknown; why != "" {
			return fmt.Sprintf("it may be mounted at %s, which cannot be told: %s", cl.Dir, why)
		}
	}
	for _, m := range p.h.Mounts {
		if m.Owner == Elsewhere {
			return fmt.Sprintf("it is mounted at %s by something else: umount it there first", m.Dir)
		}
	}
	return ""
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func (p *planner) setUps() {
	var users, mounters []Call // calls to be served, and those of them that need a mount
	for _, c := range p.w.Calls {
		switch c.Verb {
		case Check, Activate, Expand:
			if p.resumes(c) {
				continue
			}
			if why := p.obstacle(c); why != "" {
				p.refuse(c, "%s", why)
				continue
			}
			if c.Verb == Expand {
				p.expand(c)
				continue
			}
			users = append(users, c)
		case Stage, Publish:
			if slices.Contains(p.dropped, c.Dir) {
				p.engaged = true // a release of the same directory goes first
				continue
			}
			if p.mounted(c) || p.resumes(c) {
				continue
			}
			if why := p.conflict(c); why != "" {
				p.refuse(c, "%s", why)
				continue
			}
			users = append(users, c)
			mounters = append(mounters, c)
		}
	}
	p.engaged = p.engaged || len(users) > 0
	p.activate(users)
	p.mount(mounters)
}

// resumes says whether a call waits for its device to be resumed.
func (p *planner) resumes(c Call) bool {
	waits := c.Patient && p.h.Device.Suspended
	p.v.Waiting = p.v.Waiting || waits
	p.engaged = p.engaged || waits
	return waits
}

// mounted answers a Stage or Publish whose mount is there.
func (p *planner) mounted(c Call) bool {
	if !p.h.Spots[c.Dir].This {
		return false
	}
	for _, m := range p.h.Mounts {
		if m.Dir == c.Dir && c.Verb == Publish && m.ReadOnly != c.ReadOnly {
			p.refuse(c, "it is mounted %s at %s already, and this call wants it %s: unmount it first", mode(m.ReadOnly), c.Dir, mode(c.ReadOnly))
			return true
		}
	}
	// settle() plans NoteHeld where the note does not say so yet.
	if cl := p.claim(c.Dir); cl != nil && cl.Phase == Held {
		p.done(c)
	}
	p.engaged = true
	return true
}

func mode(readOnly bool) string {
	if readOnly {
		return "read-only"
	}
	return "read-write"
}

// conflict says why a mount at c.Dir must not be made, or "".
func (p *planner) conflict(c Call) string {
	if why := p.obstacle(c); why != "" {
		return why
	}
	if s := p.h.Spots[c.Dir]; s.Unknown != "" {
		return fmt.Sprintf("it cannot be told which volume is mounted at %s: %s", c.Dir, s.Unknown)
	}
	if s := p.h.Spots[c.Dir]; s.Other != "" {
		return fmt.Sprintf("%s is mounted at %s already", s.Other, c.Dir)
	}
	if c.Global != "" {
		if s := p.h.Spots[c.Global]; s.Under {
			return fmt.Sprintf("kubelet's global mount %s is covered by %s: unmount that first", c.Global, s.Other)
		} else if s.Other != "" {
			return fmt.Sprintf("kubelet's global mount %s holds another volume (%s): two inline volumes of one name collide with attach:true; give the pods' volumes different names, or use PVs, or attach:false", c.Global, s.Other)
		}
	}
	if c.Verb == Stage {
		for _, cl := range p.w.Claims {
			waiting := cl.Phase == Making && len(p.calls(cl.Dir, Stage)) > 0
			if cl.Kind == Staged && cl.Dir != c.Dir && (p.here(cl.Dir) || waiting && !p.younger(cl.Dir, c)) {
				return p.twoNames(cl.Dir)
			}
		}
		for _, m := range p.h.Mounts {
			if m.Owner == Ours && m.Kind == Staged && m.Dir != c.Dir {
				return p.twoNames(m.Dir)
			}
		}
	}
	if p.readOnlyLV() && !c.ReadOnly && c.Verb == Publish {
		return "the logical volume is read-only: mount it with readOnly: true"
	}
	live := p.live()
	if live == nil {
		return ""
	}
	switch {
	case p.h.FS.Content == FilesystemFailed:
		return failed(p.h.FS)
	case p.h.FS.Content == Truncated:
		return p.truncated()
	case live.SuperReadOnly && !p.readOnlyLV():
		return fmt.Sprintf("its %s went read-only, which the kernel does on errors: unmount it everywhere, run fsck, and look at dmesg", live.Type)
	case c.FSType != "" && c.FSType != live.Type:
		return otherType(live.Type, c.FSType)
	}
	if diff := optionsDiffer(c.Super, p.h.Mounts); diff != "" {
		return fmt.Sprintf("mountOptions: the filesystem is mounted already with other options (%s); all users of a volume share them", diff)
	}
	return ""
}

func (p *planner) twoNames(dir string) string {
	return fmt.Sprintf("it is staged already at %s: kubelet knows it under two names there, and could then never unmount either; use one PV (or one inline volume name) for one logical volume", dir)
}

// younger says whether the claim at dir was made by a call that came after c.
func (p *planner) younger(dir string, c Call) bool {
	for _, o := range p.w.Calls {
		if o.ID == c.ID {
			return true
		}
		if o.Dir == dir && o.Verb == Stage {
			return false
		}
	}
	return false
}

func failed(fs FS) string {
	what := "filesystem"
	if fs.Type != "" {
		what = fs.Type
	}
	return fmt.Sprintf("its "+what+" is in error (%s): unmount it everywhere and run fsck by hand", orUnknown(fs.What))
}

// truncated is about a filesystem that is larger than its device. No fsck is advised:
// it would throw away what is beyond the end.
func (p *planner) truncated() string {
	name, fs, d := p.h.LV.Name, p.h.FS, p.h.Device
	remedy := fmt.Sprintf("lvextend -L %db %s", fs.Size, name)
	if strings.HasPrefix(d.Path, "/dev/loop") {
		remedy = fmt.Sprintf("truncate -s %d on its file, losetup -c %s", fs.Size, d.Path)
	}
	return fmt.Sprintf("its %s has %d bytes and its device %s only %d: the volume was made smaller than its filesystem. Stop writing to it, run no fsck, and give it its size back: %s; what was beyond the end is only there if nothing else has used that space",
		fs.Type, fs.Size, p.device(), d.Size, remedy)
}

func otherType(found, wanted string) string {
	return fmt.Sprintf("it holds %s, and fsType asks for %s: correct fsType, or wipe the volume if its data is not needed", found, wanted)
}

// optionsDiffer compares the wanted superblock options with those of the live
// superblock: with what flexd was asked for when it was mounted or, when no note
// tells that, with the mount table, which does not show every default.
func optionsDiffer(want []string, mounts []Mount) string {
	for _, m := range mounts {
		if m.AskedKnown {
			if slices.Equal(want, m.Asked) {
				return ""
			}
			return fmt.Sprintf("wanted %s, mounted with %s", list(want), list(m.Asked))
		}
	}
	for _, o := range want {
		if !slices.Contains(mounts[0].Super, o) {
			return fmt.Sprintf("wanted %s, the mount table shows %s", list(want), list(mounts[0].Super))
		}
	}
	return ""
}

func list(options []string) string {
	if len(options) == 0 {
		return "none"
	}
	return strings.Join(options, ",")
}

// activate plans what every user of the device needs: its note, then the device.
func (p *planner) activate(users []Call) {
	var ids, heal []string
	for _, c := range users {
		switch c.Verb {
		case Stage, Publish:
			ids = append(ids, c.ID)
			cl := p.claim(c.Dir)
			if cl == nil || cl.Phase != Making {
				if !p.planned(NoteMaking, c.Dir) {
					p.add(Step{Kind: NoteMaking, Dir: c.Dir, Claim: kindFor(c), Calls: p.calls(c.Dir, Stage, Publish)})
				}
			}
		case Check, Activate:
			if c.Verb == Activate {
				ids = append(ids, c.ID)
			}
			switch {
			case !p.w.Lease.Noted || !p.w.Lease.Live:
				if !p.leased {
					p.leased = true
					p.add(Step{Kind: NoteLease, Calls: p.verbCalls(Check, Activate)})
				}
			case c.Verb == Check || p.h.Device.Activity == Active && p.h.Device.Link != "":
				p.done(c)
			case p.h.Device.Activity == Active:
				heal = append(heal, c.ID)
			}
		}
	}
	switch {
	case len(ids) > 0 && p.h.Device.Activity == Inactive:
		p.add(Step{Kind: ActivateDevice, Calls: ids})
	case len(heal) > 0:
		p.add(Step{Kind: ActivateDevice, Calls: heal, Why: "its link is missing"})
	}
}

func (p *planner) planned(k StepKind, dir string) bool {
	return slices.ContainsFunc(p.v.Steps, func(s Step) bool { return s.Kind == k && s.Dir == dir })
}

func (p *planner) verbCalls(verbs ...Verb) (ids []string) {
	for _, c := range p.w.Calls {
		if slices.Contains(verbs, c.Verb) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

func kindFor(c Call) Kind {
	if c.Verb == Stage {
		return Staged
	}
	return Published
}

// mount plans the mounts of the calls, which conflict with nothing that is
// mounted. Those that want another filesystem or other superblock options than
// the first wait: once its mount is there, they are refused by what is seen.
func (p *planner) mount(calls []Call) {
	if len(calls) == 0 {
		return
	}
	fsType := ""
	if live := p.live(); live != nil {
		fsType = live.Type
	} else {
		if p.h.Device.Activity == Inactive {
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
	landed := map[string]bool{}
	for _, c := range calls {
		if landed[c.Dir] {
			continue
		}
		landed[c.Dir] = true
		same := p.calls(c.Dir, Stage, Publish)
		p.add(Step{Kind: Land, Dir: c.Dir, Claim: kindFor(c), FSType: fsType, Calls: same})
		p.add(Step{Kind: NoteHeld, Dir: c.Dir, Claim: kindFor(c), Calls: same})
	}
}

func ids(calls []Call) (ids []string) {
	for _, c := range calls {
		ids = append(ids, c.ID)
	}
	return ids
}

// prepare plans what must happen before the first mount of an active, unmounted
// volume: look, make a filesystem if the volume is proved blank, check it. It
// returns the filesystem's type and whether a mount may follow in this plan.
func (p *planner) prepare(calls []Call) (string, bool) {
	var (
		fs     = p.h.FS
		who    = ids(calls)
		wanted = calls[0].FSType
		refuse = func(f string, a ...any) (string, bool) {
			for _, c := range calls {
				p.refuse(c, f, a...)
			}
			return "", false
		}
	)
	if p.h.Record == RecordUnknown {
		return refuse("its format record cannot be read, so flexd cannot know whether an earlier mkfs was cut%s", because(p.h.RecordReason))
	}
	if fs.Content == ContentUnknown || fs.Use == UseUnknown {
		p.add(Step{Kind: Inspect, Calls: who})
		return "", false
	}
	switch fs.Use {
	case InUse:
		return refuse("%s; flexd does not check, format or mount a device that something else uses: end that use first", orUnknown(fs.UsedBy))
	case Unmounted:
		return refuse("%s", orUnknown(fs.UsedBy))
	}
	// Where there is a filesystem, no mkfs was cut, and it may hold data by now.
	if fs.Content == Blank || fs.Content == ForeignContent && p.h.Record == Formatting {
		return p.format(calls, refuse)
	}
	switch fs.Content {
	case FilesystemFailed:
		return refuse("%s", failed(fs))
	case Truncated:
		return refuse("%s", p.truncated())
	case ForeignContent:
		return refuse("it is not blank: %s; flexd never formats over data. If the data is not needed: wipefs -a %s (and blkdiscard -z %[2]s), then ask again", orUnknown(fs.What), p.device())
	}
	if wanted != "" && wanted != fs.Type {
		return refuse("%s", otherType(fs.Type, wanted))
	}
	if !fs.Checked && !p.readOnlyLV() && fs.Type == "ext4" {
		p.add(Step{Kind: CheckFS, FSType: fs.Type, Calls: who})
	}
	if p.h.Record != Seen {
		p.add(Step{Kind: RecordSeen, FSType: fs.Type, Calls: who})
	}
	return fs.Type, true
}

// format plans mkfs of what is blank, or of what an mkfs of ours left that a
// crash has cut.
func (p *planner) format(calls []Call, refuse func(string, ...any) (string, bool)) (string, bool) {
	fsType := calls[0].FSType
	if fsType == "" {
		fsType = DefaultFSType
	}
	fs := p.h.FS
	switch {
	case fs.Made:
		return refuse("mkfs ended well, but afterwards the volume was found not to hold %s (%s)", fsType, orUnknown(fs.What))
	case p.readOnlyLV():
		return refuse("it is blank and read-only: there is nothing to mount")
	case p.h.Device.Unsound != "":
		return refuse("it is blank, but flexd formats no device like this: %s", p.h.Device.Unsound)
	case p.h.Record == Seen:
		return refuse("it is blank, but flexd has seen a filesystem on it before: its data may be lost, or the wrong device may be under it. If it is to be made anew, remove its record in the state directory%s", because(p.h.RecordFile))
	}
	repeat := fs.Content != Blank
	if why := p.unlikeCut(fsType); repeat && why != "" {
		return refuse("an mkfs of %s was cut on it, and is not repeated: %s; flexd never formats over data. Look at the signatures (wipefs %s); if it is not needed: wipefs -a %[3]s, blkdiscard -z %[3]s, then ask again", p.h.RecordType, why, p.device())
	}
	// A size that was too small may be corrected as long as nothing was published.
	if size := calls[0].Size; p.h.LV.Created && !repeat && size > p.h.LV.Size {
		if limit := calls[0].MaxSize; limit > 0 && size > limit {
			return refuse("option size: %d bytes are wanted, and the volume group's maxSize is %d", size, limit)
		}
		p.add(Step{Kind: Extend, Size: size, Blank: true, Calls: ids(calls)})
		return "", false
	}
	p.add(Step{Kind: Format, FSType: fsType, Repeat: repeat, Calls: ids(calls)})
	p.add(Step{Kind: Inspect, Calls: ids(calls)})
	return "", false
}

// unlikeCut says why what is on the device may be more than what the recorded
// mkfs left when a crash cut it, or "".
func (p *planner) unlikeCut(fsType string) string {
	fs := p.h.FS
	switch {
	case !fs.Leftover:
		return fmt.Sprintf("something else has written to it (%s)", orUnknown(fs.What))
	case !p.h.LV.Created:
		return fmt.Sprintf("flexd did not create this volume (%s)", orUnknown(fs.What))
	case p.h.RecordLate != "":
		return p.h.RecordLate
	case p.h.RecordType != fsType:
		return "fsType now asks for " + fsType
	}
	return ""
}

// device is what an owner may name in a command: a link that means this volume
// or nothing, where there is one.
func (p *planner) device() string {
	if p.h.Device.Link != "" {
		return p.h.Device.Link
	}
	return p.h.Device.Path
}

func (p *planner) expand(c Call) {
	lv, d := p.h.LV, p.h.Device
	switch {
	case p.h.Spots[c.Dir].Other != "" && !p.h.Spots[c.Dir].Under:
		p.refuse(c, "%s is mounted at %s: it is not this volume that is to grow there", p.h.Spots[c.Dir].Other, c.Dir)
		return
	case p.live() == nil || d.Activity != Active:
		p.refuse(c, "it is not mounted, and a filesystem is only grown while it is: mount it first")
		return
	case p.readOnlyLV():
		p.refuse(c, "the logical volume is read-only and cannot grow")
		return
	case p.h.FS.Content == FilesystemFailed:
		p.refuse(c, "%s", failed(p.h.FS))
		return
	case p.h.FS.Content == Truncated && c.Size < p.h.FS.Size:
		p.refuse(c, "%s", p.truncated())
		return
	case lv.Size < c.Size && c.MaxSize > 0 && c.Size > c.MaxSize:
		p.refuse(c, "%d bytes are wanted, and the volume group's maxSize is %d: raise it in flexd's configuration", c.Size, c.MaxSize)
		return
	}
	p.engaged = true
	who := []string{c.ID}
	if lv.Size < c.Size || d.Size < lv.Size {
		p.add(Step{Kind: Extend, Size: max(c.Size, lv.Size), Calls: who})
	}
	if !p.grow(max(c.Size, lv.Size), who) && lv.Size >= c.Size && d.Size >= lv.Size {
		p.done(c)
	}
}

// grow plans what makes the filesystem fill a device of the given size, and
// says whether there is anything to do.
func (p *planner) grow(size int64, who []string) bool {
	size = max(size, p.h.Device.Size)
	fs := p.h.FS
	switch {
	case fs.Grown && p.h.Device.Size >= size:
		return false
	case fs.Size == 0 && p.h.Device.Size >= size:
		p.add(Step{Kind: Inspect, Calls: who})
		return true
	case fs.Size > 0 && fs.Size+GrowSlack > size:
		return false
	}
	p.add(Step{Kind: Grow, Calls: who})
	return true
}

// growth is the one set-up that happens after the answer: a filesystem found
// smaller than its device at its mount, by this daemon, for a held claim.
func (p *planner) growth() {
	live := p.live()
	if p.h.Device.Suspended { // a child that touches it hangs, and an unmount with it
		p.v.Waiting = p.v.Waiting || live != nil && (p.w.Suspect || p.w.Grow)
		return
	}
	if p.w.Suspect && live != nil && !p.engaged && len(p.w.Calls) == 0 && p.h.Device.Activity == Active && p.h.FS.Content == ContentUnknown {
		p.add(Step{Kind: Inspect})
		return
	}
	if !p.w.Grow || p.engaged || live == nil || live.SuperReadOnly || p.readOnlyLV() || len(p.w.Calls) > 0 ||
		p.h.Device.Activity != Active || p.h.FS.Content == FilesystemFailed || p.h.FS.Content == Truncated {
		return
	}
	for _, c := range p.w.Claims {
		if c.Phase == Held && p.here(c.Dir) {
			p.grow(0, nil)
			return
		}
	}
}

// letGo plans the lease that a missing mount leaves, and deactivation.
func (p *planner) letGo() {
	if p.engaged || p.holding() {
		return
	}
	lease, d := p.w.Lease, p.h.Device
	for _, s := range p.v.Steps {
		if s.Lease || s.Kind == NoteLease {
			return
		}
	}
	switch {
	case !lease.Noted:
		missing := slices.ContainsFunc(p.w.Claims, func(c Claim) bool { return !slices.Contains(p.dropped, c.Dir) })
		if missing && d.Activity == Active && !p.w.NeverDeactivate {
			p.add(Step{Kind: NoteLease})
		}
	case lease.Live:
	case d.Activity == Inactive, d.Activity == Active && p.w.NeverDeactivate && len(p.h.Mounts) == 0:
		p.add(Step{Kind: DropLease})
	case d.Activity == Active && len(p.h.Mounts) == 0 && Kept(d.Relatives) == "": // also one that may not be used any more
		p.add(Step{Kind: Deactivate})
		p.add(Step{Kind: DropLease})
	}
}
