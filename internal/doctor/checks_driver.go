package doctor

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/driver"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/procfs"
)

// driver returns kubelet's name of the driver's directory, its executable and init's file.
func (n *node) driver() (dir, name, dotfile string) {
	vendor, name, _ := strings.Cut(n.Config.Driver, "/")
	return vendor + "~" + name, name, "." + name + ".init.json"
}

// install returns the command that installs the driver for all kubelets.
func (n *node) install() string {
	if n.ConfigPath != config.DefaultPath {
		return "flexd driver install --config " + n.ConfigPath
	}
	return "flexd driver install"
}

func (n *node) pluginDirectory() []finding {
	return n.each(func(k *kubelet.Instance) finding {
		dir := k.Inside + k.Plugins.Value
		name := fmt.Sprintf("%s (%s)", k.Plugins.Value, k.Plugins.From)
		st, err := os.Lstat(dir)
		switch {
		case os.IsNotExist(err):
			return failed(name+" does not exist", n.install(), "restart kubelet, which makes the directory when it starts").milder(k)
		case err != nil:
			return unknown(err.Error())
		case st.Mode()&fs.ModeSymlink != 0:
			return failed(name+" is a symbolic link: kubelet watches the link, and misses changes of the drivers", "make it a directory, or set kubelet's volumePluginDir to the destination")
		case !st.IsDir():
			return failed(name+" is not a directory", "move it away, then "+n.install())
		case n.other(k) && !sameFile(n.Root+k.Plugins.Value, dir):
			return warning(name+" of kubelet's mount namespace is another directory than here", n.install()+" (finds the path here of kubelet's directory)", "bind "+k.Plugins.Value+" of the host into the container of kubelet")
		case n.hasOption(k, k.Plugins.Value, "noexec"):
			return failed(name+" is on a mount with noexec: kubelet cannot run a driver there", "mount -o remount,exec the filesystem (findmnt -T "+k.Plugins.Value+")", "set kubelet's volumePluginDir to a directory elsewhere")
		}
		if wrong, remedy := driver.Unsafe(dir, st); wrong != "" {
			return failed(wrong, remedy)
		}
		return well("%s", name)
	})
}

func (n *node) executable() []finding {
	return n.each(func(k *kubelet.Instance) finding {
		folder, name, dotfile := n.driver()
		dir := filepath.Join(k.Inside+k.Plugins.Value, folder)
		exe, install := filepath.Join(dir, name), n.install()
		shown := filepath.Join(k.Plugins.Value, folder, name)
		parent, err := os.Lstat(dir)
		if err == nil && !parent.IsDir() {
			return failed(filepath.Dir(shown)+" is not a directory: kubelet does not follow a link", "move it away, then "+install)
		}
		var st os.FileInfo
		if err == nil {
			st, err = os.Stat(exe)
		}
		switch {
		case os.IsNotExist(err):
			return failed(shown+" does not exist", install).milder(k)
		case err != nil:
			return unknown(err.Error())
		case !st.Mode().IsRegular() || st.Mode()&0o111 == 0:
			return failed(fmt.Sprintf("%s is not executable (mode %s)", shown, st.Mode()), install)
		}
		if wrong, remedy := driver.Unsafe(dir, parent); wrong != "" {
			return failed(wrong, remedy)
		}
		if wrong, remedy := driver.Unsafe(exe, st); wrong != "" {
			return failed(wrong, remedy)
		}
		if !driver.IsOurs(exe) {
			return failed(shown+" is not flexd's driver", "see what it is: file "+shown+"; if it is a driver in use, choose another name with driver: in "+n.ConfigPath, install+" --replace-driver (keeps a copy, which flexd driver restore puts back)")
		}
		if _, err := n.mode(k); err != nil {
			return failed(fmt.Sprintf("the driver's init fails, so kubelet does not load it: %s: %v", filepath.Join(filepath.Dir(shown), dotfile), err), install)
		}
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if e.Name() != name && e.Name() != dotfile {
				return warning(fmt.Sprintf("%s: unexpected file, as of an installation that was interrupted; each change of a file there makes kubelet run init again", filepath.Join(filepath.Dir(shown), e.Name())), install+" (completes or undoes it)")
			}
		}
		return well("%s", shown)
	})
}

