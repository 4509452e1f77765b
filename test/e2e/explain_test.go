package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/test/umount"
)

// manifest is a pod with an inline volume.
func manifest(p pod, v vol) string {
	doc := map[string]any{
		"kind":     "Pod",
		"metadata": map[string]any{"name": p.Name, "namespace": p.Namespace, "uid": p.UID},
		"spec": map[string]any{
			"nodeName": node,
			"volumes": []any{map[string]any{"name": v.Name, "flexVolume": map[string]any{
				"driver": "flexd/lvm", "fsType": v.FSType, "readOnly": v.ReadOnly, "options": v.Options,
			}}},
		},
	}
	b, err := json.MarshalIndent(doc, "", "\t")
	if err != nil {
		panic(err)
	}
	return string(b)
}

// explain runs flexd explain.
func (h *host) explain(attach bool, text string) (doc status.Explanation) {
	h.t.Helper()
	c := h.Client("explain", "-o", "json", fmt.Sprintf("--attach=%t", attach), "-")
	c.Stdin = strings.NewReader(text)
	out, _ := c.Output()
	if err := json.Unmarshal(out, &doc); err != nil {
		h.t.Fatalf("flexd explain: %v: %s", err, out)
	}
	want := map[string]int{status.WouldSucceed: 0, status.WouldRefuse: 1, status.OutcomeUnknown: 3}[doc.Result]
	if got := c.ProcessState.ExitCode(); got != want {
		h.t.Errorf("flexd explain exits with %d after %q", got, doc.Result)
	}
	return doc
}

// carryOut makes the explained calls, and compares the answers.
func (h *host) carryOut(about string, doc status.Explanation) (end string) {
	h.t.Helper()
	end = status.WouldSucceed
	for _, v := range doc.Volumes {
		for i, c := range v.Calls {
			for _, arg := range c.Args {
				if strings.HasPrefix(arg, h.Root+"/") {
					h.must(os.MkdirAll(arg, 0o750))
				}
			}
			existed, since := slices.Contains(h.volumes(), v.VG+"/"+v.LV), time.Now()
			a := h.call(append([]string{c.Verb}, c.Args...)...)
			_, text, _ := strings.Cut(a.Message, "] ")
			switch {
			case a.ok() && c.Result == status.WouldRefuse, !a.ok() && c.Result == status.WouldSucceed:
				h.t.Errorf("%s: it was explained as %s %v (%s), and is %s", about, c.Result, c.Steps, c.Message, a)
			case c.Result == status.WouldRefuse && (text != c.Message || a.Code != c.Code):
				h.t.Errorf("%s: it was explained as\n%s: %s\nand is\n%s: %s", about, c.Code, c.Message, a.Code, text)
			}
			if a.ok() && c.Result == status.WouldSucceed && c.Verb != "attach" {
				h.happened(about, v, c, existed, since)
			}
			if a.ok() {
				continue
			}
			end = status.WouldRefuse
			if c.Result == status.WouldRefuse && i != len(v.Calls)-1 {
				h.t.Errorf("%s: calls are explained that kubelet does not make", about)
			}
			break
		}
	}
	return end
}

// happened compares the explained steps of a successful call with the steps that flexd has taken since.
func (h *host) happened(about string, v status.ExplainedVolume, c status.ExplainedCall, existed bool, since time.Time) {
	h.t.Helper()
	var d status.VolumeDetail
	h.must(json.Unmarshal([]byte(h.show(v.VG+"/"+v.LV, "-o", "json")), &d))
	creates := strings.HasPrefix(strings.Join(c.Steps, ""), "create ")
	if creates == existed {
		h.t.Errorf("%s: %s was explained as %q, and the volume existed: %t", about, c.Verb, c.Steps, existed)
	}
	var did []string
	for _, o := range d.History {
		if o.Started.After(since) {
			did = append(did, strings.Fields(o.Step)[0])
		}
	}
	for start, step := range map[string]string{"activate ": "activate", "mkfs.": "mkfs", "fsck.": "fsck", "extend ": "extend", "mount ": "mount"} {
		explained := slices.ContainsFunc(c.Steps, func(s string) bool { return strings.HasPrefix(s, start) })
		if step == "activate" && (creates || !explained) { // LVM activates what it creates; a lease may end meanwhile
			continue
		}
		if explained != slices.Contains(did, step) {
			h.t.Errorf("%s: %s was explained as %q, and flexd did %q", about, c.Verb, c.Steps, did)
		}
	}
}

