package config

import (
	"fmt"
	"strings"
)

// Commented returns a whole configuration file: every key with its default and its meaning.
// Parsing it gives Default.
func Commented() string {
	c := blank()
	return fmt.Sprintf(commented,
		c.Driver, quoted(c.KubeletRoots), c.RunDir, c.StateDir,
		c.Lease, c.CallDeadline, c.CgroupDir, c.LogFormat, c.LogLevel)
}

func quoted(list []string) string {
	q := make([]string, len(list))
	for i, s := range list {
		q[i] = fmt.Sprintf("%q", s)
	}
	return "[" + strings.Join(q, ", ") + "]"
}

const commented = `# flexd's configuration. Every key is optional; the values here are the defaults.
# Durations are written 30s, 4m30s, 1h; sizes 500MiB, 10GiB, 1TiB (powers of 1024).
# Paths are absolute. flexd refuses keys that it does not know.
# Check a file with: flexd config --check FILE

# The FlexVolume driver's name, VENDOR/DRIVER. Kubelet runs
# <plugin dir>/VENDOR~DRIVER/DRIVER.
driver: %s

# This node's name in Kubernetes. Empty: the host name in lower case.
nodeName: ""

# Kubelet's --root-dir. flexd mounts below these directories only.
kubeletRoots: %s

# Notes on what is claimed now, locks, device links. Must be empty after a
# reboot, so keep it on a tmpfs.
runDir: %s

# Records of what was formatted. Must survive a reboot.
stateDir: %s

# The group that may read the status socket, status.sock in the runDir. Empty: root only.
statusGroup: ""

# Where Prometheus gets the metrics over TCP, such as 127.0.0.1:9809. Every client that
# reaches the address can read them. Empty: only on the status socket, at /metrics.
metricsAddress: ""
# The size of the history in the stateDir (flexd events). The oldest events are dropped;
# 0: events are kept in memory only, and are lost at a restart.
historySize: 16MiB

# How long a volume stays active after its last use, so that a re-created pod
# finds it ready.
lease: %s

# How long one call of kubelet may wait for an answer. Less than 5m.
callDeadline: %s

# How long a mount must have been an orphan (flexd status) before flexd lets it go
# by itself: if the pod's control group is gone or empty, and no other mount
# namespace has the device. At least 5m. never: flexd release does it.
releaseOrphansAfter: never

# How many fsck and mkfs may run at the same time in one volume group; others wait.
# Without the key: the number of CPUs, at least 4.
# maxChecks: 4

# How much memory each of them may use. An fsck of a sparse 15 TiB ext4 uses 170 MiB,
# one of 15 TiB full of small files may use 2 GiB.
checkMemory: 2GiB

# Where the host's control groups are: by kubelet's flexd sees which pods live.
cgroupDir: %s

log:
  # text (for people) or json.
  format: %s
  # error, warning, info, debug or trace.
  level: %s

# The device filter of LVM's commands, as in lvm.conf. Without the key: loop, nbd
# and drbd devices are kept out, and what the host's own devices/filter keeps out.
# lvmFilter: ["r|^/dev/loop|", "r|^/dev/nbd|", "r|^/dev/drbd|"]

# What may be used, and how. flexd sets nothing up in a volume group that is not
# listed. One entry, with its defaults:
#
#   - name: vg0                 # needed: as pods name it in their options
#     provider: loopdev         # lvm, or loopdev (a directory of sparse files);
#                               # without: loopdev with a directory, else lvm
#     directory: /srv/vg0       # needed for loopdev: where these files are
#     # thinPool: pool          # lvm: make volumes in this thin pool; without: thick ones
#     # thinPoolWarning: 80%%    # lvm: how full a thin pool's data or metadata may get unmentioned
#     # layout:                 # lvm: of thick volumes that are made; without: LVM's default
#     #   type: raid10          # linear, striped, raid0, raid1, raid5, raid6, raid10
#     #   stripes: 2
#     #   stripeSize: 64KiB
#     #   mirrors: 1            # further copies, for raid1 and raid10
#     #   pvTag: fast           # only on disks with this tag
#     # zero: labels            # lvm: what is zeroed of a new thick volume; or all: takes its time
#     namespaces: ["*"]         # needed: namespaces whose pods may use the volumes; * ? [a-z]
#     volumes: ["*"]            # names of the volumes that may be used; * ? [a-z], and
#                               # {namespace} for the pod's, as in "{namespace}.*"
#     create: false             # true: make a missing volume when the pod gives a size
#     maxSize: 0                # largest size to create or extend to; 0: no limit.
#                               # Needed with create: true
#     # maxVolumes: 100         # how many volumes flexd may have created; without: no limit
#     # maxTotalSize: 1TiB      # how large these may be together; without: no limit
#     # perNamespace:           # the same for the pods of each namespace
#     #   maxVolumes: 10
#     #   maxTotalSize: 100GiB
#     reserve: 10%%              # of the directory's filesystem, or of the thin pool: flexd
#                               # creates and extends no volume that may take it
#     overcommit: false         # true: the volumes there may be larger together than it
#                               # is; without: true with a thinPool, else false
#     mountFlags: [nodev]       # of every mount: nosuid, nodev, noexec
#     deactivate: auto          # auto: when the lease has ended; never: leave it active
volumeGroups: []
`
