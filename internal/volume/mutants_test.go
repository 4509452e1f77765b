package volume

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// A mutant is a bug that somebody could write into the planner.
type mutant struct {
	bug      string
	old, new string // a piece of plan.go or orphan.go that occurs exactly once
}

// plantedBug is set in the environment of a run with a bug, which need not walk
// from every world to find it.
const plantedBug = "FLEXD_PLANTED_BUG"

var mutants = []mutant{
	{"a claim in the making is forgotten although its mount landed", `case here && c.Phase == Making:`, `case false:`},
	{"a failed release is not held again", `case here && c.Phase == Releasing:`, `case false:`},
	{"a claim is dropped while its call waits", `case here || len(setUp) > 0:`, `case here:`},
	{"a mount without a note is not adopted", `if m.Owner == Ours && p.claim(m.Dir) == nil && len(p.calls(m.Dir, Release, Reclaim)) == 0 {`, `if false {`},
	{"the last claim leaves no lease", `Lease: p.h.Device.Activity != Inactive && !p.holding()})`, `Lease: false})`},
	{"a foreign mount is unmounted", `case spot.Other != "":
			p.refuse(call, "%s is mounted at %s, not by flexd: unmount that first", spot.Other, call.Dir)
		case spot.This && !seen[call.Dir]:`, `case spot.Other != "" && false:
		case spot.This && !seen[call.Dir]:`},
	{"a foreign mount is let go", `case spot.Other != "":
			p.refuse(call, "%s is mounted at %s, not by flexd: unmount that first", spot.Other, call.Dir)
		case !spot.This`, `case !spot.This`},
	{"a release is not noted before the umount", `c == nil || c.Phase != Releasing {
		p.add(`, `c == nil {
		p.add(`},
	{"an unmount of what is not mounted is never answered", `case claim == nil:
			p.done(call)`, `case claim == nil:`},
	{"a volume that somebody else mounted is used", `if m.Owner == Elsewhere {
			return fmt.Sprintf("it is mounted at`, `if m.Owner == Elsewhere && false {
			return fmt.Sprintf("it is mounted at`},
	{"a mount lands over something else", `if s := p.h.Spots[c.Dir]; s.Other != "" {`, `if s := p.h.Spots[c.Dir]; false && s.Other != "" {`},
	{"the wrong mode counts as mounted", `c.Verb == Publish && m.ReadOnly != c.ReadOnly {`, `c.Verb == Publish && m.ReadOnly != c.ReadOnly && false {`},
	{"an unknown format record is taken for none", `if p.h.Record == RecordUnknown {`, `if false {`},
	{"a device is formatted unseen", `if fs.Content == ContentUnknown {`, `if false {`},
	{"foreign data is formatted", `case ForeignContent:
		return refuse(`, `case ForeignContent:
		return p.format(calls, refuse)
		return refuse(`},
	{"a blank volume on which a filesystem was seen is formatted", `case p.h.Record == Seen:
		return refuse("it is blank, but`, `case false:
		return refuse("it is blank, but`},
	{"a cut mkfs is repeated over a foreign signature", `if fs.Signature != "" {`, `if false {`},
	{"mkfs runs without a record", `p.add(Step{Kind: RecordFormatting, FSType: fsType, Calls: ids(calls)})`, `_ = fsType`},
	{"the filesystem is published before the record says seen", `if p.h.Record != Seen {
		p.add(`, `if p.h.Record != Seen && p.h.Record != Formatting {
		p.add(`},
	{"mkfs is repeated over a filesystem that was finished", `fs.Content == ForeignContent && p.h.Record == Formatting {`, `p.h.Record == Formatting && !fs.Made {`},
	{"what cannot be identified is taken for absent", `return s.This || s.Under || s.Unknown != ""`, `return s.This || s.Under`},
	{"a claim is dropped at a directory that cannot be told", `if len(release) > 0 || p.h.Spots[c.Dir].Unknown != "" {`, `if len(release) > 0 {`},
	{"a filesystem in error is mounted", `case FilesystemFailed:
		return refuse("%s", failed(fs))`, `case FilesystemFailed:`},
	{"another filesystem than was asked for is mounted", `if wanted != "" && wanted != fs.Type {`, `if false {`},
	{"fsck is left out", `if !fs.Checked && !p.readOnlyLV() && fs.Type == "ext4" {`, `if false {`},
	{"a device is activated before its claim is noted", `if cl == nil || cl.Phase != Making {`, `if cl != nil && cl.Phase != Making {`},
	{"a volume is activated without a lease", `case !p.w.Lease.Noted || !p.w.Lease.Live:`, `case false:`},
	{"a mounted device is deactivated", `case d.Activity == Active && len(p.h.Mounts) == 0: //`, `case d.Activity == Active: //`},
	{"a device is deactivated while its lease lives", `case lease.Live:`, `case false:`},
	{"a device is deactivated under a claim", `if p.engaged || p.holding() {`, `if p.engaged {`},
	{"a held claim whose mount is gone holds the device for ever", `if p.here(c.Dir) && !slices.Contains(p.unmounts, c.Dir) || c.Phase != Held {`, `if true {`},
	{"a running pod's mount is let go", `case kind == Published && spot.Pod == Running:`, `case false:`},
	{"a mount is let go although it cannot be told whether its pod runs", `case kind == Published && spot.Pod == LifeUnknown && spot.This:`, `case false:`},
	{"a global mount is let go under a pod", `if len(by) > 0 {`, `if false {`},
	{"flexd lets go by itself without its second proof", `Alone: alone, Calls: calls})`, `Calls: calls})`},
	{"a claimed device is released", `case len(p.w.Claims) > 0:`, `case false:`},
	{"a mounted device is released", `case len(p.h.Mounts) > 0:
		p.refuse(call, "it is`, `case false:
		p.refuse(call, "it is`},
	{"a release goes on although kubelet asks for the directory", `case len(p.calls(call.Dir, Stage, Publish, Release)) > 0:`, `case false:`},
	{"a filesystem is grown without anybody's call", `if !p.w.Grow || p.engaged ||`, `if p.engaged ||`},
	{"expandfs is answered before the volume is large enough", `if !p.grow(max(c.Size, lv.Size), who) && lv.Size >= c.Size && d.Size >= lv.Size {`, `if p.grow(max(c.Size, lv.Size), who); true {`},
}

