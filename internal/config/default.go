package config

import (
	"os"
	"runtime"
	"strings"
	"time"
)

// Default returns the configuration of an empty file. It has no volume group.
func Default() *Config {
	c := defaults()
	c.derive()
	return c
}

// defaults returns the constant defaults.
func defaults() *Config {
	return &Config{
		Kubelet: Kubelet{Driver: "flexd/lvm", KubeletRoots: []string{"/var/lib/kubelet"}, CgroupDir: "/sys/fs/cgroup"},
		Files:   Files{RunDir: "/run/flexd", StateDir: "/var/lib/flexd", HistorySize: 16 << 20},
		Times:   Times{Lease: 30 * time.Second, CallDeadline: 4*time.Minute + 30*time.Second},
		Checks:  Checks{MaxChecks: max(4, runtime.NumCPU()), CheckMemory: 2 << 30},
		Log:     Log{LogFormat: "text", LogLevel: "info"},
	}
}

// derive sets the remaining defaults from the host.
func (c *Config) derive() {
	if c.NodeName == "" {
		// Kubelet normalizes the host name in the same way.
		host, _ := os.Hostname() // check reports an empty name
		c.NodeName = strings.ToLower(strings.TrimSpace(host))
	}
}

// defaultGroup returns the defaults of a volume group. Name, directory and namespaces have
// none: flexd does not guess the location or the owner of data.
func defaultGroup() VolumeGroup {
	return VolumeGroup{ThinPoolWarning: 80, Reserve: 10, MountFlags: []string{"nodev"}, Volumes: []string{"*"}}
}
