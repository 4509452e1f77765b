// Package host is a node in a temporary place: flexd with directories of its own,
// on loop devices or on a real volume group, and calls of flexdriver with the very
// arguments that kubelet passes. The tests of the two executables, the demonstration
// and the measurements share it. They must leave nothing on the machine: Left says
// what is there, and Close removes all of it.
package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// A Node has everything below Dir and nothing anywhere else, except mounts,
// which Left finds again by their paths, and block devices.
type Node struct {
	Dir    string // the temporary place
	Run    string // flexd's runDir
	State  string // flexd's stateDir
	Root   string // kubelet's root directory
	Driver string // flexdriver, where kubelet finds it
	Log    string // what flexd says

	Enter   []string                // a command that runs flexd, such as unshare --mount
	Volumes Volumes                 // what may have block devices
	Own     func(mount string) bool // mounts below Dir that no flexd made; nil: none

	mu    sync.Mutex
	flexd *process // that runs
}

// Volumes are what a node's volumes are made of.
type Volumes interface {
	Active() []string // those that have a block device
	Release()         // makes them inactive, as far as that is possible now
	Remove() error    // takes away what is not below the node's directory, when none is active
}

// At is a node in a directory, which is made if it is missing. It has neither
// executables nor a configuration yet.
func At(dir string, v Volumes) (*Node, error) {
	n := &Node{Dir: dir, Run: dir + "/run", State: dir + "/state", Root: dir + "/kubelet",
		Driver: dir + "/plugins/flexd~lvm/lvm", Log: dir + "/flexd.log", Volumes: v}
	for _, d := range []string{n.Root, filepath.Dir(n.Flexd()), dir + "/plugins"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Install puts an executable at its place in one instant, as kubelet's plugin
// directory needs it: first a dotfile, which kubelet ignores, then a rename.
func Install(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	tmp := filepath.Dir(to) + "/." + filepath.Base(to) + ".new"
	os.Remove(tmp)
	if os.Link(from, tmp) != nil {
		// By another process: an executable that one of ours had open for writing, in the
		// instant of a fork, would be busy.
		if out, err := exec.Command("cp", from, tmp).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s (make build)", err, out)
		}
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

// Name is the node's.
const Name = "node-1"

// Settings are what flexd's configuration says beside the directories.
type Settings struct {
	Name   string   // the node's; "": Name
	Roots  []string // kubelet's; none: the node's
	Lease  time.Duration
	Lines  string // others
	Groups string // lines of volumeGroups, a group each
}

// Configure writes flexd's configuration, in one instant: SIGHUP makes flexd read it at once.
func (n *Node) Configure(s Settings) error {
	if s.Roots == nil {
		s.Roots = []string{n.Root}
	}
	if s.Name == "" {
		s.Name = Name
	}
	whole := n.Config() + ".new"
	if err := os.WriteFile(whole, fmt.Appendf(nil, `# A node in a temporary place.
nodeName: %s
kubeletRoots: ["%s"]
runDir: %s
stateDir: %s
lease: %s
%s
volumeGroups:
%s`, s.Name, strings.Join(s.Roots, `", "`), n.Run, n.State, s.Lease, s.Lines, s.Groups), 0o600); err != nil {
		return err
	}
	return os.Rename(whole, n.Config())
}
