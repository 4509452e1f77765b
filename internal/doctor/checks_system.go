package doctor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/status"
	"golang.org/x/sys/unix"
)

// A program is one that flexd or LVM runs.
type program struct {
	name    string
	pkg     string           // Debian's package
	version string           // the argument that prints it
	missing string           // the result without it
	used    func(*node) bool // nil = on every node
}

const (
	always = status.ResultError
	seldom = status.ResultWarning // for one kind of filesystem
)

var programs = []program{
	{"lvm", "lvm2", "version", always, func(n *node) bool { return len(n.lvmGroups()) > 0 }},
	{"thin_check", "thin-provisioning-tools", "-V", always, func(n *node) bool { return len(n.pools()) > 0 }},
	{"blkid", "util-linux", "-V", always, nil},
	{"wipefs", "util-linux", "-V", always, nil},
	{"mkfs.ext4", "e2fsprogs", "-V", always, nil},
	{"e2fsck", "e2fsprogs", "-V", always, nil},
	{"mkfs.xfs", "xfsprogs", "-V", seldom, nil},
	{"mkfs.btrfs", "btrfs-progs", "-V", seldom, nil},
}

func (n *node) programs() (all []finding) {
	var fine []string
	for _, p := range programs {
		if p.used != nil && !p.used(n) {
			continue
		}
		out, err := n.command(p.name, p.version)
		switch line := firstLine(out); {
		case errors.As(err, new(*os.PathError)):
			f := finding{p.missing, fmt.Sprintf("%s is not in /usr/sbin, /usr/bin, /sbin, /bin", p.name), []string{"apt-get install " + p.pkg + " (Debian, Ubuntu)", "dnf install " + strings.Replace(p.pkg, "thin-provisioning-tools", "device-mapper-persistent-data", 1) + " (Fedora, RHEL)"}}
			if p.missing == seldom {
				f.evidence += ": volumes with that filesystem cannot be made"
			}
			all = append(all, f)
		case line == "" && err != nil:
			all = append(all, unknown(p.name+" "+p.version+": "+err.Error()))
		case p.name == "lvm":
			_, version, _ := strings.Cut(out, "LVM version:")
			fine = append(fine, "lvm "+firstLine(version))
		case strings.Contains(line, strings.TrimPrefix(p.name, "mkfs.")) || strings.Contains(line, p.name):
			fine = append(fine, line)
		default:
			fine = append(fine, p.name+" "+line)
		}
	}
	if len(fine) > 0 {
		all = append(all, well("%s", strings.Join(fine, "; ")))
	}
	return all
}

func (n *node) release() string {
	return strings.TrimSpace(procfs.System(n.Root, "sys/kernel/osrelease"))
}

func (n *node) kernel() (all []finding) {
	release := n.release()
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return []finding{unknown("the kernel's version is unknown: " + strconv.Quote(release))}
	}
	if major < 5 || major == 5 && minor < 15 {
		all = append(all, failed("Linux "+release, "install a kernel 5.15 or later"))
	}
	if n.Root == "" {
		for _, c := range []struct {
			name string
			call func() error
		}{
			{"openat2", func() error {
				fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
				if err == nil {
					unix.Close(fd)
				}
				return err
			}},
			{"fsopen", func() error {
				fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
				if err == nil {
					unix.Close(fd)
				}
				return err
			}},
			{"mount_setattr", func() error {
				if err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, new(unix.MountAttr)); err != unix.EBADF {
					return err
				}
				return nil
			}},
		} {
			if err := c.call(); err == unix.ENOSYS {
				all = append(all, failed("the kernel, or a seccomp filter, has no "+c.name, "install a kernel 5.15 or later", "run flexd outside of a container that forbids it"))
			}
		}
	}
	return append(all, well("Linux %s", release))
}

