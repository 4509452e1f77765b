package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/driver"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/udev"
	"golang.org/x/sys/unix"
)

func (n *node) configuration() (all []finding) {
	checkIt := "correct it: flexd config --check " + n.ConfigPath + "; every key: flexd config"
	if errors.Is(n.ConfigErr, fs.ErrPermission) {
		return []finding{unknown(n.ConfigErr.Error())}
	}
	if n.ConfigErr != nil {
		return []finding{failed(n.ConfigErr.Error(), checkIt)}
	}
	if st, err := os.Stat(n.Root + n.ConfigPath); err == nil {
		if wrong, remedy := driver.Unsafe(n.ConfigPath, st); wrong != "" {
			all = append(all, failed(wrong, remedy))
		}
	}
	if err := n.Machine(); err != nil {
		all = append(all, failed(err.Error(), "correct "+n.ConfigPath+", or make what it names (a directory may be on a disk that is not mounted)", checkIt))
	}
	if len(n.Config.VolumeGroups) == 0 {
		return append(all, warning(n.ConfigPath+" has no volume groups", "add yours to volumeGroups in "+n.ConfigPath, checkIt))
	}
	if standard := config.Default().DriverSocket(); n.Config.DriverSocket() != standard {
		for _, k := range n.found().all {
			if k.Pid != 0 && k.Env(flexvolume.EnvSocket) != n.Config.DriverSocket() {
				all = append(all, failed(fmt.Sprintf("runDir is %s, and %s does not have %s=%s in its environment: its calls go to %s", n.Config.RunDir, k, flexvolume.EnvSocket, n.Config.DriverSocket(), standard),
					"remove runDir from "+n.ConfigPath+", then: systemctl restart flexd", fmt.Sprintf("set %s=%s in kubelet's environment, and restart kubelet", flexvolume.EnvSocket, n.Config.DriverSocket())))
			}
		}
	}
	var names []string
	for _, g := range n.Config.VolumeGroups {
		names = append(names, g.Name+" ("+g.Provider+")")
	}
	return append(all, well("%s: %s", n.ConfigPath, strings.Join(names, ", ")))
}

// volatile are filesystems that are empty after a reboot.
var volatile = []string{"tmpfs", "ramfs"}

func (n *node) directories() (all []finding) {
	path, _ := n.mounts()
	table, err := mounttable.ReadFile(path)
	if err != nil {
		return []finding{unknown(err.Error())}
	}
	var seen []string
	for _, d := range []struct {
		key, path string
		volatile  bool
	}{{"runDir", n.Config.RunDir, true}, {"stateDir", n.Config.StateDir, false}} {
		on := table.Containing(d.path)
		if on == nil {
			continue
		}
		seen = append(seen, fmt.Sprintf("%s %s is on %s at %s", d.key, d.path, on.Type, on.Dir))
		switch evidence := seen[len(seen)-1]; {
		case d.volatile && !slices.Contains(volatile, on.Type):
			all = append(all, warning(evidence+", which may survive a reboot", "mount a tmpfs there, or set runDir to a directory on one, after the node was drained"))
		case !d.volatile && slices.Contains(volatile, on.Type):
			all = append(all, failed(evidence+", which is lost at a reboot", "set stateDir to a directory on a disk, and copy "+d.path+" there before flexd restarts"))
		case on.ReadOnly || on.SuperReadOnly:
			all = append(all, failed(evidence+", which is read-only", "see why: dmesg | grep "+filepath.Base(on.Source), "mount -o remount,rw "+on.Dir))
		}
	}
	for _, g := range n.Config.VolumeGroups {
		if g.Directory != "" && table.Top(g.Directory) != nil {
			all = append(all, warning(fmt.Sprintf("the directory %s of volume group %s is a mount point: without its disk, as after a reboot, flexd creates volumes below it, and older copies there would count as the volumes", g.Directory, g.Name),
				"after the node was drained, move the files to a subdirectory, which is missing without the disk, and set directory to it"))
		}
	}
	if len(all) == 0 {
		all = append(all, well("%s", strings.Join(seen, "; ")))
	}
	return all
}

