package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/test/umount"
	"golang.org/x/sys/unix"
)

// The points of a volume's life at which it is changed from outside.
const (
	leased    = "active"
	staged    = "staged"
	published = "mounted for a pod"
	parting   = "staged, the pod is gone"
)

// An action is an external change of a volume or its device.
type action struct {
	name string
	do   func(v vol, device string) trace
}

// A trace is the result of an action.
type trace struct {
	inTheWay string // is named in a refusal
	lost     bool   // the volume is no more
	reported string // in status, when kubelet has released the volume
	undo     func()
}

// A volume is changed from outside at each point of its life, with flexd running and stopped. Kubelet's later
// calls succeed, or their refusal names the change; flexd repairs nothing, and after the change is undone,
// the next pod gets the volume with its data.
func TestMeddlingAtEachPoint(t *testing.T) {
	t.Parallel()
	// Kubelet must find the device of the answer, on a slow machine too.
	h := newHost(t, func(h *host) { h.settings.lease = time.Second })
	p, q := podN(1), podN(2)
	elsewhere := h.Dir + "/elsewhere"
	h.must(os.MkdirAll(elsewhere, 0o755))

	taken := func(dir func(vol) string) func(vol, string) trace {
		return func(v vol, _ string) trace {
			h.must(umount.Plain(dir(v)))
			return trace{}
		}
	}
	covered := func(dir func(vol) string) func(vol, string) trace {
		return func(v vol, _ string) trace {
			h.must(unix.Mount("foreign-source", dir(v), "tmpfs", 0, "size=64k"))
			return trace{inTheWay: "foreign-source", undo: func() { h.must(umount.Plain(dir(v))) }}
		}
	}
	leaked := func(dir func(vol) string) func(vol, string) trace {
		return func(v vol, _ string) trace {
			// Kubelet's rmdir takes the copy away from its directory, and leaves the other.
			c := h.leak("mount", "--bind", dir(v), elsewhere)
			words := fmt.Sprintf("pid %d (sleep, mounted in its mount namespace %s at ", c.Process.Pid, namespace(t, c.Process.Pid))
			return trace{inTheWay: words, reported: words, undo: func() { c.Process.Kill(); c.Wait() }}
		}
	}
	global, pods := h.GlobalDir, func(v vol) string { return h.PodDir(p, v) }
	all := append(h.actions(), action{"mounted elsewhere", func(_ vol, device string) trace {
		h.sh("mount", device, elsewhere)
		return trace{inTheWay: elsewhere, undo: func() { h.must(umount.Plain(elsewhere)) }}
	}})
	onGlobal := []action{{"umount of the global mount", taken(global)}, {"a mount on the global mount", covered(global)}, {"the global mount leaks", leaked(global)}}
	points := map[string][]action{
		leased:    all,
		staged:    append(onGlobal, all...),
		published: append([]action{{"umount of the pod's mount", taken(pods)}, {"a mount on the pod's mount", covered(pods)}, {"a mount on the global mount", covered(global)}, {"the pod's mount leaks", leaked(pods)}}, all...),
		parting:   append(onGlobal, all...),
	}
	type row struct {
		point string
		action
		dead bool
	}
	var rows []row
	for _, point := range []string{leased, staged, published, parting} {
		for _, d := range points[point] {
			rows = append(rows, row{point, d, false}, row{point, d, true})
		}
	}
	r := seeded(t)
	if r.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] }); !soak {
		rows = rows[:max(2, times(15))]
	}
	for n, row := range rows {
		point, d, dead := row.point, row.action, row.dead
		about := fmt.Sprintf("%s; %s; flexd dead: %v", point, d.name, dead)
		v := h.vol(fmt.Sprint("meddled-", n), "ext4")
		h.ok(h.up(byKubelet, v, q)) // it has data
		h.write(v, q, "f", about)
		h.end(byKubelet, v, q)
		device := h.ok(h.call("waitforattach", "", v.Blob(nil))).Device
		switch point {
		case staged:
			h.ok(h.stage(v, device))
		case published:
			h.ok(h.up(byKubelet, v, p))
		case parting:
			h.ok(h.up(byKubelet, v, p))
			h.ok(h.unmount(v, p))
		}
		real := h.story(v.Options["volumeID"]).Device
		if dead {
			h.kill()
		}
		left := d.do(v, real)
		before := mounts(h.Root)
		if dead {
			h.start()
		}
		h.settled(v.Options["volumeID"])
		if now := mounts(h.Root); !slices.Equal(now, before) {
			t.Errorf("%s: mounted: %q, then %q", about, before, now)
		}
		// Kubelet goes on: with what it has begun, or to the end.
		fine := func(a answer) bool {
			if !a.ok() && (left.inTheWay == "" || !strings.Contains(a.Message, left.inTheWay)) {
				t.Errorf("%s: %s; does not name %q", about, a, left.inTheWay)
			}
			return a.ok()
		}
		if point == leased || point == staged {
			if a := h.up(byKubelet, v, p); fine(a) {
				h.reads(v, p, "f", about)
			}
		}
		if fine(h.unmount(v, p)) {
			fine(h.down(byKubelet, v))
		}
		if left.reported != "" {
			h.eventually(about+": status shows it", func() string {
				if s := h.story(v.Options["volumeID"]); s.Error == nil || !strings.Contains(s.Error.Message, left.reported) {
					return fmt.Sprintf("%+v, and not %q", s, left.reported)
				}
				return ""
			})
		}
		if left.undo != nil {
			left.undo()
		}
		h.ok(h.unmount(v, p))
		h.ok(h.down(byKubelet, v))
		h.eventually(about+": it is released", h.Left)
		if left.lost {
			h.refused(h.up(noAttach, v, q), left.inTheWay)
		} else {
			h.ok(h.up(byKubelet, v, q))
			h.reads(v, q, "f", about)
			h.end(byKubelet, v, q)
		}
		if t.Failed() {
			t.Fatal(about)
		}
	}
	t.Logf("%d times meddled", len(rows))
}