// module reports whether the kernel has a module: loaded, built in or as a file.
func (n *node) module(name string) (found, known bool) {
	if exists(n.Root + "/sys/module/" + name) {
		return true, true
	}
	dir := n.Root + "/lib/modules/" + n.release()
	files := 0
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		text, err := os.ReadFile(filepath.Join(dir, list))
		if err != nil {
			continue
		}
		files++
		for line := range strings.Lines(strings.ReplaceAll(string(text), "-", "_")) {
			file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
			base, _, _ := strings.Cut(filepath.Base(file), ".")
			if base == name {
				return true, true
			}
		}
	}
	return false, files > 0
}

// furtherModules returns the commands that install the modules missing from a small kernel package.
func (n *node) furtherModules() []string {
	return []string{"apt-get install linux-modules-extra-" + n.release() + " (Ubuntu)", "apt-get install linux-image-amd64 (Debian's cloud image), and boot it", "dnf install kernel-modules-extra (Fedora, RHEL)"}
}

func (n *node) filesystems() (all []finding) {
	loaded := strings.Fields(procfs.System(n.Root, "filesystems"))
	var fine []string
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		found, known := n.module(fs)
		switch {
		case slices.Contains(loaded, fs) || found:
			fine = append(fine, fs)
		case !known:
			all = append(all, unknown("the kernel has not loaded "+fs+", and /lib/modules/"+n.release()+" cannot be read", "modprobe "+fs))
		default:
			f := warning("the kernel has no "+fs, append(n.furtherModules(), "use another fsType")...)
			if fs == "ext4" {
				f.result = status.ResultError
			}
			all = append(all, f)
		}
	}
	if len(fine) > 0 {
		all = append(all, well("%s", strings.Join(fine, ", ")))
	}
	return all
}

// targets are the modules of LVM's segment types.
var targets = map[string]string{"raid": "dm_raid", "mirror": "dm_mirror", "cache": "dm_cache", "writecache": "dm_writecache", "vdo": "dm_vdo"}

func (n *node) modules() (all []finding) {
	need := map[string]string{} // module -> for
	for _, g := range n.Config.VolumeGroups {
		if g.Directory != "" {
			need["loop"] = g.Name
			continue
		}
		need["dm_mod"] = g.Name
		if g.ThinPool != "" {
			need["dm_thin_pool"] = g.Name
		}
		for segment, module := range targets {
			if strings.HasPrefix(g.Layout.Type, segment) {
				need[module] = g.Name
			}
		}
	}
	if len(need) == 0 {
		return skipped("no volume group is configured")
	}
	var fine []string
	for _, module := range slices.Sorted(maps.Keys(need)) {
		found, known := n.module(module)
		node := map[string]string{"dm_mod": "/dev/mapper/control", "loop": "/dev/loop-control"}[module]
		switch {
		case node != "" && !exists(n.Root+node) && exists(n.Root+"/sys/module/"+module):
			all = append(all, failed(fmt.Sprintf("there is no %s, which group %s needs", node, need[module]), "modprobe "+module, "in a container: give it "+node))
		case found || node != "" && exists(n.Root+node):
			fine = append(fine, module)
		case !known:
			all = append(all, unknown(fmt.Sprintf("%s, which group %s needs, is not loaded, and /lib/modules/%s cannot be read", module, need[module], n.release()), "modprobe "+module))
		default:
			all = append(all, failed(fmt.Sprintf("the kernel has no %s, which group %s needs", module, need[module]), n.furtherModules()...))
		}
	}
	if len(fine) > 0 {
		all = append(all, well("%s", strings.Join(fine, ", ")))
	}
	return all
}

func (n *node) controlGroups() []finding {
	dir, version := n.Config.CgroupDir, "version 1"
	if exists(n.Root + dir + "/cgroup.controllers") {
		version = "version 2"
	}
	runs := slices.ContainsFunc(n.found().all, func(k *kubelet.Instance) bool { return k.Pid != 0 })
	switch why := kubelet.NewCgroups(n.Root + dir).Look().Unknown(); {
	case why == "":
		return []finding{well("%s, %s, has kubelet's control groups (kubepods)", dir, version)}
	case runs:
		return []finding{warning(why, "see where they are: systemd-cgls | grep kubepods", "set cgroupDir in "+n.ConfigPath)}
	default:
		return []finding{well("%s, %s; kubelet makes its own when it starts", dir, version)}
	}
}