func (n *node) daemon() (all []finding) {
	start := []string{"why it does not run: systemctl status flexd; journalctl -u flexd -n 50", "systemctl start flexd"}
	process, runs := n.serve()
	if _, err := os.Stat(n.Socket); err != nil || unix.Access(n.Socket, unix.W_OK) != nil {
		switch {
		case errors.Is(n.ConfigErr, fs.ErrPermission):
			return []finding{unknown("the configuration, which names the socket, cannot be read: "+n.ConfigErr.Error(), "name the socket with --socket")}
		case os.IsPermission(err) || err == nil:
			return []finding{unknown("you may not read "+n.Socket, "ask as root, or as a member of the group that statusGroup names")}
		case runs:
			return []finding{failed(fmt.Sprintf("flexd runs (%s), but there is no socket %s", describe(process), n.Socket), "name its socket with --socket, if its runDir is another", "systemctl restart flexd")}
		}
		return []finding{failed("flexd is not running: no process, and no socket "+n.Socket, start...)}
	}
	if n.startable() {
		return []finding{failed("flexd is not running: systemd listens on "+n.Socket+" for it", start...)}
	}
	var health struct {
		Status  string   `json:"status"`
		Reasons []string `json:"reasons"`
	}
	body, err := n.Ask("/healthz")
	if parse := json.Unmarshal(body, &health); err == nil {
		err = parse
	}
	if err != nil && len(health.Reasons) == 0 {
		if !runs {
			return []finding{failed(firstLine(err.Error()), start...)}
		}
		return []finding{failed(fmt.Sprintf("flexd runs (%s), and does not answer well: %s", describe(process), firstLine(err.Error())), "journalctl -u flexd -n 50", "systemctl restart flexd (kubelet's calls wait for it; mounts stay)")}
	}
	for _, reason := range health.Reasons {
		all = append(all, failed(health.Status+": "+reason, "flexd check"))
	}
	if body, err := n.Ask("/v1/volumes"); err == nil {
		var l status.List
		if err := json.Unmarshal(body, &l); err != nil {
			return append(all, unknown("the answer of the daemon is not understood: "+err.Error()))
		}
		for _, p := range l.Problems {
			all = append(all, failed(p, "flexd status", "journalctl -u flexd -n 50"))
		}
	}
	if len(all) == 0 {
		all = append(all, well("it answers on %s", n.Socket))
	}
	return all
}

func (n *node) sockets() (all []finding) {
	if _, runs := n.serve(); !runs {
		return skipped("flexd does not run on the node itself")
	}
	listening, err := os.ReadFile(n.Root + procSelf + "net/unix") // every user can add lines
	for _, s := range []struct {
		path string
		bits os.FileMode // that it must not have
	}{{n.Config.DriverSocket(), 0o077}, {n.Config.StatusSocket(), 0o007}} {
		st, statErr := os.Lstat(n.Root + s.path)
		again := "systemctl restart flexd (makes its sockets anew; kubelet's calls wait for it)"
		switch {
		case os.IsNotExist(statErr):
			all = append(all, failed("there is no "+s.path+", though flexd runs", "see whether runDir of "+n.ConfigPath+" was changed since it started", again))
			continue
		case statErr != nil:
			all = append(all, unknown(statErr.Error()))
			continue
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		switch {
		case st.Mode().Type() != os.ModeSocket:
			all = append(all, failed(s.path+" is not a socket", "see what made it: ls -l "+s.path, again))
		case ok && sys.Uid != 0 || st.Mode().Perm()&s.bits != 0:
			all = append(all, failed(fmt.Sprintf("%s has mode %#o, uid %d: other users may reach it", s.path, st.Mode().Perm(), sys.Uid), again))
		case err == nil && !strings.Contains(string(listening), " "+s.path+"\n"):
			all = append(all, failed("no process listens on "+s.path, again))
		}
	}
	for _, k := range n.found().all {
		if n.other(k) && !sameFile(n.Root+n.Config.RunDir, k.Inside+n.Config.RunDir) {
			all = append(all, failed(fmt.Sprintf("%s runs in a container without %s of the host: its calls do not reach flexd", k, n.Config.RunDir),
				"bind "+n.Config.RunDir+" of the host, or the directory above it, into the container at the same path, and restart it"))
		}
	}
	if len(all) == 0 {
		all = append(all, well("%s, %s", n.Config.DriverSocket(), n.Config.StatusSocket()))
	}
	return all
}

// unitDirs are the directories of systemd's units: of files with one name it reads the first.
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// separate are the options that give a service a mount namespace of its own.
var separate = []string{"PrivateMounts", "PrivateTmp", "PrivateDevices", "PrivateIPC", "ProtectSystem", "ProtectHome", "ProtectProc",
	"ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProtectControlGroups", "ProcSubset", "ReadWritePaths", "ReadOnlyPaths",
	"InaccessiblePaths", "BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem", "RootDirectory", "RootImage", "MountFlags", "DynamicUser", "PrivateUsers"}

// The units of the sockets.
const driverSocket, statusSocket = "flexd-driver.socket", "flexd-status.socket"

// A unitFile has the files of a unit, and the last value of each setting, with its file.
type unitFile struct {
	files        []string
	values, from map[string]string
}

// unitFile reads a unit with its drop-ins; a missing unit has no files.
func (n *node) unitFile(name string) (u unitFile, err error) {
	for _, dir := range unitDirs {
		if len(u.files) == 0 && exists(n.Root+dir+"/"+name) {
			u.files = append(u.files, dir+"/"+name)
		}
	}
	dropins := map[string]string{}                                                 // by name
	for _, of := range []string{strings.TrimLeft(filepath.Ext(name), "."), name} { // of all units of that kind, of this one
		for _, dir := range slices.Backward(unitDirs) {
			found, _ := filepath.Glob(n.Root + dir + "/" + of + ".d/*.conf")
			for _, f := range found {
				dropins[filepath.Base(f)] = strings.TrimPrefix(f, n.Root)
			}
		}
	}
	if len(u.files) == 0 {
		return u, nil
	}
	for _, name := range slices.Sorted(maps.Keys(dropins)) {
		u.files = append(u.files, dropins[name])
	}
	u.values, u.from = map[string]string{}, map[string]string{}
	for _, file := range u.files {
		text, err := kubelet.ReadFile(n.Root + file)
		if err != nil {
			return u, err
		}
		for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
			key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
			if ok && !strings.HasPrefix(key, "#") && !strings.HasPrefix(key, ";") && (value != "" || key != "ExecStart") {
				u.values[key], u.from[key] = value, file
			}
		}
	}
	return u, nil
}

