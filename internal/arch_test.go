// Package internal_test checks the layout of the packages: which one may import
// which, and that each says what it is for.
package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/flexd/flexd"

// packages lists the packages of this module that each package may import; lower packages
// come first. A package that is added must be added here.
var packages = []struct {
	name string
	may  []string
}{
	{"internal/volume", nil},
	{"internal/spelling", nil},
	{"internal/volopts", []string{"spelling"}},
	{"internal/boottime", nil},
	{"internal/sysfs", nil},
	{"internal/procfs", []string{"boottime", "sysfs"}},
	{"internal/devmapper", []string{"sysfs"}},
	{"internal/run", []string{"procfs"}},
	{"internal/config", []string{"spelling", "volopts"}},
	{"internal/udev", nil},
	{"internal/status", nil},
	{"internal/history", []string{"boottime", "status"}},
	{"internal/flexvolume", []string{"boottime", "spelling", "volopts"}},
	{"internal/explain", []string{"spelling", "volopts", "status", "flexvolume"}},
	{"internal/kubelet", []string{"volume", "procfs", "flexvolume"}},
	{"internal/join", []string{"volume"}},
	{"internal/mounttable", []string{"sysfs", "procfs"}},
	{"internal/mount", []string{"volume", "volopts", "sysfs", "procfs", "devmapper", "run", "mounttable"}},
	{"internal/lockspace", []string{"volume", "run"}},
	{"internal/lvm", []string{"lockspace", "volume", "sysfs", "procfs", "devmapper", "run", "mount", "join"}},
	{"internal/loopdev", []string{"volume", "sysfs", "procfs", "run", "mount", "join"}},
	{"internal/dsw", []string{"volume"}},
	{"internal/asw", []string{"volume", "sysfs", "join", "mounttable"}},
	{"internal/audit", []string{"volume", "sysfs", "config", "status", "lvm", "dsw", "asw", "join"}},
	{"internal/reconcile", []string{"volume", "procfs", "run", "config", "status", "mounttable", "mount", "dsw", "asw", "join", "audit"}},
	{"internal/metrics", []string{"volume", "run", "config", "status", "dsw"}},
	{"internal/flexserve", []string{"volume", "procfs", "config", "status", "flexvolume", "kubelet", "mounttable", "dsw", "reconcile"}},
	{"internal/server", []string{"volume", "procfs", "flexvolume", "status"}}, // asks for the rest by interfaces of its own
	{"internal/driver", []string{"run", "config", "status", "flexvolume", "kubelet", "mounttable"}},
	{"internal/doctor", []string{"procfs", "run", "config", "udev", "status", "flexvolume", "kubelet", "mounttable", "lockspace", "driver"}},
	{"internal/hosttest", []string{"boottime", "volume", "run", "config", "flexvolume", "kubelet", "mounttable", "mount", "loopdev", "devmapper", "lockspace", "lvm", "dsw", "asw", "reconcile", "flexserve"}},
	{"cmd/flexdriver", []string{"flexvolume"}},
	{"cmd/flexd", []string{"boottime", "spelling", "volume", "procfs", "run", "config", "status", "flexvolume", "explain", "kubelet", "mount", "devmapper", "loopdev", "lockspace", "lvm", "dsw", "asw", "audit", "reconcile", "metrics", "flexserve", "server", "udev", "driver", "doctor", "history"}},
}

// stdOnly are the packages that import the standard library and ours only.
var stdOnly = []string{"internal/boottime", "internal/volume", "internal/join", "internal/spelling", "internal/volopts", "internal/flexvolume", "internal/status", "cmd/flexdriver"}

// slow is what flexdriver must not link: each of them makes its start longer, and
// kubelet starts it for every call.
var slow = []string{"context", "crypto/rand", "encoding/json", "fmt", "net", "os/exec", "os/signal", "reflect", "regexp"}

// pure is what a package without I/O, clock and locks may import.
var pure = []string{
	"bytes", "cmp", "errors", "fmt", "iter", "maps", "math", "math/bits", "path", "slices", "sort", "strconv", "strings", "unicode", "unicode/utf8",
}

// clock matches the functions of package time that a pure package must not call: it may have
// times as data.
var clock = regexp.MustCompile(`\btime\.(Now|Since|Until|Sleep|After|AfterFunc|Tick|NewTimer|NewTicker)\b`)

// A source is one Go file.
type source struct {
	file    string
	pkg     string // its directory in the module
	test    bool
	doc     bool // has a package comment
	imports []string
}

