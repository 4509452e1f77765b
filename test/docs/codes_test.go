package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/audit"
)

// The codes of refusals are promised: docs/status.md has each of them, and no other.
func TestCodes(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "internal/volume/code.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			for _, value := range v.Values {
				code, _ := strconv.Unquote(value.(*ast.BasicLit).Value)
				codes = append(codes, code)
			}
		}
		return true
	})
	_, text, _ := strings.Cut(read(t, "docs/status.md"), "\n### Codes\n")
	text, _, _ = strings.Cut(text, "\n#")
	var listed []string
	for line := range strings.Lines(text) {
		if m := quoted.FindStringSubmatch(line); m != nil && strings.HasPrefix(line, "| `") {
			listed = append(listed, m[1])
		}
	}
	if len(codes) < 10 || !slices.Equal(codes, listed) {
		t.Errorf("volume has the codes %q, and docs/status.md %q", codes, listed)
	}
}

// docs/status.md has each class of findings, and no other.
func TestClasses(t *testing.T) {
	_, text, _ := strings.Cut(read(t, "docs/status.md"), "\n| class | finding |")
	text, _, _ = strings.Cut(text, "\n\n")
	var listed []string
	for line := range strings.Lines(text) {
		if m := quoted.FindStringSubmatch(line); m != nil && strings.HasPrefix(line, "| `") {
			listed = append(listed, m[1])
		}
	}
	classes := append(audit.Classes(), "udev-rule", "one-directory", "locks-lost", "lock-taken", "locks-unavailable", "stuck") // of flexd check alone
	slices.Sort(classes)
	slices.Sort(listed)
	if !slices.Equal(classes, listed) {
		t.Errorf("flexd has the classes %q, and docs/status.md %q", classes, listed)
	}
}
