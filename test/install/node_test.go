package install

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flexd/flexd/test/umount"
	"golang.org/x/sys/unix"
)

// The plugin directory and the mode are found as kubelet runs, or would.
func TestFound(t *testing.T) {
	const elsewhere = "/var/lib/kubelet/volumeplugins"
	for _, row := range []struct {
		name  string
		node  func(n *node)
		args  []string
		dir   string
		mode  string
		words []string
	}{
		{"nothing", func(n *node) {}, nil, pluginDir, "false", []string{"(kubelet's default; a guess)"}},
		{"a kubelet without a word", func(n *node) { n.kubelet("7") }, nil, pluginDir, "false",
			[]string{"(kubelet's default)", "leaves attaching to the controller manager"}},
		{"flags", func(n *node) {
			n.kubelet("7", "--volume-plugin-dir=/wrong", "--volume-plugin-dir", elsewhere, "--enable-controller-attach-detach=false")
		}, nil, elsewhere, "true", []string{"(--volume-plugin-dir)", "kubelet attaches by itself"}},
		{"configuration", func(n *node) {
			n.kubelet("7", "--config=/etc/kubelet.yaml")
			n.write("/etc/kubelet.yaml", "# volumePluginDir: /wrong\nkind: KubeletConfiguration\nenableControllerAttachDetach: false # ours\nvolumePluginDir: \""+elsewhere+"\"\n")
		}, nil, elsewhere, "true", []string{"volumePluginDir in /etc/kubelet.yaml"}},
		{"configuration as JSON", func(n *node) {
			n.kubelet("7", "--config", "/etc/kubelet.json")
			n.write("/etc/kubelet.json", `{"kind":"KubeletConfiguration","volumePluginDir":"`+elsewhere+`","enableControllerAttachDetach":false}`)
		}, nil, elsewhere, "true", nil},
		{"configuration with an alias and a null", func(n *node) {
			n.kubelet("7", "--config=/etc/kubelet.yaml")
			n.write("/etc/kubelet.yaml", "a: &x "+elsewhere+"\nvolumePluginDir: *x\nenableControllerAttachDetach: null\n")
		}, nil, elsewhere, "false", nil},
		{"flags win", func(n *node) {
			n.kubelet("7", "--config=/etc/kubelet.yaml", "--enable-controller-attach-detach=true")
			n.write("/etc/kubelet.yaml", "enableControllerAttachDetach: false\n")
		}, nil, pluginDir, "false", nil},
		{"a drop-in wins", func(n *node) {
			n.kubelet("7", "--config=/etc/kubelet.yaml", "--config-dir=/etc/kubelet.d")
			n.write("/etc/kubelet.yaml", "volumePluginDir: /wrong\n")
			n.write("/etc/kubelet.d/10.conf", "volumePluginDir: /wrong\n")
			n.write("/etc/kubelet.d/20.conf", "volumePluginDir: "+elsewhere+"\nenableControllerAttachDetach: false\n")
		}, nil, elsewhere, "true", nil},
		{"kubeadm before kubelet's first start", func(n *node) {
			n.write("/var/lib/kubelet/config.yaml", "enableControllerAttachDetach: false\n")
			n.write("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\"--volume-plugin-dir="+elsewhere+" --v=2\"\n")
		}, nil, elsewhere, "true", []string{"a guess"}},
		{"the default file is nothing to a kubelet that does not read it", func(n *node) {
			n.kubelet("7")
			n.write("/var/lib/kubelet/config.yaml", "enableControllerAttachDetach: false\n")
		}, nil, pluginDir, "false", nil},
		{"a call of kubelet's before its exec is no second kubelet", func(n *node) {
			n.kubelet("7", "--enable-controller-attach-detach=false")
			n.kubelet("8")
			n.write("/proc/8/stat", "8 (kubelet) R 7"+strings.Repeat(" 0", 40)+"\n")
		}, nil, pluginDir, "true", nil},
		{"given", func(n *node) { n.kubelet("7"); n.kubelet("9") }, []string{"--plugin-dir", elsewhere + "/", "--attach=true"}, elsewhere, "true",
			[]string{"(given)", "as --attach says"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t)
			row.node(n)
			contains(t, n.driver(one, row.args...), row.words...)
			if got := answered(n.root + row.dir + "/flexd~lvm/lvm"); got != row.mode {
				t.Errorf("init says attach:%s, want %s", got, row.mode)
			}
			if again := n.driver(one, row.args...); !strings.Contains(again, "same: ") {
				t.Errorf("the second time it says\n%s", again)
			}
		})
	}
}

// An upgrade never changes the mode by itself.
func TestModeStays(t *testing.T) {
	n := newNode(t)
	n.kubelet("7", "--enable-controller-attach-detach=false")
	n.driver(one, "--attach=false")
	contains(t, n.driver(two), "as before, though kubelet attaches by itself", "drain the node, then --attach=true")
	n.installed(two, "false")
}

