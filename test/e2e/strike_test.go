package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// strike makes a call during which flexd is killed right before the k-th visible system call of itself or of
// a child; 0 = never. With rest it follows flexd until the volume of that name has no device. It returns the
// point of the kill, if it was reached, and the number of points.
func (h *host) strike(k int, rest string, args ...string) (at point, all int) {
	h.t.Helper()
	t := h.trace(h.Pid(), k)
	b := h.begin(args...)
	ended := h.Ended()
	select {
	case <-ended:
	case a := <-b.done:
		b.done <- a
	}
	if rest != "" {
		h.within(soon, func() string {
			select {
			case <-ended:
				return ""
			default:
			}
			if slices.Contains(h.Active(), rest) {
				return rest
			}
			return ""
		})
	}
	at, all = t.end()
	if at.n > 0 {
		if _, err := h.Wait(); err != nil {
			h.t.Fatalf("flexd was killed at %s, and lives: %v", at, err)
		}
		h.start()
	}
	b.wait(h.t) // a call without an answer gets a Failure, and kubelet calls again
	return at, all
}

// flexd is killed at each visible system call of itself or of a child, in each verb, and until the volume is
// released. The next flexd and kubelet's retry succeed, nothing is done twice or half, and another pod is not
// affected.
func TestFlexdKilledAtEachCall(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	r := seeded(t)
	p, q := podN(1), podN(2)
	beside := h.vol("beside", "ext4")
	h.ok(h.up(byKubelet, beside, q))
	h.write(beside, q, "f", "x")

	v := h.vol("a", "btrfs").With("size", "320Mi") // less than 256 cannot be grown
	dir, global := h.PodDir(p, v), h.GlobalDir(v)
	mount := []string{"mount", dir, v.Blob(&p)}
	stage := []string{"mountdevice", global, "", v.Blob(nil)}
	const mark = "what the pod wrote"
	h.must(os.MkdirAll(dir, 0o750))
	h.ok(h.call(mount...))
	h.write(v, p, "mark", mark)
	h.ok(h.call("unmount", dir))
	records := h.records()

	fresh, size, struck := 0, int64(320*mib), 0
	type verb struct {
		name   string
		before [][]string
		args   func() []string
		mounts string // what is mounted afterwards
		rest   bool   // what follows the answer is part of it
	}
	always := func(args ...string) func() []string { return func() []string { return args } }
	verbs := []verb{
		{"attach", nil, always("attach", v.Blob(nil), node), "", false},
		{"isattached", nil, always("isattached", v.Blob(nil), node), "", false},
		{"waitforattach", nil, always("waitforattach", "", v.Blob(nil)), "", true},
		{"mountdevice", nil, always(stage...), global, false},
		{"unmountdevice", [][]string{stage}, always("unmountdevice", global), "", true},
		{"mount", nil, always(mount...), dir, false},
		{"expandfs", [][]string{mount}, func() []string {
			size += 8 * mib
			return []string{"expandfs", v.Blob(nil), "", dir, fmt.Sprint(size), "0"}
		}, dir, false},
		{"unmount", [][]string{mount}, always("unmount", dir), "", true},
		{"detach", [][]string{{"waitforattach", "", v.Blob(nil)}}, always("detach", v.Name, node), "", true},
		{"mount of a new volume", nil, func() []string {
			fresh++
			w := h.vol(fmt.Sprint("new-", fresh), "ext4")
			h.must(os.MkdirAll(h.PodDir(p, w), 0o750))
			return []string{"mount", h.PodDir(p, w), w.Blob(&p)}
		}, "new", false},
	}
	// try lets flexd be killed once, and looks what came of it.
	try := func(verb verb, k int) (hit bool, all int) {
		for _, dir := range []string{dir, global} {
			h.must(os.MkdirAll(dir, 0o750))
		}
		for _, args := range verb.before {
			h.ok(h.call(args...))
		}
		args, wanted, rest := verb.args(), verb.mounts, ""
		if wanted == "new" {
			wanted = args[1]
		}
		if verb.rest {
			rest = "vg0/a"
		}
		at, all := h.strike(k, rest, args...)
		about := fmt.Sprintf("%s, killed at %s", verb.name, at)
		h.eventually(about+": kubelet's retry works", func() string {
			if a := h.call(args...); !a.ok() {
				return a.String()
			}
			return ""
		})
		if got := strings.Join(mounts(h.Dir+"/kubelet/pods/"+p.UID), " ") + strings.Join(mounts(global), " "); got != wanted {
			t.Errorf("%s: mounted: %q, want %q", about, got, wanted)
		}
		h.reads(beside, q, "f", "x")
		switch verb.mounts {
		case dir:
			h.reads(v, p, "mark", mark)
			h.ok(h.call("unmount", dir))
		case global:
			h.ok(h.call("unmountdevice", global))
		case "new":
			w := h.vol(fmt.Sprint("new-", fresh), "ext4")
			h.write(w, p, "f", about)
			h.ok(h.call("unmount", wanted))
			// It goes altogether: each that stays is some calls more for those to come.
			h.ok(h.call("detach", w.Name, node))
			lv := "vg0/" + w.Options["volumeID"]
			h.eventually("its device goes", func() string {
				if slices.Contains(h.Active(), lv) {
					return lv
				}
				return ""
			})
			h.remove(lv)
			h.must(os.Remove(wanted))
			for _, file := range h.records() {
				if !slices.Contains(records, file) {
					h.must(os.Remove(file))
				}
			}
		}
		if t.Failed() {
			t.Fatal(about)
		}
		if at.n > 0 {
			struck++
		}
		return at.n > 0, all
	}
	last := verbs[len(verbs)-1]
	if !soak {
		verbs = some(r, verbs, 3)
	}
	total := 0
	for _, verb := range verbs {
		if soak && exhaustive {
			for k, hit := 1, true; hit; k++ {
				hit, _ = try(verb, k)
			}
			continue
		}
		_, all := try(verb, 0)
		if total += all; all == 0 {
			t.Fatalf("%s: it has no visible effect", verb.name)
		}
		for range times(strikes) {
			try(verb, 1+r.IntN(all))
		}
	}
	if struck == 0 { // what is remembered from the first time is not done again
		try(last, 1)
	}
	h.end(byKubelet, beside, q)
	t.Logf("flexd was killed at %d points; %d were counted", struck, total)
	if struck == 0 {
		t.Error("that is none")
	}
}

// records are the files of what flexd knows of volumes.
func (h *host) records() (all []string) {
	h.t.Helper()
	files, err := os.ReadDir(h.State + "/formats")
	h.must(err)
	for _, f := range files {
		all = append(all, h.State+"/formats/"+f.Name())
	}
	return all
}