// mode returns the attach mode of the installed driver.
func (n *node) mode(k *kubelet.Instance) (attach bool, err error) {
	dir, _, dotfile := n.driver()
	return driver.Mode(filepath.Join(k.Inside+k.Plugins.Value, dir, dotfile))
}

func (n *node) attachMode() []finding {
	return n.each(func(k *kubelet.Instance) finding {
		folder, name, _ := n.driver()
		if !exists(filepath.Join(k.Inside+k.Plugins.Value, folder, name)) {
			return skipped("the driver is not installed")[0]
		}
		attach, err := n.mode(k)
		if err != nil {
			return unknown(err.Error())
		}
		evidence := fmt.Sprintf("the driver has attach:%t, and kubelet has enableControllerAttachDetach %s (%s)", attach, k.Attach.Value, k.Attach.From)
		change := "drain the node (the mode cannot change while volumes are mounted), then: " + n.install() + " --attach=false"
		var groups []string
		for _, g := range n.Config.VolumeGroups {
			if g.Create && g.Restricted() {
				groups = append(groups, g.Name)
			}
		}
		switch {
		case attach && len(groups) > 0:
			return warning(evidence+": with attach:true flexd creates no volume in groups that are restricted to namespaces: "+strings.Join(groups, ", "), change, "create and format the volumes by hand")
		case attach && !k.Attaches():
			there := "there: flexd driver install --controller-manager"
			if n.Config.Driver != config.Default().Driver {
				there += " --driver " + n.Config.Driver
			}
			return warning(evidence+": the controller manager attaches, so it needs the driver on its machine, which cannot be examined from here", there, change)
		}
		return well("%s", evidence)
	})
}

// otherLVM are parts of the names of CSI drivers that manage volume groups of LVM.
var otherLVM = []string{"topolvm", "lvm", "local.csi.openebs.io", "open-local", "carina", "directpv"}

func (n *node) otherDrivers() []finding {
	return n.each(func(k *kubelet.Instance) finding {
		ours, _, _ := n.driver()
		var wrong, others, remedy []string
		entries, err := os.ReadDir(k.Inside + k.Plugins.Value)
		if err != nil && !os.IsNotExist(err) {
			return unknown(err.Error())
		}
		for _, e := range entries {
			path := filepath.Join(k.Plugins.Value, e.Name())
			exe := e.Name()[strings.LastIndexByte(e.Name(), '~')+1:]
			switch {
			case e.Name() == ours:
			case strings.HasPrefix(e.Name(), "."):
				wrong = append(wrong, path+" is hidden, but kubelet watches files in it, and logs an error for each change")
				remedy = append(remedy, "if no installation runs now: see what it is, ls -la "+path+", and move it out of "+k.Plugins.Value)
			case !e.IsDir():
				others = append(others, path+" (ignored by kubelet)")
			case !exists(filepath.Join(k.Inside+path, exe)):
				wrong = append(wrong, filepath.Join(path, exe)+" is missing: kubelet fails to load that driver again and again")
				remedy = append(remedy, "if that driver is not used any more: move "+path+" away")
			case usesLVM(filepath.Join(k.Inside+path, exe)):
				wrong = append(wrong, filepath.Join(path, exe)+" is another FlexVolume driver that runs LVM's commands")
				remedy = append(remedy, "move its volumes to driver: "+n.Config.Driver+", drain the node, then move "+path+" away")
			default:
				others = append(others, path)
			}
		}
		for _, name := range n.foreignMounts(k) {
			if !exists(filepath.Join(k.Inside+k.Plugins.Value, name)) {
				wrong = append(wrong, "volumes of "+name+" are mounted, whose driver is not in "+k.Plugins.Value+": kubelet cannot unmount them")
				remedy = append(remedy, "install that driver again and drain the node")
			}
		}
		for _, dir := range []string{"plugins", "plugins_registry"} {
			found, _ := os.ReadDir(filepath.Join(k.Inside+k.RootDir.Value, dir))
			for _, e := range found {
				if len(n.lvmGroups()) > 0 && slices.ContainsFunc(otherLVM, func(s string) bool { return strings.Contains(e.Name(), s) }) {
					wrong = append(wrong, filepath.Join(k.RootDir.Value, dir, e.Name())+" belongs to a CSI driver that manages volume groups of LVM")
					remedy = append(remedy, "give that driver other volume groups than "+strings.Join(n.lvmGroups(), ", ")+"; if it was removed from the cluster, move its directory away")
				}
			}
		}
		if len(wrong) > 0 {
			return warning(strings.Join(wrong, "; "), slices.Compact(remedy)...)
		}
		if len(others) > 0 {
			return well("no other driver for LVM; others: %s", strings.Join(others, ", "))
		}
		return well("no other driver for LVM")
	})
}