// While volumes are mounted the mode stays, with any --attach, and the driver too. Upgrades
// go on.
func TestMounted(t *testing.T) {
	for _, row := range []struct{ name, was, want, dir, shown string }{
		{"a pod's", "false", "true", "/var/lib/kubelet/pods/uid-a/volumes/flexd~lvm/data", ""},
		{"a global one", "true", "false", "/data/kubelet/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/pv1", ""},
		{"below a directory with a space", "false", "true", "/var/lib/my kubelet/pods/uid-a/volumes/flexd~lvm/data", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t)
			n.driver(one, "--attach="+row.was)
			n.mount(row.dir)
			n.mount("/var/lib/kubelet/pods/uid-b/volumes/flexd~other/data") // of no interest
			n.refuses(n.driverCommand(two, "install", "--attach="+row.want), n.root+row.dir+"\n", "attach:"+row.was+" to attach:"+row.want, "drain")
			n.refuses(n.command("uninstall.sh", "--bin", one), n.root+row.dir+"\n", "drain")
			n.driver(two)
			n.installed(two, row.was)
			if err := umount.Plain(n.root + row.dir); err != nil {
				t.Fatal(err)
			}
			n.driver(two, "--attach="+row.want)
			n.installed(two, row.want)
			n.remove()
			n.nothingElse()
		})
	}
}

// What a kubelet in another mount namespace has mounted counts as well.
func TestMountedElsewhere(t *testing.T) {
	n := newNode(t)
	n.kubelet("7")
	n.driver(one)
	n.write("/proc/7/mountinfo", "36 35 98:0 / /var/lib/kubelet/pods/uid-a/volumes/flexd~lvm/data rw - ext4 /dev/x rw\n")
	n.refuses(n.driverCommand(one, "install", "--attach=true"), "/var/lib/kubelet/pods/uid-a/volumes/flexd~lvm/data")
	n.refuses(n.command("uninstall.sh", "--bin", one), "/var/lib/kubelet/pods/uid-a/volumes/flexd~lvm/data")
}

// A driver that was installed by hand without a dotfile is attach:true.
func TestNoDotfile(t *testing.T) {
	n := newNode(t)
	n.write(pluginDir+"/flexd~lvm/lvm", n.read(two+"/flexdriver"))
	n.mount("/var/lib/kubelet/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/pv1")
	n.refuses(n.driverCommand(one, "install", "--attach=false"), "from attach:true to attach:false")
	n.driver(one)
	n.installed(one, "true")
}

