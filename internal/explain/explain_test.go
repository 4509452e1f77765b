package explain

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/status"
)

// ask is flexd: it refuses the mount of volumes called bad.
func ask(calls []string) (status.Explained, error) {
	doc := status.Explained{Node: "node-1", Driver: "flexd/lvm", Lease: "30s", Shared: []string{"svg"}, Calls: []status.ExplainedCall{}}
	for _, c := range calls {
		verb, blob, _ := strings.Cut(c, " ")
		e := status.ExplainedCall{Verb: verb, Args: []string{blob}, Result: status.WouldSucceed}
		if strings.Contains(blob, `"volumeID":"bad"`) && verb != "attach" {
			e.Result, e.Code, e.Message = status.WouldRefuse, "not-allowed", "no"
		}
		doc.Calls = append(doc.Calls, e)
	}
	return doc, nil
}

// podWith is a manifest of a pod, with lines of its spec.
func podWith(spec string) string {
	return "kind: Pod\nmetadata: {name: web, namespace: prod, uid: u1}\nspec:\n  nodeName: node-1\n  " + strings.ReplaceAll(strings.TrimSuffix(spec, "\n"), "\n", "\n  ") + "\n"
}

const (
	inline = "volumes:\n- name: data\n  flexVolume: {driver: flexd/lvm, fsType: ext4, options: {volumegroup: vg0, volumeID: a}}\n"
	claims = "volumes:\n- {name: data, persistentVolumeClaim: {claimName: c, readOnly: true}}\n"
	volume = `
kind: PersistentVolume
metadata: {name: pv1}
spec:
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce]
  flexVolume: {driver: flexd/lvm, options: {volumegroup: vg0, volumeID: a, size: 10Gi}}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-1]}]}]}}
`
	claimOf = "\n---\nkind: PersistentVolumeClaim\nmetadata: {name: c, namespace: prod}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Gi}}}\n"
)