// noticed waits until status reports an external change, without a call of kubelet. Without events flexd
// would need minutes.
func (h *host) noticed(what, volume string, is func(volumeStatus) bool) volumeStatus {
	h.t.Helper()
	if h.t.Failed() {
		h.t.FailNow()
	}
	begun := time.Now()
	var s volumeStatus
	if h.within(soon, func() string {
		if s = h.storyOf(volume); is(s) {
			return ""
		}
		return "no"
	}) != "" {
		h.t.Errorf("%s: %s: not noticed: %+v", volume, what, s)
	}
	h.t.Logf("%s: noticed after %v: %s, %q", what, time.Since(begun).Round(time.Millisecond), s.State, s.Observed)
	return s
}

// disagrees waits until `flexd status` names a disagreement about a volume.
func (h *host) disagrees(class, uuid string, words ...string) {
	h.t.Helper()
	h.eventually(class+" is reported", func() string {
		body, err := h.Get("/v1/volumes")
		var l listStatus
		if err == nil {
			err = json.Unmarshal([]byte(body), &l)
		}
		for _, d := range l.Disagreements {
			has := func(w string) bool { return strings.Contains(d.Message+": "+d.Hint, w) }
			if d.Class == class && d.UUID == uuid && !slices.ContainsFunc(words, func(w string) bool { return !has(w) }) {
				return ""
			}
		}
		return fmt.Sprintf("%+v %v", l, err)
	})
}

// sees reports whether a fact of a status, or a note, has all the words.
func (s volumeStatus) sees(words ...string) bool {
	texts := []string{}
	for _, f := range s.Observed {
		texts = append(texts, f.Name+": "+f.Value)
	}
	for _, c := range s.Claims {
		texts = append(texts, c.Note)
	}
	return slices.ContainsFunc(texts, func(text string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
	})
}

