// Package config is flexd's one configuration file: strict YAML, every key with
// a default. It is not for anything that changes while flexd runs, and holds no
// secrets.
package config

import "time"

// A Config is a checked configuration: every path is absolute and clean, every
// duration positive, every name valid.
type Config struct {
	Driver       string        // FlexVolume driver name, "vendor/driver"
	NodeName     string        // this node as kubelet calls it; default: the host name
	KubeletRoots []string      // kubelet's --root-dir, as configured (not resolved)
	RunDir       string        // notes, lane locks, device links; gone after a reboot
	StateDir     string        // format records; survives reboots
	DriverSocket string        // default RunDir/driver.sock
	StatusSocket string        // default RunDir/status.sock
	StatusGroup  string        // group that may read the status socket, "" = root only
	Lease        time.Duration // how long a volume stays active without a claim
	CallDeadline time.Duration // how long a call may wait in flexd
	LogFormat    string        // "text" or "json"
	LogLevel     string        // a logrus level
	VolumeGroups []VolumeGroup
}

// A VolumeGroup says what flexd may do in one volume group. Volumes in a group
// that is not configured are never set up.
type VolumeGroup struct {
	Name            string
	Provider        string   // "loopdev"
	Directory       string   // loopdev: where the volumes' files are
	Volumes         []string // globs of the LV names that may be used
	Namespaces      []string // globs of the pod namespaces that may mount them
	Create          bool     // a missing volume may be created when `size` is given
	MaxSize         int64    // bytes; the largest volume that may be created or extended to
	NeverDeactivate bool     // `deactivate: never`
}

// VG returns the configured volume group of that name, or nil.
func (c *Config) VG(name string) *VolumeGroup {
	for i := range c.VolumeGroups {
		if c.VolumeGroups[i].Name == name {
			return &c.VolumeGroups[i]
		}
	}
	return nil
}