// What follows from a manifest, as far as flexd need not be asked.
func TestExplain(t *testing.T) {
	t.Parallel()
	template := func(kind, before, after string) string {
		return "kind: " + kind + "\nmetadata: {name: x}\nspec: {" + before + "template: {spec: {nodeName: node-1, volumes: [{name: d, flexVolume: {driver: flexd/lvm, options: {volumegroup: vg0, volumeID: a}}}]}}" + after + "}"
	}
	for _, row := range []struct {
		name, text string
		attach     bool
		result     string
		verbs      string
		words      []string // of the text
	}{
		{"inline", podWith(inline), false, "success", "mount", []string{"Pod prod/web, volume data (m.yaml:6): vg0/a", "calls unmount;", "30s later"}},
		{"shared", strings.Replace(podWith(inline), "volumegroup: vg0", "volumegroup: svg", 1), false, "success", "mount", []string{"deactivates the volume at once, and until then a call on another node waits"}},
		{"inline, attach", podWith(inline), true, "success", "attach waitforattach mountdevice mount", []string{"collides", "unmountdevice"}},
		{"anywhere", strings.Replace(podWith(inline), "nodeName: node-1", "a: b", 1), false, "success", "mount", []string{"nothing binds the pod to a node"}},
		{"another node", strings.Replace(podWith(inline), "nodeName: node-1", "nodeName: node-2", 1), false, "unknown", "mount", []string{"selects node-2, and this is node-1"}},
		{"no namespace", strings.Replace(podWith(inline), ", namespace: prod", "", 1), false, "success", "mount", []string{"Pod default/web", "has no namespace: default is assumed"}},
		{"refused", strings.Replace(podWith(inline), "volumeID: a", "volumeID: bad", 1), true, "refused", "attach waitforattach", []string{"refused (not-allowed): no"}},
		{"number", strings.Replace(podWith(inline), "volumeID: a", "volumeID: a, size: 10", 1), false, "refused", "", []string{"m.yaml:7: option size is not a string", "quote it"}},
		{"field", strings.Replace(podWith(inline), "fsType:", "fstype:", 1), false, "refused", "", []string{"no field flexVolume.fstype", `did you mean "fsType"?`}},
		{"reserved", strings.Replace(podWith(inline), "volumeID: a", "volumeID: a, kubernetes.io/fsType: xfs", 1), false, "refused", "", []string{"prefix"}},
		{"others", podWith("volumes:\n- {name: a, emptyDir: {}}\n- {name: b, flexVolume: {driver: x/y}}\n- {name: c, persistentVolumeClaim: {claimName: none}}\n"), false, "success", "",
			[]string{"volume a is skipped: emptyDir is not flexd's", "its driver is x/y", "has no PersistentVolumeClaim prod/none", "0 volumes on node-1", "nothing would be asked"}},
		{"features", podWith(inline + "securityContext: {fsGroup: 1000}\ncontainers:\n- volumeMounts: [{name: data, subPath: x/y}]\n"), false, "success", "mount",
			[]string{"group 1000", "subPath x/y", "FsGroup"}},
		{"device", podWith(inline + "containers:\n- volumeDevices: [{name: data}]\n"), false, "refused", "", []string{"block device"}},
		{"secret", strings.Replace(podWith(inline), "fsType: ext4", "fsType: ext4, secretRef: {name: s}", 1), false, "success", "mount", []string{"keys of secret s", "type is flexd/lvm"}},
		{"claim", podWith(claims) + "---" + volume + "---" + claimOf, true, "success", "attach waitforattach mountdevice mount",
			[]string{"PersistentVolume pv1", "the only one here that fits", `"kubernetes.io/pvOrVolumeName":"pv1"`, `"kubernetes.io/readwrite":"ro"`, `"kubernetes.io/pod.uid":"u1"`}},
		{"pods without uid", strings.Replace(podWith(inline), ", uid: u1", "", 1) + "---\n" + strings.Replace(podWith(inline), ", uid: u1", "", 1), false, "success", "mount mount",
			[]string{"00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"}},
		{"two pods, one volume", podWith(claims) + "---\n" + podWith(claims) + "---" + volume + "---" + claimOf, true, "success", "attach waitforattach mountdevice mount waitforattach mount", nil},
		{"volume alone", volume, false, "success", "mount", []string{"PersistentVolume pv1 (m.yaml:2)", "no pod in the manifest uses it: one of namespace default"}},
		{"volume, claimed", volume + claimOf, false, "success", "mount", []string{"one of namespace prod"}},
		{"volume anywhere", strings.Split(volume, "  nodeAffinity")[0], false, "success", "mount", []string{"it has no nodeAffinity"}},
		{"volume elsewhere", strings.Replace(volume, "[node-1]", "[node-7, node-8]", 1), false, "unknown", "mount", []string{"selects node-7, node-8"}},
		{"volume of mistakes", strings.Replace(volume, "  accessModes: [ReadWriteOnce]", "  accessModes: [ReadWriteMany]\n  persistentVolumeReclaimPolicy: Delete\n  mountOptions: [noatime]\n  volumeMode: Block", 1), false, "refused", "",
			[]string{"no FlexVolume with spec.mountOptions (noatime)", "block device", "nothing deletes a FlexVolume", "ReadWriteMany"}},
		{"capacity", strings.Replace(volume, "storage: 10Gi", "storage: 20Gi", 1), false, "success", "mount", []string{"capacity is 20Gi", "10.0 GiB only"}},
		{"Deployment", template("Deployment", "replicas: 2, ", ""), false, "success", "mount", []string{"Deployment default/x, volume d"}},
		{"CronJob", "kind: CronJob\nmetadata: {name: x}\nspec: {jobTemplate: {spec: {template: {spec: {nodeName: node-1, volumes: [{name: d, flexVolume: {driver: flexd/lvm, options: {volumegroup: vg0, volumeID: a}}}]}}}}}", false, "success", "mount", nil},
		{"StatefulSet", template("StatefulSet", "", ", volumeClaimTemplates: [{metadata: {name: own}}]"), false, "success", "mount", []string{"volume own is skipped"}},
		{"list", `{"kind":"List","items":[` + "\n\t" + `{"kind":"Pod","metadata":{"name":"p"},"spec":{"nodeName":"node-1","volumes":[{"name":"d","flexVolume":{"driver":"flexd/lvm","options":{"volumegroup":"vg0","volumeID":"a"}}}]}}]}`, false, "success", "mount", []string{"Pod default/p, volume d (m.yaml:2)"}},
		{"anchors", "kind: PodList\nitems:\n- metadata: {name: p}\n  spec: &s {nodeName: node-1, volumes: [{name: d, flexVolume: {driver: flexd/lvm, options: {volumegroup: vg0, volumeID: a}}}]}\n- metadata: {name: q}\n  spec: *s\n", false, "success", "mount mount", []string{"default/p", "default/q"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			doc, err := Explain(Query{File: "m.yaml", Data: []byte(row.text), Attach: row.attach, Ask: ask})
			if err != nil {
				t.Fatal(err)
			}
			var verbs []string
			var text strings.Builder
			for _, v := range doc.Volumes {
				for _, c := range v.Calls {
					verbs = append(verbs, c.Verb)
					fmt.Fprintln(&text, c.Args)
				}
			}
			if err := status.WriteExplanation(&text, doc); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(verbs, " "); doc.Result != row.result || got != row.verbs {
				t.Errorf("%s, calls %s\n%s", doc.Result, got, text.String())
			}
			for _, w := range row.words {
				if !strings.Contains(text.String(), w) {
					t.Errorf("not %q in\n%s", w, text.String())
				}
			}
		})
	}
}

