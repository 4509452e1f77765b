package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/lockspace"
	"github.com/flexd/flexd/internal/run"
)

// KillCommand is flexd's command for global/lvmlockctl_kill_command, without its path.
const KillCommand = "lockspace-lost"

// sanlock's limit of host ids, and the seconds in which the watchdog resets a node.
const (
	maxHostID     = 2000
	watchdogFires = 60
)

// shared returns the configured groups that LVM reports as shared, with their lock types. If there
// are none, or they are unknown, why is the result of a check.
func (n *node) shared() (groups []group, why []finding) {
	names := n.lvmGroups()
	if len(names) == 0 {
		return nil, skipped("no group of LVM is configured")
	}
	there, err := n.vgs()
	if err != nil {
		return nil, []finding{unknown("the volume groups cannot be read: " + err.Error())}
	}
	for _, g := range there {
		if slices.Contains(names, g.Name) && (g.Lock == "sanlock" || g.Lock == "dlm") {
			groups = append(groups, g)
		}
	}
	if len(groups) == 0 {
		return nil, skipped("no configured group is shared")
	}
	return groups, nil
}

// sanlockGroups is shared for the groups whose locks sanlock keeps.
func (n *node) sanlockGroups() (groups []group, why []finding) {
	if groups, why = n.shared(); why != nil {
		return nil, why
	}
	groups = slices.DeleteFunc(groups, func(g group) bool { return g.Lock != "sanlock" })
	if len(groups) == 0 {
		return nil, skipped("sanlock keeps the locks of no configured group")
	}
	return groups, nil
}

// sanlockSettings is sanlockGroups with the settings of LVM's configuration.
func (n *node) sanlockSettings() (groups []group, set map[string]string, why []finding) {
	if groups, why = n.sanlockGroups(); why != nil {
		return nil, nil, why
	}
	set, err := n.lvmSet()
	if err != nil {
		return nil, nil, []finding{unknown("LVM's configuration cannot be read: "+err.Error(), "lvmconfig --validate")}
	}
	return groups, set, nil
}

func listed(groups []group) string {
	var all []string
	for _, g := range groups {
		all = append(all, g.Name+" ("+g.Lock+")")
	}
	return strings.Join(all, ", ")
}

// daemonFindings reports that a daemon does not run, or does not start at boot.
func (n *node) daemonFindings(list, name, unit string, remedy ...string) []finding {
	if running, err := n.daemons(name); err == nil && len(running) == 0 {
		return []finding{failed(fmt.Sprintf("%s is shared, and %s does not run", list, name), remedy...)}
	}
	return n.bootFindings(list, unit)
}

// bootFindings reports that a unit does not start at boot.
func (n *node) bootFindings(list, unit string) (all []finding) {
	if !exists(n.Root + "/run/systemd/system") {
		return all
	}
	out, err := n.command("systemctl", "show", unit, "-p", "UnitFileState")
	if state := strings.TrimPrefix(firstLine(out), "UnitFileState="); err == nil && (state == "disabled" || state == "masked") {
		all = append(all, warning(fmt.Sprintf("%s is %s: after a boot no volume of %s can be used", unit, state, list), "systemctl enable "+unit))
	}
	return all
}

func (n *node) lvmlockd() (all []finding) {
	if there, err := n.vgs(); err == nil {
		for _, g := range there {
			if slices.Contains(n.lvmGroups(), g.Name) && g.Lock == "clvm" {
				all = append(all, failed("volume group "+g.Name+" is clustered (clvmd), which LVM no longer supports", "vgchange --lock-type none "+g.Name+" (if no other machine uses it)"))
			}
		}
	}
	groups, why := n.shared()
	if why != nil {
		return append(all, why...)
	}
	list := listed(groups)
	s, err := n.lvmSet()
	if err == nil && s["use_lvmlockd"] != "1" {
		all = append(all, failed(list+" is shared, and LVM has use_lvmlockd=0", "set use_lvmlockd=1 in the section global of /etc/lvm/lvm.conf", "systemctl enable --now lvmlockd"))
	}
	all = append(all, n.daemonFindings(list, "lvmlockd", "lvmlockd.service", "systemctl enable --now lvmlockd", "vgchange --lockstart")...)
	running, _ := n.daemons("lvmlockd")
	for _, d := range running {
		if !adopts(d.Args) {
			all = append(all, warning("lvmlockd runs without --adopt 1: if it is killed, the locks of volumes that are active cannot be given back", "systemctl edit lvmlockd, with ExecStart= and ExecStart=/sbin/lvmlockd --foreground --adopt 1 in [Service]; then: systemctl restart lvmlockd (while no volume of a shared group is active, and after vgchange --lockstop)"))
		}
	}
	if len(all) == 0 {
		all = append(all, well("lvmlockd runs for %s", list))
	}
	return all
}

