//go:build vm

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The lives of the node: all flows share the first boot, but the one that is a
// reboot.
const (
	whichLife = "FLEXD_TEST_LIFE" // in the environment of the tests in the VM
	first     = "first"
	second    = "second"
)

// wasCut is the status of a VM whose power the tests cut, for a second life.
const wasCut = 42

// module is the path of the repository, which is the same in the guest.
var module, _ = filepath.Abs("../..")

// TestMain boots the machine and lets the tests run there, with the arguments and
// the output that they have here. In the guest it is the node.
func TestMain(m *testing.M) {
	if os.Getenv(whichLife) != "" {
		os.Exit(live(m))
	}
	runtime.LockOSThread() // Pdeathsig is about the thread
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status, err := bootTwice(ctx)
	stop()
	if err != nil {
		fmt.Println(err)
		status = 1
	}
	os.Exit(status)
}

// live is one life of the node.
func live(m *testing.M) int {
	status := m.Run()
	if status == 0 && cut {
		time.Sleep(time.Second) // what was printed gets out
		exec.Command("vm-cut", fmt.Sprint(wasCut)).Run()
		status = 1
	}
	return status
}

func bootTwice(ctx context.Context) (status int, err error) {
	dir, err := os.MkdirTemp("", "flexd-node-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := makeDisk(dir + "/node"); err != nil {
		return 0, err
	}
	status, err = boot(ctx, dir, first, 900, nil, "-test.skip=^TestReboot$")
	if err == nil && status == wasCut {
		status, err = boot(ctx, dir, second, 600, []string{"-y"}, "-test.run=^TestReboot$")
	}
	return status, err
}

// boot boots the machine for one life of so many seconds at most, with options of scripts/vm.
// The disks are the node's and LVM's. It has one processor: of two emulated ones, one stops getting
// its timer's interrupts in some boots.
func boot(ctx context.Context, dir, life string, limit int, vm []string, args ...string) (status int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	options := append(vm, "-q", "-t", fmt.Sprint(limit), "-n", "node-1",
		"-D", dir+"/node", "-D", dir+"/lvm:2G",
		"-D", dir+"/pages:2G", "-D", dir+"/spare:2G", "-e", whichLife+"="+life, "--", self)
	c := exec.CommandContext(ctx, module+"/scripts/vm", append(append(options, os.Args[1:]...), args...)...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // go test may kill us
	err = c.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// makeDisk makes the disk that the node lives on. Its executables lie there, too:
// reading 200 MB over 9p takes longer.
func makeDisk(path string) error {
	files := path + ".files"
	defer os.RemoveAll(files)
	for _, dir := range persistent {
		if err := os.MkdirAll(files+dir, 0o755); err != nil {
			return err
		}
	}
	executables := []string{module + "/bin/node/kubelet"}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		found, err := exec.LookPath(name)
		if err != nil {
			return fmt.Errorf("%w (scripts/test-tools)", err)
		}
		executables = append(executables, found)
	}
	copies := map[string]string{
		"testdata/kubelet.yaml":    "/var/lib/kubelet/config.yaml", // where kubeadm puts it, too
		"testdata/containerd.toml": "/etc/containerd/config.toml",
		"testdata/flexd.yaml":      "/etc/flexd/flexd.yaml",
	}
	for _, e := range executables {
		copies[e] = "/usr/local/bin/" + filepath.Base(e)
	}
	for from, to := range copies {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(files+to, data, 0o755); err != nil {
			return err
		}
	}
	out, err := exec.Command("mkfs.ext4", "-q", "-E", "root_owner=0:0", "-d", files, path, "1G").CombinedOutput()
	if err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
