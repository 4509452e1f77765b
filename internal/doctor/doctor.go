// Package doctor examines whether a node can run flexd: kubelet and its settings, the
// installed driver, flexd itself, LVM, tools and the kernel. It changes nothing, needs no
// daemon, and enters no volume.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/lockspace"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
)

// A Host is a node to examine.
type Host struct {
	Root       string // "" = this machine; a directory with its files in tests
	ConfigPath string
	Config     *config.Config // the default if there is none that is valid
	ConfigErr  error
	Machine    func() error                      // the error of a configuration that does not fit this machine
	Socket     string                            // the status socket
	Ask        func(path string) ([]byte, error) // asks it
	Runner     run.Runner                        // starts tools
	Version    string                            // of this program
	Rule       func() (string, error)            // the udev rule for the configuration
	Limit      time.Duration                     // of the whole examination
}

// A finding is the result of a check. Its remedy has the safest step first.
type finding struct {
	result   string
	evidence string
	remedy   []string
}

func well(format string, a ...any) finding {
	return finding{result: status.ResultOK, evidence: fmt.Sprintf(format, a...)}
}

func skipped(why string) []finding {
	return []finding{{result: status.ResultSkipped, evidence: why}}
}

func failed(evidence string, remedy ...string) finding {
	return finding{status.ResultError, evidence, remedy}
}

// milder makes an error a warning if kubelet does not run: its settings are a guess then.
func (f finding) milder(k *kubelet.Instance) finding {
	if k.Pid == 0 {
		f.result = status.ResultWarning
	}
	return f
}

func warning(evidence string, remedy ...string) finding {
	return finding{status.ResultWarning, evidence, remedy}
}

func unknown(evidence string, remedy ...string) finding {
	return finding{status.ResultUnknown, evidence, remedy}
}

// checks are all checks, in the order of the report. Their names are stable.
var checks = []struct {
	area, name, why string
	run             func(*node) []finding
}{
	{"kubelet", "process", "kubelet runs the driver, and its settings decide where the driver must be.", (*node).process},
	{"kubelet", "root-directory", "flexd mounts only below kubeletRoots, and refuses every other directory.", (*node).rootDirectory},
	{"kubelet", "mount-propagation", "Without propagation a pod would write to the disk below its volume, so flexd refuses to mount.", (*node).propagation},
	{"kubelet", "node-name", "With attach:true flexd compares this name with the node that kubelet asks for.", (*node).nodeName},
	{"driver", "plugin-directory", "Kubelet looks for drivers there and nowhere else, and runs them as root.", (*node).pluginDirectory},
	{"driver", "executable", "Without it no volume is mounted, and none of a deleted pod is unmounted.", (*node).executable},
	{"driver", "attach-mode", "The mode decides which component attaches volumes, and how kubelet names them.", (*node).attachMode},
	{"driver", "other-drivers", "A second driver for the same volumes mounts, formats and deactivates them without flexd.", (*node).otherDrivers},
	{"flexd", "configuration", "flexd does not start with an invalid configuration, sets up nothing without volume groups, and gets calls on one socket only.", (*node).configuration},
	{"flexd", "directories", "Notes must be gone after a reboot, like the mounts; format records must survive it, or flexd could format a volume again.", (*node).directories},
	{"flexd", "daemon", "Every call of kubelet waits for the daemon, and fails without it.", (*node).daemon},
	{"flexd", "sockets", "flexdriver reaches flexd through its socket, and no other user may.", (*node).sockets},
	{"flexd", "unit", "The unit starts flexd at boot. flexd must have the host's mount namespace, or kubelet does not see its mounts, and a stop must not kill a running mkfs.", (*node).unit},
	{"flexd", "versions", "flexdriver, the daemon and the commands are tested together, in one version.", (*node).versions},
	{"flexd", "udev-rule", "Without the rule udev reads volumes that pods have written: their labels may become names of the host.", (*node).udevRule},
	{"lvm", "volume-groups", "Pods get volumes of the configured groups only.", (*node).groups},
	{"lvm", "devices", "LVM sees only disks that its filters and its devices file accept, and activates only volumes of its volume_list.", (*node).devices},
	{"lvm", "lvmlockd", "flexd refuses a shared volume group without lvmlockd: another node could mount the same volume.", (*node).lvmlockd},
	{"lvm", "sanlock", "sanlock keeps the locks of shared groups on their disks, and has the watchdog reset a node that cannot renew its lease.", (*node).sanlock},
	{"lvm", "watchdog", "Without a watchdog a node that was paused writes to volumes that another node has taken over.", (*node).watchdog},
	{"lvm", "host-id", "sanlock knows nodes by their host id: each needs one of its own.", (*node).hostID},
	{"lvm", "lockspaces", "A volume of a shared group is activated only with a lock of the group's lockspace.", (*node).lockspaces},
	{"lvm", "kill-command", "When the disk with the locks does not answer, LVM runs this command: flexd then unmounts and deactivates what is not in use, which can save the node from its reset.", (*node).killCommand},
	{"lvm", "thin-pools", "A thin pool that is full fails the writes of every volume in it, and flexd never extends a pool.", (*node).thinPools},
	{"tools", "programs", "flexd runs these programs for LVM, mkfs and fsck.", (*node).programs},
	{"kernel", "version", "flexd is tested with Linux 5.15 and later: a mount must appear in one step.", (*node).kernel},
	{"kernel", "filesystems", "The kernel mounts a filesystem only with its module.", (*node).filesystems},
	{"kernel", "block-devices", "Without the module, LVM's volumes of that type, or loop devices, do not become active.", (*node).modules},
	{"kernel", "control-groups", "From kubelet's control groups flexd knows which pods run; without them it finds no orphans.", (*node).controlGroups},
}

