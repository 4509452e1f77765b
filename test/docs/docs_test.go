// Package docs_test holds the pages and examples to what is there: links lead
// somewhere, tests and files that are named exist, examples are accepted.
package docs_test

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/flexvolume"
)

const root = "../.."

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var link = regexp.MustCompile(`\]\(([^)#:]+)[^)]*\)`)

func TestLinks(t *testing.T) {
	for page, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

var (
	named   = regexp.MustCompile("`([a-z]+/[a-z/_]+\\.go)`")
	tests   = regexp.MustCompile(`\bTest[A-Z]\w+`)
	targets = regexp.MustCompile("(?m)(?:`|^    )make ([a-z][-a-z]*)")
	scripts = regexp.MustCompile(`\bscripts/[-a-z0-9./]*[a-z0-9]`)
)

// pages are all of the documentation, by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found, err := filepath.Glob(root + "/docs/*.md")
	if err != nil || len(found) < 5 {
		t.Fatal(found, err)
	}
	all := map[string]string{}
	for _, p := range append(found, root+"/README.md", root+"/CONTRIBUTING.md") {
		p, _ = filepath.Rel(root, p)
		all[p] = read(t, p)
	}
	return all
}

// sources are all tests below a directory, those of the nested module too.
func sources(t *testing.T, below string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(filepath.Join(root, below), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		all.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// Tests that a page names are there, and so are make's targets and the scripts.
func TestNamed(t *testing.T) {
	all, makefile := sources(t, "."), read(t, "Makefile")
	for page, text := range pages(t) {
		for _, name := range tests.FindAllString(text, -1) {
			if !strings.Contains(all, "func "+name+"(") {
				t.Errorf("%s: there is no %s", page, name)
			}
		}
		for _, m := range targets.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: there is no make %s", page, m[1])
			}
		}
		for _, script := range scripts.FindAllString(text, -1) {
			if _, err := os.Stat(filepath.Join(root, script)); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

// Each statement about kubelet has a test of the whole, which stands behind it.
func TestKubelet(t *testing.T) {
	text, whole := read(t, "docs/kubelet.md"), sources(t, "test")
	_, text, _ = strings.Cut(text, "\n## ")
	statements := 0
	for _, block := range regexp.MustCompile(`\n(?:\n|- )`).Split(text, -1) {
		if strings.HasPrefix(block, "#") || strings.HasPrefix(block, "    ") || strings.HasPrefix(block, "|") || !strings.Contains(block, " ") {
			continue // a heading, an example, a table, whose tests come behind it
		}
		if block = strings.TrimSpace(block); block == "Three modes" {
			continue
		}
		statements++
		_, behind, _ := strings.Cut(block, "[Test")
		if !strings.HasSuffix(block, "]") || behind == "" {
			t.Errorf("no test stands behind: %s", block)
		}
		for _, name := range tests.FindAllString(block, -1) {
			if !strings.Contains(whole, "func "+name+"(") {
				t.Errorf("%s is no test of the whole", name)
			}
		}
	}
	if statements < 20 {
		t.Errorf("found %d statements", statements)
	}
}

// Each promise has tests behind it, and so much is said of what is none.
func TestGuarantees(t *testing.T) {
	promised, not, _ := strings.Cut(read(t, "docs/guarantees.md"), "\n## What is not promised")
	promises := strings.Split(promised, "\n- ")[1:]
	for _, p := range promises {
		p, _, _ = strings.Cut(p, "\n\n")
		if !strings.HasSuffix(p, "]") || !strings.Contains(p, "[Test") {
			t.Errorf("no test stands behind: %s", p)
		}
	}
	if n := strings.Count(not, "\n- "); len(promises) < 15 || n < 5 {
		t.Errorf("found %d promises, and %d that are not made", len(promises), n)
	}
}

// What the architecture names is there, and every package is described.
func TestArchitecture(t *testing.T) {
	text := read(t, "docs/architecture.md")
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(root, "internal", m[1])); err != nil {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Error(err)
			}
		}
	}
	for _, dir := range []string{"internal", "test"} {
		packages, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range packages {
			if name := dir + "/" + r.Name(); r.IsDir() && !strings.Contains(text, "`"+name+"`") {
				t.Errorf("the package %s is not described", name)
			}
		}
	}
}

// The README's table of options is the one that is read.
func TestOptions(t *testing.T) {
	text := read(t, "README.md")
	for _, key := range []string{flexvolume.KeyVG, flexvolume.KeyLV, flexvolume.KeySize, flexvolume.KeyMkfsOptions, flexvolume.KeyMountOptions} {
		if !strings.Contains(text, "| `"+key+"` |") {
			t.Errorf("the option %s is not told of", key)
		}
	}
}

