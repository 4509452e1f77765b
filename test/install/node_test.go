package install

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

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
		{"nothing", func(n *node) {}, nil, pluginDir, "false", []string{"kubelet's default; no kubelet runs here now"}},
		{"a kubelet without a word", func(n *node) { n.kubelet("7") }, nil, pluginDir, "false",
			[]string{"(kubelet's default)", "leaves attaching to the controller manager"}},
		{"flags", func(n *node) {
			n.kubelet("7", "--volume-plugin-dir=/wrong", "--volume-plugin-dir", elsewhere, "--enable-controller-attach-detach=false")
		}, nil, elsewhere, "true", []string{"kubelet's --volume-plugin-dir", "kubelet attaches by itself"}},
		{"configuration", func(n *node) {
			n.kubelet("7", "--config=/etc/kubelet.yaml")
			n.write("/etc/kubelet.yaml", "# volumePluginDir: /wrong\nkind: KubeletConfiguration\nenableControllerAttachDetach: false # ours\nvolumePluginDir: \""+elsewhere+"\"\n")
		}, nil, elsewhere, "true", []string{"volumePluginDir of kubelet's configuration"}},
		{"configuration as JSON", func(n *node) {
			n.kubelet("7", "--config", "/etc/kubelet.json")
			n.write("/etc/kubelet.json", `{"kind":"KubeletConfiguration","volumePluginDir":"`+elsewhere+`","enableControllerAttachDetach":false}`)
		}, nil, elsewhere, "true", nil},
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
		}, nil, elsewhere, "true", []string{"no kubelet runs here now"}},
		{"the default file is nothing to a kubelet that does not read it", func(n *node) {
			n.kubelet("7")
			n.write("/var/lib/kubelet/config.yaml", "enableControllerAttachDetach: false\n")
		}, nil, pluginDir, "false", nil},
		{"a call of kubelet's before its exec is no second kubelet", func(n *node) {
			n.kubelet("7", "--enable-controller-attach-detach=false")
			n.kubelet("8")
			n.write("/proc/8/stat", "8 (kubelet) R 7 1 1\n")
		}, nil, pluginDir, "true", nil},
		{"given", func(n *node) { n.kubelet("7"); n.kubelet("9") }, []string{"--plugin-dir", elsewhere + "/", "--attach=true"}, elsewhere, "true",
			[]string{"(given)", "as --attach says"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t)
			row.node(n)
			contains(t, n.install(one, append(row.args, "--driver-only")...), row.words...)
			if got := answered(n.root + row.dir + "/flexd~lvm/lvm"); got != row.mode {
				t.Errorf("init says attach:%s, want %s", got, row.mode)
			}
			if again := n.install(one, append(row.args, "--driver-only")...); !strings.Contains(again, "same: ") {
				t.Errorf("the second time it says\n%s", again)
			}
		})
	}
}

// An upgrade never changes the mode by itself.
func TestModeStays(t *testing.T) {
	n := newNode(t)
	n.kubelet("7", "--enable-controller-attach-detach=false")
	n.install(one, "--driver-only", "--attach=false")
	contains(t, n.install(two, "--driver-only"), "as before, though kubelet attaches by itself", "drain the node, then --attach=true")
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
			n.install(one, "--driver-only", "--attach="+row.was)
			n.mount(row.dir)
			n.mount("/var/lib/kubelet/pods/uid-b/volumes/flexd~other/data") // of no interest
			n.refuses(n.command("install.sh", "--driver-only", "--bin", two, "--attach="+row.want), n.root+row.dir+"\n", "attach:"+row.was+" to attach:"+row.want, "drain")
			n.refuses(n.command("uninstall.sh"), n.root+row.dir+"\n", "drain")
			n.install(two, "--driver-only")
			n.installed(two, row.was)
			if err := unix.Unmount(n.root+row.dir, 0); err != nil {
				t.Fatal(err)
			}
			n.install(two, "--driver-only", "--attach="+row.want)
			n.installed(two, row.want)
			n.uninstall("--driver-only")
			n.nothingElse()
		})
	}
}

// What a kubelet in another mount namespace has mounted counts as well.
func TestMountedElsewhere(t *testing.T) {
	n := newNode(t)
	n.kubelet("7")
	n.install(one, "--driver-only")
	n.write("/proc/7/mountinfo", "36 35 98:0 / /var/lib/kubelet/pods/uid-a/volumes/flexd~lvm/data rw - ext4 /dev/x rw\n")
	n.refuses(n.command("install.sh", "--driver-only", "--bin", one, "--attach=true"), "/var/lib/kubelet/pods/uid-a/volumes/flexd~lvm/data")
	n.refuses(n.command("uninstall.sh"), "/var/lib/kubelet/pods/uid-a/volumes/flexd~lvm/data")
}