// adopts reports whether an lvmlockd takes over the locks of one that was killed.
func adopts(args []string) bool {
	for i, arg := range args {
		if arg == "--adopt=1" || arg == "-A1" || (arg == "--adopt" || arg == "-A") && slices.Equal(args[i+1:min(i+2, len(args))], []string{"1"}) {
			return true
		}
	}
	return false
}

// readSanlock reads the state of sanlock and of its lockspaces.
func (n *node) readSanlock() (lockspace.Sanlock, error) {
	out, err := n.command("sanlock", "client", "status", "-D")
	if err != nil {
		return lockspace.Sanlock{}, err
	}
	return lockspace.ParseSanlock(out)
}

func (n *node) sanlock() (all []finding) {
	groups, why := n.sanlockGroups()
	if why != nil {
		return why
	}
	list := listed(groups)
	s, err := n.sanlocks()
	if err != nil { // it may run as a user of its own: then it is not a process of root
		if running, perr := n.daemons("sanlock"); perr == nil && len(running) == 0 && !errors.As(err, new(*run.StuckError)) {
			return []finding{failed(list+" is shared, and sanlock does not run", "systemctl enable --now wdmd sanlock", "vgchange --lockstart")}
		}
		return []finding{unknown("sanlock does not answer: "+err.Error(), "sanlock client status", "journalctl -u sanlock -n 50")}
	}
	all = n.bootFindings(list, "sanlock.service")
	evidence := "sanlock " + s.Version
	for _, g := range groups {
		if timeout := s.Spaces["lvm_"+g.Name].IOTimeout; timeout > 0 { // sanlock's own formula
			evidence += fmt.Sprintf(", io_timeout %d s for %s: the volumes of a node that died can be used elsewhere after about %d s", timeout, g.Name, 8*timeout+watchdogFires)
		}
	}
	if !s.Watchdog {
		unsafe := n.needWatchdog(groups)
		if len(unsafe) > 0 {
			all = append(all, failed(fmt.Sprintf("sanlock runs without the watchdog (use_watchdog=0), which %s needs: a node that was paused would write to volumes that another node has taken over", listed(unsafe)),
				"remove `-w 0` from sanlock_opts in /etc/default/sanlock (/etc/sysconfig/sanlock), and use_watchdog = 0 from /etc/sanlock/sanlock.conf; then drain the node and reboot it",
				fmt.Sprintf("set watchdog: none for the group in %s, if a node is always powered off before others use its volumes", n.ConfigPath)))
		}
		evidence += ", without the watchdog"
	}
	return append(all, well("%s", evidence))
}

// needWatchdog returns the groups that the configuration does not allow without a watchdog.
func (n *node) needWatchdog(groups []group) (all []group) {
	for _, g := range groups {
		if !slices.ContainsFunc(n.Config.VolumeGroups, func(vg config.VolumeGroup) bool { return vg.Name == g.Name && vg.WatchdogNone }) {
			all = append(all, g)
		}
	}
	return all
}