func TestExampleConfiguration(t *testing.T) {
	if _, err := config.Load(root + "/examples/flexd.yaml"); err != nil {
		t.Error(err)
	}
}

// objects are Kubernetes' objects in the examples and the documentation, by where
// they stand.
func objects(t *testing.T) map[string][]map[string]any {
	t.Helper()
	texts := map[string]string{}
	files, err := filepath.Glob(root + "/examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		f, _ = filepath.Rel(root, f)
		texts[f] = read(t, f)
	}
	for page, text := range pages(t) {
		for i, block := range strings.Split(text, "\n\n    ") { // an indented block begins
			lines := strings.Split("    "+block, "\n")
			if end := slices.IndexFunc(lines, func(l string) bool { return l != "" && !strings.HasPrefix(l, "    ") }); end >= 0 {
				lines = lines[:end]
			}
			if block = strings.Join(lines, "\n"); i > 0 && strings.Contains(block, "kind: ") {
				texts[fmt.Sprintf("%s, block %d", page, i)] = block
			}
		}
	}
	all := map[string][]map[string]any{}
	for where, text := range texts {
		for d := yaml.NewDecoder(strings.NewReader(text)); ; {
			var o map[string]any
			if err := d.Decode(&o); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			if o["kind"] != nil {
				all[where] = append(all[where], o)
			}
		}
	}
	return all
}

// Volumes in the examples are ones that flexd takes, and PersistentVolumes say on
// which node they are: kubelet and scheduler cannot know.
func TestExampleVolumes(t *testing.T) {
	volumes, persistent := 0, 0
	for where, all := range objects(t) {
		for _, o := range all {
			flexVolumes(o, func(v map[string]any) {
				volumes++
				options := map[string]string{"kubernetes.io/fsType": v["fsType"].(string), "kubernetes.io/readwrite": "rw", "kubernetes.io/pvOrVolumeName": "data"}
				for key, value := range v["options"].(map[string]any) {
					options[key] = value.(string) // kubelet takes strings only
				}
				blob, err := json.Marshal(options)
				if err != nil {
					t.Fatal(err)
				}
				o, err := flexvolume.ParseOptions(string(blob))
				if err != nil || o.VG == "" || o.LV == "" || v["driver"] != config.Default().Driver {
					t.Errorf("%s: %v: %v", where, v, err)
				}
			})
			if o["kind"] != "PersistentVolume" {
				continue
			}
			persistent++
			text, err := yaml.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			var pv struct {
				Spec struct {
					NodeAffinity struct {
						Required struct {
							NodeSelectorTerms []struct {
								MatchExpressions []struct {
									Key, Operator string
									Values        []string
								} `yaml:"matchExpressions"`
							} `yaml:"nodeSelectorTerms"`
						}
					} `yaml:"nodeAffinity"`
				}
			}
			if err := yaml.Unmarshal(text, &pv); err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			terms := pv.Spec.NodeAffinity.Required.NodeSelectorTerms
			if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || terms[0].MatchExpressions[0].Key != "kubernetes.io/hostname" ||
				terms[0].MatchExpressions[0].Operator != "In" || len(terms[0].MatchExpressions[0].Values) != 1 {
				t.Errorf("%s: the PersistentVolume is not bound to one node by nodeAffinity: %+v", where, terms)
			}
		}
	}
	if volumes != 4 || persistent != 2 {
		t.Errorf("%d flexVolumes and %d PersistentVolumes, want 4 and 2", volumes, persistent)
	}
}

func flexVolumes(v any, visit func(map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			if key == "flexVolume" {
				visit(below.(map[string]any))
			}
			flexVolumes(below, visit)
		}
	case []any:
		for _, below := range v {
			flexVolumes(below, visit)
		}
	}
}

// The unit spares the children and gives flexd no mount namespace of its own.
func TestExampleUnit(t *testing.T) {
	var keys []string
	text := read(t, "examples/flexd.service")
	for line := range strings.SplitSeq(text, "\n") {
		if key, _, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			keys = append(keys, key)
		}
	}
	for _, want := range []string{"KillMode=process", "Type=notify", "Before=kubelet.service", "serve --config " + config.DefaultPath} {
		if !strings.Contains(text, "\n"+want) && !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	own := regexp.MustCompile(`^(Private|Protect|ReadWritePaths|ReadOnlyPaths|InaccessiblePaths|TemporaryFileSystem|BindPaths|BindReadOnlyPaths|Root|MountFlags|DynamicUser|RuntimeDirectory$)`)
	if i := slices.IndexFunc(keys, own.MatchString); i >= 0 {
		t.Errorf("%s gives flexd a mount namespace of its own, or removes its notes", keys[i])
	}
}
