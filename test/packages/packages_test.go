// Package packages builds the packages of this machine's architecture, once here and once in
// a copy of the sources elsewhere, and reads them with the tools of the distributions. It
// reads other packages with
//
//	FLEXD_PACKAGES=DIR FLEXD_PACKAGES_VERSION=VERSION FLEXD_PACKAGES_ARCH=ARCH
package packages

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

const root = "../.."

var (
	// A version with everything that a packager may read in another way, and as it reads it.
	version = "v1.2.0-rc.1-5-g1234567"
	mapped  = "1.2.0~rc.1+5.g1234567"
	arch    = runtime.GOARCH
	epoch   = int64(1700000000)

	one, two                string // the directories of two builds
	deb, rpm, archive, sbom string // of the first
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if one = os.Getenv("FLEXD_PACKAGES"); one != "" {
		version, arch = os.Getenv("FLEXD_PACKAGES_VERSION"), os.Getenv("FLEXD_PACKAGES_ARCH")
		out, err := exec.Command("sh", "-c", root+`/packaging/version "$0" && git log -1 --format=%ct`, version).Output()
		if err == nil {
			_, err = fmt.Sscan(string(out), &mapped, &epoch)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
	} else {
		dir, err := os.MkdirTemp("", "flexd-packages")
		if err != nil {
			fmt.Println(err)
			return 1
		}
		defer os.RemoveAll(dir)
		one, two = dir+"/one", dir+"/two"
		if err := build(dir + "/elsewhere"); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	deb = one + "/flexd_" + mapped + "_" + arch + ".deb"
	rpm = one + "/flexd-" + mapped + "-1." + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch] + ".rpm"
	archive = one + "/flexd-" + mapped + "-linux-" + arch + ".tar.gz"
	sbom = strings.TrimSuffix(archive, ".tar.gz") + ".spdx.json"
	return m.Run()
}

// build builds the packages twice: here, and in a copy without git, with other settings.
func build(elsewhere string) error {
	env := append(os.Environ(), "VERSION="+version, "ARCHES="+arch, fmt.Sprint("SOURCE_DATE_EPOCH=", epoch))
	for _, key := range []string{"GOCACHE", "GOMODCACHE", "GOENV"} { // not from HOME
		out, err := exec.Command("go", "env", key).Output()
		if err != nil {
			return err
		}
		env = append(env, key+"="+strings.TrimSpace(string(out)))
	}
	for _, c := range []struct{ dir, command, dist string }{
		{root, `mkdir "$0" && git ls-files -coz --exclude-standard | tar --null -T - -c | tar -x -C "$0"`, ""},
		{root, "umask 022; exec scripts/packages", one},
		{elsewhere, "umask 077; TZ=Asia/Tokyo LC_ALL=C.UTF-8 HOME=$0.home exec scripts/packages", two},
	} {
		sh := exec.Command("sh", "-c", c.command, elsewhere)
		sh.Dir, sh.Env = c.dir, append(env, "DIST="+c.dist)
		if out, err := sh.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", c.command, err, out)
		}
	}
	return nil
}

// output runs a command that must write nothing to stderr.
func output(t *testing.T, argv ...string) string {
	t.Helper()
	c := exec.Command(argv[0], argv[1:]...)
	c.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("%q: %v\n%s%s", argv, err, out, stderr.Bytes())
	}
	return string(out)
}

