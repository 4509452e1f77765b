package docs_test

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the messages of the code into docs/troubleshooting.md")

// answering are the packages whose messages get into answers to kubelet.
var answering = []string{"asw", "dsw", "flexserve", "flexvolume", "kubelet", "loopdev", "lvm", "mount", "mounttable", "reconcile", "run", "server", "volopts", "volume"}

// A message of the source, with "…" in the places of its values.
type message struct{ code, pkg, text string } // code: "" = none of its own

// docs/troubleshooting.md has each message of the code, and no other. A message with a code is in the table
// of that code, with its cause and its remedy; another one is in the list of its package, which has a text
// about causes and remedies.
func TestMessages(t *testing.T) {
	const page = "docs/troubleshooting.md"
	text := read(t, page)
	intro, old, ok := strings.Cut(text, "\n## Messages\n")
	if !ok {
		t.Fatal("no section Messages")
	}
	coded, plain := byCode(messages(t)), map[string][]string{}
	for _, m := range messages(t) {
		if m.code == "" && !slices.Contains(plain[m.pkg], m.text) {
			plain[m.pkg] = append(plain[m.pkg], m.text)
		}
	}
	var b strings.Builder
	b.WriteString(intro + "\n## Messages\n")
	head, sections, _ := strings.Cut(old, "\n### ")
	b.WriteString(head)
	for section := range strings.SplitSeq(sections, "\n### ") {
		m := quoted.FindStringSubmatch(section)
		if m == nil {
			t.Fatalf("a heading without a code or a package: %.80q", section)
		}
		title, body, _ := strings.Cut(section, "\n")
		b.WriteString("\n### " + title + "\n")
		if all, ok := coded[m[1]]; ok {
			about, table, _ := strings.Cut(body, "\n| message")
			b.WriteString(about + "\n| message | cause | remedy |\n|---|---|---|\n")
			known := map[string]string{}
			for line := range strings.Lines(table) {
				if cells := strings.Split(line, " | "); len(cells) == 3 {
					known[strings.TrimPrefix(cells[0], "| ")] = cells[1] + " | " + strings.TrimSuffix(cells[2], " |\n")
				}
			}
			for _, message := range all {
				row := strings.ReplaceAll(message, "|", "\\|")
				what, ok := known[row]
				if !ok || strings.HasPrefix(what, " |") || strings.HasSuffix(what, "| ") {
					t.Errorf("%s: no cause and remedy for %q (%s)", page, message, m[1])
				}
				fmt.Fprintf(&b, "| %s | %s |\n", row, cmp.Or(what, " | "))
			}
			delete(coded, m[1])
			continue
		}
		about, _, _ := strings.Cut(body, "\n    ")
		if len(plain[m[1]]) == 0 || len(strings.Fields(about)) < 10 {
			t.Errorf("%s: no message, or no text about the messages, of %q", page, m[1])
		}
		slices.Sort(plain[m[1]])
		b.WriteString(about + "\n    " + strings.Join(plain[m[1]], "\n    ") + "\n")
		delete(plain, m[1])
	}
	for section := range coded {
		t.Errorf("%s: no section about the code %q", page, section)
	}
	for section := range plain {
		t.Errorf("%s: no section about the package %q", page, section)
	}
	if *update {
		if err := os.WriteFile(filepath.Join(root, page), []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if b.String() != text {
		t.Errorf("%s does not have the messages of the code: go test ./test/docs -run Messages -update", page)
	}
}

// byCode returns the messages with a code, without their remedies.
func byCode(all []message) map[string][]string {
	by := map[string][]string{}
	for _, m := range all {
		if m.code == "" {
			continue
		}
		const least = 40 // bytes, so that a message stays recognizable
		text := m.text
		if len(text) > least {
			if end := regexp.MustCompile(`[:;.] `).FindStringIndex(text[least:]); end != nil {
				text = text[:least+end[0]]
			}
		}
		if !slices.Contains(by[m.code], text) {
			by[m.code] = append(by[m.code], text)
		}
	}
	for _, texts := range by {
		slices.Sort(texts)
	}
	return by
}

// messages returns the messages of the answering packages.
func messages(t *testing.T) []message {
	t.Helper()
	codes := codes(t)
	var all []message
	for _, pkg := range answering {
		files, err := filepath.Glob(filepath.Join(root, "internal", pkg, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(pkg, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				code, text := spoken(n, codes)
				if len(word.FindAllString(text, -1)) < 2 {
					return text == ""
				}
				all = append(all, message{code, pkg, strings.Join(strings.Fields(text), " ")})
				return false // what is in it is a part of it
			})
		}
	}
	return all
}

// codes returns the codes by the names of their constants.
func codes(t *testing.T) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "internal/volume/code.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			all[v.Names[0].Name], _ = strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		}
		return true
	})
	return all
}

var word = regexp.MustCompile(`\pL{2,}`)

// spoken returns the message of an expression, and its code: of a call with a code, a refusal, or a plain
// error.
func spoken(n ast.Node, codes map[string]string) (code, text string) {
	switch n := n.(type) {
	case *ast.CallExpr:
		for i, arg := range n.Args {
			if code = codes[name(arg)]; code != "" && i+1 < len(n.Args) {
				return code, textOf(n.Args[i+1])
			}
		}
		switch name(n.Fun) {
		case "errors.New", "fmt.Errorf", "fmt.Sprintf", "Failure":
			return "", textOf(n.Args[0])
		}
	case *ast.CompositeLit:
		if name(n.Type) != "Refusal" {
			return "", ""
		}
		code = codes["NotBlank"]
		if strings.HasPrefix(fmt.Sprintf("%T", n.Type), "*ast.Sel") {
			code = ""
		}
		for _, e := range n.Elts {
			kv, ok := e.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			switch name(kv.Key) {
			case "Code", "Why":
				code = codes[name(kv.Value)]
			case "Reason", "What":
				text = textOf(kv.Value)
			}
		}
		return code, text
	}
	return "", ""
}

// name returns the last word of a name; for the standard library the whole name.
func name(e ast.Node) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok && (x.Name == "errors" || x.Name == "fmt") {
			return x.Name + "." + e.Sel.Name
		}
		return e.Sel.Name
	}
	return ""
}

var verb = regexp.MustCompile(`%[-+# 0-9.\[\]]*[a-zA-Z]`)

// textOf returns the text of an expression, with "…" for variable parts.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return strings.ReplaceAll(verb.ReplaceAllString(text, "…"), "%%", "%")
	case *ast.BinaryExpr:
		return textOf(e.X) + textOf(e.Y)
	case *ast.CallExpr:
		switch name(e.Fun) {
		case "errors.New", "fmt.Errorf", "fmt.Sprintf":
			return textOf(e.Args[0])
		}
	}
	return "…"
}