// sources reads every Go file of cmd and internal, compiling or not.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	for _, top := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join("..", top), func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && d.Name() == "testdata" {
				return fs.SkipDir
			}
			if d.IsDir() || !strings.HasSuffix(file, ".go") {
				return nil
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly|parser.ParseComments)
			if err != nil {
				return err
			}
			pkg := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(file), ".."+string(filepath.Separator)))
			all = append(all, source{file, pkg, strings.HasSuffix(file, "_test.go"), f.Doc != nil, imports(f)})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func imports(f *ast.File) []string {
	var all []string
	for _, i := range f.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		all = append(all, p)
	}
	return all
}

func TestImportsPointDownwards(t *testing.T) {
	var above []string // packages seen so far may be imported by those that follow, never the other way
	for _, r := range packages {
		for _, name := range r.may {
			if !slices.Contains(above, "internal/"+name) {
				t.Errorf("%s may import %s, which does not stand below it", r.name, name)
			}
		}
		above = append(above, r.name)
	}
	used := map[string]bool{} // "importer imported"
	for _, s := range sources(t) {
		if s.pkg == "internal" { // this test
			continue
		}
		i := slices.IndexFunc(packages, func(r struct {
			name string
			may  []string
		}) bool {
			return r.name == s.pkg
		})
		if i < 0 {
			t.Errorf("%s: the package %s is not in the table of internal/arch_test.go", s.file, s.pkg)
			continue
		}
		for _, p := range s.imports {
			ours, isOurs := strings.CutPrefix(p, module+"/")
			switch {
			case s.test: // tests may import any package below cmd
				if isOurs && strings.HasPrefix(ours, "cmd/") {
					t.Errorf("%s imports %s", s.file, ours)
				}
			case isOurs:
				used[s.pkg+" "+path.Base(ours)] = true
				if !strings.HasPrefix(ours, "internal/") || !slices.Contains(packages[i].may, path.Base(ours)) {
					t.Errorf("%s imports %s; %s may import %v", s.file, ours, s.pkg, packages[i].may)
				}
				if ours == "internal/hosttest" {
					t.Errorf("%s imports hosttest, which is for tests", s.file)
				}
			case slices.Contains(stdOnly, s.pkg) && strings.Contains(strings.SplitN(p, "/", 2)[0], "."):
				t.Errorf("%s imports %s; %s is standard library only", s.file, p, s.pkg)
			case (s.pkg == "internal/volume" || s.pkg == "internal/join") && p == "time":
				if text, err := os.ReadFile(s.file); err != nil || clock.Match(text) {
					t.Errorf("%s uses a clock (%v); %s is pure", s.file, err, s.pkg)
				}
			case (s.pkg == "internal/volume" || s.pkg == "internal/join") && !slices.Contains(pure, p):
				t.Errorf("%s imports %s; %s is pure", s.file, p, s.pkg)
			}
		}
	}
	for _, p := range packages {
		for _, name := range p.may {
			if !used[p.name+" "+name] {
				t.Errorf("%s may import %s, and does not: take that from the table", p.name, name)
			}
		}
	}
}

// Below the frontends there is no FlexVolume: neither its verbs nor its options nor its
// modes have a name there.
func TestOnlyFrontendsKnowFlexVolume(t *testing.T) {
	words := regexp.MustCompile(`(?i:flexvolume|flexdriver|mountdevice|waitforattach|isattached|expandfs|expandvolume|getvolumename)|` +
		`\b(?:volumegroup|volumeID|mkfsOptions|mountOptions|attach:true|attach:false)\b`)
	for _, s := range sources(t) {
		if s.test || !slices.Contains([]string{"internal/volume", "internal/dsw", "internal/asw", "internal/join", "internal/reconcile"}, s.pkg) {
			continue
		}
		text, err := os.ReadFile(s.file)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range words.FindAll(text, -1) {
			t.Errorf("%s: %s is for a frontend", s.file, word)
		}
		for _, above := range []string{"flexvolume", "flexserve", "kubelet"} {
			if slices.Contains(s.imports, module+"/internal/"+above) {
				t.Errorf("%s imports %s", s.file, above)
			}
		}
	}
}

// run starts the children, and what mount does in a child starts the programs that it
// needs. Nothing else starts a process.
func TestFewStartProcesses(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test && slices.Contains(s.imports, "os/exec") && !slices.Contains([]string{"internal/run", "internal/mount", "internal/hosttest"}, s.pkg) {
			t.Errorf("%s imports os/exec", s.file)
		}
	}
}

// Only procfs reads what /proc says of processes. Others may follow the paths of their own
// process.
func TestOnlyProcfsReadsProcesses(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.pkg == "internal/procfs" || s.pkg == "internal/hosttest" {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, s.file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if path, _ := strconv.Unquote(lit.Value); strings.HasPrefix(path, "/proc") && !strings.HasPrefix(path, "/proc/self/") {
				t.Errorf("%s: %s is for procfs to read", fset.Position(lit.Pos()), lit.Value)
			}
			return true
		})
	}
}

