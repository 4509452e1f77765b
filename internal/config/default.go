package config

import (
	"os"
	"runtime"
	"strings"
	"time"
)

// Default is the configuration of an empty file. It has no volume group, so
// flexd sets nothing up with it.
func Default() *Config {
	c := blank()
	c.derive()
	return c
}

// blank returns the constant defaults.
func blank() *Config {
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
		// Kubelet does the same to the host name.
		host, _ := os.Hostname() // Parse complains when this leaves it empty
		c.NodeName = strings.ToLower(strings.TrimSpace(host))
	}
}

// blankGroup returns the defaults of a volume group. Its name, directory and namespaces have
// none: flexd does not guess the place of data, nor whose it is.
func blankGroup() VolumeGroup {
	return VolumeGroup{ThinPoolWarning: 80, Reserve: 10, MountFlags: []string{"nodev"}, Volumes: []string{"*"}}
}