// A mount, or the superblock of all mounts, is remounted read-only while pods write. This is reported once,
// with the remedy, and not for a pod with readOnly.
func TestRemountedReadOnly(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p, q, r := podN(1), podN(2), podN(3)
	v := h.vol("a", "ext4")
	ro := v.With("kubernetes.io/readwrite", "ro")
	h.ok(h.up(noAttach, v, p))
	h.ok(h.up(noAttach, v, q))
	h.ok(h.up(noAttach, ro, r))
	id, dir := h.story("a").UUID, h.PodDir(p, v)
	check := func(about string, want int) {
		t.Helper()
		if out, code := h.check(); code != min(want, 1) || strings.Count(out, "  read-only,") != want {
			t.Errorf("%s: flexd check: exit status %d, want %d disagreements:\n%s", about, code, want, out)
		}
	}
	check("mounted", 0)
	for _, option := range []string{"remount,bind,", "remount,"} {
		h.sh("mount", "-o", option+"ro", dir)
		if err := os.WriteFile(dir+"/f", nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("%sro: a pod that writes gets %v", option, err)
		}
		h.disagrees("read-only", id, dir, "mount -o "+option+"rw "+dir)
		check(option+"ro", 1)
		h.sh("mount", "-o", option+"rw", dir)
		h.write(v, p, "f", "x")
		check(option+"rw", 0)
	}
	h.end(noAttach, v, p)
	h.end(noAttach, v, q)
	h.end(noAttach, ro, r)
}

// A remount by hand that clears a flag of every mount of the group is reported.
func TestRemountedWithoutFlag(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p, v := podN(1), h.vol("a", "ext4")
	h.ok(h.up(noAttach, v, p))
	dir := h.PodDir(p, v)
	reported := func(want bool) {
		t.Helper()
		if out, _ := h.check(); strings.Contains(out, "lacks nodev") != want {
			t.Errorf("reported is not %v:\n%s", want, out)
		}
	}
	reported(false)
	h.sh("mount", "-o", "remount,bind,dev", dir)
	h.disagrees("mount-flags", h.story("a").UUID, dir, "mount -o remount,bind,nodev "+dir)
	reported(true)
	h.sh("mount", "-o", "remount,bind,nodev", dir)
	reported(false)
	h.end(noAttach, v, p)
}

// A mount below a volume's mount, and a file in the directory of an unmounted volume, keep kubelet from
// removing the directory. Each is reported until it is gone, and only then.
func TestDirectoryKept(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := podN(1)
	v := h.vol("a", "ext4")
	dir := h.PodDir(p, v)
	check := func(about, class string, words ...string) {
		t.Helper()
		out, code := h.check()
		if (code == 0) != (class == "") {
			t.Errorf("%s: flexd check: exit status %d:\n%s", about, code, out)
		}
		for _, w := range append(words, class) {
			if !strings.Contains(out, w) {
				t.Errorf("%s: flexd check does not say %q:\n%s", about, w, out)
			}
		}
	}
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "kept", "x")
	check("mounted", "")
	h.must(os.Mkdir(dir+"/sub", 0o755))
	h.sh("mount", "-t", "tmpfs", "none", dir+"/sub")
	check("nested", "vg0/a  nested-mount,", dir+"/sub, below the mount at "+dir, "umount "+dir+"/sub")
	h.refused(h.unmount(v, p), "mounted on it")
	h.sh("umount", dir+"/sub")
	check("nested mount gone", "")

	h.sh("umount", dir)
	h.must(os.WriteFile(dir+"/stray", nil, 0o644))
	h.eventually("it is deactivated: meanwhile it is not compared", func() string {
		if s := h.story("a"); s.Step != "" || s.Device != "" {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	check("unmounted by hand", "claimed-missing")
	h.ok(h.call("unmount", dir))
	if err := os.Remove(dir); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("kubelet's removal: %v", err)
	}
	check("stray file", "a  stray-files,", dir, "pod uid "+p.UID, "(stray)", "mv")
	h.eventually("status shows it", func() string {
		if out := h.show(); !strings.Contains(out, "stray-files") {
			return out
		}
		return ""
	})
	h.must(os.Remove(dir + "/stray"))
	check("stray file gone", "")
	h.must(os.Mkdir(dir+"/sub", 0o755))
	h.sh("mount", "-t", "tmpfs", "none", dir+"/sub")
	check("mount in the directory", "a  stray-files,", "umount "+dir+"/sub")
	h.sh("umount", dir+"/sub")
	h.must(os.Remove(dir + "/sub"))
	h.end(noAttach, v, p)
	check("end", "")
}