// A driver that was installed by hand without a dotfile is attach:true.
func TestNoDotfile(t *testing.T) {
	n := newNode(t)
	n.write(pluginDir+"/flexd~lvm/lvm", "")
	n.mount("/var/lib/kubelet/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/pv1")
	n.refuses(n.command("install.sh", "--driver-only", "--bin", one, "--attach=false"), "from attach:true to attach:false")
	n.install(one, "--driver-only")
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
		{"mode", func(n *node) {}, []string{"--attach=maybe"}, []string{"true or false"}},
		{"driver without vendor", func(n *node) {}, []string{"--driver=lvm"}, []string{"VENDOR/NAME"}},
		{"driver that climbs", func(n *node) {}, []string{"--driver=../lvm"}, []string{"VENDOR/NAME"}},
		{"driver with two slashes", func(n *node) {}, []string{"--driver=a/b/c"}, []string{"VENDOR/NAME"}},
		{"not built", func(n *node) {}, []string{"--bin", "/nowhere"}, []string{"/nowhere/flexdriver", "make build"}},
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
		{"out of the root", func(n *node) { n.link("/tmp", n.root+"/opt") }, []string{"--plugin-dir=/opt/flexd-test-plugins"},
			[]string{"leads out of --root", "/tmp/flexd-test-plugins"}},
		{"plugin directory is a file", func(n *node) { n.write("/plugins", "") }, []string{"--plugin-dir=/plugins"}, []string{"is not a directory"}},
		{"plugin directory of everybody", func(n *node) { n.chmod(n.plugins(), 0o777) }, nil, []string{"mode 777", "chmod go-w"}},
		{"driver's directory of a group", func(n *node) {
			n.mkdir(pluginDir + "/flexd~lvm")
			n.chmod(n.dir(), 0o775)
		}, nil, []string{"mode 775", "chmod go-w"}},
		{"plugin directory of another", func(n *node) {
			if err := os.Chown(n.plugins(), 4711, 0); err != nil {
				n.t.Fatal(err)
			}
		}, nil, []string{"uid 4711", "chown root"}},
		{"executable is a directory", func(n *node) { n.mkdir(pluginDir + "/flexd~lvm/lvm") }, nil, []string{"is not a regular file"}},
		{"two kubelets", func(n *node) { n.kubelet("7"); n.kubelet("9") }, nil, []string{"several kubelets", "7 9", "--plugin-dir"}},
		{"configuration not readable", func(n *node) { n.kubelet("7", "--config=/etc/kubelet.yaml") }, nil, []string{"/etc/kubelet.yaml cannot be read"}},
		{"kubelet elsewhere", func(n *node) {
			n.kubelet("7")
			os.Remove(n.root + "/proc/7/root")
			n.mkdir("/proc/7/root" + pluginDir)
		}, nil, []string{"another directory than here"}},
		{"configuration of flexd", func(n *node) { n.write("/etc/flexd/flexd.yaml", "leese: 1s\n") }, nil, []string{"leese", "nothing was changed"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newNode(t)
			row.node(n)
			n.refuses(n.command("install.sh", append([]string{"--bin", one}, row.args...)...), row.words...)
		})
	}
}

func (n *node) link(to, at string) {
	n.t.Helper()
	if err := os.Symlink(to, at); err != nil {
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
	out := n.install(one, "--driver=example.com/store")
	contains(t, out, "edit it", "start: nothing")
	flexd, units, config := n.root+"/usr/local/bin/flexd", n.root+"/usr/local/lib/systemd/system/", n.root+"/etc/flexd/flexd.yaml"
	if got := answered(n.plugins() + "/example.com~store/store"); got != "false" {
		t.Errorf("init says %s", got)
	}
	for _, unit := range []string{"flexd.service", "flexd-driver.socket", "flexd-status.socket"} {
		if n.read(units+unit) != n.read("../../examples/"+unit) {
			t.Errorf("another %s", unit)
		}
	}
	contains(t, n.read(config), "\ndriver: example.com/store\n", "\nkubeletRoots: [\"/data/kubelet\"]\n", "\n# volumeGroups:\n#   - name: vg0\n")
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
	n.write("/etc/flexd/flexd.yaml", "lease: 1m\nstateDir: /data/flexd\n")
	contains(t, n.install(two), "keep: "+config)
	contains(t, n.read(rule), `TEST=="/data/flexd/udev/`)
	if n.read(flexd) != n.read(two+"/flexd") || n.read(n.root+"/open") != n.read(one+"/flexd") {
		t.Error("flexd was not replaced by rename")
	}
	if got := n.read(config); got != "lease: 1m\nstateDir: /data/flexd\n" {
		t.Errorf("the configuration is now %q", got)
	}
	before := n.tree()
	contains(t, n.install(two), "same: "+flexd, "same: "+units+"flexd.service", "same: "+rule, "same: "+n.exe())
	n.same(before)
}

func TestUninstall(t *testing.T) {
	n := newNode(t)
	p := startProber(t, n.plugins())
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
		n.root + "/etc/udev/rules.d/12-flexd.rules": false,
		state + "/formats/x":                        true, n.plugins(): true,
	} {
		if _, err := os.Stat(path); (err == nil) != there {
			t.Errorf("%s: %v", path, err)
		}
	}

	// Installed again, kubelet finds it again.
	n.install(one, "--driver-only")
	if inits := p.settled(1); len(inits) != 1 || !p.knows("flexd~lvm") {
		t.Errorf("after it came back kubelet asked %q", inits)
	}
}

// Files that are not ours keep the directory, and stay.
func TestUninstallLeavesOthers(t *testing.T) {
	n := newNode(t)
	n.install(one, "--driver-only")
	n.write(pluginDir+"/flexd~lvm/notes", "mine")
	contains(t, n.uninstall("--driver-only"), "other files: notes")
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
	step(here("uninstall.sh"), "systemctl disable --now flexd-driver.socket flexd-status.socket flexd.service", "-q cat flexd", "-q disable --now flexd-driver.socket flexd-status.socket flexd.service", "daemon-reload")
	n.nothingElse()
}

func TestHelp(t *testing.T) {
	n := newNode(t)
	for _, script := range []string{"install.sh", "uninstall.sh"} {
		text := n.succeeds(exec.Command("../../scripts/"+script, "--help"))
		source := n.read("../../scripts/" + script)
		for _, option := range []string{"--root", "--plugin-dir", "--driver", "--driver-only", "--attach", "--bin", "--no-start", "--purge", "--dry-run"} {
			if strings.Contains(source, option+")") != strings.Contains(text, "\n  "+option+" ") && strings.Contains(source, option+")") != strings.Contains(text, "\n  "+option+"=") {
				t.Errorf("%s --help and %s", script, option)
			}
		}
	}
}
