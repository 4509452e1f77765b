package docs_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	item   = regexp.MustCompile(`(?m)^\d+\. ([^:]+):`) // what stands before the colon, over several lines
)

// Each list of docs/contributing.md follows an example: it has the files that mention it,
// and no other.
func TestContributing(t *testing.T) {
	files := product(t)
	sections := strings.Split(read(t, "docs/contributing.md"), "\n## ")[1:]
	if len(sections) != 4 {
		t.Fatalf("%d lists, want 4", len(sections))
	}
	for _, section := range sections {
		title, text, _ := strings.Cut(section, "\n")
		_, text, _ = strings.Cut(text, "\nExample: ")
		text, _, _ = strings.Cut(text, "\nTests: ")
		example, list, _ := strings.Cut(text, "\n\n")
		var words []string
		for _, m := range quoted.FindAllStringSubmatch(example, -1) {
			words = append(words, regexp.QuoteMeta(m[1]))
		}
		places := placesOf(list)
		if len(words) == 0 || len(places) < 4 {
			t.Errorf("%s: the example is %q, and the list has %d places", title, words, len(places))
			continue
		}
		mention := regexp.MustCompile(`\b(?:` + strings.Join(words, "|") + `)\b`)
		used := map[string]bool{}
		for file, content := range files {
			if !mention.MatchString(content) {
				continue
			}
			i := slices.IndexFunc(places, func(p string) bool { return p == file || strings.HasSuffix(p, "/") && strings.HasPrefix(file, p) })
			if i < 0 {
				t.Errorf("%s: %s mentions the example %s, and is not in the list", title, file, mention)
				continue
			}
			used[places[i]] = true
		}
		for _, p := range places {
			if !used[p] {
				t.Errorf("%s: %s does not mention the example %s, or is no file of the product", title, p, mention)
			}
		}
	}
}

// placesOf returns the files and directories with which the items of a list begin.
func placesOf(list string) (places []string) {
	for _, m := range item.FindAllStringSubmatch(list, -1) {
		for _, q := range quoted.FindAllStringSubmatch(m[1], -1) {
			places = append(places, q[1])
		}
	}
	return places
}

// product are the files of the product, its documentation and the simulated node, by path.
func product(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"README.md": read(t, "README.md")}
	for _, top := range []string{"cmd", "internal", "docs", "examples", "scripts"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				if err == nil && d.Name() == "testdata" {
					return fs.SkipDir
				}
				return err
			}
			file, _ = filepath.Rel(root, file)
			if !strings.HasSuffix(file, "_test.go") && file != "docs/contributing.md" && !strings.HasPrefix(file, "docs/demo.") { // a recording follows by itself
				all[file] = read(t, file)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}
