//go:build vm

package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
)

const (
	vg        = "vg0"
	kubelet   = "/var/lib/kubelet"
	manifests = "/etc/kubernetes/manifests"
	disk      = "/srv/node"

	flexdLog   = "/run/flexd.log" // the logs of one boot
	kubeletLog = "/run/kubelet.log"
)

// persistent are the directories that lie on the node's disk, and outlive a boot.
var persistent = []string{
	manifests, "/etc/containerd", "/etc/flexd", "/usr/libexec/kubernetes", "/usr/local/bin",
	"/var/lib/containerd", "/var/lib/flexd", kubelet, "/var/log/pods",
}

// A node is this machine, from its boot on.
type node struct {
	containerd, flexd, kubelet *daemon

	attaches string // "true" or "false": the mode of the driver
	reported bool   // a failure was printed
}

// bootUp is what a distribution does before the node's own daemons start.
func bootUp() error {
	if err := os.MkdirAll(disk, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/dev/vda", disk, "ext4", 0, ""); err != nil {
		return err
	}
	// Private: or each volume that kubelet mounts would be seen twice.
	if err := unix.Mount("", disk, "", unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, dir := range persistent {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(disk+dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	os.Setenv("PATH", "/usr/local/bin:"+os.Getenv("PATH"))
	return os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+cpuset +cpu +io +memory +pids"), 0)
}

// startContainerd starts it and gives it images: in the first boot that of all pods.
func (n *node) startContainerd(images ...string) error {
	var err error
	if n.containerd, err = start("/run/containerd.log", "containerd"); err != nil {
		return err
	}
	if err := n.containerd.answers(func() error {
		c, err := net.Dial("unix", "/run/containerd/containerd.sock")
		if err == nil {
			c.Close()
		}
		return err
	}); err != nil {
		return err
	}
	return importImages(images...)
}

// importImages gives containerd images of bin/node.
func importImages(archives ...string) error {
	for _, archive := range archives {
		if err := command("ctr", "-n", "k8s.io", "images", "import", module+"/bin/node/"+archive); err != nil {
			return err
		}
	}
	return nil
}

// startFlexd starts the flexd that is installed.
func (n *node) startFlexd() error {
	var err error
	if n.flexd, err = start(flexdLog, "/usr/local/bin/flexd", "serve", "--config", "/etc/flexd/flexd.yaml"); err != nil {
		return err
	}
	return n.flexd.answers(func() error {
		_, err := ask("/healthz")
		return err
	})
}

func (n *node) startKubelet() error {
	var err error
	n.kubelet, err = start(kubeletLog, "kubelet", "--config="+kubelet+"/config.yaml", "--root-dir="+kubelet, "--hostname-override=node-1")
	return err
}

// built is the directory with the executables of a version.
func built(version string) string { return module + "/bin/node/" + version + "/image/amd64" }

// install runs the installer with the executables of a version.
func install(version string, options ...string) error {
	return command(module+"/scripts/install.sh", append([]string{"--bin", built(version)}, options...)...)
}

// ask asks flexd's status socket.
func ask(path string) (string, error) { return host.Get("/run/flexd/status.sock", path) }

// A daemon is a process of the node, in a process group of its own.
type daemon struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when it has
}

func start(log, name string, args ...string) (*daemon, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	d := &daemon{exec.Command(name, args...), log, make(chan struct{})}
	d.cmd.Dir, d.cmd.Stdout, d.cmd.Stderr = "/", out, out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		d.cmd.Wait()
		close(d.ended)
	}()
	return d, nil
}

// answers waits until a daemon does.
func (d *daemon) answers(asked func() error) error {
	for end := time.Now().Add(soon); ; time.Sleep(20 * time.Millisecond) {
		err := asked()
		if err == nil {
			return nil
		}
		select {
		case <-d.ended:
			return fmt.Errorf("%s ended at once:\n%s", d.cmd.Path, tail(d.log, 20, nil))
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s does not answer: %w\n%s", d.cmd.Path, err, tail(d.log, 20, nil))
		}
	}
}

// end sends a signal and waits for the end. Others of its group live on: kubelet's
// calls, flexd's children.
func (d *daemon) end(s syscall.Signal) error {
	d.cmd.Process.Signal(s) // an error means that it has ended
	select {
	case <-d.ended:
		return nil
	case <-time.After(soon):
		return fmt.Errorf("%s did not end within %v of %v", d.cmd.Path, soon, s)
	}
}

// command runs a command of an operator's.
func command(name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w:\n%s", strings.Join(c.Args, " "), err, out)
	}
	return nil
}

// tail is the end of a log: of those lines of it that match, if that is asked.
func tail(log string, lines int, match func(string) bool) string {
	text, _ := os.ReadFile(log)
	var all []string
	for line := range strings.Lines(string(text)) {
		if match == nil || match(line) {
			all = append(all, line)
		}
	}
	return strings.Join(all[max(0, len(all)-lines):], "")
}

// together does what does not depend on each other.
func together(do ...func() error) error {
	errs := make([]error, len(do))
	var all sync.WaitGroup
	for i, f := range do {
		all.Go(func() { errs[i] = f() })
	}
	all.Wait()
	return errors.Join(errs...)
}
