package volume

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A mutant is a bug that a programmer could write into the planner, or into what says whose
// mount is whose.
type mutant struct {
	bug      string
	old, new string // a piece of one of the files of suspects that occurs exactly once
}

// suspects are the files, with the tests that find a bug there.
var suspects = map[string]string{
	"plan.go": "^TestPlanSpace$", "setup.go": "^TestPlanSpace$", "mount.go": "^TestPlanSpace$", "grow.go": "^(TestPlanSpace|TestExpandTruncated|TestExpandSmallSectors)$",
	"teardown.go": "^TestPlanSpace$", "orphan.go": "^TestPlanSpace$", "create.go": "^TestPlanSpace$", "record.go": "^TestPlanSpace$",
	"../asw/owner.go": "^TestOwners$", "../asw/asw.go": "^TestTargetStates$",
}

// plantedBug is set in the environment of a run with a bug, which need not walk
// from every world to find it.
const plantedBug = "FLEXD_PLANTED_BUG"

var mutants = []mutant{
	{"a claim in the making is forgotten although its mount landed", `case here && c.Phase == Making:`, `case false:`},
	{"a failed release is not held again", `case here && c.Phase == Releasing:`, `case false:`},
	{"a claim is dropped while its call waits", `case here || len(setUp) > 0:`, `case here:`},
	{"a mount without a note is not adopted", `if m.Owner == Ours && p.claim(m.Dir) == nil && len(p.calls(m.Dir, Release, Reclaim)) == 0 {`, `if false {`},
	{"the last claim leaves no lease", `Lease: !p.h.Device.Released() && !p.holding()})`, `Lease: false})`},
	{"a foreign mount is unmounted", `case spot.Other != "":
			p.refuse(call, Busy, "%s is mounted at %s in its place: unmount that first", spot.Other, call.Dir)
		case spot.This && !seen[call.Dir]:`, `case spot.Other != "" && false:
		case spot.This && !seen[call.Dir]:`},
	{"a foreign mount is released", `case spot.Other != "":
			p.refuse(call, Busy, "%s is mounted at %s in its place: unmount that first", spot.Other, call.Dir)
		case !spot.This`, `case !spot.This`},
	{"a release is not noted before the umount", `c == nil || c.Phase != Releasing {
		p.add(`, `c == nil {
		p.add(`},
	{"an unmount of what is not mounted is never answered", `case claim == nil:
			p.done(call)`, `case claim == nil:`},
	{"a volume with a foreign mount is used", `if m.Owner == Elsewhere {
			return refusal(Busy, "it is mounted at`, `if m.Owner == Elsewhere && false {
			return refusal(Busy, "it is mounted at`},
	{"a mount lands over something else", `if s := p.h.Targets[c.Dir]; s.Other != "" {`, `if s := p.h.Targets[c.Dir]; false && s.Other != "" {`},
	{"the wrong mode counts as mounted", `c.Verb == Publish && m.ReadOnly != c.ReadOnly {`, `c.Verb == Publish && m.ReadOnly != c.ReadOnly && false {`},
	{"an unknown format record is taken for none", `if p.h.Record == RecordUnknown {`, `if false {`},
	{"a device is formatted unseen", `if fs.Content == ContentUnknown || fs.Use == UseUnknown {`, `if fs.Use == UseUnknown && fs.Content != ContentUnknown {`},
	{"a device that something else has open is mounted", `case InUse:
		return refuse(`, `case UseUnknown:
		return refuse(`},
	{"a filesystem that is frozen without a mount is mounted", `case Unmounted:
		return refuse(`, `case UseUnknown:
		return refuse(`},
	{"a device is used unseen by others", `fs.Content == ContentUnknown || fs.Use == UseUnknown {`, `fs.Content == ContentUnknown {`},
	{"foreign data is formatted", `case ForeignContent:
		return refuse(`, `case ForeignContent:
		p.add(Step{Kind: Format, FSType: DefaultFSType, Repeat: true, Calls: who})
		return "", false
		return refuse(`},
	{"a blank volume on which a filesystem was seen is formatted", `case p.h.Record == Seen:
		return refuse(refusal(DataMissing, "it is blank, but`, `case false:
		return refuse(refusal(DataMissing, "it is blank, but`},
	{"raw data, or a foreign signature, under the record of an mkfs is formatted", `case !fs.Leftover:`, `case false:`},
	{"a cut mkfs is repeated on a volume that flexd did not create", `case !p.h.LV.Created:`, `case false:`},
	{"a cut mkfs is repeated forever", `case p.h.RecordLate != "":`, `case false:`},
	{"what a cut mkfs left is formatted as something else", `case p.h.RecordType != fsType:`, `case false:`},
	{"a blank volume that flexd did not create is extended", `p.h.LV.Created && !repeat && size`, `!repeat && size`},
	{"what a cut mkfs left is extended as if it were blank", `p.h.LV.Created && !repeat && size`, `p.h.LV.Created && size`},
	{"a blank volume is formatted over what was added to it", `p.h.LV.Unzeroed > 0 || p.h.LV.Created`, `p.h.LV.Created`},
	{"what a cut mkfs left is said to be blank", `repeat := fs.Content != Blank`, `repeat := fs.Content == ContentUnknown`},
	{"what an mkfs left is formatted without a record", `fs.Content == ForeignContent && p.h.Record == Formatting {`, `fs.Content == ForeignContent && fs.Leftover {
		p.h.RecordType = calls[0].FSType`},
	{"the filesystem is published before the record says seen", `if p.h.Record != Seen || p.h.RecordPartial {`, `if p.h.Record == NoRecord {`},
	{"the filesystem is published before other nodes see the record", `t.Shared && t.State != Seen
`, `false
`},
	{"what another node has mounted is formatted", `case t.State == Seen:
		if`, `case false:
		if`},
	{"what another node has mounted is formatted, because this one knows nothing", `		f.State = Seen
	case`, `	case`},
	{"the mkfs of another node is repeated forever", `TooLate(t.At, now.Sub(t.At))`, `""`},
	{"an mkfs of this node that has ended is repeated", `case t.State == Formatting: // started`, `case t.State == Formatting && f.State == NoRecord: f.State, f.Type = Formatting, t.Type // if`},
	{"an mkfs is repeated under a tag that says nothing", `f.State, f.Type, f.Late = Formatting, t.Type, t.Bad`, `f.State, f.Type = Formatting, t.Type`},
	{"an mkfs is repeated that another node has ended", `case t.Shared && f.State == Formatting && f.Late == "":`, `case false:`},
	{"a tag says more than an unreadable record", `case f.State == RecordUnknown:`, `case false:`},
	{"mkfs is repeated over any contents", `repeat && why != "" {`, `false {
		_ = why`},
	{"the claim of a mount that is no copy is dropped", `p.h.Targets[c.Dir].This && p.isCopy(c.Dir):`, `p.h.Targets[c.Dir].This:`},
	{"what cannot be identified is taken for absent", `return s.This || s.Under || s.Unknown != ""`, `return s.This || s.Under`},
	{"a claim is dropped at a directory in an unknown state", `if len(release) > 0 || p.h.Targets[c.Dir].Unknown != "" {`, `if len(release) > 0 {`},
	{"a filesystem in error is mounted", `case FilesystemFailed:
		return refuse(failed(fs))`, `case FilesystemFailed:`},
	{"a filesystem that is larger than its device is mounted", `case Truncated:
		return refuse(p.truncated())`, `case Truncated:`},
	{"a second pod gets a filesystem that is larger than its device", `case p.h.FS.Content == Truncated:
		return p`, `case false:
		return p`},
	{"a filesystem with smaller sectors than its device is extended", `if fs := p.h.FS; fs.Small != ""`, `if fs := p.h.FS; false`},
	{"a filesystem that is larger than its device is extended", `case p.h.FS.Content == Truncated: // an`, `case false: // an`},
	{"a filesystem is extended without a look whether its end is cut off", `extends && p.h.FS.Content == ContentUnknown: // the filesystem could`, `false: // it could`},
	{"another filesystem than was asked for is mounted", `if wanted != "" && wanted != fs.Type {`, `if false {`},
	{"a suspended device is used", `case d.Suspended:`, `case false:`},
	{"a call waits for a suspended device forever", `waits := c.Waits || p.h.LV.Pending`, `waits := c.Waits || p.h.LV.Pending || p.h.Device.Suspended`},
	{"a step is taken for a call that waits", `waits := c.Waits || p.h.LV.Pending`, `waits := p.h.LV.Pending`},
	{"a volume is deactivated while a call waits for it", `p.serving = p.serving || waits`, `_ = waits`},
	{"a volume is created for a call that waits", `case p.waits(c):
		case lv`, `case lv`},
	{"a suspended device is grown or probed without a call", `if p.h.Device.Suspended {`, `if false {`},
	{"a volume is used without its lock", `case len(ids) > 0 && p.h.Device.Unlocked:`, `case false:`},
	{"fsck is left out", `if !fs.Checked && !p.readOnlyLV() && fs.Type == "ext4" {`, `if false {`},
	{"a device is activated before its claim is noted", `if cl == nil || cl.Phase != Making {`, `if cl != nil && cl.Phase != Making {`},
	{"a volume is activated without a lease", `case !p.w.Lease.Noted || !p.w.Lease.Live:`, `case false:`},
	{"a mounted device is deactivated", `case (d.Activity == Active || d.LockLeft) && len(p.h.Mounts) == 0 && Kept`, `case (d.Activity == Active || d.LockLeft) && Kept`},
	{"the note of a lock that was left is dropped", `case d.Released(), d.Activity`, `case d.Activity == Inactive, d.Activity`},
	{"a lock that was left is not noted", `Lease: !p.h.Device.Released()`, `Lease: p.h.Device.Activity != Inactive`},
	{"a lock that was left is not released", `case d.Released() && !p.w.Lease.Noted:`, `case d.Activity == Inactive && !p.w.Lease.Noted:`},
	{"a device is deactivated together with one that is needed", `len(p.h.Mounts) == 0 && Kept(d.Relatives) == "": //`, `len(p.h.Mounts) == 0: //`},
	{"a device is released together with one that is needed", `case d.Activity == Active && Kept(d.Relatives) != "":`, `case false:`},
	{"a device is deactivated while its lease lives", `case lease.Live:`, `case false:`},
	{"a device is deactivated under a claim", `if p.serving || p.holding() {`, `if p.serving {`},
	{"a held claim whose mount is gone holds the device forever", `if p.here(c.Dir) && !slices.Contains(p.unmounts, c.Dir) || c.Phase != Held || p.h.Targets[c.Dir].Moved {`, `if true {`},
	{"a running pod's mount is released", `case kind == Published && spot.Pod == Running:`, `case false:`},
	{"a mount is released although it is unknown whether its pod runs", `case kind == Published && spot.Pod == LifeUnknown && spot.This:`, `case false:`},
	{"a global mount is released under a pod", `len(by) > 0 {`, `if false {`},
	{"flexd releases automatically without its second proof", `Alone: alone, Calls: calls})`, `Calls: calls})`},
	{"a claimed device is released", `case len(p.w.Claims) > 0:`, `case false:`},
	{"a mounted device is released", `case len(p.h.Mounts) > 0:
		p.refuse(call, Busy, "it is`, `case false:
		p.refuse(call, Busy, "it is`},
	{"a release goes on although kubelet asks for the directory", `case len(p.calls(call.Dir, Stage, Publish, Release)) > 0:`, `case false:`},
	{"a filesystem is grown without anybody's call", `if !p.w.Grow || p.serving || p.enlarged() ||`, `if p.serving || p.enlarged() ||`},
	{"a mount below kubelet's root is kubelet's", `case place.Bind:`, `case place.Bind || c.within(e.Dir):`},
	{"a subPath of a foreign mount is kubelet's", `if !shown {`, `if false && !shown {`},
	{"a part of the volume at one of our directories is ours", `case place.Kind != "" && whole:`, `case place.Kind != "":`},
	{"a copy counts as a mount of its own", `if slices.ContainsFunc(counted, func`, `if false && slices.ContainsFunc(counted, func`},
	{"what is mounted at the same place is a copy", `return table.CopyOf(e, c)`, `return true`},
	{"a foreign mount counts, and ours as its copy", `cmp.Compare(all[a].rank, all[b].rank)`, `cmp.Compare(all[b].rank, all[a].rank)`},
	{"a mount of another driver is ours", `default:
			m.rank, several = rankForeign, true`, `default:
			m.rank, several, m.owner = rankForeign, true, volume.Ours`},
	{"a covered mount is on top", `case i < len(at)-1 && mine:`, `case i < 0 && mine:`},
	{"a mount that a lookup does not reach is none", `if mine && over != nil && !s.Under {`, `if false && mine && over != nil {`},
	{"a part of the volume is the volume", `case !o.whole(e, t.Dirs):
		return false, nil`, `case false:`},
	{"a volume is created whose name could not be looked up", `case lv.Presence == PresenceUnknown:
			p.refuse(c, Unknown, "it could`, `case false:
			p.refuse(c, Unknown, "it could`},
	{"a volume is created in place of something foreign", `case lv.Presence == Foreign:
			p.refuse(c, Unusable, "not usable`, `case false:
			p.refuse(c, Unusable, "not usable`},
	{"a volume is created against the configuration", `case c.Refusal.Reason != "":
			p.refuse(c, c.Refusal.Code, "create`, `case false:
			p.refuse(c, c.Refusal.Code, "create`},
	{"a volume is created in place of one that had a filesystem", `case p.h.Record == Seen:
			copied`, `case false:
			copied`},
	{"a volume is created although what had its name is unknown", `case p.h.Record == RecordUnknown:
			p.refuse(c, Unknown, "create`, `case false:
			p.refuse(c, Unknown, "create`},
	{"a creation is answered before the volume is seen", `case lv.Presence == Present:
			p.done(c)`, `case lv.Presence == Present || lv.Presence == Absent:
			p.done(c)`},
	{"a volume is created again that is there", `case lv.Presence == Present:
			p.done(c)`, `case false:
			p.done(c)`},
	{"a volume is created without a size", `if len(calls) == 0 {
				size = c.Size`, `if len(calls) > 0 {
				size = c.Size`},
	{"a volume is created for no call", `CreateVolume, Size: size, Calls: calls})`, `CreateVolume, Size: size})`},
	{"expandfs to a size that the filesystem has extends it to the whole device", `case !p.grow(c.Size, calls):`, `case !p.grow(d.Size, calls):`},
	{"expandfs is answered before the volume is large enough", `case !p.grow(c.Size, calls):`, `case p.grow(c.Size, calls) || true:`},
}