// startable reports whether flexd does not run, and a connection to its socket would start it.
func (n *node) startable() bool {
	if _, runs := n.serve(); runs || !exists(n.Root+"/run/systemd/system") {
		return false
	}
	u, _ := n.unitFile(statusSocket)
	return len(u.files) > 0
}

func (n *node) unit() (all []finding) {
	if !exists(n.Root + "/run/systemd/system") {
		return skipped("systemd does not run here")
	}
	u, err := n.unitFile("flexd.service")
	if err != nil {
		return []finding{unknown(err.Error())}
	}
	files, values, from := u.files, u.values, u.from
	if len(files) == 0 {
		return []finding{warning("there is no flexd.service: flexd does not start at boot", "scripts/install.sh, or install the package again")}
	}
	for _, socket := range [][2]string{{driverSocket, n.Config.DriverSocket()}, {statusSocket, n.Config.StatusSocket()}} {
		name, path := socket[0], socket[1]
		switch s, err := n.unitFile(name); {
		case err != nil:
			all = append(all, unknown(err.Error()))
		case len(s.files) == 0:
			all = append(all, warning("there is no "+name+", as with an earlier version: calls do not wait in the socket while flexd restarts", "scripts/install.sh, or install the package again"))
		case s.values["ListenStream"] != path:
			all = append(all, failed(fmt.Sprintf("%s: ListenStream=%s, and flexd's socket is %s", s.from["ListenStream"], s.values["ListenStream"], path),
				fmt.Sprintf("set ListenStream= and ListenStream=%s in /etc/systemd/system/%s.d/path.conf, then: systemctl daemon-reload; systemctl stop %[2]s; systemctl restart flexd (systemd starts no socket of a service that runs)", path, name)))
		}
	}
	reload := "systemctl daemon-reload && systemctl restart flexd (kubelet's calls wait for it; mounts stay)"
	for _, key := range separate {
		if v := strings.ToLower(values[key]); v != "" && !slices.Contains([]string{"no", "false", "0", "off", "default", "all", "shared"}, v) {
			all = append(all, failed(fmt.Sprintf("%s: %s=%s gives flexd a mount namespace of its own", from[key], key, values[key]), "remove that line, then: "+reload))
		}
	}
	if strings.Contains(" "+values["RuntimeDirectory"]+" ", " flexd ") && values["RuntimeDirectoryPreserve"] != "yes" {
		all = append(all, failed(from["RuntimeDirectory"]+": RuntimeDirectory=flexd: systemd removes flexd's notes when it stops", "remove that line, then: systemctl daemon-reload"))
	}
	if values["KillMode"] != "process" {
		all = append(all, failed(fmt.Sprintf("%s: KillMode is %q, so a stop of flexd kills a running mkfs or fsck", files[0], values["KillMode"]), "set KillMode=process, then: systemctl daemon-reload"))
	}
	if u := values["User"]; u != "" && u != "root" && u != "0" {
		all = append(all, failed(from["User"]+": User="+u+": only root may mount", "remove that line, then: "+reload))
	}
	command := strings.Fields(strings.TrimLeft(values["ExecStart"], "-@:+!"))
	switch {
	case len(command) == 0:
		all = append(all, failed(files[0]+" has no ExecStart", "scripts/install.sh, or install the package again"))
	case !exists(n.Root + command[0]):
		all = append(all, failed(fmt.Sprintf("%s: ExecStart=%s: there is no such program", from["ExecStart"], command[0]), "scripts/install.sh, or install the package again"))
	case kubelet.Flag(command, "config") != "" && kubelet.Flag(command, "config") != n.ConfigPath:
		all = append(all, warning(fmt.Sprintf("%s: flexd's configuration is %s, and %s was examined", from["ExecStart"], kubelet.Flag(command, "config"), n.ConfigPath), "flexd doctor --config "+kubelet.Flag(command, "config")))
	}
	return append(all, n.unitState(files)...)
}

