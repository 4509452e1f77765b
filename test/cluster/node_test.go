package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
)

// A process runs this executable.
type process struct {
	what  string
	log   string
	cmd   *exec.Cmd
	stdin *os.File // whose end it lives to see
	ended chan struct{}
}

// start starts this executable in a role, by a command (such as nsenter) if there is one.
func start(what, log string, by []string, env ...string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	argv := append(slices.Clone(by), exe)
	c := exec.Command(argv[0], argv[1:]...)
	c.Env = append(append(os.Environ(), role+"="+what), env...)
	c.Dir = "/"
	c.Stdin, c.Stdout, c.Stderr = r, out, out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if what == "machine" {
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	p := &process{what: what, log: log, cmd: c, stdin: w, ended: make(chan struct{})}
	go func() { c.Wait(); close(p.ended) }()
	return p, nil
}

// ready waits until it reports that it is ready.
func (p *process) ready() error {
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if log, _ := os.ReadFile(p.log); bytes.HasPrefix(log, []byte("ready\n")) || bytes.Contains(log, []byte("\nready\n")) {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s has ended: %s", p.what, host.Tail(p.log, 20))
		default:
		}
	}
	return fmt.Errorf("%s is not ready: %s", p.what, host.Tail(p.log, 20))
}

// kill is kill -9. Its children continue. It is an error if it has ended by itself.
func (p *process) kill() error {
	if p == nil {
		return nil
	}
	defer p.stdin.Close()
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended by itself: %s\n%s", p.what, p.cmd.ProcessState, host.Tail(p.log, 40))
	default:
	}
	p.cmd.Process.Kill()
	<-p.ended
	return nil
}

// serveMachine is this process as the owner of a node's namespaces, which runs its containers.
func serveMachine() error {
	dir := os.Getenv(place)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	// As on systemd's machines, what is mounted is seen in every namespace of the machine.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return err
	}
	if err := readOnly(dir); err != nil {
		return err
	}
	if err := serveRuntime(dir); err != nil {
		return err
	}
	fmt.Println("ready")
	return nil
}

// readOnly protects the machine from kubelet, which is root: its files are read-only, and /var is another
// directory, except for the tests' own.
func readOnly(dir string) error {
	for _, d := range []string{"/boot", "/etc", "/home", "/opt", "/root", "/srv", "/usr"} {
		if _, err := os.Stat(d); err != nil || strings.HasPrefix(dir, d+"/") {
			continue
		}
		if err := unix.Mount(d, d, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
		if err := unix.Mount("", d, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return err
		}
	}
	if strings.HasPrefix(dir, "/var/") {
		return nil
	}
	return unix.Mount("tmpfs", "/var", "tmpfs", 0, "mode=755")
}

// endMachine kills the processes in this mount namespace, and removes the devices, after the tests were
// killed.
func endMachine() {
	ours, _ := os.Readlink("/proc/self/ns/mnt")
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		pid, _ := strconv.Atoi(filepath.Base(proc))
		if ns, err := os.Readlink(proc + "/ns/mnt"); err == nil && ns == ours && pid != os.Getpid() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	host.Loops{Dir: os.Getenv(place)}.Release()
}

// A node is a machine of the cluster.
type node struct {
	*host.Node
	c       *cluster
	name    string
	machine *process
	kubelet *process
}

// newNode makes a node, and starts it.
func (c *cluster) newNode(name string) *node {
	c.t.Helper()
	dir := c.dir + "/" + name
	c.must(os.MkdirAll(dir, 0o755))
	n := &node{c: c, name: name}
	var err error
	n.Node, err = host.At(dir, host.Loops{Dir: dir})
	c.must(err)
	c.must(os.MkdirAll(dir+"/vg0", 0o755))
	c.must(os.MkdirAll(dir+"/logs", 0o755))
	c.must(n.Configure(host.Settings{Name: name, Lease: lease, Lines: "log: {level: debug}\n",
		Groups: "  - {name: vg0, provider: loopdev, directory: " + dir + "/vg0, overcommit: true, reserve: 0%, create: true, maxSize: 20GiB, namespaces: ['*']}\n"}))
	c.must(host.Install(built+"/flexd", n.Flexd()))
	c.install(dir + "/plugins")
	n.boot()
	c.mu.Lock()
	c.nodes = append(c.nodes, n)
	c.mu.Unlock()
	return n
}

// boot starts everything on the node.
func (n *node) boot() {
	n.c.t.Helper()
	os.Remove(n.Dir + "/machine.log")
	var err error
	n.machine, err = start("machine", n.Dir+"/machine.log", nil, place+"="+n.Dir)
	n.c.must(err)
	n.c.must(n.machine.ready())
	n.Enter = []string{"nsenter", "--mount", "--net", "--target", strconv.Itoa(n.machine.cmd.Process.Pid)}
	n.startFlexd()
	n.startKubelet()
}

func (n *node) calls() string { return n.Dir + "/calls" }

func (n *node) startFlexd() {
	n.c.t.Helper()
	n.c.must(n.Start())
	if strings.Contains(n.LogTail(20), "inotify") { // and kubelet would never find the driver
		n.c.t.Fatal("fs.inotify.max_user_instances is too low for these tests and what else runs")
	}
}

func (n *node) killFlexd() {
	n.c.t.Helper()
	n.c.must(n.Signal(syscall.SIGKILL))
}

func (n *node) startKubelet() {
	n.c.t.Helper()
	var err error
	n.kubelet, err = start("kubelet", n.Dir+"/kubelet.log", n.Enter, place+"="+n.Dir, nodeName+"="+n.name, apiDir+"="+n.c.dir,
		callsFile+"="+n.calls(), "FLEXD_SOCKET="+n.DriverSocket())
	n.c.must(err)
}

func (n *node) killKubelet() {
	n.c.t.Helper()
	n.c.must(n.kubelet.kill())
	n.kubelet = nil
}

// crash removes the contents of the machine's memory: processes, mounts, devices, /run. Its disk stays.
func (n *node) crash() {
	n.c.t.Helper()
	n.killKubelet()
	n.c.must(n.Signal(syscall.SIGKILL))
	n.c.must(n.machine.kill())
	n.c.must(n.Clear())
	n.c.must(os.RemoveAll(n.Run))
	n.c.must(os.RemoveAll(n.Dir + "/cri.sock"))
	n.machine = nil
}

// inside returns a path of the node in this process's namespace.
func (n *node) inside(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", n.machine.cmd.Process.Pid, path)
}

// mounts lists the volumes that are mounted on the node.
func (n *node) mounts() []string {
	all, err := host.MountsOf(n.machine.cmd.Process.Pid, n.Dir)
	n.c.must(err)
	return slices.DeleteFunc(all, func(dir string) bool {
		return !strings.Contains(dir, "flexd~lvm/") && !strings.Contains(dir, "/mounts/") && !strings.Contains(dir, "/volume-subpaths/")
	})
}

// left returns the remains of volumes on the node.
func (n *node) left() string {
	if all := n.mounts(); len(all) > 0 {
		return fmt.Sprint("mounted: ", all)
	}
	if dirs, _ := filepath.Glob(n.Root + "/pods/*"); len(dirs) > 0 {
		return fmt.Sprint("pods' directories: ", dirs)
	}
	return n.Left()
}