// A node is a Host with the facts that several checks need, which are read once.
type node struct {
	*Host
	ctx    context.Context
	found  func() found
	serve  func() (procfs.Details, bool) // the daemon's process
	lvmSet func() (map[string]string, error)
	vgs    func() ([]group, error)

	sanlocks func() (lockspace.Sanlock, error)
	spaces   func() (map[string]lockspace.LockdSpace, error)
}

type found struct {
	all     []*kubelet.Instance
	ignored []string
	err     error
}

// Examine runs all checks at the same time. One that does not end within the limit, because
// a disk hangs, is unknown.
func (h *Host) Examine(ctx context.Context) status.Diagnosis {
	limit, cancel := context.WithTimeout(ctx, h.Limit)
	defer cancel()
	ctx, cancelPrograms := context.WithTimeout(ctx, h.Limit-h.Limit/10) // they end before
	defer cancelPrograms()
	n := &node{Host: h, ctx: ctx}
	n.found = sync.OnceValue(func() (k found) {
		k.all, k.ignored, k.err = kubelet.Find(h.Root)
		return k
	})
	n.serve = sync.OnceValues(n.daemonProcess)
	n.lvmSet = sync.OnceValues(n.readLVMSettings)
	n.vgs = sync.OnceValues(n.readGroups)
	n.sanlocks = sync.OnceValues(n.readSanlock)
	n.spaces = sync.OnceValues(n.readLockspaces)

	results := make([]chan []finding, len(checks))
	for i, c := range checks {
		results[i] = make(chan []finding, 1)
		go func() {
			defer func() {
				if r := recover(); r != nil {
					results[i] <- []finding{unknown(fmt.Sprintf("the check failed, which is a bug: %v", r))}
				}
			}()
			results[i] <- c.run(n)
		}()
	}
	d := status.Diagnosis{Node: h.Config.NodeName, Version: h.Version}
	for i, c := range checks {
		var all []finding
		select {
		case all = <-results[i]:
		case <-limit.Done():
			select {
			case all = <-results[i]:
			default:
				all = []finding{unknown(fmt.Sprintf("the check did not end within %s: a disk, a directory or a program hangs", h.Limit), "dmesg | tail", "flexd check")}
			}
		}
		for _, f := range all {
			d.Examinations = append(d.Examinations, status.Examination{Area: c.area, Name: c.name, Result: f.result, Evidence: f.evidence, Why: c.why, Remedy: f.remedy})
		}
	}
	if os.Geteuid() != 0 && h.Root == "" {
		for i := range d.Examinations {
			if e := &d.Examinations[i]; e.Result == status.ResultUnknown {
				e.Remedy = append([]string{"run flexd doctor as root"}, e.Remedy...)
			}
		}
	}
	d.Result = d.Judge()
	return d
}

// daemonProcess finds flexd; of several, the one with the examined configuration.
func (n *node) daemonProcess() (found procfs.Details, runs bool) {
	all, _ := n.daemons("flexd")
	for _, d := range all {
		if len(d.Args) < 2 || d.Args[1] != "serve" {
			continue
		}
		if fits := cmp.Or(kubelet.Flag(d.Args, "config"), config.DefaultPath) == n.ConfigPath; fits || !runs {
			found, runs = d, true
			if fits {
				break
			}
		}
	}
	return found, runs
}

// each runs a check for every kubelet. If none runs, the findings say that its settings are a guess.
func (n *node) each(check func(*kubelet.Instance) finding) (all []finding) {
	seen := map[string]bool{}
	for _, k := range n.found().all {
		f := check(k)
		if k.Pid == 0 && f.result != status.ResultSkipped {
			f.evidence += "; no kubelet runs now, so its settings are a guess"
		}
		if len(n.found().all) > 1 {
			f.evidence = k.String() + ": " + f.evidence
		}
		if !seen[f.evidence] {
			all = append(all, f)
		}
		seen[f.evidence] = true
	}
	return all
}

// lvmGroups returns the names of the configured groups of LVM.
func (n *node) lvmGroups() (names []string) {
	for _, g := range n.Config.VolumeGroups {
		if g.Provider == "lvm" {
			names = append(names, g.Name)
		}
	}
	return names
}

// command runs a program for its output, without a lock and with a deadline.
func (n *node) command(argv ...string) (string, error) {
	res, err := n.Runner.Run(n.ctx, run.Cmd{Step: "doctor", Argv: argv, Deadline: 10 * time.Second})
	return string(res.Stdout) + string(res.Stderr), err
}

// lvm runs LVM's program, and returns its standard output.
func (n *node) lvm(args ...string) (string, error) {
	res, err := n.Runner.Run(n.ctx, run.Cmd{Step: args[0], Argv: append([]string{"lvm"}, args...), Deadline: 10 * time.Second})
	return string(res.Stdout), err
}

// firstLine returns the first line with text.
func firstLine(s string) string {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
