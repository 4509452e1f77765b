//go:build vm

package deb

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
)

const (
	config = "/etc/flexd/flexd.yaml"
	driver = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexd~lvm/lvm"
	record = "/var/lib/flexd"
)

// What an administrator writes: no byte of it may change.
var groups = []byte("# ours\nvolumeGroups:\n  - {name: vg0, create: true, maxSize: 1GiB, namespaces: ['*']}\nlease: 1s\n")

var (
	stays = host.Pod{Namespace: "default", Name: "stays", UID: "5a1e-stays"}
	comes = host.Pod{Namespace: "default", Name: "comes", UID: "c0e5-comes"}
)

// A node is this machine.
type node struct {
	*testing.T
	*host.Node
	debs string

	mount string // what the mount table says of the pod that stays
}

func life(t *testing.T, debs string) {
	n := &node{T: t, Node: &host.Node{Run: "/run/flexd", Root: "/var/lib/kubelet", Driver: driver}, debs: debs}
	n.bare()
	defer func() {
		if t.Failed() {
			t.Logf("flexd's log:\n%s", n.LogTail(40))
		}
	}()

	// Installed, it does nothing before it is configured, and says what is to be done.
	said := n.dpkg("-i", second)
	n.says(said, "nothing runs yet", config, "systemctl enable --now flexd", "flexd driver install")
	n.units("inactive", "disabled")
	n.absent(driver, "/run/flexd", record)
	n.upgrade(first) // another version starts nothing, either
	n.units("inactive", "disabled")
	n.absent(driver, "/run/flexd", record)

	// What it said, typed.
	n.must(os.WriteFile(config, groups, 0o600))
	n.enable()
	n.sh("flexd driver install")
	if out, err := exec.Command("flexd", "doctor").CombinedOutput(); bytes.Contains(out, []byte("error ")) {
		t.Errorf("flexd doctor: %v:\n%s", err, out)
	}
	n.up(stays, "a")
	n.mount = n.mounted("a")
	n.versions(first)

	// Calls run all the time, and none fails.
	load := n.load()
	n.upgrade(second)
	n.versions(second)
	n.upgrade(first)
	n.versions(first)

	// dpkg is killed while it unpacks, and while its script restarts flexd.
	n.killed(second, func() bool { return exists("/usr/bin/flexd.dpkg-new") })
	n.sh("dpkg --configure -a")
	n.killed(second, func() bool { return n.runs("try-restart") })
	n.sh("dpkg --configure -a")
	n.versions(second)
	load()
	n.steady()

	// Removed, it leaves what is mounted, and says so. The next one continues.
	said = n.dpkg("-r", "flexd")
	n.says(said, n.PodDir(stays, volume("a")), "stays mounted", "flexd is installed again")
	n.steady()
	n.absent("/usr/bin/flexd", "/usr/lib/flexd", "/usr/lib/systemd/system/flexd.service")
	n.present(driver, config, record)
	n.units("inactive", "")
	n.says(n.dpkg("-i", first), "nothing runs yet", "systemctl enable --now flexd")
	n.enable()
	n.steady()
	n.down(stays, "a")

	// Purged, too.
	n.up(stays, "a")
	n.mount = n.mounted("a")
	n.says(n.dpkg("-P", "flexd"), "stays mounted", record)
	n.steady()
	n.absent(filepath.Dir(config))
	n.present(driver, record)
	n.dpkg("-i", second)
	n.must(os.WriteFile(config, groups, 0o600))
	n.enable()
	n.steady()
	n.versions(second) // the driver has been replaced
	n.down(stays, "a")
	n.up(comes, "a") // with its data
	if _, err := os.Stat(n.PodDir(comes, volume("a")) + "/kept"); err != nil {
		t.Error(err)
	}
	n.down(comes, "a")
	files := strings.Fields(n.sh("dpkg -L flexd"))
	n.dpkg("-P", "flexd")
	n.absent(slices.DeleteFunc(files, func(path string) bool { return !strings.Contains(path, "flexd") })...)
	left := n.sh("find /etc/systemd /etc/udev /usr/libexec /usr/lib/systemd -name '*flexd*'; systemctl list-units --no-legend 'flexd*'")
	if left != "" {
		t.Errorf("after all it leaves:\n%s", left)
	}
	n.present(record)
}

// bare makes this machine one without Go, make and compilers, whose dpkg knows what flexd
// depends on and nothing else, and whose systemd has the units of the VM; with a volume group.
func (n *node) bare() {
	n.must(os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))
	n.must(os.Setenv("LC_ALL", "C"))
	n.must(os.Setenv("LVM_SUPPRESS_FD_WARNINGS", "1"))
	n.sh(`rm -f /usr/bin/make /usr/bin/go /usr/bin/gcc /usr/sbin/policy-rc.d # which a container has
		mkdir /run/units /run/dpkg && cd /run/dpkg && mkdir info updates triggers
		needs=$(dpkg-deb -f ` + n.debs + `/` + first + `.deb Depends | tr -d ,)
		dpkg-query -s $needs >status
		for package in $needs; do cp /var/lib/dpkg/info/$package.list info; done
		mount --bind /run/dpkg /var/lib/dpkg
		cp -L /run/vm/units/* /run/units
		mount --bind /run/units /run/vm/units
		mount --bind /run/units /usr/lib/systemd/system
		mkdir -p /run/systemd/system/flexd.service.d /var/lib/kubelet /usr/libexec/kubernetes/kubelet-plugins/volume/exec
		printf '[Service]\nStandardError=append:/run/flexd.log\n' >/run/systemd/system/flexd.service.d/log.conf
		systemctl daemon-reload
		vgcreate -q vg0 /dev/vda`)
	n.Log = "/run/flexd.log"
	for _, name := range []string{"go", "make", "gcc"} {
		if path, err := exec.LookPath(name); err == nil {
			n.Fatalf("not a bare machine: %s", path)
		}
	}
}