func TestRefused(t *testing.T) {
	for _, row := range []struct {
		name  string
		node  func(n *node)
		args  []string
		words []string
	}{
		{"option", func(n *node) {}, []string{"--atach=true"}, []string{"there is no option --atach=true"}},
		{"value missing", func(n *node) {}, []string{"--attach"}, []string{"--attach needs a value"}},
		{"value empty", func(n *node) {}, []string{"--plugin-dir="}, []string{"--plugin-dir needs a value"}},
		{"configuration in a pipe", func(n *node) { mkfifo(n, "/pipe") }, []string{"--config=ROOT/pipe"}, []string{"not a regular file"}},
		{"configuration leads nowhere", func(n *node) { n.mkdir("/etc/flexd"); n.link("/nothing-of-flexd", n.root+"/etc/flexd/flexd.yaml") }, nil,
			[]string{"flexd.yaml is a symbolic link to a file that does not exist"}},
		{"directory in the place of flexdriver", func(n *node) { n.mkdir("/usr/local/lib/flexd/flexdriver") }, nil, []string{"flexdriver is a directory"}},
		{"prefix out of the root", func(n *node) { n.link(n.t.TempDir(), n.root+"/usr/local") }, nil, []string{"leads out of --root"}},
		{"init's file is a pipe", func(n *node) { mkfifo(n, pluginDir+"/flexd~lvm/.lvm.init.json"); n.configure() }, nil, []string{".lvm.init.json is not a regular file"}},
		{"copies out of the root", func(n *node) {
			n.write(pluginDir+"/flexd~lvm/lvm", "#!/bin/sh\n")
			n.mkdir("/var")
			n.link(n.t.TempDir(), n.root+"/var/lib")
			n.configure()
		}, []string{"--replace-driver", "--dry-run"}, []string{"leads out of --root"}},
		{"mode", func(n *node) {}, []string{"--attach=maybe"}, []string{"true or false"}},
		{"not built", func(n *node) {}, []string{"--bin", "/nowhere"}, []string{"/nowhere/flexd", "make build"}},
		{"root", func(n *node) {}, []string{"--root", "/nowhere"}, []string{"--root /nowhere"}},
		{"relative plugin directory", func(n *node) {}, []string{"--plugin-dir=plugins"}, []string{"not an absolute path"}},
		{"driver's directory is a link", func(n *node) {
			n.mkdir("/elsewhere")
			n.link(n.root+"/elsewhere", n.dir())
		}, nil, []string{"flexd~lvm is a symbolic link", "bind-mount"}},
		{"plugin directory is a link", func(n *node) {
			n.mkdir("/elsewhere")
			n.link("../elsewhere", n.root+"/usr/plugins")
		}, []string{"--plugin-dir=/usr/plugins"}, []string{"/usr/plugins is a symbolic link"}},
		{"out of the root", func(n *node) { n.link(n.t.TempDir(), n.root+"/opt") }, []string{"--plugin-dir=/opt/plugins"},
			[]string{"/opt/plugins leads out of --root", "/002/plugins"}},
		{"plugin directory is a file", func(n *node) { n.write("/plugins", "") }, []string{"--plugin-dir=/plugins"}, []string{"is not a directory"}},
		{"plugin directory of everybody", func(n *node) { n.chmod(n.plugins(), 0o777) }, nil, []string{"mode 0777", "chmod go-w"}},
		{"plugin directory is like /tmp", func(n *node) { n.chmod(n.plugins(), 0o777|os.ModeSticky) }, nil, []string{"mode 0777", "another directory"}},
		{"driver's directory of a group", func(n *node) {
			n.mkdir(pluginDir + "/flexd~lvm")
			n.chmod(n.dir(), 0o775)
		}, nil, []string{"mode 0775", "chmod go-w"}},
		{"plugin directory of another", func(n *node) {
			if err := os.Chown(n.plugins(), 4711, 0); err != nil {
				n.t.Fatal(err)
			}
		}, nil, []string{"uid 4711", "chown root"}},
		{"executable is a directory", func(n *node) { n.mkdir(pluginDir + "/flexd~lvm/lvm") }, nil, []string{"is not a regular file"}},
		{"configuration not readable", func(n *node) { n.kubelet("7", "--config=/etc/kubelet.yaml") }, nil, []string{"/etc/kubelet.yaml cannot be read"}},
		{"kubelet elsewhere", func(n *node) {
			n.kubelet("7")
			os.Remove(n.root + "/proc/7/root")
			n.mkdir("/proc/7/root" + pluginDir)
		}, nil, []string{"another one than here", "bind a directory"}},
		{"a kubelet's directory is the container's own", func(n *node) {
			n.kubelet("7", "--volume-plugin-dir=/own/x")
			os.Remove(n.root + "/proc/7/root")
			n.mkdir("/proc/7/root/own")
			n.write("/proc/7/mountinfo", "20 1 8:1 / / rw - overlay overlay rw\n")
			n.configure()
		}, nil, []string{"runs in a container", "/own/x"}},
		{"noexec", func(n *node) {
			n.kubelet("7", "--volume-plugin-dir=/noexec/x")
			n.mount("/noexec")
			n.remount("/noexec", unix.MS_NOEXEC)
			n.configure()
		}, nil, []string{"noexec", "remount,exec"}},
		{"noexec for kubelet", func(n *node) {
			n.kubelet("7")
			n.write("/proc/7/mountinfo", mountinfo+"21 20 8:2 / /usr rw,noexec - ext4 /dev/sda2 rw\n")
			n.configure()
		}, nil, []string{"noexec", "remount,exec"}},
		{"prefix with noexec", func(n *node) { n.mount("/opt"); n.remount("/opt", unix.MS_NOEXEC) }, []string{"--prefix=/opt"}, []string{"noexec", "another --prefix"}},
		{"read-only plugin directory", func(n *node) { n.mount("/opt"); n.remount("/opt", unix.MS_RDONLY); n.configure() }, []string{"--plugin-dir=/opt/x"},
			[]string{"read-only", "volumePluginDir", "/var/lib/kubelet/volumeplugins"}},
		{"relative prefix", func(n *node) {}, []string{"--prefix=opt"}, []string{"plain absolute path"}},
		{"another prefix", func(n *node) { n.install(one) }, []string{"--prefix=/opt"}, []string{"flexd is installed in /usr/local"}},
		{"a link to nothing", func(n *node) { n.link("/nothing-of-flexd", n.root+"/opt"); n.configure() }, []string{"--plugin-dir=/opt/x"},
			[]string{"/opt is a symbolic link to a directory that does not exist"}},
		{"a package", func(n *node) { n.write("/usr/lib/systemd/system/flexd.service", "") }, nil, []string{"package manager"}},
		{"another driver", func(n *node) { n.write(pluginDir+"/flexd~lvm/lvm", "#!/bin/sh\n"); n.configure() }, nil, []string{"another program", "--replace-driver"}},
		{"kubelet's root directory", func(n *node) { n.kubelet("7", "--root-dir=/data"); n.configure() }, nil, []string{`kubeletRoots: ["/data"]`}},
		{"no such configuration", func(n *node) {}, []string{"--config=/nowhere"}, []string{"/nowhere cannot be read"}},
		{"another configuration", func(n *node) { n.configure(); n.write("/new", "lease: 1m\n") }, []string{"--config=ROOT/new"}, []string{"another configuration", "--replace-config"}},
		{"wrong configuration", func(n *node) { n.write("/new", "leese: 1m\n") }, []string{"--config=ROOT/new"}, []string{"leese", "nothing was changed"}},
		{"configuration of flexd", func(n *node) { n.write("/etc/flexd/flexd.yaml", "leese: 1s\n") }, nil, []string{"leese", "nothing was changed"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t)
			row.node(n)
			args := []string{"--bin", one}
			for _, a := range row.args {
				args = append(args, strings.ReplaceAll(a, "ROOT", n.root))
			}
			n.refuses(n.command("install.sh", args...), row.words...)
		})
	}
}

func (n *node) link(to, at string) {
	n.t.Helper()
	if err := os.Symlink(to, at); err != nil {
		n.t.Fatal(err)
	}
}

func mkfifo(n *node, path string) {
	n.t.Helper()
	n.mkdir(filepath.Dir(path))
	if err := unix.Mkfifo(n.root+path, 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) chmod(path string, mode os.FileMode) {
	n.t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		n.t.Fatal(err)
	}
}