// lasting returns the state that a call may change, without the effects of the end of a lease.
func (h *host) lasting() string {
	var b strings.Builder
	for _, dir := range []string{h.Root, h.Dir + "/vg0", h.Dir + "/vg1", h.State + "/formats"} {
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil {
				i, _ := d.Info()
				fmt.Fprintln(&b, path, i.Mode(), i.Size()) // the end of a lease may change its time
			}
			return nil
		})
	}
	fmt.Fprintln(&b, mounts(h.Dir), h.volumes())
	return b.String()
}

// released makes kubelet's calls after the pods were deleted.
func (h *host) released(doc status.Explanation) {
	h.t.Helper()
	for _, verb := range []string{"mount", "mountdevice"} {
		for _, v := range doc.Volumes {
			for _, c := range v.Calls {
				if c.Verb == verb {
					h.ok(h.call("un"+verb, c.Args[0]))
					os.Remove(c.Args[0])
				}
			}
		}
	}
}

// The predictions of flexd explain are right: for each manifest and mode kubelet's calls are explained, then
// made.
func TestExplain(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(h *host) {
		h.settings.vg = `create: true, maxSize: 2GiB, namespaces: ['*']`
		h.settings.groups = `  - {name: vg1, ` + strings.TrimSuffix(h.group("vg1"), everyNamespace) + `, create: true, maxSize: 1GiB, maxVolumes: 2, namespaces: [default, "team-*"], volumes: ["{namespace}.*", "db-[0-9]*"]}
`
	})
	p, q, team := podN(1), podN(2), pod{Namespace: "team-a", Name: "x", UID: "uid-x"}
	v := func(lv string, kv ...string) vol { return h.vol(lv, "ext4").With(kv...) }
	in1 := func(lv string, kv ...string) vol { return v(lv, append([]string{"volumegroup", "vg1"}, kv...)...) }
	of := func(fs string, v vol) vol { v.FSType = fs; return v }
	const good, refused, unknown = status.WouldSucceed, status.WouldRefuse, status.OutcomeUnknown
	rows := []struct {
		name    string
		text    []string // of manifests
		want    string
		prepare func() (undo func())
	}{
		{"new", []string{manifest(p, v("new", "mkfsOptions", "-m 0", "mountOptions", "noatime"))}, good, nil},
		{"the same again", []string{manifest(p, v("new", "mountOptions", "noatime"))}, good, nil},
		{"two pods", []string{manifest(p, v("new")), manifest(q, readOnly(v("new")))}, good, nil},
		{"two pods without uid", []string{manifest(pod{Namespace: "default", Name: "a"}, v("new")), manifest(pod{Namespace: "default", Name: "b"}, readOnly(v("new")))}, good, nil},
		{"two pods, a new volume", []string{manifest(p, v("two")), manifest(q, v("two"))}, good, nil},
		{"two filesystems", []string{manifest(p, v("two")), manifest(q, of("xfs", v("two")))}, refused, nil},
		{"two sets of options", []string{manifest(p, v("two", "mountOptions", "commit=30")), manifest(q, v("two"))}, refused, nil},
		{"another filesystem than before", []string{manifest(p, of("xfs", v("new")))}, refused, nil},
		{"any filesystem", []string{manifest(p, of("", v("new")))}, good, nil},
		{"no size", []string{manifest(p, v("none", "size", "-"))}, refused, nil},
		{"too large", []string{manifest(p, v("none", "size", "3Gi"))}, refused, nil},
		{"too small for xfs", []string{manifest(p, of("xfs", v("none", "size", "64Mi")))}, refused, nil},
		{"no such group", []string{manifest(p, v("none", "volumegroup", "vg9"))}, refused, nil},
		{"no volume", []string{manifest(p, v("none", "volumeID", "-"))}, refused, nil},
		{"unknown option", []string{manifest(p, v("none", "sise", "1Gi"))}, refused, nil},
		{"option of mkfs", []string{manifest(p, v("none", "mkfsOptions", "-d /etc"))}, refused, nil},
		{"option of mount", []string{manifest(p, v("none", "mountOptions", "noload"))}, refused, nil},
		{"no such filesystem", []string{manifest(p, of("vfat", v("none")))}, refused, nil},
		{"namespace", []string{manifest(pod{Namespace: "kube-system", Name: "x", UID: "uid-x"}, in1("db-1"))}, refused, nil},
		{"another namespace's", []string{manifest(team, in1("default.a"))}, refused, nil},
		{"not a volume", []string{manifest(team, in1("web"))}, refused, nil},
		{"its namespace's", []string{manifest(team, in1("team-a.a"))}, good, nil}, // attach: refused
		{"another of its namespace", []string{manifest(team, in1("team-a.b"))}, good, nil},
		{"too many", []string{manifest(team, in1("team-a.c"))}, refused, nil},
		{"foreign data", []string{manifest(p, v("data"))}, unknown, func() func() {
			h.volume("vg0/data", 64*mib, func(path string) { h.must(os.WriteFile(path, []byte(strings.Repeat("data", 1<<12)), 0o600)) })
			return nil
		}},
		{"foreign data again", []string{manifest(p, v("data"))}, unknown, nil},
		{"blank", []string{manifest(p, v("blank"))}, unknown, func() func() { h.volume("vg0/blank", 64*mib, nil); return nil }},
		{"blank, used since", []string{manifest(p, v("blank"))}, good, nil},
		{"mounted by a pod", []string{manifest(q, v("new"))}, good, func() func() {
			h.ok(h.up(noAttach, v("new"), podN(7)))
			return func() { h.ok(h.unmount(v("new"), podN(7))) }
		}},
		{"mounted by a pod, another filesystem", []string{manifest(q, of("btrfs", v("new")))}, refused, func() func() {
			h.ok(h.up(noAttach, v("new"), podN(7)))
			return func() { h.ok(h.unmount(v("new"), podN(7))) }
		}},
		{"mounted elsewhere", []string{manifest(q, v("new"))}, refused, func() func() {
			w, other := v("new"), h.Dir+"/elsewhere"
			h.ok(h.up(noAttach, w, podN(7)))
			h.must(os.MkdirAll(other, 0o755))
			h.must(unix.Mount(h.PodDir(podN(7), w), other, "", unix.MS_BIND, ""))
			return func() {
				h.must(umount.Plain(other))
				h.ok(h.unmount(w, podN(7)))
			}
		}},
		{"gone", []string{manifest(p, v("gone"))}, refused, func() func() {
			h.ok(h.up(noAttach, v("gone"), p))
			h.ok(h.unmount(v("gone"), p))
			h.eventually("it is inactive", func() string {
				if slices.ContainsFunc(h.Active(), func(path string) bool { return filepath.Base(path) == "gone" }) {
					return "active"
				}
				return ""
			})
			h.remove("vg0/gone")
			return nil
		}},
	}
	ends := map[string]int{}
	// The arguments are those of kubelet.
	w := readOnly(v("arguments", "mountOptions", "noatime"))
	var args [][]string
	for _, c := range h.explain(true, manifest(p, w)).Volumes[0].Calls {
		args = append(args, append([]string{c.Verb}, c.Args...))
	}
	if d := cmp.Diff([][]string{
		{"attach", w.Blob(nil), node}, {"waitforattach", "", w.Blob(nil)}, {"mountdevice", h.GlobalDir(w), "", w.Blob(nil)}, {"mount", h.PodDir(p, w), w.Blob(&p)},
	}, args); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	once := []string{ // the mode makes no difference
		"the same again", "two pods without uid", "any filesystem", "too small for xfs", "no such group", "no volume", "unknown option", "option of mkfs", "option of mount",
		"no such filesystem", "not a volume", "another of its namespace", "mounted by a pod, another filesystem",
	}
	for _, attach := range []bool{false, true} {
		for _, row := range rows {
			if attach && slices.Contains(once, row.name) {
				continue
			}
			about := fmt.Sprintf("%s, attach:%t", row.name, attach)
			var undo func()
			if row.prepare != nil && (!attach || !slices.Contains([]string{"foreign data", "blank", "gone"}, row.name)) {
				undo = row.prepare()
			}
			before := h.lasting()
			doc := h.explain(attach, strings.Join(row.text, "\n---\n"))
			if d := cmp.Diff(strings.Split(before, "\n"), strings.Split(h.lasting(), "\n")); d != "" {
				t.Errorf("%s: flexd explain has changed (-before +after):\n%s", about, d)
			}
			if doc.Result != row.want && !attach {
				t.Errorf("%s: it is explained as %s: %+v", about, doc.Result, doc.Volumes)
			}
			ends[doc.Result]++
			h.carryOut(about, doc)
			h.released(doc)
			if undo != nil {
				undo()
			}
			if t.Failed() {
				t.Fatalf("%s\n%s", about, row.text)
			}
		}
	}
	if ends[good] < 10 || ends[refused] < 20 || ends[unknown] < 3 {
		t.Errorf("explained: %v", ends)
	}
}
