// Package docs_test holds the pages and examples to what is there: links lead
// somewhere, tests and files that are named exist, examples are accepted.
package docs_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/flex"
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
	pages, err := filepath.Glob(root + "/docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	for _, page := range append(pages, root+"/README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), string(m[1]))); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

var (
	named = regexp.MustCompile("`([a-z]+/[a-z/_]+\\.go)`")
	tests = regexp.MustCompile(`\bTest[A-Z]\w+`)
)

// What the architecture names is there.
func TestArchitecture(t *testing.T) {
	text := read(t, "docs/architecture.md")
	var sources bytes.Buffer
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		sources.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range tests.FindAllString(text, -1) {
		if !strings.Contains(sources.String(), "func "+name+"(") {
			t.Errorf("there is no %s", name)
		}
	}
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(root, "internal", m[1])); err != nil {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Error(err)
			}
		}
	}
	rooms, err := os.ReadDir(filepath.Join(root, "internal"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rooms {
		if r.IsDir() && !strings.Contains(text, "`internal/"+r.Name()+"`") {
			t.Errorf("the room internal/%s is not told of", r.Name())
		}
	}
}

// The README's table of options is the one that is read.
func TestOptions(t *testing.T) {
	text := read(t, "README.md")
	for _, key := range []string{flex.KeyVG, flex.KeyLV, flex.KeySize, flex.KeyMkfsOptions, flex.KeyMountOptions} {
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

// Volumes in the examples are ones that flexd takes.
func TestExampleVolumes(t *testing.T) {
	found := 0
	for _, file := range []string{"examples/pod.yaml", "examples/pv.yaml"} {
		for d := yaml.NewDecoder(strings.NewReader(read(t, file))); ; {
			var doc any
			if err := d.Decode(&doc); err != nil {
				break
			}
			flexVolumes(doc, func(v map[string]any) {
				found++
				options := map[string]string{"kubernetes.io/fsType": v["fsType"].(string), "kubernetes.io/readwrite": "rw", "kubernetes.io/pvOrVolumeName": "data"}
				for key, value := range v["options"].(map[string]any) {
					options[key] = value.(string) // kubelet takes strings only
				}
				blob, err := json.Marshal(options)
				if err != nil {
					t.Fatal(err)
				}
				o, err := flex.ParseOptions(string(blob))
				if err != nil || o.VG == "" || o.LV == "" || v["driver"] != config.Default().Driver {
					t.Errorf("%s: %v: %v", file, v, err)
				}
			})
		}
	}
	if found != 3 {
		t.Errorf("%d flexVolumes, want 3", found)
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
