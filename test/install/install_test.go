// Package install runs scripts/install.sh and scripts/uninstall.sh below a
// directory of each test's own, beside what watches a plugin directory by
// kubelet's rules. Mounts are real; systemd is not.
package install

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const pluginDir = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec"

// Two releases of both executables; they differ in their bytes only.
var one, two string

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "kubelet" {
		waitAsRoot()
		return
	}
	if os.Getuid() == 0 && os.Getenv(inside) == "" {
		os.Exit(again())
	}
	os.Exit(run(m))
}

const inside = "FLEXD_INSTALL_TEST_INSIDE"

// again runs the tests in a mount namespace of their own, in memory: most of an
// installation waits for the disk, and these mounts must not be visible elsewhere.
func again() int {
	dir, err := os.MkdirTemp("", "flexd-install")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.Remove(dir)
	c := exec.Command("unshare", append([]string{"--mount", "sh", "-c", `mount -t tmpfs -o mode=755 flexd-install "$0" && exec "$@"`, dir}, os.Args...)...)
	c.Env = append(os.Environ(), inside+"=yes", "TMPDIR="+dir)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Run(); err != nil {
		if c.ProcessState == nil {
			fmt.Println(err)
		}
		return 1
	}
	return 0
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "flexd-install")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	one, two = dir+"/one", dir+"/two"
	c := exec.Command("go", "build", "-o", one+"/", "./cmd/flexdriver", "./cmd/flexd")
	c.Dir = "../.."
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		fmt.Printf("%v\n%s", err, out)
		return 1
	}
	for _, name := range []string{"flexdriver", "flexd"} {
		b, err := os.ReadFile(one + "/" + name)
		if err == nil {
			err = os.MkdirAll(two, 0o755)
		}
		if err == nil {
			err = os.WriteFile(two+"/"+name, append(b, '\n'), 0o755)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return m.Run()
}

// A node is a machine below a directory.
type node struct {
	t    *testing.T
	root string
}

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it depends on the owners of plugin directories, and mounts are real")
	}
	t.Parallel()
	n := &node{t, filepath.Join(t.TempDir(), "root")}
	n.mkdir(pluginDir)
	return n
}

func (n *node) plugins() string { return n.root + pluginDir }
func (n *node) dir() string     { return n.plugins() + "/flexd~lvm" }
func (n *node) exe() string     { return n.dir() + "/lvm" }
func (n *node) dotfile() string { return n.dir() + "/.lvm.init.json" }

func (n *node) mkdir(dir string) {
	n.t.Helper()
	if err := os.MkdirAll(n.root+dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) write(file, text string) {
	n.t.Helper()
	n.mkdir(filepath.Dir(file))
	if err := os.WriteFile(n.root+file, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) read(path string) string {
	n.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(b)
}

// kubelet makes /proc show one.
func (n *node) kubelet(pid string, args ...string) { n.t.Helper(); n.process(pid, "kubelet", args...) }

// process makes /proc show a process of root.
func (n *node) process(pid, name string, args ...string) {
	n.t.Helper()
	n.write("/proc/"+pid+"/comm", name+"\n")
	n.write("/proc/"+pid+"/stat", pid+" ("+name+") S 1"+strings.Repeat(" 0", 40)+"\n")
	n.write("/proc/"+pid+"/cmdline", strings.Join(append([]string{"/usr/bin/" + name}, args...), "\x00")+"\x00")
	n.write("/proc/"+pid+"/mountinfo", mountinfo)
	n.write("/proc/"+pid+"/status", "Name:\t"+name+"\nUid:\t0\t0\t0\t0\nNSpid:\t"+pid+"\nThreads:\t1\n")
	n.write("/proc/"+pid+"/cgroup", "0::/system.slice/kubelet.service\n")
	user, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		n.t.Fatal(err)
	}
	n.mkdir("/proc/" + pid + "/ns")
	n.mkdir("/proc/self/ns")
	os.Symlink(user, n.root+"/proc/self/ns/user")
	if err := os.Symlink(user, n.root+"/proc/"+pid+"/ns/user"); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Symlink(n.root, n.root+"/proc/"+pid+"/root"); err != nil {
		n.t.Fatal(err)
	}
}

const mountinfo = "20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"

// mount mounts a tmpfs until the test ends.
func (n *node) mount(dir string) {
	n.t.Helper()
	n.mkdir(dir)
	if err := unix.Mount("flexd-install-test", n.root+dir, "tmpfs", 0, "size=64m,mode=755"); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { unix.Unmount(n.root+dir, unix.MNT_DETACH) })
}

func (n *node) command(script string, args ...string) *exec.Cmd {
	return exec.Command("../../scripts/"+script, append([]string{"--root", n.root}, args...)...)
}