// foreignMounts returns the directories of the other FlexVolume drivers that have volumes
// mounted for pods.
func (n *node) foreignMounts(k *kubelet.Instance) (names []string) {
	file, _ := n.mounts()
	table, err := mounttable.ReadFile(file)
	if err != nil {
		return nil // the check of the directories says so
	}
	ours, _, _ := n.driver()
	for _, e := range table.All() {
		_, rest, _ := strings.Cut(e.Dir, "/volumes/")
		name, _, below := strings.Cut(rest, "/")
		if below && strings.HasPrefix(e.Dir, k.RootDir.Value+"/pods/") && strings.Contains(name, "~") && !strings.HasPrefix(name, "kubernetes.io~") && name != ours && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// usesLVM reports whether a script runs commands of LVM. It reads the script, and does not run it.
func usesLVM(script string) bool {
	text, err := kubelet.ReadFile(script)
	return err == nil && strings.HasPrefix(text, "#!") && slices.ContainsFunc([]string{"lvcreate", "lvchange", "lvs ", "vgs ", "lvdisplay", "volumegroup"}, func(s string) bool { return strings.Contains(text, s) })
}

func (n *node) versions() (all []finding) {
	release := map[string]string{"these commands": n.Version}
	if !n.startable() {
		var v struct {
			Version string `json:"version"`
		}
		if body, err := n.Ask("/version"); err == nil && json.Unmarshal(body, &v) == nil {
			release["the daemon"] = v.Version
		}
	}
	if d, ok := n.serve(); ok && strings.HasSuffix(d.Exe, " (deleted)") {
		all = append(all, warning(fmt.Sprintf("the daemon (pid %d) runs an executable that was replaced since: %s", d.Pid, d.Exe), "systemctl restart flexd (kubelet's calls wait for it; mounts stay)"))
	}
	for _, k := range n.found().all {
		folder, name, _ := n.driver()
		exe := filepath.Join(k.Inside+k.Plugins.Value, folder, name)
		st, err := os.Stat(exe)
		if err != nil {
			continue // the check of the executable says so
		}
		if wrong, _ := driver.Unsafe(exe, st); wrong != "" || !driver.IsOurs(exe) {
			continue
		}
		var answer struct {
			Status  string `json:"status"`
			Message string `json:"message"`
		}
		out, err := n.command(exe, flexvolume.PrintVersion)
		if err == nil {
			err = json.Unmarshal([]byte(out), &answer)
		}
		switch {
		case err != nil:
			all = append(all, unknown(fmt.Sprintf("the version of %s is unknown: %v", exe, err), n.install()))
		case answer.Status != flexvolume.StatusSuccess:
			release["flexdriver"] = "older"
		default:
			release["flexdriver"] = answer.Message
		}
	}
	var parts []string
	same := true
	for _, part := range []string{"these commands", "the daemon", "flexdriver"} {
		if v, ok := release[part]; ok {
			parts = append(parts, part+" "+v)
			same = same && v == n.Version
		}
	}
	if same {
		return append(all, well("%s", strings.Join(parts, ", ")))
	}
	return append(all, warning(strings.Join(parts, ", "), "install one version again: scripts/install.sh, or the package", "systemctl restart flexd"))
}

// describe names the daemon's process.
func describe(d procfs.Details) string {
	return fmt.Sprintf("process %d, %s %s", d.Pid, d.Exe, strings.Join(d.Args[1:], " "))
}
