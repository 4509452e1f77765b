package config

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the reference in docs/configuration.md and the manual page")

const (
	page       = "../../docs/configuration.md"
	manualPage = "../../docs/man/flexd.yaml.5"
)

// The page and the manual page have each key of the schema.
func TestReference(t *testing.T) {
	keys := (&reader{}).schema(defaults())
	old, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	begin, rest, ok := strings.Cut(string(old), "-update -->\n")
	_, end, ended := strings.Cut(rest, "<!-- end -->\n")
	if !ok || !ended {
		t.Fatalf("%s has no place for the tables", page)
	}
	for file, want := range map[string]string{
		page:       begin + "-update -->\n\n" + tables(keys) + "\n<!-- end -->\n" + end,
		manualPage: manual(keys),
	} {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(got), want); d != "" {
			t.Errorf("go test ./internal/config -run Reference -update (-file +keys):\n%s", d)
		}
	}
	for _, m := range regexp.MustCompile(`\]\(#([^)]+)\)`).FindAllStringSubmatch(tables(keys), -1) {
		if heading := strings.ReplaceAll(m[1], "-", " "); !strings.Contains(strings.ToLower(end), "\n## "+heading+"\n") {
			t.Errorf("%s has no section %q", page, heading)
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip(err)
	}
	if out, err := exec.Command(groff, "-man", "-ww", "-z", manualPage).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%s", err, out)
	}
}

// flat returns the keys, and those of sections with their full names.
func flat(keys []key) (all []key) {
	for _, k := range keys {
		all = append(all, k)
		if k.show != nil {
			continue
		}
		for _, sub := range k.keys {
			sub.name, sub.restart = k.name+"."+sub.name, k.restart || sub.restart
			all = append(all, sub)
		}
	}
	return all
}

func tables(keys []key) string {
	group := keys[len(keys)-1].keys
	restarts, groupRestarts := restartKeys(keys), restartKeys(group)
	return table(keys) + "\nA change of " + restarts + " waits for a restart, and so does a group that is added or removed.\n\n" +
		"Each entry of `volumeGroups`:\n\n" +
		table(group) + "\nA change of " + groupRestarts + " waits for a restart, and then so do all keys of that group.\n"
}

func table(keys []key) string {
	var b strings.Builder
	b.WriteString("| key | value | default | |\n|---|---|---|---|\n")
	for _, k := range flat(keys) {
		value := k.without
		if value == "" && k.show != nil {
			value = "`" + k.show() + "`"
		}
		cells := []string{"`" + k.name + "`", k.form, value, k.about}
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return b.String()
}

func restartKeys(keys []key) string {
	var names []string
	for _, k := range flat(keys) {
		if parent, _, sub := strings.Cut(k.name, "."); k.restart && !(sub && strings.Contains(strings.Join(names, " "), "`"+parent+"`")) {
			names = append(names, "`"+k.name+"`")
		}
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

func manual(keys []key) string {
	roff := strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	list := func(keys []key) {
		for _, k := range flat(keys) {
			line(".TP\n.B %s\n%s", roff(k.name), roff(plain(k.about)))
			if notes := k.notes(); notes != "" {
				line(".br\n%s", roff(notes))
			}
			if k.without == "" && k.show != nil {
				line("Default: %s.", roff(k.show()))
			}
		}
	}
	line(`.TH FLEXD.YAML 5 "" flexd "File Formats"`)
	line(".SH NAME\nflexd.yaml \\- configuration of flexd")
	line(".SH SYNOPSIS\n.I %s", DefaultPath)
	line(".SH DESCRIPTION\n%s", roff(`One YAML file, in which every key is optional.
An empty file means the defaults. It names no volume group, so flexd sets nothing up with it.
Durations are written 30s, 4m30s, 1h; sizes 500m, 10G, 10Gi, all with powers of 1024.
The parser refuses unknown and repeated keys, anchors and aliases, and reports all errors at once.`))
	line(".PP\n.nf\n.B flexd config\n.B flexd config %s\n.fi", roff("--check FILE"))
	line(".PP\n%s", roff(`The first prints a file with every key and its default, the second checks a file.
flexd applies a changed file within a few seconds. A file with an error is refused as a whole.`))
	line(".SH KEYS")
	list(keys)
	line(".SH VOLUME GROUPS\nThe keys of each entry of volumeGroups:")
	list(keys[len(keys)-1].keys)
	line(".SH EXAMPLE\n.nf\nvolumeGroups:\n  \\- name: vg0\n    namespaces: [default]\n    create: true\n    maxSize: 100GiB\n.fi")
	line(".SH SEE ALSO\n.BR flexd (8),\n.BR flexdriver (8)")
	return b.String()
}

// The printed defaults and examples of keys are valid.
func TestValuesOfKeys(t *testing.T) {
	r := &reader{lines: map[string]int{}}
	keys := r.schema(defaults())
	for _, k := range append(flat(keys), flat(keys[len(keys)-1].keys)...) {
		if k.show == nil {
			continue
		}
		text := k.example
		if k.without == "" {
			text = k.show()
		}
		var doc node
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil || len(doc.Content) != 1 {
			t.Fatalf("%s: %q: %v", k.name, text, err)
		}
		if k.read(doc.Content[0], k.name); len(r.errors) > 0 {
			t.Fatal(r.errors[0])
		}
		if k.about == "" || k.form == "" || !strings.HasSuffix(k.about, ".") || !strings.HasPrefix(k.about, strings.ToUpper(k.about[:1])) && k.about[0] != '`' {
			t.Errorf("%s: %q, %q", k.name, k.form, k.about)
		}
	}
}