func TestOnePackageComment(t *testing.T) {
	docs := make(map[string][]string)
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		if docs[s.pkg] == nil {
			docs[s.pkg] = []string{}
		}
		if s.doc {
			docs[s.pkg] = append(docs[s.pkg], filepath.Base(s.file))
		}
	}
	for pkg, files := range docs {
		if len(files) != 1 {
			t.Errorf("%s has %d package comments %v, want 1", pkg, len(files), files)
		}
	}
}

// Indirect imports count too: flexdriver must stay small, and a pure package must not
// import another package of this module through a third.
func TestIndirectImports(t *testing.T) {
	for pkg, want := range map[string]string{
		"cmd/flexdriver":   "internal/boottime internal/spelling internal/volopts internal/flexvolume cmd/flexdriver",
		"internal/volume":  "internal/volume",
		"internal/volopts": "internal/spelling internal/volopts",
	} {
		out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{.Standard}}", module+"/"+pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(string(out)) {
			p, standard, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch {
			case standard != "true":
				got = append(got, strings.TrimPrefix(p, module+"/"))
			case pkg == "cmd/flexdriver" && slices.Contains(slow, p):
				t.Errorf("%s links %s, which makes its start slower", pkg, p)
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s links %s, want %s", pkg, got, want)
		}
	}
}

// strips are the methods that drop the monotonic reading of a time.Time.
var strips = []string{"UTC", "Local", "In", "Truncate", "Round", "AddDate", "Unix", "UnixNano", "UnixMilli", "Format"}

// shows are the files of audit and reconcile that show a Since, or copy that of a child.
var shows = []string{"detail.go", "group.go", "park.go"}

// No deadline, lease or pause depends on the wall clock, which may be set: a time.Now is
// compared within one process and keeps its monotonic reading, and a time in a file
// counts from the boot. A wall time is for people: it is written to a file only as Since
// or At, and only status reads it there.
func TestWallClockIsForPeople(t *testing.T) {
	shown := 0
	for _, s := range sources(t) {
		if s.test || s.pkg == "internal/hosttest" || s.pkg == "internal/status" {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, s.file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		notes := s.pkg == "internal/dsw"
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl: // after a reboot, or on another node, no other clock shows the age of a record, and this one only refuses
				return n.Name.Name != "notRepeatableReason" && n.Name.Name != "recordTag"
			case *ast.AssignStmt: // x.Since, x.At = time.Now().UTC()...
				if last, ok := n.Lhs[len(n.Lhs)-1].(*ast.SelectorExpr); ok && (last.Sel.Name == "Since" || last.Sel.Name == "At") {
					shown++
					return false
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Since" {
					shown++
					return false
				}
			case *ast.CallExpr:
				fun, ok := n.Fun.(*ast.SelectorExpr)
				if !ok {
					break
				}
				if x, ok := fun.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Unix", "UnixMilli", "Date", "Parse"}, fun.Sel.Name) {
					t.Errorf("%s: time.%s makes a time of the wall clock", fset.Position(n.Pos()), fun.Sel.Name)
				}
				if now, ok := fun.X.(*ast.CallExpr); ok && slices.Contains(strips, fun.Sel.Name) {
					if of, ok := now.Fun.(*ast.SelectorExpr); ok && of.Sel.Name == "Now" {
						t.Errorf("%s: %s takes the monotonic clock away", fset.Position(n.Pos()), fun.Sel.Name)
					}
				}
			case *ast.Field:
				if typ, ok := n.Type.(*ast.SelectorExpr); ok && notes && typ.Sel.Name == "Time" && n.Tag != nil &&
					n.Names[0].Name != "Since" && n.Names[0].Name != "At" {
					t.Errorf("%s: the wall clock is written down as %s", fset.Position(n.Pos()), n.Names[0].Name)
				}
			case *ast.SelectorExpr:
				if notes && n.Sel.Name == "At" || n.Sel.Name == "Since" && (notes || (s.pkg == "internal/reconcile" || s.pkg == "internal/audit") && !slices.Contains(shows, filepath.Base(s.file))) {
					if x, ok := n.X.(*ast.Ident); !ok || x.Name != "time" && x.Name != "s" {
						t.Errorf("%s: a wall time that was written down is read", fset.Position(n.Pos()))
					}
				}
			}
			return true
		})
	}
	if shown < 3 {
		t.Errorf("only %d wall times found: this test inspects the wrong code", shown)
	}
}
