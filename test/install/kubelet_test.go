package install

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pretend runs, in a pid namespace of its own, processes named kubelet that ask for the plugin
// directory /evil, and then the installer.
const pretend = `
bin=$1 dir=$2 cgroup=$3
shift 3
cd "$dir" || exit
kubelet() { "$@" --volume-plugin-dir=/evil --root-dir=/evil --config=/evil/config <&3 >/dev/null & }
kubelet setpriv --reuid 65534 --clear-groups ./kubelet
kubelet setpriv --reuid 65534 --clear-groups unshare --user --map-root-user ./kubelet
kubelet unshare --user --map-root-user ./kubelet
kubelet unshare --pid --fork ./kubelet
kubelet setpriv --reuid 65534 --clear-groups ./setuid/kubelet
n=5
if [ -n "$cgroup" ]; then
	kubelet sh -c 'echo $$ >'"$cgroup"'/cgroup.procs && exec "$@"' sh ./kubelet
	n=6
fi
until [ "$(cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^kubelet$')" -eq $n ]; do sleep 0.01; done
cd - >/dev/null
"$bin" driver install --dry-run "$@" || exit
echo ---
"$dir"/kubelet --volume-plugin-dir=/genuine <&3 >/dev/null &
until [ "$(cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^kubelet$')" -eq $((n+1)) ]; do sleep 0.01; done
"$bin" driver install --dry-run "$@"
`

// A process named kubelet that root did not start on the node itself chooses nothing.
func TestPretendedKubelets(t *testing.T) {
	n := newNode(t)
	n.configure()
	n.write("/kubelet", "#!/bin/sh\nread forever\n")
	n.chmod(n.root+"/kubelet", 0o755)
	// What a user gives to a setuid program is on the command line of a root process: sudo
	// waits for a password.
	n.mkdir("/setuid")
	if out, err := exec.Command("cp", os.Args[0], n.root+"/setuid/kubelet").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.chmod(n.root+"/setuid/kubelet", 0o755|os.ModeSetuid)
	cgroup := podCgroup(t)
	never, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	defer never.Close()
	c := exec.Command("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", pretend, "sh",
		one+"/flexd", n.root, cgroup, "--config", n.root+"/etc/flexd/flexd.yaml")
	c.ExtraFiles = []*os.File{never}
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out := n.succeeds(c)

	alone, beside, _ := strings.Cut(out, "---\n")
	contains(t, alone, "root did not start it", "its executable is setuid", "another user namespace", "another pid namespace", "(kubelet's default; a guess)")
	if want := 6; cgroup == "" {
		t.Log("no cgroup can be made here: without a kubelet in a pod")
	} else if contains(t, alone, "it runs in a pod"); strings.Count(alone, "is named kubelet and ignored") != want {
		t.Errorf("not %d ignored processes:\n%s", want, alone)
	}
	contains(t, beside, "/genuine (--volume-plugin-dir)")
	if strings.Contains(out, "/evil") {
		t.Errorf("a pretended kubelet's value was used:\n%s", out)
	}
}

// podCgroup makes a cgroup with the name of a pod's, until the test ends; "" = not possible.
func podCgroup(t *testing.T) string {
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(top, &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		dir := top + "/flexdtest-kubepods-" + strconv.Itoa(os.Getpid()) + ".slice"
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			for end := time.Now().Add(10 * time.Second); os.Remove(dir) != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			}
		})
		return dir
	}
	return ""
}

// A path of kubelet's command line or configuration is a plain one, or nothing is installed.
func TestPathsOfKubelet(t *testing.T) {
	for _, path := range []string{"plugins", "/.", "/a b", "/a\nb", `/a"]` + "\nvolumeGroups: [{name: vg0}]\n#", "/$(id)"} {
		t.Run(path, func(t *testing.T) {
			n := newNode(t)
			n.kubelet("7", "--volume-plugin-dir="+path)
			n.kubelet("8", "--config="+path)
			n.kubelet("9", "--root-dir="+path)
			only := func(pid string) *exec.Cmd {
				for _, other := range []string{"7", "8", "9"} {
					n.write("/proc/"+other+"/comm", "other\n")
				}
				n.write("/proc/"+pid+"/comm", "kubelet\n")
				return n.command("install.sh", "--bin", one)
			}
			n.refuses(only("7"), "not a plain absolute path", "--volume-plugin-dir")
			n.refuses(only("8"), "the settings of kubelet (pid 8) cannot be read")
			contains(t, n.succeeds(only("9")), "kubeletRoots, which needs the root directory of kubelet")
			if config := n.read(n.root + "/etc/flexd/flexd.yaml"); strings.Contains(config, "\nkubeletRoots") || strings.Contains(config, "\nvolumeGroups") {
				t.Errorf("--root-dir=%q is in the configuration:\n%s", path, config)
			}
		})
	}
}

// waitAsRoot is what a setuid program named kubelet does.
func waitAsRoot() {
	if err := syscall.Setuid(0); err != nil {
		os.Exit(1)
	}
	os.Stdin.Read(make([]byte, 1))
}