var (
	walked  = regexp.MustCompile(`walked (\d+) states`)
	andMore = regexp.MustCompile(`and (\d+) more`)
)

// TestPlantedBugs plants one bug after the other into the planner and requires
// TestPlanSpace to find each.
func TestPlantedBugs(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("compiles the package many times")
	}
	sources := map[string]string{} // by absolute path
	for _, name := range []string{"plan.go", "orphan.go"} {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sources[path] = string(text)
	}
	var (
		wg    sync.WaitGroup
		lines = make([]string, len(mutants))
		two   = make(chan struct{}, 2)
	)
	for i, m := range mutants {
		n, plan := 0, ""
		for path, text := range sources {
			if k := strings.Count(text, m.old); k > 0 {
				n, plan = n+k, path
			}
		}
		if n != 1 {
			t.Errorf("%s: %q occurs %d times in the planner", m.bug, m.old, n)
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
			c := exec.Command("go", "test", "-vet=off", "-overlay", overlay, "-run", "^TestPlanSpace$", "-v", ".")
			c.Env = append(os.Environ(), plantedBug+"=1")
			out, err := c.CombinedOutput()
			switch said := string(out); {
			case err == nil:
				t.Errorf("not caught: %s", m.bug)
				lines[i] = "NOT CAUGHT"
			case strings.Contains(said, "[build failed]"), strings.Contains(said, "[setup failed]"):
				t.Errorf("does not compile: %s\n%s", m.bug, said)
			default:
				found := strings.Count(said, "space_test.go:")
				if more := andMore.FindStringSubmatch(said); more != nil {
					fmt.Sscan(more[1], &found)
					found += 5
				}
				lines[i] = fmt.Sprintf("caught %6d times", found)
				if w := walked.FindStringSubmatch(said); w != nil {
					lines[i] += " in " + w[1] + " states"
				}
			}
		})
	}
	wg.Wait()
	for i, m := range mutants {
		t.Logf("%-70s %s", m.bug, lines[i])
	}
}