// tool skips the test if a program is missing.
func tool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Both builds have the same files, and SHA256SUMS matches.
func TestReproducible(t *testing.T) {
	t.Parallel()
	if two == "" {
		t.Skip("scripts/release compares them")
	}
	var names []string
	for _, file := range []string{rpm, sbom, archive, deb} {
		names = append(names, filepath.Base(file))
	}
	sums := read(t, one+"/SHA256SUMS")
	var listed []string
	for line := range strings.Lines(sums) {
		listed = append(listed, strings.Fields(line)[1])
	}
	if !slices.Equal(listed, names) {
		t.Errorf("there are %q, not %q", listed, names)
	}
	if other := read(t, two+"/SHA256SUMS"); sums != other {
		t.Errorf("elsewhere the files differ:\n%s\n%s", sums, other)
	}
	for _, dir := range []string{one, two} {
		c := exec.Command("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// A file of a package.
type file struct {
	mode  string // as ls shows it
	owner string
	time  int64
	text  []byte
}

// tarFiles reads an archive.
func tarFiles(t *testing.T, r io.Reader) map[string]file {
	t.Helper()
	files := map[string]file{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimSuffix(strings.TrimPrefix(h.Name, "."), "/")] = file{h.FileInfo().Mode().String(), fmt.Sprint(h.Uid, ":", h.Gid), h.ModTime.Unix(), text}
	}
}

// debFiles reads the files that a deb installs, and those of its control archive.
func debFiles(t *testing.T) (data, control map[string]file) {
	t.Helper()
	tool(t, "dpkg-deb")
	return tarFiles(t, strings.NewReader(output(t, "dpkg-deb", "--fsys-tarfile", deb))), tarFiles(t, strings.NewReader(output(t, "dpkg-deb", "--ctrl-tarfile", deb)))
}

// archiveFiles reads the tar archive.
func archiveFiles(t *testing.T) map[string]file {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	return tarFiles(t, z)
}

// installed are the files of the packages, without manual pages and /usr/share/doc.
var installed = map[string]string{
	"/etc/flexd":                                      "drwxr-xr-x",
	"/etc/flexd/flexd.yaml":                           "-rw-------",
	"/usr/bin/flexd":                                  "-rwxr-xr-x",
	"/usr/lib/flexd":                                  "drwxr-xr-x",
	"/usr/lib/flexd/flexdriver":                       "-rwxr-xr-x",
	"/usr/lib/systemd/system/flexd-driver.socket":     "-rw-r--r--",
	"/usr/lib/systemd/system/flexd-status.socket":     "-rw-r--r--",
	"/usr/lib/systemd/system/flexd.service":           "-rw-r--r--",
	"/usr/lib/udev/rules.d/12-flexd.rules":            "-rw-r--r--",
	"/usr/share/bash-completion/completions/flexd":    "-rw-r--r--",
	"/usr/share/fish/vendor_completions.d/flexd.fish": "-rw-r--r--",
}

const docs = "/usr/share/doc/flexd"

// listed are the files of a package that installed is compared with.
func listed(files map[string]file, zsh string) map[string]string {
	all := map[string]string{}
	for name, f := range files {
		if !strings.HasPrefix(name, docs) && !strings.HasPrefix(name, "/usr/share/man/") && (f.mode[0] != 'd' || strings.Contains(name, "flexd")) && name != zsh {
			all[name] = f.mode
		}
	}
	return all
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if want[name] != got[name] {
			t.Errorf("%s has mode %s, not %q", name, got[name], want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestDeb(t *testing.T) {
	t.Parallel()
	data, control := debFiles(t)
	compare(t, listed(data, "/usr/share/zsh/vendor-completions/_flexd"), installed)
	for name, f := range data {
		if f.owner != "0:0" || f.time != epoch {
			t.Errorf("%s: owner %s, time %d", name, f.owner, f.time)
		}
	}
	for _, name := range []string{"copyright", "CHANGELOG.md", "README.md", "docs/kubelet.md", "examples/flexd.yaml"} {
		if len(data[docs+"/"+name].text) == 0 {
			t.Errorf("%s is missing", name)
		}
	}
	pages, _ := filepath.Glob(root + "/docs/man/*.?")
	if len(pages) < 2 {
		t.Errorf("there are only %q", pages)
	}
	for _, page := range pages {
		name := "/usr/share/man/man" + page[len(page)-1:] + "/" + filepath.Base(page) + ".gz"
		if data[name].mode != "-rw-r--r--" {
			t.Errorf("%s has mode %q", name, data[name].mode)
		}
	}
	for _, line := range []string{"Package: flexd", "Version: " + mapped, "Architecture: " + arch, "Depends: e2fsprogs, lvm2", "Homepage: https://github.com/flexd/flexd"} {
		if !slices.Contains(strings.Split(string(control["/control"].text), "\n"), line) {
			t.Errorf("no %q in\n%s", line, control["/control"].text)
		}
	}
	if changes := output(t, "sh", "-c", `dpkg-deb --fsys-tarfile "$0" | tar -xO .`+docs+`/changelog.gz | gzip -d`, deb); !strings.HasPrefix(changes, "flexd ("+mapped+") ") {
		t.Error(changes)
	}
	if got := string(control["/conffiles"].text); strings.TrimSpace(got) != "/etc/flexd/flexd.yaml" {
		t.Errorf("the configuration files are %q", got)
	}
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		if f := control["/"+name]; f.mode != "-rwxr-xr-x" || string(f.text) != read(t, root+"/packaging/"+name) {
			t.Errorf("%s has mode %s or other text", name, f.mode)
		}
	}
	unit := string(data["/usr/lib/systemd/system/flexd.service"].text)
	if strings.Contains(unit, "/usr/local") || !strings.Contains(unit, "\nExecStart=/usr/bin/flexd serve") {
		t.Errorf("the unit:\n%s", unit)
	}
}

// Each program that flexd runs is in a package that the packages depend on, by the doctor's table.
func TestDependencies(t *testing.T) {
	t.Parallel()
	_, control := debFiles(t)
	tool(t, "rpm")
	named := strings.Fields(strings.ReplaceAll(string(control["/control"].text), ",", " "))
	required := strings.Fields(ask(t, "-qp", "--requires", "--recommends", rpm))
	table := regexp.MustCompile(`\t\{"[\w.]+", "([\w-]+)", "`).FindAllStringSubmatch(read(t, root+"/internal/doctor/checks_system.go"), -1)
	if len(table) < 8 {
		t.Fatal(table)
	}
	for _, row := range table {
		if !slices.Contains(named, row[1]) && row[1] != "util-linux" { // essential
			t.Errorf("the deb does not name %s", row[1])
		}
		if name := strings.Replace(row[1], "thin-provisioning-tools", "device-mapper-persistent-data", 1); !slices.Contains(required, name) {
			t.Errorf("the rpm does not name %s", name)
		}
	}
}

// ask runs rpm with a new database: the default one does not exist on Debian, and concurrent creations fail.
func ask(t *testing.T, args ...string) string {
	t.Helper()
	return output(t, append([]string{"rpm", "--dbpath", t.TempDir()}, args...)...)
}

func TestRPM(t *testing.T) {
	t.Parallel()
	tool(t, "rpm")
	data, _ := debFiles(t)
	ask(t, "-K", "--nosignature", rpm)
	want := fmt.Sprintf("flexd %s 1 linux Apache-2.0 %d reproducible", mapped, epoch)
	if got := ask(t, "-qp", "--qf", "%{name} %{version} %{release} %{os} %{license} %{buildtime} %{buildhost}", rpm); got != want {
		t.Errorf("%s\nnot %s", got, want)
	}
	if got := ask(t, "-qpc", rpm); got != "/etc/flexd/flexd.yaml\n" {
		t.Errorf("the configuration files are %q", got)
	}
	// %config(noreplace), 1 and 16: an upgrade keeps it.
	if got := ask(t, "-qp", "--qf", "[%{filenames} %{fileflags}\n]", rpm); !strings.Contains(got, "/etc/flexd/flexd.yaml 17\n") {
		t.Error(got)
	}
	// The deb has the same files, but the directories of others.
	files := map[string]string{}
	for line := range strings.Lines(ask(t, "-qp", "--qf", "[%{filenames} %{filemodes:perms} %{fileusername}:%{filegroupname} %{filemtimes}\n]", rpm)) {
		f := strings.Fields(line)
		if f[2] != "root:root" || f[3] != fmt.Sprint(epoch) {
			t.Error(line)
		}
		files[f[0]] = f[1]
	}
	same := map[string]string{}
	delete(data, docs+"/changelog.gz")
	for name, f := range data {
		if f.mode[0] != 'd' || strings.Contains(name, "flexd") {
			same[strings.Replace(name, "vendor-completions/_", "site-functions/_", 1)] = f.mode
		}
	}
	compare(t, files, same)
	scripts := ask(t, "-qp", "--scripts", rpm)
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		if !strings.Contains(scripts, strings.TrimSpace(read(t, root+"/packaging/"+name))) {
			t.Errorf("%s is not in\n%s", name, scripts)
		}
	}
}

// isVersion runs an executable, if this machine can.
func isVersion(t *testing.T, flexd string) {
	t.Helper()
	if arch != runtime.GOARCH {
		return
	}
	if got := output(t, flexd, "version"); got != version+"\n" {
		t.Errorf("it is version %s", got)
	}
}

// rpm installs the package below another root, verifies it, and removes it.
func TestRPMInstalls(t *testing.T) {
	t.Parallel()
	tool(t, "rpm")
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	args := []string{"rpm", "--force-debian", "--root", dir, "--nodeps", "--noscripts"}
	output(t, append(args, "--ignorearch", "-i", rpm)...)
	output(t, "rpm", "--root", dir, "-V", "--nodeps", "--noscripts", "flexd")
	isVersion(t, dir+"/usr/bin/flexd")
	output(t, append(args, "-e", "flexd")...)
	if _, err := os.Stat(dir + "/usr/bin/flexd"); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// The archive has the files of the packages, and both executables are static and of this version.
func TestArchive(t *testing.T) {
	t.Parallel()
	data, _ := debFiles(t)
	files := archiveFiles(t)
	top := strings.TrimSuffix(filepath.Base(archive), ".tar.gz")
	for name, f := range files {
		if name != top && !strings.HasPrefix(name, top+"/") {
			t.Errorf("%s is beside its directory", name)
		}
		if f.owner != "0:0" || f.time != epoch {
			t.Errorf("%s: owner %s, time %d", name, f.owner, f.time)
		}
	}
	for name, packaged := range map[string]string{"flexd": "/usr/bin/flexd", "flexdriver": "/usr/lib/flexd/flexdriver"} {
		f := files[top+"/bin/"+name]
		if f.mode != "-rwxr-xr-x" || !bytes.Equal(f.text, data[packaged].text) {
			t.Errorf("%s (%s) is not %s", name, f.mode, packaged)
		}
		if !bytes.Contains(f.text, []byte(version)) {
			t.Errorf("%s does not have the version", name)
		}
		if bytes.Contains(f.text, []byte("/ld-linux")) {
			t.Errorf("%s is not static", name)
		}
	}
	for _, name := range []string{"install.sh", "uninstall.sh", "scripts/install.sh", "scripts/uninstall.sh"} {
		if f := files[top+"/"+name]; f.mode != "-rwxr-xr-x" {
			t.Errorf("%s has mode %q", name, f.mode)
		}
	}
	for _, name := range []string{"README.md", "CHANGELOG.md", "LICENSE", "LICENSES", "docs/kubelet.md", "docs/man/flexd.8", "examples/flexd.service", "examples/flexd.yaml"} {
		if len(files[top+"/"+name].text) == 0 {
			t.Errorf("%s is missing", name)
		}
	}
}

// The archive installs on a machine without Go and make.
func TestArchiveInstalls(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if arch != runtime.GOARCH {
		t.Skip("these executables do not run here")
	}
	dir := t.TempDir()
	bin, node := dir+"/bin", dir+"/node"
	for _, d := range []string{bin, node} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, from := range []string{"/bin", "/sbin", "/usr/bin", "/usr/sbin"} {
		programs, _ := os.ReadDir(from)
		for _, p := range programs {
			if n := p.Name(); n != "make" && n != "go" && n != "gcc" && n != "git" {
				_ = os.Symlink(from+"/"+n, bin+"/"+n) // of two the first
			}
		}
	}
	output(t, "tar", "-x", "-C", dir, "-f", archive)
	install := exec.Command("./install.sh", "--root", node)
	install.Dir = dir + "/" + strings.TrimSuffix(filepath.Base(archive), ".tar.gz")
	install.Env = []string{"PATH=" + bin}
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	isVersion(t, node+"/usr/local/bin/flexd")
	remove := exec.Command("./uninstall.sh", "--root", node)
	remove.Dir, remove.Env = install.Dir, install.Env
	if out, err := remove.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := os.Stat(node + "/usr/local/bin/flexd"); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// The packages contain no path or name of the build machine.
func TestNothingOfThisMachine(t *testing.T) {
	t.Parallel()
	data, control := debFiles(t)
	here, _ := filepath.Abs(root)
	host, _ := os.Hostname()
	words := []string{here, filepath.Dir(one), host, os.Getenv("HOME") + "/"}
	for _, key := range []string{"GOROOT", "GOMODCACHE", "GOCACHE"} {
		words = append(words, strings.TrimSpace(output(t, "go", "env", key)))
	}
	for _, files := range []map[string]file{data, control, archiveFiles(t)} {
		for name, f := range files {
			text := f.text
			if strings.HasSuffix(name, ".gz") {
				z, err := gzip.NewReader(bytes.NewReader(text))
				if err != nil {
					t.Fatal(name, err)
				}
				text, _ = io.ReadAll(z)
			}
			for _, word := range words {
				if len(word) > 3 && bytes.Contains(text, []byte(word)) {
					t.Errorf("%s contains %s", name, word)
				}
			}
		}
	}
}

// The document has what SPDX 2.3 requires, and the modules of both executables.
func TestSBOM(t *testing.T) {
	t.Parallel()
	var doc struct {
		SPDXVersion, DataLicense, SPDXID, Name, DocumentNamespace string
		CreationInfo                                              struct {
			Created  string
			Creators []string
		}
		Packages []struct {
			SPDXID, Name, VersionInfo, DownloadLocation string
			FilesAnalyzed                               *bool
		}
		Relationships []struct{ SPDXElementID, RelationshipType, RelatedSPDXElement string }
	}
	if err := json.Unmarshal([]byte(read(t, sbom)), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.SPDXVersion != "SPDX-2.3" || doc.DataLicense != "CC0-1.0" || doc.SPDXID != "SPDXRef-DOCUMENT" || doc.Name == "" ||
		!strings.HasPrefix(doc.DocumentNamespace, "https://") ||
		doc.CreationInfo.Created != time.Unix(epoch, 0).UTC().Format(time.RFC3339) || len(doc.CreationInfo.Creators) != 1 {
		t.Errorf("%+v", doc)
	}
	ids := map[string]string{doc.SPDXID: ""}
	var described []string
	for _, p := range doc.Packages {
		if !regexp.MustCompile(`^SPDXRef-[A-Za-z0-9.-]+$`).MatchString(p.SPDXID) || p.Name == "" || p.VersionInfo == "" || p.DownloadLocation == "" || p.FilesAnalyzed == nil || *p.FilesAnalyzed {
			t.Errorf("%+v", p)
		}
		if ids[p.SPDXID] != "" {
			t.Errorf("%s twice", p.SPDXID)
		}
		ids[p.SPDXID] = p.Name + " " + p.VersionInfo
	}
	depends := map[string][]string{}
	for _, r := range doc.Relationships {
		if _, ok := ids[r.RelatedSPDXElement]; !ok {
			t.Errorf("%+v", r)
		}
		switch {
		case r.RelationshipType == "DESCRIBES" && r.SPDXElementID == doc.SPDXID:
			described = append(described, ids[r.RelatedSPDXElement])
		case r.RelationshipType == "DEPENDS_ON":
			depends[ids[r.SPDXElementID]] = append(depends[ids[r.SPDXElementID]], ids[r.RelatedSPDXElement])
		default:
			t.Errorf("%+v", r)
		}
	}
	if want := []string{"flexd " + version, "flexdriver " + version}; !slices.Equal(described, want) {
		t.Errorf("it describes %q", described)
	}
	dir := t.TempDir()
	output(t, "tar", "-x", "-C", dir, "-f", archive, "--strip-components=1")
	for exe, got := range depends {
		name, _, _ := strings.Cut(exe, " ")
		info, err := buildinfo.ReadFile(dir + "/bin/" + name)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"stdlib " + strings.TrimPrefix(info.GoVersion, "go")}
		for _, m := range info.Deps {
			want = append(want, m.Path+" "+m.Version)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s depends on %q, not %q", exe, got, want)
		}
	}
	// The licenses of the same modules are in the packages.
	text := read(t, dir+"/LICENSES")
	for _, name := range depends["flexd "+version][1:] {
		if !strings.Contains(text, "\n--- "+name+"\n") {
			t.Errorf("LICENSES has no %s", name)
		}
	}
}

// dpkg and rpm order versions in the order of the releases.
func TestVersion(t *testing.T) {
	t.Parallel()
	tool(t, "dpkg")
	tool(t, "rpm")
	given := []string{"85a455a", "v0.9.0", "v0.10.0-rc.1", "v0.10.0-rc.2", "v0.10.0-rc.2-3-gabcdef1", "v0.10.0", "v0.10.0-2-g0000001", "v0.10.0-10-g0000000", "v0.10.1", "1.0.0"}
	var all []string
	for _, v := range given {
		all = append(all, strings.TrimSpace(output(t, root+"/packaging/version", v)))
	}
	for i := range all[1:] {
		older, newer := all[i], all[i+1]
		output(t, "dpkg", "--compare-versions", older, "lt", newer)
		if got := output(t, "rpm", "--eval", fmt.Sprintf(`%%{lua: print(rpm.vercmp("%s", "%s"))}`, older, newer)); strings.TrimSpace(got) != "-1" {
			t.Errorf("rpm: %s is not before %s", older, newer)
		}
	}
	if out, err := exec.Command(root+"/packaging/version", "v1.0.0 $(reboot)").CombinedOutput(); err == nil {
		t.Errorf("%s", out)
	}
}

// The shells and shellcheck accept the scripts of the packages.
func TestScripts(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		output(t, "sh", "-n", root+"/packaging/"+name)
	}
	tool(t, "shellcheck")
	output(t, "shellcheck", "-s", "sh", root+"/packaging/postinst", root+"/packaging/prerm", root+"/packaging/postrm")
	output(t, "shellcheck", root+"/scripts/packages", root+"/scripts/release", root+"/packaging/version")
}