// flexd is replaced by rename, its configuration never.
func TestFlexd(t *testing.T) {
	n := newNode(t)
	n.kubelet("7", "--root-dir=/data/kubelet")
	contains(t, n.install(one), "start: nothing", "no driver while the configuration has no volume group", "flexd driver install --root "+n.root)
	n.nothingElse()
	flexd, units, config := n.root+"/usr/local/bin/flexd", n.root+"/usr/local/lib/systemd/system/", n.root+"/etc/flexd/flexd.yaml"
	for _, unit := range []string{"flexd.service", "flexd-driver.socket", "flexd-status.socket"} {
		if n.read(units+unit) != n.read("../../examples/"+unit) {
			t.Errorf("another %s", unit)
		}
	}
	contains(t, n.read(config), "\nkubeletRoots: [\"/data/kubelet\"]\n", "\n# volumeGroups:\n#   - name: vg0\n")
	contains(t, n.succeeds(exec.Command(flexd, "config", "--check", config)), "volume groups: none")
	if st, err := os.Stat(config); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	rule := n.root + "/etc/udev/rules.d/12-flexd.rules"
	contains(t, n.read(rule), `TEST=="/var/lib/flexd/udev/`)

	// The file that a running flexd has open is not written to.
	if err := os.Link(flexd, n.root+"/open"); err != nil {
		t.Fatal(err)
	}
	text := "driver: example.com/store\nkubeletRoots: [/data/kubelet]\nstateDir: /data/flexd\n" + configuration
	n.write("/etc/flexd/flexd.yaml", text)
	contains(t, n.install(two), "keep: "+config)
	contains(t, n.read(rule), `TEST=="/data/flexd/udev/`)
	if n.read(flexd) != n.read(two+"/flexd") || n.read(n.root+"/open") != n.read(one+"/flexd") {
		t.Error("flexd was not replaced by rename")
	}
	if got := n.read(config); got != text {
		t.Errorf("the configuration is now %q", got)
	}
	store := n.plugins() + "/example.com~store/store"
	if got := answered(store); got != "false" {
		t.Errorf("init says %s", got)
	}
	before := n.tree()
	contains(t, n.install(two), "same: "+flexd, "same: "+units+"flexd.service", "same: "+rule, "same: "+store)
	n.same(before)
}

func TestUninstall(t *testing.T) {
	n := newNode(t)
	p := startProber(t, n.plugins())
	n.configure()
	n.install(one)
	p.settled(1)
	n.write("/var/lib/flexd/formats/x", "")
	config, state := n.root+"/etc/flexd/flexd.yaml", n.root+"/var/lib/flexd"
	if !p.knows("flexd~lvm") {
		t.Fatal("kubelet does not know the driver")
	}

	before := n.tree()
	contains(t, n.uninstall("--dry-run"), "would remove "+n.exe())
	n.same(before)

	contains(t, n.uninstall(), "keep: "+config, "keep: "+state+": these records")
	for end := time.Now().Add(5 * time.Second); p.knows("flexd~lvm") && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
	}
	if inits := p.settled(0); len(inits) > 0 || p.knows("flexd~lvm") || p.failures() > 0 {
		t.Errorf("kubelet knows the driver: %v; it asked %q; %d look-ups failed", p.knows("flexd~lvm"), inits, p.failures())
	}
	n.nothingElse()
	n.read(config)

	contains(t, n.uninstall("--purge"), "remove "+config, "keep: "+state)
	for path, there := range map[string]bool{
		config: false, n.root + "/usr/local/bin/flexd": false, n.root + "/usr/local/lib/systemd/system/flexd.service": false,
		n.root + "/usr/local/lib/systemd/system/flexd-driver.socket": false, n.root + "/usr/local/lib/systemd/system/flexd-status.socket": false,
		n.root + "/etc/udev/rules.d/12-flexd.rules": false, n.root + "/usr/local/lib/flexd": false,
		state + "/formats/x": true, n.plugins(): true,
	} {
		if _, err := os.Stat(path); (err == nil) != there {
			t.Errorf("%s: %v", path, err)
		}
	}

	// Installed again, kubelet finds it again.
	n.driver(one)
	if inits := p.settled(1); len(inits) != 1 || !p.knows("flexd~lvm") {
		t.Errorf("after it came back kubelet asked %q", inits)
	}
}

// Other files in the directory stay.
func TestUninstallLeavesOthers(t *testing.T) {
	n := newNode(t)
	n.driver(one)
	n.write(pluginDir+"/flexd~lvm/notes", "mine")
	contains(t, n.remove(), "other files: notes")
	n.nothingElse("flexd~lvm", "flexd~lvm/notes")
}

