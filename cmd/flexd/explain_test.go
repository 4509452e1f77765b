package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/status"
)

// Without flexd the configuration alone decides: what it refuses is refused, everything else
// is unknown.
func TestExplainOffline(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := file("flexd.yaml", "nodeName: node-1\nvolumeGroups: [{name: vg0, provider: lvm, namespaces: [default], create: true, maxSize: 10GiB}]\n")
	manifest := func(name, namespace, options string) string {
		return file(name, "kind: Pod\nmetadata: {name: web, namespace: "+namespace+"}\nspec: {nodeName: node-1, volumes: [{name: d, flexVolume: {driver: flexd/lvm, options: {volumegroup: vg0, "+options+"}}}]}\n")
	}
	none := filepath.Join(dir, "none")
	for _, row := range []struct {
		name, file, attach string
		exit               int
		words              []string
	}{
		{"unknown", manifest("a", "default", "volumeID: a, size: 1g"), "false", 3,
			[]string{"1  mount", "unknown: vg0/a: mount: it could not be looked up", "flexd is not running", "if the volume does not exist, flexd creates it with 1.00 GiB", "1 unknown"}},
		{"without size", manifest("b", "default", "volumeID: a"), "false", 3, []string{"if the volume does not exist, the call is refused", "option size is not given"}},
		{"namespace", manifest("c", "other", "volumeID: a"), "false", 1, []string{"refused (not-allowed)", `namespace "other"`}},
		{"option", manifest("d", "default", "volumeID: a, sise: 1g"), "false", 1, []string{"refused (invalid)", "option sise: unknown", `did you mean "size"`}},
		{"attach", manifest("e", "default", "volumeID: a, size: 1g"), "true", 3, []string{"1  attach", "2  waitforattach", "3  mountdevice", "4  mount"}},
		{"attach, restricted", manifest("f", "default", "volumeID: a, mountOptions: commit=30"), "true", 1, []string{"3  mountdevice    refused (not-allowed)", "kubelet passes the namespace only at mount"}},
		{"mode", manifest("g", "default", "volumeID: a"), "auto", 3, []string{"attach:false is assumed", none}},
	} {
		out, stderr, exit := flexd("explain", row.file, "--socket", none, "--config", config, "--attach", row.attach, "--plugin-dir", none)
		if exit != row.exit || stderr != "" {
			t.Errorf("%s: exit status %d: %s\n%s", row.name, exit, stderr, out)
		}
		for _, w := range row.words {
			if !strings.Contains(out, w) {
				t.Errorf("%s: no %q in\n%s", row.name, w, out)
			}
		}
	}
	good := manifest("h", "default", "volumeID: a")
	for _, row := range []struct {
		args   []string
		exit   int
		stderr string
	}{
		{[]string{}, 2, "name a file"},
		{[]string{none}, 2, "no such file"},
		{[]string{dir}, 2, "is a directory"},
		{[]string{file("bad", "kind: Pod\nspec: 7\n"), "--config", config}, 2, "bad:2: cannot unmarshal"},
		{[]string{good, "--config", none}, 3, "the configuration alone cannot be used"},
		{[]string{good, "--config", config, "--attach", "maybe"}, 2, "--attach is true, false or auto"},
		{[]string{good, good}, 2, "unexpected argument"},
	} {
		if _, stderr, exit := flexd(append([]string{"explain", "--socket", none}, row.args...)...); exit != row.exit || !strings.Contains(stderr, row.stderr) {
			t.Errorf("%q: exit status %d: %s", row.args, exit, stderr)
		}
	}
	var doc status.Explanation
	out, _, _ := flexd("explain", "-ojson", good, "--node", "node-9", "--socket", none, "--config", config)
	if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.Node != "node-9" || doc.Result != status.OutcomeUnknown || len(doc.Volumes) != 1 {
		t.Errorf("%v: %s", err, out)
	}
}

// Names in a manifest, which is a stranger's, do not control the terminal.
func TestExplainTerminal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"volumes": `{kind: Pod, metadata: {name: "a\e[2J", namespace: "b\u009b"}, spec: {volumes: [
			{name: "c\a", flexVolume: {driver: flexd/lvm, options: {volumegroup: "d\e[8m"}}}, {name: e, flexVolume: {driver: "f\b"}}]}}`,
		"error": `{kind: Pod, spec: {containers: "\e[2J"}}`,
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, stderr, _ := flexd("explain", file, "--socket", dir+"/none", "--config", os.DevNull)
		if out += stderr; strings.ContainsAny(out, "\x1b\u009b\a\b") || !strings.Contains(out, "[2J") {
			t.Errorf("%s: %q", name, out)
		}
	}
}

// The examples fit together: the configuration refuses none of the volumes.
func TestExplainExamples(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"pod.yaml", "pv.yaml"} {
		out, stderr, exit := flexd("explain", "../../examples/"+file, "--socket", t.TempDir()+"/none", "--config", "../../examples/flexd.yaml", "--node", "node-1", "--attach", "false")
		if exit != 3 || stderr != "" || strings.Contains(out, "warning") || !strings.Contains(out, "flexd creates it with") {
			t.Errorf("%s: exit status %d: %s\n%s", file, exit, stderr, out)
		}
	}
}

// The mode is that of the installed driver.
func TestExplainMode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	driver := filepath.Join(dir, "flexd~lvm")
	os.MkdirAll(driver, 0o755)
	q := explainQuery{attach: "auto", plugins: dir}
	ask := func([]string) (status.Explained, error) { return status.Explained{Driver: "flexd/lvm"}, nil }
	for _, row := range []struct {
		init, problem string
		want          bool
	}{
		{"", "", true},
		{`{"attach":false}`, "", false},
		{`{"attach":true}`, "", true},
		{`{"attach"`, "kubelet cannot use the driver", false},
	} {
		os.WriteFile(filepath.Join(driver, "lvm"), nil, 0o755)
		if row.init != "" {
			os.WriteFile(filepath.Join(driver, ".lvm.init.json"), []byte(row.init), 0o644)
		}
		q.problems = nil
		got, err := q.mode(ask)
		if err != nil || got != row.want || !strings.Contains(strings.Join(q.problems, ""), row.problem) || row.problem == "" && len(q.problems) > 0 {
			t.Errorf("%s: %t, %v, %q", row.init, got, err, q.problems)
		}
	}
}

func (shown) Explain(_ context.Context, _ []string) status.Explained {
	return status.Explained{Node: "node-1", Driver: "flexd/lvm"}
}