func (n *node) watchdog() (all []finding) {
	groups, why := n.sanlockGroups()
	if why != nil {
		return why
	}
	if groups = n.needWatchdog(groups); len(groups) == 0 {
		return skipped("the groups are configured with watchdog: none")
	}
	all = n.daemonFindings(listed(groups), "wdmd", "wdmd.service", "systemctl enable --now wdmd (before sanlock; if it finds no watchdog: modprobe softdog)")
	devices, _ := filepath.Glob(n.Root + "/sys/class/watchdog/watchdog*")
	var found []string
	for _, d := range devices {
		identity, _ := kubelet.ReadFile(d + "/identity")
		found = append(found, strings.TrimSpace(filepath.Base(d)+" "+strings.TrimSpace(identity)))
	}
	switch {
	case len(all) > 0:
		return all
	case len(found) == 0:
		return []finding{failed("wdmd runs, and the kernel has no watchdog", "load the driver of the machine's watchdog (ipmi_watchdog, iTCO_wdt, i6300esb ...), or softdog: modprobe softdog; echo softdog >/etc/modules-load.d/softdog.conf", "systemctl restart wdmd (not while sanlock runs)")}
	}
	return []finding{well("wdmd runs, with %s", strings.Join(found, ", "))}
}

// hostID checks that the node's host id is set, and in force. sanlock checks that no other node has
// it, when the lockspace starts.
func (n *node) hostID() []finding {
	groups, set, why := n.sanlockSettings()
	if why != nil {
		return why
	}
	value := set["host_id"]
	id, err := strconv.Atoi(value)
	if err != nil || id < 1 || id > maxHostID {
		if n.lockdHostID() {
			return []finding{well("lvmlockd was started with a host id of its own")}
		}
		return []finding{failed(fmt.Sprintf("local/host_id is %q, not within 1 to %d", value, maxHostID),
			fmt.Sprintf("set host_id in the section local of /etc/lvm/lvmlocal.conf, to a number that no other node of %s has", listed(groups)), "then: systemctl restart lvmlockd (while no volume of a shared group is active); vgchange --lockstart")}
	}
	spaces, err := n.spaces()
	for vg, l := range spaces {
		if err == nil && l.HostID != 0 && l.HostID != id {
			return []finding{warning(fmt.Sprintf("local/host_id is %d, and the lockspace of %s was started with host id %d", id, vg, l.HostID), fmt.Sprintf("vgchange --lockstop %s; vgchange --lockstart %[1]s (while no volume of it is active)", vg))}
		}
	}
	return []finding{well("local/host_id is %d", id)}
}

// lockdHostID reports whether lvmlockd got a host id on its command line.
func (n *node) lockdHostID() bool {
	running, _ := n.daemons("lvmlockd")
	for _, d := range running {
		for _, arg := range d.Args {
			if name, _, _ := strings.Cut(arg, "="); name == "--host-id" || name == "--host-id-file" || name == "-i" || name == "-F" {
				return true
			}
		}
	}
	return false
}

// readLockspaces reads lvmlockd's state, by volume group.
func (n *node) readLockspaces() (map[string]lockspace.LockdSpace, error) {
	out, err := n.command("lvmlockctl", "--info", "--dump")
	if err != nil {
		return nil, err
	}
	return lockspace.ParseLvmlockd(out)
}