var walked = regexp.MustCompile(`walked (\d+) states`)

// plantedEach is how many planted bugs make test tries: each costs the compilation of
// a package. FLEXD_SOAK tries all of them.
const plantedEach = 8

// TestPlantedBugs plants one bug after the other and requires the test of its file to
// find it.
func TestPlantedBugs(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("compiles the package many times")
	}
	sources, tests := map[string]string{}, map[string]string{} // by absolute path
	for name, finds := range suspects {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sources[path], tests[path] = string(text), finds
	}
	var (
		wg    sync.WaitGroup
		lines = make([]string, len(mutants))
		two   = make(chan struct{}, 2)
	)
	seed, err := strconv.ParseUint(os.Getenv("FLEXD_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("FLEXD_SEED=%d", seed)
	drawn := rand.New(rand.NewPCG(seed, 0)).Perm(len(mutants))
	if os.Getenv("FLEXD_SOAK") == "" {
		drawn = drawn[:plantedEach]
	}
	for i, m := range mutants {
		n, plan := 0, ""
		for path, text := range sources {
			if k := strings.Count(text, m.old); k > 0 {
				n, plan = n+k, path
			}
		}
		if n != 1 {
			t.Errorf("%s: %q occurs %d times", m.bug, m.old, n)
			continue
		}
		if !slices.Contains(drawn, i) {
			continue
		}
		wg.Go(func() {
			two <- struct{}{}
			defer func() { <-two }()
			dir := t.TempDir()
			bad, overlay := filepath.Join(dir, "bad.go"), filepath.Join(dir, "overlay.json")
			text, _ := json.Marshal(map[string]any{"Replace": map[string]string{plan: bad}})
			if err := os.WriteFile(bad, []byte(strings.Replace(sources[plan], m.old, m.new, 1)), 0o600); err != nil {
				t.Error(err)
				return
			}
			if err := os.WriteFile(overlay, text, 0o600); err != nil {
				t.Error(err)
				return
			}
			c := exec.Command("go", "test", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-run", tests[plan], "-v", filepath.Dir(plan))
			c.Env = append(os.Environ(), plantedBug+"=1")
			out, err := c.CombinedOutput()
			switch said := string(out); {
			case err == nil:
				t.Errorf("not caught: %s", m.bug)
				lines[i] = "NOT CAUGHT"
			case strings.Contains(said, "[build failed]"), strings.Contains(said, "[setup failed]"):
				t.Errorf("does not compile: %s\n%s", m.bug, said)
			default:
				lines[i] = "found"
				if w := walked.FindStringSubmatch(said); w != nil {
					lines[i] += " after " + w[1] + " states"
				}
			}
		})
	}
	wg.Wait()
	for _, i := range drawn {
		t.Logf("%-70s %s", mutants[i].bug, lines[i])
	}
}