// unitState asks systemd.
func (n *node) unitState(files []string) (all []finding) {
	out, err := n.command("systemctl", "show", "flexd.service", "-p", "ActiveState,Result,NRestarts,NeedDaemonReload,UnitFileState,Before")
	if err != nil {
		return []finding{unknown("systemd does not answer: " + err.Error())}
	}
	state := map[string]string{}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		state[key] = value
	}
	if state["NeedDaemonReload"] == "yes" {
		all = append(all, warning(strings.Join(files, ", ")+" changed since systemd read them", "systemctl daemon-reload && systemctl restart flexd"))
	}
	if s := state["UnitFileState"]; s == "disabled" || s == "masked" {
		all = append(all, warning("flexd.service is "+s+": flexd does not start at boot", "systemctl enable flexd"))
	}
	if s := state["ActiveState"]; s == "failed" || s == "activating" && state["NRestarts"] != "0" {
		all = append(all, failed(fmt.Sprintf("flexd.service is %s (%s, %s restarts)", s, state["Result"], state["NRestarts"]), "journalctl -u flexd -n 50", "systemctl restart flexd"))
	}
	for _, k := range n.found().all {
		if unit := n.unitOf(k); unit != "" && !slices.Contains(strings.Fields(state["Before"]), unit) {
			all = append(all, warning(fmt.Sprintf("%s runs in %s, which is not in Before= of flexd.service: at shutdown flexd may end first, and kubelet cannot unmount volumes", k, unit),
				fmt.Sprintf("write \"[Unit]\" and \"Before=%s\" to /etc/systemd/system/flexd.service.d/order.conf, then: systemctl daemon-reload", unit)))
		}
	}
	if len(all) == 0 {
		all = append(all, well("%s; %s, %s", strings.Join(files, ", "), state["ActiveState"], state["UnitFileState"]))
	}
	return all
}

var serviceCgroup = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/([^/\n]+\.service)(?:/|\n|$)`) })

// unitOf returns the systemd service in which a kubelet runs; "" = none, as in a container or a login.
func (n *node) unitOf(k *kubelet.Instance) string {
	text, _ := os.ReadFile(fmt.Sprintf("%s/proc/%d/cgroup", n.Root, k.Pid))
	if m := serviceCgroup().FindSubmatch(text); m != nil && !bytes.Contains(text, []byte("/user.slice/")) {
		return string(m[1])
	}
	return ""
}

func (n *node) udevRule() []finding {
	if !udev.Running(n.Root) {
		return skipped("udev does not run here")
	}
	rule, err := n.Rule()
	if err != nil {
		return []finding{failed(err.Error(), "set stateDir to a path with letters, digits and ./_-+@: only")}
	}
	if wrong := udev.Problem(n.Root, rule); wrong != "" {
		return []finding{failed(wrong, "flexd udev --install")}
	}
	return []finding{well("udev has the rule for this configuration")}
}