// With systemd, what is started and stopped is said and done in order. systemctl
// is a script here, in namespaces of its own where a systemd seems to run, and
// where neither the kubelet nor the volumes of this machine or another test are.
func TestSystemd(t *testing.T) {
	n := newNode(t)
	n.write("/bin/systemctl", `#!/bin/sh
echo "$*" >>`+n.root+`/asked
case $* in
"-q is-active flexd") test -e `+n.root+`/active ;;
"-q enable --now flexd") test -e `+n.root+`/broken && exit 1; touch `+n.root+`/active ;;
esac
`)
	n.chmod(n.root+"/bin/systemctl", 0o755)
	here := func(script string, args ...string) *exec.Cmd {
		c := exec.Command("unshare", append([]string{"--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", `
			awk '/flexd~|flexvolume/ { print $5 }' /proc/self/mountinfo | xargs -r umount -l
			mount --bind ` + n.root + `/usr/local /usr/local && mount --bind ` + n.root + `/etc /etc &&
			mount --bind ` + n.root + `/run /run && exec ../../scripts/"$@"`, "sh", script, "--plugin-dir", n.plugins()}, args...)...)
		c.Env = append(os.Environ(), "PATH="+n.root+"/bin:"+os.Getenv("PATH"))
		return c
	}
	for _, dir := range []string{"/usr/local", "/etc", "/run/systemd/system"} {
		n.mkdir(dir)
	}
	n.configure()
	step := func(c *exec.Cmd, said string, want ...string) {
		t.Helper()
		os.Remove(n.root + "/asked")
		contains(t, n.succeeds(c), said)
		if got := strings.TrimSpace(n.read(n.root + "/asked")); got != strings.Join(want, "\n") {
			t.Errorf("systemctl was asked\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
	}
	n.write("/broken", "")
	if out, err := here("install.sh", "--bin", one).CombinedOutput(); err == nil || !strings.Contains(string(out), "journalctl -u flexd") {
		t.Errorf("flexd that does not start: %v\n%s", err, out)
	}
	n.nothingElse() // no driver before its flexd
	os.Remove(n.root + "/broken")
	step(here("install.sh", "--bin", one), "systemctl enable --now flexd", "-q is-active flexd", "-q enable --now flexd")
	step(here("install.sh", "--bin", one), "same: ", "-q is-active flexd")
	step(here("install.sh", "--bin", two, "--dry-run"), "would systemctl restart flexd", "-q is-active flexd")
	step(here("install.sh", "--bin", two), "systemctl restart flexd", "daemon-reload", "-q is-active flexd", "restart flexd")
	n.installed(two, "false")
	step(here("uninstall.sh"), "systemctl disable --now flexd-driver.socket flexd-status.socket flexd.service", "-q disable --now flexd-driver.socket flexd-status.socket flexd.service", "daemon-reload")
	n.nothingElse()
}

func TestHelp(t *testing.T) {
	n := newNode(t)
	for _, script := range []string{"install.sh", "uninstall.sh"} {
		text := n.succeeds(exec.Command("../../scripts/"+script, "--help"))
		source := n.read("../../scripts/" + script)
		for _, option := range []string{"--root", "--prefix", "--config", "--replace-config", "--plugin-dir", "--replace-driver", "--attach", "--bin", "--no-start", "--purge", "--dry-run"} {
			if strings.Contains(source, option+")") != strings.Contains(text, "\n  "+option+" ") && strings.Contains(source, option+")") != strings.Contains(text, "\n  "+option+"=") {
				t.Errorf("%s --help and %s", script, option)
			}
		}
	}
}

// configure gives flexd a volume group.
func (n *node) configure() { n.write("/etc/flexd/flexd.yaml", configuration) }

// remount sets flags of a mount.
func (n *node) remount(dir string, flags uintptr) {
	n.t.Helper()
	if err := unix.Mount("", n.root+dir, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
		n.t.Fatal(err)
	}
}

// A second run installs the driver once the configuration has a volume group; the former configuration is
// kept.
func TestConfiguration(t *testing.T) {
	n := newNode(t)
	n.install(one)
	config := n.root + "/etc/flexd/flexd.yaml"
	first := n.read(config)
	n.write("/new", configuration)
	contains(t, n.install(one, "--config", n.root+"/new", "--replace-config", "--dry-run"), "would write "+config, "would write "+n.exe())
	n.nothingElse()
	n.install(one, "--config", n.root+"/new", "--replace-config")
	n.installed(one, "false")
	if n.read(config) != configuration || n.read(config+".before") != first {
		t.Errorf("the configuration is %q, the former one %q", n.read(config), n.read(config+".before"))
	}
	contains(t, n.install(one, "--config", n.root+"/new"), "keep: "+config)

	// Without a volume group an installed driver is upgraded all the same.
	n.write("/etc/flexd/flexd.yaml", "lease: 1m\n")
	contains(t, n.install(two), "note: ", "has no volume group")
	n.installed(two, "false")
}

// Where /usr is read-only, flexd is in /opt, and kubelet's plugin directory elsewhere.
func TestReadOnlyUsr(t *testing.T) {
	n := newNode(t)
	n.mount("/usr")
	n.remount("/usr", unix.MS_RDONLY)
	n.configure()
	n.refuses(n.command("install.sh", "--bin", one), "read-only", "volumePluginDir")
	n.kubelet("7", "--volume-plugin-dir=/var/lib/kubelet/volumeplugins")
	contains(t, n.install(one), "prefix             /opt (since "+n.root+"/usr/local cannot be written)")
	contains(t, n.read(n.root+"/etc/systemd/system/flexd.service"), "\nExecStart=/opt/bin/flexd serve ")
	if got := answered(n.root + "/var/lib/kubelet/volumeplugins/flexd~lvm/lvm"); got != "false" {
		t.Errorf("init says %s", got)
	}
	before := n.tree()
	contains(t, n.install(one), "prefix             /opt (as before)")
	contains(t, n.succeeds(exec.Command(n.root+"/opt/bin/flexd", "driver", "install", "--root", n.root)), "same: ")
	n.same(before)
	n.uninstall()
	for _, file := range []string{"/opt/bin/flexd", "/opt/lib/flexd", "/etc/systemd/system/flexd.service", "/var/lib/kubelet/volumeplugins/flexd~lvm"} {
		if _, err := os.Lstat(n.root + file); err == nil {
			t.Errorf("%s stays", file)
		}
	}
}

// Two kubelets get one driver each, or share one.
func TestTwoKubelets(t *testing.T) {
	n := newNode(t)
	n.kubelet("7")
	n.kubelet("8")
	n.kubelet("9", "--volume-plugin-dir=/nine", "--enable-controller-attach-detach=false")
	n.kubelet("10", "--volume-plugin-dir=/ten")
	n.driver(one)
	n.installed(one, "false")
	if got := answered(n.root + "/nine/flexd~lvm/lvm"); got != "true" {
		t.Errorf("init says %s", got)
	}
	n.remove()
	n.nothingElse()
	if _, err := os.Stat(n.root + "/nine/flexd~lvm"); err == nil {
		t.Error("the driver of the second kubelet stays")
	}
}

// The plugin directory of a kubelet in a container is found where the host has it.
func TestContainer(t *testing.T) {
	n := newNode(t)
	n.kubelet("7", "--volume-plugin-dir=/plugins/exec")
	n.mount("/data")
	n.mkdir("/data/plugins")
	os.Remove(n.root + "/proc/7/root")
	n.mkdir("/proc/7/root")
	n.link(n.root+"/data/plugins", n.root+"/proc/7/root/plugins") // a bind mount
	var st unix.Stat_t
	if err := unix.Stat(n.root+"/data", &st); err != nil {
		t.Fatal(err)
	}
	n.write("/proc/7/mountinfo", fmt.Sprintf("20 1 0:99 / / rw - overlay overlay rw\n21 20 %d:%d /plugins /plugins rw - tmpfs tmpfs rw\n", unix.Major(st.Dev), unix.Minor(st.Dev)))
	contains(t, n.driver(one), "which is "+n.root+"/data/plugins/exec here", "runs in a container without / of the host")
	if got := answered(n.root + "/data/plugins/exec/flexd~lvm/lvm"); got != "false" {
		t.Errorf("init says %s", got)
	}
}

// Another driver is replaced only on request, in its mode while volumes are mounted, and comes
// back in one rename.
func TestReplace(t *testing.T) {
	const other = "#!/bin/sh\n[ $1 = init ] && echo '{\"status\":\"Success\"}'\n"
	n := newNode(t)
	n.write(pluginDir+"/flexd~lvm/lvm", other)
	n.chmod(n.exe(), 0o755)
	n.write(pluginDir+"/flexd~lvm/README", "theirs")
	n.chmod(n.dir()+"/README", 0o600)
	n.mount("/var/lib/kubelet/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/pv1")
	n.refuses(n.driverCommand(one, "install"), "another program", "--replace-driver")
	n.refuses(n.driverCommand(one, "install", "--replace-driver", "--attach=false"), "from attach:true to attach:false")
	contains(t, n.remove(), "keep: "+n.exe()+": it is not flexd's driver")

	p := startProber(t, n.plugins())
	kept := n.root + "/var/lib/flexd/replaced" + pluginDir + "/flexd~lvm"
	replace := n.driverCommand(one, "install", "--replace-driver")
	contains(t, n.succeeds(exec.Command("sh", append([]string{"-c", `umask 0 && exec "$@"`, "sh"}, replace.Args...)...)), "keep a copy of "+n.dir()+" in "+kept, "true (as before")
	if inits := p.settled(1); len(inits) != 1 {
		t.Errorf("init was asked %d times: %q", len(inits), inits)
	}
	n.nothingElse("flexd~lvm", "flexd~lvm/.lvm.init.json", "flexd~lvm/README", "flexd~lvm/lvm")
	if n.read(kept+"/lvm") != other || n.read(kept+"/README") != "theirs" {
		t.Error("the copy is another one")
	}
	n.driver(two, "--replace-driver") // an upgrade
	p.settled(1)
	n.refuses(n.driverCommand(one, "remove"), "volumes of flexd/lvm are mounted")

	before := n.tree()
	contains(t, n.succeeds(n.driverCommand(one, "restore", "--dry-run")), "would restore "+n.exe())
	n.same(before)
	n.succeeds(exec.Command("sh", append([]string{"-c", `umask 0 && exec "$@"`, "sh"}, n.driverCommand(one, "restore").Args...)...))
	if inits := p.settled(1); len(inits) != 1 || p.failures() > 0 {
		t.Errorf("init was asked %d times: %q; %d look-ups failed", len(inits), inits, p.failures())
	}
	n.nothingElse("flexd~lvm", "flexd~lvm/README", "flexd~lvm/lvm")
	if st, err := os.Stat(n.exe()); err != nil || st.Mode() != 0o755 || n.read(n.exe()) != other {
		t.Errorf("another driver came back: %v, %v", st, err)
	}
	contains(t, n.succeeds(n.driverCommand(one, "restore")), "none: no driver was replaced")
}

// A restoration that was cut is continued. What is restored has its modes and owners.
func TestCutRestoration(t *testing.T) {
	const other = "#!/bin/sh\n[ $1 = init ] && echo '{\"status\":\"Success\"}'\n"
	n := newNode(t)
	n.write(pluginDir+"/flexd~lvm/lvm", other)
	n.write(pluginDir+"/flexd~lvm/secret", "theirs")
	if err := os.Chown(n.dir()+"/secret", 4711, 4711); err != nil {
		t.Fatal(err)
	}
	n.chmod(n.dir()+"/secret", 0o600)
	n.chmod(n.exe(), 0o755)
	n.driver(one, "--replace-driver")
	n.write(pluginDir+"/flexd~lvm/lvm", other) // before init's file is removed
	n.succeeds(n.driverCommand(one, "restore"))
	n.nothingElse("flexd~lvm", "flexd~lvm/lvm", "flexd~lvm/secret")

	n.driver(one, "--replace-driver")
	if err := os.RemoveAll(n.dir()); err != nil {
		t.Fatal(err)
	}
	n.succeeds(n.driverCommand(one, "restore"))
	var st unix.Stat_t
	if err := unix.Stat(n.dir()+"/secret", &st); err != nil || st.Mode&0o777 != 0o600 || st.Uid != 4711 {
		t.Errorf("the file has mode %o and owner %d: %v", st.Mode, st.Uid, err)
	}
	if st, err := os.Stat(n.dir()); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("the directory: %v, %v", st, err)
	}
}

// A driver that others may write is replaced, though it is the same.
func TestWritableDriver(t *testing.T) {
	n := newNode(t)
	n.driver(one)
	for _, change := range []func() error{
		func() error { return os.Chmod(n.exe(), 0o777) },
		func() error { return os.Chmod(n.dotfile(), 0o666) },
		func() error { return os.Chown(n.exe(), 4711, 0) },
		func() error { return os.Chown(n.dotfile(), 4711, 0) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		contains(t, n.driver(one), "replace ")
		n.installed(one, "false")
		for _, file := range []string{n.exe(), n.dotfile()} {
			if st, err := os.Stat(file); err != nil || st.Mode()&0o022 != 0 || st.Sys().(*syscall.Stat_t).Uid != 0 {
				t.Errorf("%s: %v, %v", file, st, err)
			}
		}
	}
}

// Without a valid configuration another driver is not taken for the default one.
func TestUnknownName(t *testing.T) {
	n := newNode(t)
	n.write("/etc/flexd/flexd.yaml", configuration+"driver: acme/disk\n")
	n.driver(one)
	n.write("/etc/flexd/flexd.yaml", configuration+"driver: acme/disk\nleese: 1m\n")
	for _, args := range [][]string{{"remove"}, {"restore"}, {"install", "--upgrade"}} {
		n.refuses(n.driverCommand(one, args[0], args[1:]...), "name of the driver is unknown", "leese", "--driver")
	}
	n.refuses(n.command("uninstall.sh", "--bin", one), "name of the driver is unknown")
	contains(t, n.remove("--driver=acme/disk"), "remove "+n.plugins()+"/acme~disk/disk")
	if out, err := exec.Command(one+"/flexd", "driver", "status", "--root", "").CombinedOutput(); err == nil {
		t.Errorf("--root without a directory is taken for this machine:\n%s", out)
	}
}

// Without space an installation leaves nothing incomplete.
func TestFullPrefix(t *testing.T) {
	n := newNode(t)
	n.configure()
	n.mount("/opt")
	if err := unix.Mount("", n.root+"/opt", "", unix.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	n.mkdir("/opt/bin/.flexd.new")
	if out, err := n.command("install.sh", "--bin", one, "--prefix=/opt").CombinedOutput(); err == nil || !strings.Contains(string(out), "what to do: ") {
		t.Errorf("%v:\n%s", err, out)
	}
	if files, err := os.ReadDir(n.root + "/opt/bin"); err != nil || len(files) > 0 {
		t.Errorf("%v, %v", files, err)
	}
}

// A directory that kubelet does not use is reported, and so are guesses.
func TestGivenDirectory(t *testing.T) {
	n := newNode(t)
	contains(t, n.remove(), "a guess")
	n.kubelet("7")
	contains(t, n.driver(one, "--plugin-dir=/opt/x"), "note: kubelet (pid 7) has its drivers in "+pluginDir)
}

// An uninstallation that was cut can be run again.
func TestCutUninstallation(t *testing.T) {
	n := newNode(t)
	n.configure()
	n.install(one, "--prefix=/srv/f")
	lib := n.root + "/srv/f/lib/flexd/"
	n.write("/srv/f/lib/flexd/.flexdriver.new", "half")
	// The first file that goes away is not what tells the prefix.
	c := n.command("uninstall.sh", "--bin", one)
	out := n.succeeds(c)
	if unit, exe := strings.Index(out, "flexd.service"), strings.Index(out, "/srv/f/bin/flexd"); unit < exe || exe < 0 {
		t.Errorf("the unit goes before flexd:\n%s", out)
	}
	if _, err := os.Stat(lib); err == nil {
		t.Errorf("%s stays", lib)
	}
}

// A flexd for another architecture is recognized before anything is changed.
func TestArchitecture(t *testing.T) {
	n := newNode(t)
	bin := t.TempDir()
	text := []byte(n.read(one + "/flexd"))
	text[18], text[19] = 0, 0x16 // e_machine
	for _, name := range []string{"flexd", "flexdriver"} {
		if err := os.WriteFile(bin+"/"+name, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.refuses(n.command("install.sh", "--bin", bin), "it is for s390x, and this machine is ")
}

// Killed at any instant, the installer leaves whole files, and the next one finishes.
func TestKilledInstaller(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	n := newNode(t)
	n.configure()
	began := time.Now()
	n.install(one)
	whole := time.Since(began)
	files := func() (all []string) {
		for _, line := range n.tree() {
			all = append(all, strings.Fields(line)[0])
		}
		return all
	}
	want := files()
	for range 6 {
		n.uninstall()
		c := n.command("install.sh", "--bin", one)
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.Float64() * float64(whole)))
		syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		c.Wait()
		for name, from := range map[string]string{"/usr/local/bin/flexd": "flexd", "/usr/local/lib/flexd/flexdriver": "flexdriver"} {
			if text, err := os.ReadFile(n.root + name); err == nil && string(text) != n.read(one+"/"+from) {
				t.Errorf("%s is not whole", name)
			}
		}
		n.install(one)
		n.installed(one, "false")
		if got := files(); !slices.Equal(got, want) {
			t.Fatalf("after a killed installer: %v, want %v", got, want)
		}
	}
}

// On each distribution the driver goes where its kubelet looks, and the first configuration has
// the root directory.
func TestDistributions(t *testing.T) {
	for _, row := range []struct {
		name  string
		node  func(n *node)
		dir   string
		roots string // "" = the default
	}{
		{"kubeadm", func(n *node) {
			n.kubelet("7", "--config=/var/lib/kubelet/config.yaml")
			n.write("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n")
		}, pluginDir, ""},
		{"k3s server", func(n *node) {
			n.process("7", "k3s-server", "server")
			n.write("/etc/rancher/k3s/config.yaml", "kubelet-arg: volume-plugin-dir=/var/lib/kubelet/volumeplugins\n")
		}, "/var/lib/kubelet/volumeplugins", ""},
		{"k3s agent", func(n *node) {
			n.process("7", "k3s-agent", "agent")
			n.write("/etc/systemd/system/k3s-agent.service", "[Service]\nExecStart=/usr/local/bin/k3s agent '--kubelet-arg=root-dir=/data/kubelet'\n")
		}, pluginDir, `["/data/kubelet"]`},
		{"k0s", func(n *node) {
			n.kubelet("7", "--root-dir=/var/lib/k0s/kubelet", "--config=/var/lib/k0s/kubelet-config.yaml")
			n.write("/var/lib/k0s/kubelet-config.yaml", "volumePluginDir: /usr/libexec/k0s/kubelet-plugins/volume/exec\n")
		}, "/usr/libexec/k0s/kubelet-plugins/volume/exec", `["/var/lib/k0s/kubelet"]`},
		{"k0s at /var/lib/kubelet", func(n *node) {
			n.kubelet("7", "--root-dir=/var/lib/k0s/kubelet")
			n.mkdir("/var/lib/k0s/kubelet")
			n.link("k0s/kubelet", n.root+"/var/lib/kubelet")
		}, pluginDir, ""},
		{"k0s, not started", func(n *node) { n.mkdir("/var/lib/k0s") }, "/usr/libexec/k0s/kubelet-plugins/volume/exec", `["/var/lib/k0s/kubelet"]`},
		{"microk8s", func(n *node) {
			n.process("7", "kubelite", "--kubelet-args-file=/var/snap/microk8s/1/args/kubelet")
			n.write("/var/snap/microk8s/1/args/kubelet", "--root-dir=${SNAP_COMMON}/var/lib/kubelet\n--volume-plugin-dir=${SNAP_COMMON}/var/lib/kubelet/volume-plugins\n")
		}, "/var/snap/microk8s/common/var/lib/kubelet/volume-plugins", `["/var/snap/microk8s/common/var/lib/kubelet"]`},
		{"rke2", func(n *node) { n.kubelet("7", "--volume-plugin-dir=/var/lib/kubelet/volumeplugins") }, "/var/lib/kubelet/volumeplugins", ""},
		{"two kubelets", func(n *node) { n.kubelet("7"); n.kubelet("8", "--root-dir=/two") }, pluginDir, `["/var/lib/kubelet", "/two"]`},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t)
			row.node(n)
			n.install(one)
			_, roots, _ := strings.Cut(n.read(n.root+"/etc/flexd/flexd.yaml"), "\nkubeletRoots: ")
			if roots = strings.TrimSpace(roots); roots != row.roots {
				t.Errorf("kubeletRoots: %s, want %s", roots, row.roots)
			}
			text := configuration
			if roots != "" {
				text += "kubeletRoots: " + roots + "\n"
			}
			n.write("/etc/flexd/flexd.yaml", text)
			n.driver(one)
			if got := answered(n.root + row.dir + "/flexd~lvm/lvm"); got != "false" {
				t.Errorf("init says %s", got)
			}
		})
	}
}
