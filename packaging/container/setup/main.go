// Command setup runs first in the pods of examples/kubernetes: it enters the mount
// namespace of the node, and runs a copy of the image's installer there.
//
//	setup install [OPTION OF install.sh]...
//	setup uninstall [OPTION OF uninstall.sh]...
//	setup wait                                   until SIGTERM
//
// install takes the configuration from /config, where the pod mounts a ConfigMap: NODE.yaml
// for the node NODE_NAME, else flexd.yaml for all nodes. Without both it keeps the
// node's own configuration.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/config"
)

// The main thread stays in the container: on the node its root leads to the image.
func init() { runtime.LockOSThread() }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "setup:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var verb string
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	var do func(*installer) error
	switch verb {
	case "wait":
		<-ctx.Done()
		return nil
	case "install":
		text, key, err := configMap("/config", os.Getenv("NODE_NAME"))
		if err != nil {
			return err
		}
		do = func(i *installer) error { return i.install(text, key, args) }
	case "uninstall":
		do = func(i *installer) error { return i.run("uninstall.sh", args...) }
	default:
		return errors.New("usage: setup install | uninstall [OPTION OF THE SCRIPT]..., or setup wait")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // this thread alone is on the node; it ends with the goroutine
		done <- onNode(func() error {
			i, err := copyInstaller(ctx, fmt.Sprintf("/proc/%d/root", os.Getpid()))
			if err != nil {
				return err
			}
			return errors.Join(do(i), os.RemoveAll(i.dir))
		})
	}()
	return <-done
}

// configMap reads the configuration of a node, and the key that it is from; "" = there is none.
func configMap(dir, node string) (text []byte, key string, err error) {
	for _, key := range []string{node + ".yaml", "flexd.yaml"} {
		text, err := os.ReadFile(filepath.Join(dir, key))
		if !errors.Is(err, fs.ErrNotExist) {
			return text, key, err
		}
	}
	return nil, "", nil
}

// onNode moves this thread to the mount namespace and the cgroup namespace of process 1, which
// the programs that it starts inherit. The installer reads the cgroups of processes.
func onNode(do func() error) error {
	const pod = "the pod needs hostPID: true and privileged: true, as in examples/kubernetes/daemonset.yaml"
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	theirs, err := os.Readlink("/proc/1/ns/mnt")
	if err != nil {
		return fmt.Errorf("%w: %s", err, pod)
	}
	if ours == theirs {
		return fmt.Errorf("process 1 is in this container and not the node's: %s", pod)
	}
	// Threads that share their root and working directory cannot enter a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w: %s", err, pod)
	}
	for _, ns := range []string{"cgroup", "mnt"} {
		fd, err := unix.Open("/proc/1/ns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, 0)
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("the %s namespace of the node cannot be entered: %w: %s", ns, err, pod)
		}
	}
	for _, needs := range []struct{ path, what string }{
		{"/run/systemd/system", "does not run systemd"},
		{"/bin/bash", "has no bash"},
	} {
		if _, err := os.Stat(needs.path); err != nil {
			return fmt.Errorf("this node %s (%w): flexd cannot be installed here\nwhat to do: exclude the node from the DaemonSet with a nodeSelector or an affinity", needs.what, err)
		}
	}
	return do()
}

// An installer is a copy of the image on the node. ctx ends when the pod is to end.
type installer struct {
	ctx  context.Context
	dir  string
	lock *os.File
}

// copyInstaller copies it to a directory without noexec, which /run often has.
func copyInstaller(ctx context.Context, image string) (*installer, error) {
	lock, err := os.OpenFile("/run/flexd-setup.lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return nil, fmt.Errorf("another installation runs on this node: /run/flexd-setup.lock: %w", err)
	}
	i := &installer{ctx, "/var/lib/flexd-setup", lock}
	err = os.RemoveAll(i.dir) // of one that was killed
	for _, dir := range []string{"bin", "scripts", "examples"} {
		if err == nil {
			err = os.CopyFS(filepath.Join(i.dir, dir), os.DirFS(filepath.Join(image, dir)))
		}
	}
	return i, err
}

// run runs a script on the node. When the pod is to end, the script may complete or undo what
// it has begun.
func (i *installer) run(name string, args ...string) error {
	c := exec.CommandContext(i.ctx, "/bin/bash", append([]string{filepath.Join(i.dir, "scripts", name)}, args...)...)
	c.Dir, c.Stdout, c.Stderr = "/", os.Stdout, os.Stderr
	c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	c.Cancel = func() error { return c.Process.Signal(unix.SIGTERM) }
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// marker begins a configuration that the DaemonSet wrote, and may replace.
const marker = "# Written by flexd's DaemonSet, which replaces it: change the ConfigMap instead.\n"

const configFile = "/etc/flexd/flexd.yaml"

// install installs flexd and the driver, with the configuration from the ConfigMap, if any.
// A node without a volume group gets neither.
func (i *installer) install(text []byte, key string, args []string) error {
	own, err := os.ReadFile(configFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if key == "" {
		if err := usable(configFile+" of this node (the ConfigMap has no configuration for it)", own); err != nil {
			return err
		}
		return i.run("install.sh", args...)
	}
	if err := usable(key+" of the ConfigMap", text); err != nil {
		return err
	}
	ours := bytes.HasPrefix(own, []byte(marker))
	if own != nil && !ours {
		return fmt.Errorf("the node has a configuration of its own, which is not replaced: %s\n"+
			"what to do: to use it, remove %s from the ConfigMap; to use the ConfigMap's, move that file away", configFile, key)
	}
	staged := filepath.Join(i.dir, key)
	if err := os.WriteFile(staged, append([]byte(marker), text...), 0o600); err != nil {
		return err
	}
	if err := i.run("install.sh", append([]string{"--config", staged, "--replace-config"}, args...)...); err != nil {
		return fmt.Errorf("%w (%s is that of the ConfigMap)", err, staged)
	}
	before, err := os.ReadFile(configFile + ".before")
	if ours && err == nil && bytes.Equal(before, own) { // a copy of what the ConfigMap had
		return os.Remove(configFile + ".before")
	}
	return nil
}

// usable refuses a configuration that has an error or no volume group.
func usable(name string, text []byte) error {
	c, err := config.Parse(name, text)
	if err != nil {
		return fmt.Errorf("%w\nnothing was changed on this node", err)
	}
	if len(c.VolumeGroups) == 0 {
		return fmt.Errorf("%s has no volume group: nothing is installed on this node\nwhat to do: add the node's volume groups under volumeGroups", name)
	}
	return nil
}
