// Package host is a small node of its own in a temporary place: a flexd on loop
// devices or on a real volume group, and kubelet's part played with the very
// arguments that kubelet passes. It is for the demonstration and the
// measurements, which must leave nothing behind: Left says what is, and Close
// takes all of it away.
package host

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/flexd/flexd/internal/status"
)

// VG is the node's one volume group.
const VG = "demo"

// A Node has everything below Dir and nothing anywhere else, except mounts,
// which Left finds again by their paths, and block devices.
type Node struct {
	Dir    string // the temporary place
	Run    string // flexd's runDir
	Root   string // kubelet's root directory
	Driver string // flexdriver, where kubelet finds it
	Log    string // what flexd says

	volumes
	flexd *exec.Cmd
	ended chan struct{} // closed when flexd has
	log   *os.File
	http  http.Client
}

// New makes a place and puts the two executables of bin there. flexd is not
// started. lease is how long a volume stays active after its last use. The volume
// group is a real one if there are disks for it, which are overwritten; else it
// is a directory, and its volumes are loop devices.
func New(bin string, lease time.Duration, disks ...string) (*Node, error) {
	dir, err := os.MkdirTemp("", "flexd-")
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // as the mount table shows it
		return nil, err
	}
	var v volumes = loops{dir + "/vg"}
	if len(disks) > 0 {
		v = &lvm{disks: disks}
	}
	n := place(dir, dir+"/run", v)
	return n, n.make(bin, lease)
}

// Again is the node in a directory that outlives the machine's boots, while run
// does not. It is made where it is missing; its volume group is there already,
// and not the node's to take away.
func Again(bin string, lease time.Duration, dir, run string) (*Node, error) {
	n := place(dir, run, &lvm{})
	return n, n.make(bin, lease)
}

func place(dir, run string, v volumes) *Node {
	n := &Node{Dir: dir, Run: run, Root: dir + "/kubelet", Driver: dir + "/plugins/flexd~lvm/lvm", Log: dir + "/flexd.log", volumes: v}
	n.http = http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", n.StatusSocket())
		},
	}}
	return n
}

func (n *Node) make(bin string, lease time.Duration) error {
	for _, d := range []string{n.Root, n.Dir + "/bin", filepath.Dir(n.Driver)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := install(bin+"/flexd", n.Dir+"/bin/flexd"); err != nil {
		return err
	}
	if err := install(bin+"/flexdriver", n.Driver); err != nil {
		return err
	}
	log, err := os.OpenFile(n.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	n.log = log
	if err := n.prepare(); err != nil {
		return err
	}
	return os.WriteFile(n.Config(), fmt.Appendf(nil, `# A node in a temporary place.
nodeName: node-1
kubeletRoots: [%[1]s/kubelet]
runDir: %[5]s
stateDir: %[1]s/state
lease: %[2]s
volumeGroups:
  - name: %[3]s
    create: true
    maxSize: 8GiB
%[4]s`, n.Dir, lease, VG, n.config(), n.Run), 0o600)
}

// install puts an executable at its place in one instant, as kubelet's plugin
// directory wants it: a dotfile first, which kubelet ignores, then a rename.
func install(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("%w (make build)", err)
	}
	defer in.Close()
	tmp := filepath.Dir(to) + "/." + filepath.Base(to) + ".new"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(tmp, to)
}

// Config is the path of flexd's configuration.
func (n *Node) Config() string { return n.Dir + "/flexd.yaml" }

// DriverSocket is where flexdriver finds flexd.
func (n *Node) DriverSocket() string { return n.Run + "/driver.sock" }

// StatusSocket is where `flexd status` finds it.
func (n *Node) StatusSocket() string { return n.Run + "/status.sock" }

// Flexd is the executable.
func (n *Node) Flexd() string { return n.Dir + "/bin/flexd" }

// Start starts flexd and returns when it is ready.
func (n *Node) Start() error {
	n.flexd = exec.Command(n.Flexd(), "serve", "--config", n.Config())
	n.flexd.Stdout, n.flexd.Stderr = n.log, n.log
	// A Ctrl-C on the terminal is for us: we stop it ourselves.
	n.flexd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.flexd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	n.ended = ended
	go func(c *exec.Cmd) {
		c.Wait()
		close(ended)
	}(n.flexd)
	for deadline := time.Now().Add(30 * time.Second); ; {
		resp, err := n.http.Get("http://flexd/healthz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ended:
			return fmt.Errorf("flexd ended at once: %s", n.LogTail(5))
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("flexd is not ready after 30s: %s", n.LogTail(5))
		}
	}
}

// Pid is flexd's.
func (n *Node) Pid() int { return n.flexd.Process.Pid }

// Signal sends flexd a signal and waits for its end.
func (n *Node) Signal(s syscall.Signal) error {
	if n.flexd == nil {
		return nil
	}
	n.flexd.Process.Signal(s) // an error means that it has ended
	select {
	case <-n.ended:
		n.flexd = nil
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("flexd (pid %d) did not end within 30s of %v", n.flexd.Process.Pid, s)
	}
}

// LogTail is the end of what flexd said.
func (n *Node) LogTail(lines int) string {
	text, _ := os.ReadFile(n.Log)
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Volume asks the status socket for a volume's whole story.
func (n *Node) Volume(lv string) (status.VolumeDetail, error) {
	var s status.VolumeDetail
	resp, err := n.http.Get("http://flexd/v1/volumes/" + VG + "/" + lv)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("status of %s: %s", lv, resp.Status)
	}
	return s, json.NewDecoder(resp.Body).Decode(&s)
}

// Status is what `flexd status` prints.
func (n *Node) Status(args ...string) (string, error) {
	out, err := exec.Command(n.Flexd(), append([]string{"status", "--socket", n.StatusSocket()}, args...)...).CombinedOutput()
	return string(out), err
}