// driverCommand is `flexd driver` of a release. Without a configuration of its own the node
// gets one with a volume group.
func (n *node) driverCommand(bin, action string, args ...string) *exec.Cmd {
	n.t.Helper()
	if _, err := os.Stat(n.root + "/etc/flexd/flexd.yaml"); err != nil {
		n.write("/etc/flexd/flexd.yaml", configuration)
	}
	return exec.Command(bin+"/flexd", append([]string{"driver", action, "--root", n.root}, args...)...)
}

// A configuration with a volume group.
const configuration = "volumeGroups: [{name: vg0, provider: lvm, namespaces: [a]}]\n"

// driver is `flexd driver install`, which must succeed; it returns what it says.
func (n *node) driver(bin string, args ...string) string {
	n.t.Helper()
	return n.succeeds(n.driverCommand(bin, "install", args...))
}

// remove is `flexd driver remove`.
func (n *node) remove(args ...string) string {
	n.t.Helper()
	return n.succeeds(n.driverCommand(one, "remove", args...))
}

// install is install.sh, which must succeed; it returns what it says.
func (n *node) install(bin string, args ...string) string {
	n.t.Helper()
	return n.succeeds(n.command("install.sh", append([]string{"--bin", bin}, args...)...))
}

func (n *node) uninstall(args ...string) string {
	n.t.Helper()
	return n.succeeds(n.command("uninstall.sh", append([]string{"--bin", one}, args...)...))
}

func (n *node) succeeds(c *exec.Cmd) string {
	n.t.Helper()
	out, err := c.CombinedOutput()
	if err != nil {
		n.t.Fatalf("%v: %v\n%s", c.Args, err, out)
	}
	return string(out)
}

// refuses runs what must fail with these words on stderr and change nothing.
func (n *node) refuses(c *exec.Cmd, words ...string) {
	n.t.Helper()
	before := n.tree()
	var stderr bytes.Buffer
	c.Stderr = &stderr
	if out, err := c.Output(); err == nil {
		n.t.Fatalf("%v succeeds:\n%s", c.Args, out)
	}
	for _, w := range words {
		if !strings.Contains(stderr.String(), w) {
			n.t.Errorf("no %q in:\n%s", w, &stderr)
		}
	}
	if text := stderr.String(); !strings.Contains(text, "what to do: ") && !strings.Contains(text, "--attach is true or false") {
		n.t.Errorf("it does not say what to do:\n%s", &stderr)
	}
	n.same(before)
}

// tree is every file with its kind, mode, inode, change time and size. A
// directory's times change with a temporary file in it.
func (n *node) tree() []string {
	n.t.Helper()
	var all []string
	err := filepath.WalkDir(n.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%s %o %d", path, st.Mode, st.Ino)
		if !d.IsDir() {
			line += fmt.Sprintf(" %d %d.%d", st.Size, st.Ctim.Sec, st.Ctim.Nsec)
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return all
}

func (n *node) same(before []string) {
	n.t.Helper()
	if after := n.tree(); !slices.Equal(before, after) {
		n.t.Errorf("changed:\n%s\nto:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

// installed holds the driver to be exactly this release in this mode, with
// nothing else in the plugin directory or left beside it.
func (n *node) installed(bin, mode string) {
	n.t.Helper()
	if n.read(n.exe()) != n.read(bin+"/flexdriver") {
		n.t.Errorf("%s is not the one of %s", n.exe(), bin)
	}
	if st, err := os.Lstat(n.exe()); err != nil || st.Mode() != 0o755 {
		n.t.Errorf("%v, %v", st, err)
	}
	if got := answered(n.exe()); got != mode {
		n.t.Errorf("init says attach:%s, want %s", got, mode)
	}
	n.nothingElse("flexd~lvm", "flexd~lvm/.lvm.init.json", "flexd~lvm/lvm")
}

// nothingElse holds the plugin directory to be these, and nothing staged beside.
func (n *node) nothingElse(want ...string) {
	n.t.Helper()
	got := []string{}
	filepath.WalkDir(n.plugins(), func(path string, d fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(n.plugins(), path); rel != "." {
			got = append(got, rel)
		}
		return err
	})
	if !slices.Equal(got, want) {
		n.t.Errorf("the plugin directory has %v, want %v", got, want)
	}
	beside, err := os.ReadDir(filepath.Dir(n.plugins()))
	if err != nil || len(beside) != 1 {
		n.t.Errorf("beside the plugin directory: %v, %v", beside, err)
	}
}

// answered is the mode in the answer to init, or what is wrong with it.
func answered(exe string) string {
	out, err := exec.Command(exe, "init").CombinedOutput()
	switch {
	case err != nil:
		return err.Error()
	case strings.HasPrefix(string(out), `{"status":"Success","capabilities":{"attach":true,`):
		return "true"
	case strings.HasPrefix(string(out), `{"status":"Success","capabilities":{"attach":false,`):
		return "false"
	}
	return string(out)
}

func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in:\n%s", w, text)
		}
	}
}