// The examples are understood, and need no warning on their node.
func TestExamples(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]int{"pod.yaml": 2, "pv.yaml": 1} {
		data, err := os.ReadFile("../../examples/" + file)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := Explain(Query{File: file, Data: data, Ask: ask})
		if err != nil || len(doc.Volumes) != want || doc.Result != status.WouldSucceed {
			t.Errorf("%s: %+v, %v", file, doc, err)
		}
		for _, v := range doc.Volumes {
			if len(v.Warnings) > 0 {
				t.Errorf("%s: %q", file, v.Warnings)
			}
		}
	}
}

// What is no manifest is refused with file and line, in a moment.
func TestNoManifest(t *testing.T) {
	t.Parallel()
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("%c: &%[1]c [*%c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c]\n", c, c-1)
	}
	for name, row := range map[string]struct{ text, want string }{
		"empty":       {"", "m.yaml: no object of Kubernetes"},
		"nothing":     {"---\n---\n# x\n", "m.yaml: no object of Kubernetes"},
		"syntax":      {"kind: Pod\nmetadata: {name: x\n", "m.yaml:"},
		"later":       {podWith(inline) + "---\nkind: [Pod\n", "m.yaml:"},
		"text":        {"hello", "m.yaml:1: not an object"},
		"list":        {"- a\n- b\n", "m.yaml:1: not an object"},
		"no kind":     {"# x\nmetadata: {name: x}\n", "m.yaml:2: an object without `kind`"},
		"type":        {"kind: Pod\nspec:\n  volumes: 7\n", "m.yaml:3: cannot unmarshal"},
		"repeated":    {"kind: Pod\nkind: Pod\n", "m.yaml:2: mapping key"},
		"no template": {"kind: Deployment\nmetadata: {name: x}\n", "m.yaml:1: Deployment x has no spec.template.spec"},
		"bomb":        {bomb + "kind: Pod\nspec: {volumes: [{name: *j}]}\n", "m.yaml:"},
		"bomb below":  {strings.Replace(bomb, "a: &a", "kind: Pod\nspec: {volumes: *z}\na: &a", 1), "m.yaml:"},
		"repeating":   {"kind: List\nitems:\n- {kind: Pod, spec: &s {volumes: [&v {name: a}" + strings.Repeat(",*v", 20000) + "]}}\n" + strings.Repeat("- {kind: Job, spec: {template: {spec: *s}}}\n", 900), "m.yaml:1: too much"},
		"itself":      {"kind: Pod\nspec: &s {volumes: [*s]}\n", "m.yaml:1: too much"},
		"binary":      {"\x7fELF\x00\x00", "m.yaml:"},
		"large":       {strings.Repeat("# a comment\n", 100000), "larger than 1 MiB"},
		"many":        {strings.Repeat("kind: Service\n---\n", 2000), "more than 1000 objects"},
		"lists":       {strings.Repeat(`{"kind":"List","items":[`, 1000), "m.yaml:"},
		"deep":        {strings.Repeat("[", 100000), "m.yaml:"},
	} {
		if _, err := Explain(Query{File: "m.yaml", Data: []byte(row.text), Ask: ask}); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The calls of one volume are asked together, in parts that flexd accepts. Its errors are
// reported.
func TestAsk(t *testing.T) {
	t.Parallel()
	text := ""
	for i := range 100 {
		text += strings.Replace(podWith(inline), "name: web", fmt.Sprintf("name: web%d", i), 1) + "---\n"
	}
	var sizes []int
	doc, err := Explain(Query{File: "m.yaml", Data: []byte(text), Ask: func(calls []string) (status.Explained, error) {
		sizes = append(sizes, len(calls))
		if len(strings.Join(calls, "")) > maxQuery {
			t.Errorf("%d calls are too long", len(calls))
		}
		return ask(calls)
	}})
	slices.Sort(sizes)
	if err != nil || len(doc.Volumes) != 100 || len(sizes) < 3 || sizes[len(sizes)-1] > maxCalls || doc.Result != status.WouldSucceed {
		t.Errorf("%d volumes, asked %v, %v", len(doc.Volumes), sizes, err)
	}
	long := strings.Replace(podWith(inline), "volumeID: a", "volumeID: "+strings.Repeat("a", maxQuery), 1)
	if doc, err := Explain(Query{File: "m.yaml", Data: []byte(long), Ask: ask}); err != nil || doc.Result != status.OutcomeUnknown {
		t.Errorf("%+v, %v", doc, err)
	}
	broken := errors.New("flexd hung up")
	if _, err := Explain(Query{File: "m.yaml", Data: []byte(podWith(inline)), Ask: func([]string) (status.Explained, error) { return status.Explained{}, broken }}); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

func TestBytesOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"10Gi": 10 << 30, "1k": 1000, "1.5Ki": 1536, "2M": 2e6, "7": 7, "": 0, "1g": 0, "-1": 0, "999999999E": 0} {
		if got := bytesOf(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// In a manifest with many PersistentVolumes and claims that fit any of them, the volume of each
// claim is found once, not for each volume again: the effort, which shows in the allocations, is
// not cubic.
func TestManyClaims(t *testing.T) {
	effort := func(n int) float64 {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "---\nkind: PersistentVolume\nmetadata: {name: pv%d}\nspec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], flexVolume: {driver: flexd/lvm, options: {volumegroup: vg0, volumeID: a%[1]d}}}\n", i)
			fmt.Fprintf(&text, "---\nkind: PersistentVolumeClaim\nmetadata: {name: c%d}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n", i)
		}
		return testing.AllocsPerRun(1, func() {
			doc, err := Explain(Query{File: "f", Data: []byte(text.String()), Ask: ask})
			if err != nil || len(doc.Volumes) != n {
				t.Errorf("%d volumes: %v", len(doc.Volumes), err)
			}
		})
	}
	if few, many := effort(20), effort(80); many > 20*few {
		t.Errorf("four times as many cost %.1f times as much", many/few)
	}
}
