package udev

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write creates a file with its directories.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestRule(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		dirs []string
		want string // of the line about loop devices
	}{
		{nil, ""},
		{[]string{"/srv/a", "/srv/b"}, `=="/srv/a/*|/srv/b/*"`},
		{[]string{dir + "/link"}, `=="` + dir + `/*"`},
		{[]string{`/srv/a "|b$[é`}, `=="/srv/a*b*/*"`},
		{[]string{"/srv/\n\", RUN+=\"/bin/x"}, `=="/srv/*RUN+*/bin/x/*"`},
	} {
		text, err := Rule("/var/lib/flexd", row.dirs)
		if err != nil {
			t.Fatal(err)
		}
		line := ""
		for l := range strings.Lines(text) {
			if strings.HasPrefix(l, `KERNEL=="loop*", `) {
				line = l
			}
		}
		if want := row.want; want == "" && line != "" || !strings.Contains(line, want) {
			t.Errorf("%q: %s, want %s", row.dirs, line, want)
		}
		if n := strings.Count(text, "/var/lib/flexd/udev/$"); n != 2 {
			t.Errorf("%d links in\n%s", n, text)
		}
	}
	for _, dir := range []string{"/a b", `/a"`, "/a$b", "/a'b", "/a\nb", "/a%k"} {
		if text, err := Rule(dir, nil); err == nil {
			t.Errorf("stateDir %q:\n%s", dir, text)
		}
	}
}

func TestWrong(t *testing.T) {
	root := t.TempDir()
	wrong := func(want string) {
		t.Helper()
		if got := Problem(root, "rule\n"); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%q, want %q", got, want)
		}
	}
	wrong("") // no udev
	write(t, root+"/run/udev/control", "")
	wrong(Installed + " is missing")
	write(t, root+"/usr/lib/udev/rules.d/12-flexd.rules", "old\n")
	wrong("/usr/lib/udev/rules.d/12-flexd.rules is not")
	for _, changed := range []bool{true, false} {
		if got, err := Install(root, "rule\n"); got != changed || err != nil {
			t.Errorf("install: %v, %v", got, err)
		}
		wrong("")
	}
	if st, err := os.Stat(root + Installed); err != nil || st.Mode() != 0o644 {
		t.Errorf("%v, %v", st, err)
	}
	if all, _ := os.ReadDir(filepath.Dir(root + Installed)); len(all) != 1 {
		t.Errorf("left behind: %v", all)
	}
	if err := os.Remove(root + Installed); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", root+Installed); err != nil { // masked
		t.Fatal(err)
	}
	wrong(Installed + " is not")
}

// A second flexd, for example in a trial, does not change the rule of the first one. The installer's rule is
// for the default directory, in which no flexd has run yet.
func TestOther(t *testing.T) {
	root := t.TempDir()
	is := func(stateDir, want string) {
		t.Helper()
		if other := OtherStateDir(root, stateDir); other != want {
			t.Errorf("%s: %q, want %q", stateDir, other, want)
		}
	}
	is("/var/lib/flexd", "")
	rule, err := Rule("/var/lib/flexd", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Install(root, rule); err != nil {
		t.Fatal(err)
	}
	is("/var/lib/flexd", "")
	is("/srv/flexd", "")
	if err := os.MkdirAll(root+"/var/lib/flexd/udev", 0o700); err != nil {
		t.Fatal(err)
	}
	is("/var/lib/flexd", "")
	is("/srv/flexd", "/var/lib/flexd")
	is("/srv/var/lib/flexd", "/var/lib/flexd")
}