// dpkg runs it and returns what was said.
func (n *node) dpkg(action, what string) string {
	n.Helper()
	if action == "-i" {
		what = n.debs + "/" + what + ".deb"
	}
	return n.sh("dpkg " + action + " " + what + " </dev/null 2>&1")
}

// upgrade installs another version.
func (n *node) upgrade(to string) {
	n.Helper()
	was, err := os.ReadFile(config)
	n.must(err)
	n.dpkg("-i", to)
	if is, err := os.ReadFile(config); !bytes.Equal(was, is) {
		n.Errorf("%s is\n%s\nand was\n%s (%v)", config, is, was, err)
	}
	n.steady()
}

// killed kills dpkg and its scripts in the middle of an upgrade.
func (n *node) killed(to string, now func() bool) {
	n.Helper()
	c := exec.Command("dpkg", "-i", n.debs+"/"+to+".deb")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	n.must(c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for !now() {
		select {
		case err := <-ended:
			n.Fatalf("dpkg ended before it could be killed: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	n.must(syscall.Kill(-c.Process.Pid, syscall.SIGKILL))
	<-ended
}

// runs reports whether a process has these words in its command line.
func (n *node) runs(words string) bool {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		text, _ := os.ReadFile(file)
		if strings.Contains(string(bytes.ReplaceAll(text, []byte{0}, []byte(" "))), words) {
			return true
		}
	}
	return false
}

// enable is what the package tells an administrator to do.
func (n *node) enable() {
	n.Helper()
	n.sh("systemctl enable --now flexd 2>&1")
	n.units("active", "enabled")
}

// units checks flexd.service and its sockets; enabled "" is any.
func (n *node) units(active, enabled string) {
	n.Helper()
	got := n.sh("systemctl show -p ActiveState,UnitFileState flexd.service flexd-driver.socket flexd-status.socket")
	if strings.Count(got, "ActiveState="+active+"\n") != 3 || enabled != "" && strings.Count(got+"\n", "UnitFileState="+enabled+"\n") != 3 {
		n.Errorf("flexd's units are not %s and %s:\n%s", active, enabled, got)
	}
}

// versions checks which executables run.
func (n *node) versions(want string) {
	n.Helper()
	text, err := n.Get("/version")
	if !strings.Contains(text, `"`+want+`"`) {
		n.Errorf("flexd is not %s: %.300s %v", want, text, err)
	}
	if a := n.call("--version"); !strings.Contains(a.Text, want) {
		n.Errorf("the driver is not %s: %s", want, a.Text)
	}
}

// steady checks that the pod's mount is the same as ever, and can be written.
func (n *node) steady() {
	n.Helper()
	if n.mount == "" {
		return
	}
	if is := n.mounted("a"); is != n.mount {
		n.Errorf("the mount is %q and was %q", is, n.mount)
	}
	n.must(os.WriteFile(n.PodDir(stays, volume("a"))+"/kept", groups, 0o600))
}

// mounted returns the lines of the mount table of a volume.
func (n *node) mounted(lv string) string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	n.must(err)
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "flexd~lvm/"+lv+" ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// load calls the driver all the time, until the function that it returns is called.
func (n *node) load() (stop func()) {
	var wait sync.WaitGroup
	end, calls := make(chan struct{}), 0
	wait.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			n.up(comes, "b")
			n.down(comes, "b")
			calls++
		}
	})
	return func() {
		close(end)
		wait.Wait()
		n.Logf("%d mounts under load", calls)
	}
}

func volume(lv string) host.Volume {
	return host.Volume{Name: lv, FSType: "ext4", Options: map[string]string{"volumegroup": "vg0", "volumeID": lv, "size": "32Mi"}}
}

// up is a pod's start as far as the driver sees it, and down its end.
func (n *node) up(p host.Pod, lv string) {
	n.Helper()
	dir := n.PodDir(p, volume(lv))
	n.must(host.Prepare(dir))
	if a := n.call("mount", dir, volume(lv).Blob(&p)); a.Status != "Success" || !host.Mounted(dir) {
		n.Errorf("mount: %s", a.Text)
	}
}

func (n *node) down(p host.Pod, lv string) {
	n.Helper()
	dir := n.PodDir(p, volume(lv))
	if a := n.call("unmount", dir); a.Status != "Success" || host.Mounted(dir) {
		n.Errorf("unmount: %s", a.Text)
	}
	os.Remove(dir)
}

func (n *node) call(args ...string) host.Answer {
	n.Helper()
	a, err := n.Call(n.Context(), args...)
	if err != nil {
		n.Errorf("%v: %v", args, err)
	}
	return a
}

func (n *node) says(text string, want ...string) {
	n.Helper()
	for _, s := range want {
		if !strings.Contains(text, s) {
			n.Errorf("it does not say %q:\n%s", s, text)
		}
	}
}

func (n *node) present(paths ...string) {
	n.Helper()
	for _, path := range paths {
		if !exists(path) {
			n.Errorf("%s is missing", path)
		}
	}
}

func (n *node) absent(paths ...string) {
	n.Helper()
	for _, path := range paths {
		if exists(path) {
			n.Errorf("%s is there", path)
		}
	}
}

func exists(path string) bool { return unix.Access(path, unix.F_OK) == nil }

func (n *node) sh(script string) string {
	n.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		n.Fatalf("%s: %v:\n%s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}
