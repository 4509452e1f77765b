// Package docs_test checks the pages and examples against the repository: the targets of
// links, tests and files that a page names exist, and flexd accepts the examples.
package docs_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"io/fs"
	"maps"
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

// link is a link to a file, a heading of it, or a heading of the same page.
var (
	link    = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	heading = regexp.MustCompile("(?m)^#+ (.*)$")
	noSlug  = regexp.MustCompile(`[^\w -]`)
)

func TestLinks(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to := filepath.Join(filepath.Dir(page), m[1])
			if m[1] == "" {
				to = page
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s: %v", page, err)
			}
			if m[2] != "" && !slices.ContainsFunc(heading.FindAllStringSubmatch(all[to], -1), func(h []string) bool {
				return strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-") == m[2]
			}) {
				t.Errorf("%s: %s has no heading #%s", page, to, m[2])
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

// pages returns all pages of the documentation, by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found, err := filepath.Glob(root + "/docs/*.md")
	if err != nil || len(found) < 5 {
		t.Fatal(found, err)
	}
	all := map[string]string{}
	for _, p := range append(found, root+"/README.md", root+"/CONTRIBUTING.md", root+"/SECURITY.md", root+"/CHANGELOG.md") {
		p, _ = filepath.Rel(root, p)
		all[p] = read(t, p)
	}
	return all
}

// sources returns the text of all tests below a directory, including the nested module.
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

// Tests, targets of make and scripts that a page names exist.
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

var (
	bold = regexp.MustCompile(`(?m)^- \*\*(.+?)[.,]?\*\*`)
	row  = regexp.MustCompile(`(?m)^\| ([^|]+) \|(.*)\|$`)
)

// Each promise of guarantees.md and each statement of kubelet.md has a row with tests in a
// table of architecture.md, and each row has its promise or statement. The limits need no tests.
func TestPromisesHaveTests(t *testing.T) {
	promises, limits, _ := strings.Cut(read(t, "docs/guarantees.md"), "\n## What is not promised")
	_, tables, _ := strings.Cut(read(t, "docs/architecture.md"), "\n## Promises and tests")
	tables, kubelet, _ := strings.Cut(tables, "\n## Statements about kubelet")
	promised, limited, _ := strings.Cut(tables, "\n| limit |")
	for _, c := range []struct {
		page, table string
		min         int
		optional    bool
		tests       string // where they are
	}{
		{promises, promised, 35, false, "."},
		{limits, limited, 3, true, "."},
		{read(t, "docs/kubelet.md"), kubelet, 30, false, "test"},
	} {
		all, rows, names := sources(t, c.tests), map[string]bool{}, map[string]bool{}
		for _, m := range row.FindAllStringSubmatch(c.table, -1) {
			if m[1] == "promise" || m[1] == "statement" || strings.HasPrefix(m[1], "-") {
				continue
			}
			rows[m[1]] = true
			cited := tests.FindAllString(m[2], -1)
			if len(cited) == 0 && !strings.Contains(m[2], "`make bench`") {
				t.Errorf("no test holds %q", m[1])
			}
			for _, name := range cited {
				if !strings.Contains(all, "func "+name+"(") {
					t.Errorf("%s: %s is not below %s", m[1], name, c.tests)
				}
			}
		}
		items := strings.Count(c.page, "\n- ")
		for _, m := range bold.FindAllStringSubmatch(c.page, -1) {
			names[m[1]] = true
			if !rows[m[1]] && !c.optional {
				t.Errorf("docs/architecture.md has no row for %q", m[1])
			}
		}
		for name := range rows {
			if !names[name] {
				t.Errorf("the row %q of docs/architecture.md has no promise or statement", name)
			}
		}
		if len(names) != items || len(rows) < c.min {
			t.Errorf("%d names for %d items, and %d rows: %d are the least", len(names), items, len(rows), c.min)
		}
	}
}

// Pictures are XML, are shown by a page, and have colors for light and dark pages.
func TestPictures(t *testing.T) {
	files, err := filepath.Glob(root + "/docs/*.svg")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		text := read(t, "docs/"+name)
		for d := xml.NewDecoder(strings.NewReader(text)); ; {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if !strings.Contains(text, "prefers-color-scheme: dark") || !strings.Contains(text, "<title>") {
			t.Errorf("%s has no colors for dark pages, or no title", name)
		}
		shown := regexp.MustCompile(`!\[[^\]]{20,}\]\((?:docs/)?` + regexp.QuoteMeta(name) + `\)`)
		if !slices.ContainsFunc(slices.Collect(maps.Values(pages(t))), shown.MatchString) {
			t.Errorf("no page shows %s with a text in its place", name)
		}
	}
}

// Files that architecture.md names exist, and it describes every package.
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

// The README's table has every volume option.
func TestOptions(t *testing.T) {
	text := read(t, "README.md")
	for _, key := range []string{flexvolume.KeyVG, flexvolume.KeyLV, flexvolume.KeySize, flexvolume.KeyMkfsOptions, flexvolume.KeyMountOptions} {
		if !strings.Contains(text, "| `"+key+"` |") {
			t.Errorf("the option %s is not described", key)
		}
	}
}

func TestExampleConfiguration(t *testing.T) {
	text := read(t, "examples/flexd.yaml")
	for about, text := range map[string]string{"as it is": text, "with its comments": regexp.MustCompile(`(?m)^  # ([- ] )`).ReplaceAllString(text, "  $1")} {
		c, err := config.Parse("examples/flexd.yaml", []byte(text))
		if err != nil || len(c.VolumeGroups) < 2 || about == "with its comments" && c.VolumeGroups[2].Provider != "loopdev" {
			t.Errorf("%s: %+v, %v", about, c, err)
		}
	}
}

// objects returns the Kubernetes objects in the examples and the documentation, by file.
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

// flexd accepts the volumes in the examples, and each PersistentVolume has a node affinity.
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
			most := 1
			if strings.HasPrefix(where, "docs/shared.md") {
				most = 3
			}
			if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || terms[0].MatchExpressions[0].Key != "kubernetes.io/hostname" ||
				terms[0].MatchExpressions[0].Operator != "In" || len(terms[0].MatchExpressions[0].Values) != most {
				t.Errorf("%s: the PersistentVolume is not bound to its nodes by nodeAffinity: %+v", where, terms)
			}
		}
	}
	if volumes != 6 || persistent != 3 {
		t.Errorf("%d flexVolumes and %d PersistentVolumes, want 6 and 3", volumes, persistent)
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

// The unit does not kill flexd's children and gives flexd no mount namespace of its own.
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
