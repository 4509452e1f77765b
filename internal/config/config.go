// Package config reads flexd's configuration file: strict YAML, with a default for every
// key, without secrets. For reloads see Live.
package config

import (
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// DefaultPath is the default path of the configuration.
const DefaultPath = "/etc/flexd/flexd.yaml"

// maxBytes limits the size of the file, so that a wrong path (a disk image, /dev/zero) does
// not fill the memory.
const maxBytes = 1 << 20

// A Config is a checked configuration: every path is absolute and clean, every
// duration positive, every name valid.
type Config struct {
	Kubelet
	Files
	Times
	Checks
	Log
	MetricsAddress string   // ADDRESS:PORT of the metrics, "" = none
	LVMFilter      []string // `filter` of LVM's commands; nil = flexd's own before the host's
	VolumeGroups   []VolumeGroup
}

// Kubelet configures the FlexVolume frontend.
type Kubelet struct {
	Driver       string   // FlexVolume driver name, "vendor/driver"
	NodeName     string   // kubelet's name of this node; default: the host name
	KubeletRoots []string // kubelet's --root-dir, as configured (not resolved)
	CgroupDir    string   // where the host's control groups are
}

// Files configures flexd's own files.
type Files struct {
	RunDir      string // notes, lane locks, device links; gone after a reboot
	StateDir    string // format records; survives reboots
	StatusGroup string // group that may read the status socket, "" = root only
	HistorySize int64  // bytes of the history in StateDir; 0 = in memory only
}

// DriverSocket is the path of the socket for flexdriver.
func (f Files) DriverSocket() string { return filepath.Join(f.RunDir, "driver.sock") }

// StatusSocket is the path of the socket for `flexd status`.
func (f Files) StatusSocket() string { return filepath.Join(f.RunDir, "status.sock") }

// Times configures durations.
type Times struct {
	Lease        time.Duration // how long a volume stays active without a claim
	CallDeadline time.Duration // how long a call may wait in flexd
	// ReleaseOrphansAfter is the age at which flexd itself releases an orphan; 0 = never.
	ReleaseOrphansAfter time.Duration
}

// Checks limits fsck and mkfs, whose cost depends on the contents of a volume.
type Checks struct {
	MaxChecks   int   // at the same time in one volume group
	CheckMemory int64 // bytes of memory for each
}

// Log configures flexd's log.
type Log struct {
	LogFormat string // "text" or "json"
	LogLevel  string // a logrus level
}

// A VolumeGroup has flexd's permissions in one volume group. flexd mounts no volumes of other
// groups.
type VolumeGroup struct {
	Name            string
	Provider        string   // "lvm" or "loopdev"
	Directory       string   // loopdev: the directory of the volumes' files
	Shared          bool     // lvm: other nodes use the group, too, and lvmlockd manages its locks
	WatchdogNone    bool     // `watchdog: none`: a shared group is used without a watchdog
	ThinPool        string   // lvm: new volumes are thin volumes of this pool, "" = thick
	ThinPoolWarning int      // lvm: flexd warns from this usage of a thin pool's data or metadata on, in percent
	Layout          Layout   // lvm: of new volumes
	Volumes         []string // globs of the LV names that may be used
	Namespaces      []string // globs of the pod namespaces that may mount them
	Create          bool     // a missing volume may be created when `size` is given
	ZeroAll         bool     // lvm: `zero: all`: all of a new volume is zeroed, not only the places of labels
	MaxSize         int64    // bytes; the largest size of a created or extended volume, 0 = no limit (never with Create)
	Limit                    // of the volumes that flexd has created
	PerNamespace    Limit    // the same for each namespace
	Reserve         int      // the percentage of the filesystem of loop files, or of a thin pool, that remains free
	Overcommit      bool     // the total size of the volumes may exceed that of the filesystem or pool
	MountFlags      []string // of every mount: nosuid, nodev, noexec
	NeverDeactivate bool     // `deactivate: never`
}

// A Limit restricts the volumes that flexd has created in a group; 0 = no limit.
type Limit struct {
	MaxVolumes   int
	MaxTotalSize int64 // bytes
}

// A Layout is LVM's layout of the volumes that flexd creates in a group. The zero value is
// LVM's default.
type Layout struct {
	Type       string // a type of lvcreate: "linear", "striped", "raid1", ...
	Stripes    int
	StripeSize int64 // bytes
	Mirrors    int   // further copies
	PVTag      string
}

// Load reads and checks the file at path. The error has one line for each error in the
// file.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// VG returns the configured volume group with a name, or nil.
func (c *Config) VG(name string) *VolumeGroup {
	for i := range c.VolumeGroups {
		if c.VolumeGroups[i].Name == name {
			return &c.VolumeGroups[i]
		}
	}
	return nil
}

// Restricted reports whether the namespace of a pod decides which volumes it may use.
func (g *VolumeGroup) Restricted() bool {
	return !slices.Contains(g.Namespaces, "*") || slices.ContainsFunc(g.Volumes, func(glob string) bool { return strings.Contains(glob, namespacePlaceholder) })
}

// AllowsVolume reports whether pods of at least one namespace may use the logical volume lv.
func (g *VolumeGroup) AllowsVolume(lv string) bool {
	return slices.ContainsFunc(g.Volumes, func(glob string) bool {
		return matches(globsFor(glob, g.Namespaces), lv)
	})
}

// globsFor returns a glob of volumes for each of these namespaces.
func globsFor(glob string, namespaces []string) (all []string) {
	if !strings.Contains(glob, namespacePlaceholder) {
		return []string{glob}
	}
	for _, ns := range namespaces {
		all = append(all, strings.ReplaceAll(glob, namespacePlaceholder, ns))
	}
	return all
}

// AllowsVolumeFor reports whether pods of the namespace ns may use the logical volume lv. If a pattern
// matches for two namespaces, such as a-b-c with "{namespace}-*", the volume belongs to the one with the
// longer name.
func (g *VolumeGroup) AllowsVolumeFor(ns, lv string) bool {
	var shared, own []string
	for _, glob := range g.Volumes {
		if strings.Contains(glob, namespacePlaceholder) {
			own = append(own, glob)
		} else {
			shared = append(shared, glob)
		}
	}
	return matches(shared, lv) || owns(own, ns, lv) && !g.longerOwner(own, ns, lv)
}

// owns reports whether one of the globs matches the volume for the namespace.
func owns(globs []string, ns, lv string) bool {
	return len(ns) <= maxNamespace && namespaces().MatchString(ns) && slices.ContainsFunc(globs, func(glob string) bool {
		return matches([]string{strings.ReplaceAll(glob, namespacePlaceholder, ns)}, lv)
	})
}

// longerOwner reports whether the volume belongs to a namespace whose name contains ns.
func (g *VolumeGroup) longerOwner(globs []string, ns, lv string) bool {
	for i := range lv {
		for j := i + len(ns) + 1; j <= len(lv); j++ {
			if other := lv[i:j]; strings.Contains(other, ns) && owns(globs, other, lv) && g.AllowsNamespace(other) {
				return true
			}
		}
	}
	return false
}

// AllowsNamespace reports whether pods of the namespace may mount volumes of the group.
func (g *VolumeGroup) AllowsNamespace(ns string) bool { return matches(g.Namespaces, ns) }

func matches(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool {
		ok, err := path.Match(glob, name)
		return err == nil && ok
	})
}