func (n *node) lockspaces() (all []finding) {
	groups, why := n.shared()
	if why != nil {
		return why
	}
	spaces, err := n.spaces()
	if err != nil {
		return []finding{unknown("lvmlockd does not answer: "+err.Error(), "lvmlockctl --info", "journalctl -u lvmlockd -n 50")}
	}
	s, serr := n.sanlocks()
	var fine, global []string
	for _, g := range groups {
		l, known := spaces[g.Name]
		leases, added := s.Spaces["lvm_"+g.Name]
		inSanlock := g.Lock != "sanlock" || serr != nil || added
		start := "vgchange --lockstart " + g.Name
		drop := fmt.Sprintf("if nothing of it is active (dmsetup info -c -o name,open -S 'vg_name=%s'; only %[1]s-lvmlock remains): lvmlockctl --drop %[1]s; %s", g.Name, start)
		switch {
		case !known && inSanlock && g.Lock == "sanlock" && serr == nil && leases.Locks == 0:
			all = append(all, failed("sanlock has the lockspace of "+g.Name+", and lvmlockd does not know it: lvmlockd was restarted, while it had no locks", "sanlock client rem_lockspace -s "+leases.Arg("lvm_"+g.Name)+"; "+start))
		case !known && inSanlock && g.Lock == "sanlock" && serr == nil:
			all = append(all, failed(fmt.Sprintf("sanlock has the lockspace of %s with locks (%d), and lvmlockd does not know it: lvmlockd was restarted without --adopt 1", g.Name, leases.Locks), "stop lvmlockd, write its file /run/lvm/lvmlockd.adopt and start it with --adopt 1, which takes the locks over: docs/shared.md, Recovery", "or drain the node and reboot it"))
		case !known:
			all = append(all, warning("the lockspace of "+g.Name+" is not started; flexd starts it when a pod needs it", start+" (joining takes up to some minutes)"))
		case l.Killed:
			all = append(all, failed("the locks of "+g.Name+" are lost: its disk did not answer, and sanlock could not renew its lease", "flexd status (names what is in use)", drop))
		case !inSanlock:
			all = append(all, failed("lvmlockd has the lockspace of "+g.Name+", and sanlock has lost it", drop))
		case l.Failed:
			all = append(all, failed("the lockspace of "+g.Name+" did not start", "lvmlockctl --dump | tail; sanlock client log_dump | tail", start))
		case !l.Started:
			all = append(all, warning("the lockspace of "+g.Name+" is being started", "sanlock client gets -h 1"))
		default:
			fine = append(fine, g.Name)
		}
		for _, o := range leases.Orphans {
			if known {
				all = append(all, failed("sanlock has a lock that lvmlockd does not know (ORPHAN): no node can activate its volume", lockspace.ReleaseOrphan(o)))
			}
		}
	}
	for vg, l := range spaces { // the global lock may be in a group of others
		if l.GlobalLock {
			global = append(global, vg)
		}
	}
	slices.Sort(global)
	if len(fine) == 0 {
		return all
	}
	evidence := "the lockspaces of " + strings.Join(fine, ", ") + " are started"
	switch dlm := !slices.ContainsFunc(groups, func(g group) bool { return g.Lock == "sanlock" }); {
	case dlm:
	case len(global) == 0:
		all = append(all, warning("no volume group has the global lock: volume groups and disks cannot be changed (pvcreate, vgcreate, vgremove)", "start the lockspace of the group that has it (vgchange --lockstart)", "if that group is gone, on one node only: lvmlockctl --gl-enable "+fine[0]))
	case len(global) > 1:
		all = append(all, failed("several volume groups have the global lock: "+strings.Join(global, ", "), fmt.Sprintf("keep that of one: lvmlockctl --gl-disable %s", global[len(global)-1])))
	default:
		evidence += ", and the global lock is in " + global[0]
	}
	return append(all, well("%s", evidence))
}

func (n *node) killCommand() []finding {
	groups, set, why := n.sanlockSettings()
	if why != nil {
		return why
	}
	command := strings.Trim(set["lvmlockctl_kill_command"], `"`)
	program, rest, _ := strings.Cut(command, " ")
	remedy := fmt.Sprintf("set lvmlockctl_kill_command = %q in the section global of /etc/lvm/lvm.conf", ownPath()+" "+KillCommand)
	switch {
	case command == "":
		return []finding{warning("lvmlockctl_kill_command is not set: when the disk of "+listed(groups)+" does not answer, the watchdog resets this node, even if no pod uses a volume", remedy)}
	case filepath.Base(program) != "flexd" || !strings.HasPrefix(rest+" ", KillCommand+" "):
		return []finding{warning("lvmlockctl_kill_command is "+command+", and not flexd's: flexd does not know when locks are lost", remedy, "if it is to stay, let it run flexd "+KillCommand+", too")}
	case !strings.HasPrefix(program, "/"):
		return []finding{failed("lvmlockctl_kill_command is "+command+": LVM wants the whole path", remedy)}
	case !exists(n.Root + program):
		return []finding{failed("lvmlockctl_kill_command is "+command+", and there is no "+program, remedy)}
	}
	return []finding{well("%s", command)}
}

// ownPath returns the path of this program.
func ownPath() string {
	if path, err := os.Executable(); err == nil && filepath.Base(path) == "flexd" {
		return path
	}
	return "/usr/local/bin/flexd"
}
