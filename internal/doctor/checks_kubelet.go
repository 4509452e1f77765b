package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/procfs"
)

func (n *node) process() (all []finding) {
	found := n.found()
	for _, k := range found.all {
		name := "no kubelet runs here"
		if k.Pid != 0 {
			name = fmt.Sprintf("%s is process %d, %s", k.Kind, k.Pid, k.Exe)
		}
		evidence := fmt.Sprintf("%s; root directory %s (%s), plugin directory %s (%s), enableControllerAttachDetach %s (%s); from %s",
			name, k.RootDir.Value, k.RootDir.From, k.Plugins.Value, k.Plugins.From, k.Attach.Value, k.Attach.From, k.Read)
		hidden := slices.ContainsFunc(found.ignored, func(s string) bool { return strings.HasSuffix(s, procfs.Unreadable) })
		evidence = strings.Join(append([]string{evidence}, found.ignored...), "; ")
		switch {
		case found.err != nil:
			all = append(all, unknown("processes cannot be listed: "+found.err.Error()))
		case k.Err != nil:
			all = append(all, unknown(evidence+"; "+k.Err.Error(), "correct or make readable what is named here"))
		case k.Pid == 0 && hidden:
			all = append(all, unknown(evidence))
		case k.Pid == 0 && n.Root == "" && procfs.SeesAll() != nil:
			all = append(all, unknown(evidence+"; "+procfs.SeesAll().Error(), "run flexd doctor on the node itself"))
		case k.Pid == 0:
			all = append(all, warning(evidence+"; looked for processes named "+strings.Join(kubelet.Names, ", "),
				"systemctl status kubelet k3s k3s-agent k0sworker snap.microk8s.daemon-kubelite", "start the one that this node has: systemctl start kubelet"))
		case n.other(k):
			all = append(all, well("%s; it runs in a mount namespace of its own, as in a container", evidence))
		default:
			all = append(all, well("%s", evidence))
		}
	}
	return all
}

// other reports whether a kubelet has another mount namespace than flexd.
func (n *node) other(k *kubelet.Instance) bool {
	_, ours := n.mounts()
	return k.Pid != 0 && k.Mounts != "" && ours != "" && k.Mounts != ours
}

// mounts returns the process whose mounts are flexd's, and its mount namespace: the daemon,
// or this program.
func (n *node) mounts() (table, namespace string) {
	if d, ok := n.serve(); ok && d.Mounts != "" {
		return d.Path("mountinfo"), d.Mounts
	}
	namespace, _ = os.Readlink(n.Root + procSelf + "ns/mnt")
	return n.Root + procSelf + "mountinfo", namespace
}

const procSelf = "/proc/self/"

func (n *node) rootDirectory() []finding {
	var roots []string
	for _, k := range n.found().all {
		roots = append(roots, strconv.Quote(k.RootDir.Value))
	}
	roots = slices.Compact(roots)
	return n.each(func(k *kubelet.Instance) finding {
		dir := k.RootDir.Value
		fix := []string{fmt.Sprintf("set kubeletRoots: [%s] in %s, then: flexd config --check %[2]s && systemctl restart flexd", strings.Join(roots, ", "), n.ConfigPath)}
		resolved, err := n.resolve(dir)
		switch {
		case n.ConfigErr != nil:
			return skipped("flexd's configuration cannot be read")[0]
		case !slices.ContainsFunc(n.Config.KubeletRoots, func(r string) bool {
			theirs, err := n.resolve(r)
			return r == dir || err == nil && theirs == resolved
		}):
			return failed(fmt.Sprintf("kubelet's root directory is %s (%s), and kubeletRoots has %s", dir, k.RootDir.From, strings.Join(n.Config.KubeletRoots, ", ")), fix...).milder(k)
		case err != nil && k.Pid == 0:
			return warning(err.Error(), "kubelet creates it when it starts; if it is elsewhere: "+fix[0])
		case err != nil:
			return failed(err.Error(), "bind it into the container of kubelet at the same path, with propagation rshared")
		case n.other(k) && !sameFile(n.Root+dir, k.Inside+dir):
			return failed(fmt.Sprintf("%s of %s is another directory than %s of flexd", dir, k, dir), "bind the host's "+dir+" into the container of kubelet at the same path, with propagation rshared")
		}
		return well("%s (%s) is in kubeletRoots", dir, k.RootDir.From)
	})
}

// resolve follows the symbolic links of a path on the node.
func (n *node) resolve(path string) (string, error) {
	resolved, err := filepath.EvalSymlinks(n.Root + path)
	return strings.TrimPrefix(resolved, n.Root), err
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(x, y)
}

func (n *node) propagation() []finding {
	return n.each(func(k *kubelet.Instance) finding {
		if k.Pid == 0 {
			return skipped("no kubelet runs")[0]
		}
		path, namespace := n.mounts()
		flexds, err := mounttable.ReadFile(path)
		if err != nil || namespace == "" || k.Mounts == "" {
			return unknown(fmt.Sprintf("the mount namespaces of flexd (%s) and %s (%s) cannot be compared: %v", namespace, k, k.Mounts, err))
		}
		resolved, err := n.resolve(k.RootDir.Value)
		if err != nil {
			return unknown(err.Error())
		}
		dir := resolved + "/pods/x"
		if !n.other(k) {
			if on := flexds.Containing(dir); resolved != k.RootDir.Value && on != nil && on.Peer == 0 {
				return warning(fmt.Sprintf("%s is a link to %s on the mount at %s, which is not shared: each start of kubelet mounts the directory over itself, and hides the volumes of running pods", k.RootDir.Value, resolved, on.Dir),
					"mount --make-rshared / (before kubelet starts)", "set kubelet's --root-dir to "+resolved)
			}
			return well("flexd and %s have the same mount namespace", k)
		}
		kubelets, err := mounttable.ReadFile(k.Path("mountinfo"))
		groups := sync.OnceValue(mounttable.AllGroups)
		switch {
		case err != nil:
			return unknown(err.Error())
		case !flexds.Appears(dir, kubelets, dir, groups):
			return failed(fmt.Sprintf("a mount that flexd makes below %s does not appear in the mount namespace of %s (%s, flexd's is %s)", resolved, k, k.Mounts, namespace),
				"if flexd has a mount namespace of its own: remove the options that give it one (see flexd/unit), then systemctl restart flexd",
				"if kubelet runs in a container: mount --make-rshared / on the host, bind "+resolved+" with propagation rshared, and restart the container")
		case !kubelets.Appears(dir, flexds, dir, groups):
			return failed(fmt.Sprintf("a mount that %s makes below %s does not appear in flexd's mount namespace", k, resolved), "bind "+resolved+" into the container of kubelet with propagation rshared, not rslave, and restart it")
		}
		return well("mounts below %s propagate between flexd and %s in both directions", resolved, k)
	})
}

func (n *node) nodeName() []finding {
	return n.each(func(k *kubelet.Instance) finding {
		ours := n.Config.NodeName
		if theirs := strings.ToLower(k.NodeName.Value); theirs != "" && theirs != ours {
			return warning(fmt.Sprintf("kubelet's %s is %s, and flexd's node name is %s", k.NodeName.From, theirs, ours), fmt.Sprintf("set nodeName: %s in %s, then: systemctl restart flexd", theirs, n.ConfigPath))
		}
		return well("%s", ours)
	})
}

// hasOption reports whether the mount that has a path has an option, as kubelet sees it.
func (n *node) hasOption(k *kubelet.Instance, path, option string) bool {
	file, _ := n.mounts()
	if k.Pid != 0 {
		file = k.Path("mountinfo")
	}
	table, err := mounttable.ReadFile(file)
	if err != nil {
		return false
	}
	on := table.Containing(path)
	return on != nil && slices.Contains(on.Options, option)
}
