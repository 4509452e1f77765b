package config

import "strings"

// A key is a key of a mapping: the source for the parser, its errors, `flexd config`, the manual page and
// docs/configuration.md.
type key struct {
	name string
	value
	about   string // its meaning, with `code` and [links](page.md) as in Markdown
	without string // the default in words, if it is not a constant value; "required" = there is none
	example string // a value to show in that case
	restart bool   // a change waits for a restart
	keys    []key  // of a section, or of each element of volumeGroups
}

func names(keys []key) (all []string) {
	for _, k := range keys {
		all = append(all, k.name)
	}
	return all
}

// section is a mapping that may be empty: its keys may all be commented out.
func (r *reader) section(k key) key {
	k.value.read = func(n *node, at string) {
		if !null(n) {
			r.mapping(n, at, k.keys)
		}
	}
	return k
}

// schema lists the keys of the file.
func (r *reader) schema(c *Config) []key {
	return []key{
		{name: "driver", value: r.text(&c.Driver, driverName), restart: true,
			about: "The name of the FlexVolume driver. Kubelet runs `<plugin dir>/VENDOR~DRIVER/DRIVER`. After a change, a volume that is mounted under the former name gets no further pod until its pods have ended; `flexd check` lists these mounts."},
		{name: "nodeName", value: r.text(&c.NodeName, optional(nodeName)), restart: true, without: "the host name in lower case", example: "node-1",
			about: "The name of this node in Kubernetes."},
		{name: "kubeletRoots", value: r.list(&c.KubeletRoots, directory), restart: true,
			about: "Kubelet's `--root-dir`. flexd mounts below these directories only; it still unmounts volumes below directories that were removed from the list."},
		{name: "runDir", value: r.text(&c.RunDir, socketDirectory), restart: true,
			about: "Notes, locks and device links; must be empty after a reboot. Also the sockets: `driver.sock` for flexdriver (root only) and " +
				"`status.sock` for `flexd status` and curl (see [status.md](status.md)). With another directory than the default " +
				"kubelet's environment needs `FLEXD_SOCKET=DIR/driver.sock`, and the commands need `--socket DIR/status.sock`."},
		{name: "stateDir", value: r.text(&c.StateDir, directory), restart: true,
			about: "Format records, and the history; must survive a reboot. On the root filesystem (see [udev](#udev))."},
		{name: "statusGroup", value: r.text(&c.StatusGroup, optional(groupName)), restart: true, without: "none, so root only", example: "adm",
			about: "The group that may read the status socket."},
		{name: "metricsAddress", value: r.text(&c.MetricsAddress, optional(tcpAddress)), without: "none, so only on the status socket", example: `"127.0.0.1:9809"`,
			about: "The TCP address for the [metrics](monitoring.md). Every client that reaches it can read them."},
		{name: "historySize", value: r.size(&c.HistorySize, historySize), restart: true,
			about: "The size of the [history](status.md#history) in `stateDir`; its oldest events are dropped. `0`: events are kept in memory only, and are lost at a restart."},
		{name: "lease", value: r.duration(&c.Lease, anyDuration),
			about: "How long a volume stays active after its last use, so that a re-created pod finds it ready. In a `shared` group the lease applies only between kubelet's calls for a mount: the last unmount deactivates."},
		{name: "callDeadline", value: r.duration(&c.CallDeadline, callDeadline), restart: true,
			about: "How long one call of kubelet may wait for an answer."},
		{name: "releaseOrphansAfter", value: r.durationOrNever(&c.ReleaseOrphansAfter, orphanGrace),
			about: "How long a mount must have been an [orphan](orphans.md) before flexd unmounts it by itself. `never`: only `flexd release` unmounts it."},
		{name: "maxChecks", value: r.count(&c.MaxChecks, 1024), restart: true, without: "the number of CPUs, at least 4", example: "4",
			about: "How many fsck and mkfs may run at the same time in one volume group. Others wait, and `flexd status` shows that. The fsck of a cleanly unmounted ext4 does not count."},
		{name: "checkMemory", value: r.size(&c.CheckMemory, checkMemory), restart: true,
			about: "How much memory each fsck and mkfs may use. e2fsck of a sparse 15 TiB ext4 uses 170 MiB; with hundreds of millions of files, or fragmented ones, " +
				"it uses much more. If it fails for lack of memory, raise this limit, or run `e2fsck` by hand."},
		{name: "cgroupDir", value: r.text(&c.CgroupDir, directory), restart: true,
			about: "The host's control groups. flexd reads kubelet's to know which pods run."},
		r.section(key{name: "log", about: "flexd's log.", keys: []key{
			{name: "format", value: r.text(&c.LogFormat, oneOf("text", "json")), restart: true,
				about: "The format of the lines."},
			{name: "level", value: r.text(&c.LogLevel, oneOf("trace", "debug", "info", "warning", "error")),
				about: "The least important level that is logged."},
		}}),
		{name: "lvmFilter", value: r.list(&c.LVMFilter, lvmFilter), restart: true,
			without: "loop, nbd and drbd are rejected, then the host's own `devices/filter`", example: `["r|^/dev/loop|", "r|^/dev/nbd|", "r|^/dev/drbd|"]`,
			about: "The `devices/filter` of LVM's commands; the host's `global_filter` stays in force. Groups on disks that are logical volumes are never used (`scan_lvs`), since they may be a guest's. It has no effect where the host has a devices file, see [disks that hang](#disks-that-hang)."},
		{name: "volumeGroups", value: value{form: "a list of mappings", read: func(n *node, at string) { r.groups(n, at, c) }, show: func() string { return "[]" }},
			about: "The volume groups that flexd may use. It mounts no volumes of others.", keys: r.groupSchema(new(defaultGroup()))},
	}
}

// groupSchema lists the keys of an element of volumeGroups.
func (r *reader) groupSchema(g *VolumeGroup) []key {
	return []key{
		{name: "name", value: r.text(&g.Name, lvmName), without: required, example: "vg0",
			about: "The volume group that pods name in their option `volumegroup`."},
		{name: "provider", value: r.text(&g.Provider, oneOf("lvm", "loopdev")), restart: true, without: "`loopdev` with a `directory`, else `lvm`", example: "loopdev",
			about: "The storage of the volumes: `lvm`, or `loopdev`, a directory of sparse files. `flexd config --check` prints it."},
		{name: "directory", value: r.text(&g.Directory, directory), restart: true, without: required + " for `loopdev`", example: "/srv/vg0",
			about: "The directory of these files: not below a kubelet root, one per group. In a filesystem of its own use a subdirectory, which is missing while the filesystem is not mounted. flexd uses only files that it created, and those to which `flexd uuid --new FILE` gave a uuid."},
		{name: "shared", value: r.boolean(&g.Shared), restart: true,
			about: "`lvm`: other nodes use the volume group, too. It has a lock type (`vgchange --lock-type sanlock`), and each volume is active on one node at a time."},
		{name: "watchdog", value: r.word(&g.WatchdogNone, "required", "none"), restart: true,
			about: "`shared`: whether flexd uses the group only while a watchdog guards this node. `none`: also without a watchdog; then a node that hangs or is paused may continue to write after another node has taken its volumes over."},
		{name: "thinPool", value: r.text(&g.ThinPool, lvmName), restart: true, without: "none, so thick volumes", example: "pool",
			about: "`lvm`: the thin pool for new volumes. flexd never creates or removes a pool."},
		{name: "thinPoolWarning", value: r.percent(&g.ThinPoolWarning, 1),
			about: "`lvm`: the usage of a thin pool's data or metadata above which flexd warns, in its log and in [`flexd status`](status.md)."},
		r.section(key{name: "layout", value: value{into: &g.Layout}, restart: true, about: "`lvm`: the layout of thick volumes that flexd creates.", keys: []key{
			{name: "type", value: r.text(&g.Layout.Type, oneOf("linear", "striped", "raid0", "raid1", "raid5", "raid6", "raid10")), without: "LVM's default", example: "raid10",
				about: "The `--type` of lvcreate."},
			{name: "stripes", value: r.count(&g.Layout.Stripes, 128), without: "LVM's default", example: "2",
				about: "The number of stripes of a striped type."},
			{name: "stripeSize", value: r.size(&g.Layout.StripeSize, stripeSize), without: "LVM's default", example: "64KiB",
				about: "How much is written to a stripe before the next one."},
			{name: "mirrors", value: r.count(&g.Layout.Mirrors, 9), without: "LVM's default", example: "1",
				about: "The number of further copies, of `raid1` and `raid10`."},
			{name: "pvTag", value: r.text(&g.Layout.PVTag, lvmName), without: "every disk", example: "fast",
				about: "Create volumes only on disks with this tag."},
		}}),
		{name: "zero", value: r.word(&g.ZeroAll, "labels", "all"), restart: true,
			about: "`lvm`: which parts of a new thick volume flexd zeroes: `labels`, the places where formats have their labels; or `all`, see [zeroing](#zeroing)."},
		{name: "namespaces", value: r.list(&g.Namespaces, glob), without: required, example: `["*"]`,
			about: "The namespaces whose pods may use the volumes: `[\"*\"]` is every namespace, `[]` none."},
		{name: "volumes", value: r.list(&g.Volumes, volumeGlob),
			about: "The volumes that may be used; `{namespace}` is the namespace of the pod, see [namespaces](#namespaces). `[]` is none."},
		{name: "create", value: r.boolean(&g.Create),
			about: "Create a missing volume when the pod gives a `size`."},
		{name: "maxSize", value: r.size(&g.MaxSize, anySize),
			about: "The largest size of a volume that flexd creates or extends, before LVM rounds it up to whole extents; required with `create: true`. `0`: no limit."},
		{name: "maxVolumes", value: r.count(&g.MaxVolumes, maxVolumes), without: "no limit", example: "100",
			about: "The maximum number of volumes in the group that flexd has created, see [limits](#limits)."},
		{name: "maxTotalSize", value: r.size(&g.MaxTotalSize, anySize), without: "no limit", example: "1TiB",
			about: "Their maximum total size."},
		r.section(key{name: "perNamespace", about: "The same limits for the volumes that flexd has created for the pods of each namespace.", keys: []key{
			{name: "maxVolumes", value: r.count(&g.PerNamespace.MaxVolumes, maxVolumes), without: "no limit", example: "10",
				about: "The maximum number of volumes."},
			{name: "maxTotalSize", value: r.size(&g.PerNamespace.MaxTotalSize, anySize), without: "no limit", example: "100GiB",
				about: "Their maximum total size."},
		}}),
		{name: "reserve", value: r.percent(&g.Reserve, 0),
			about: "`loopdev` and `thinPool`: the part of the directory's filesystem (bytes and inodes), or of the pool, that remains free, see [space](#space)."},
		{name: "overcommit", value: r.boolean(&g.Overcommit), without: "`true` with a `thinPool`, else `false`", example: "false",
			about: "Whether the total size of the volumes may exceed that of the filesystem or pool."},
		{name: "mountFlags", value: r.list(&g.MountFlags, oneOf("nosuid", "nodev", "noexec")),
			about: "Flags of every mount, beside those that the pod asks for, see [mount flags](#mount-flags)."},
		{name: "deactivate", value: r.word(&g.NeverDeactivate, "auto", "never"),
			about: "`auto`: deactivate a volume when its lease has ended, even if it was active before kubelet asked for it; `never`: leave it active."},
	}
}

// required is the default of a key without one.
const required = "required"

// meaning is the first sentence about a key, for an error.
func (k key) meaning() string {
	text, _, _ := strings.Cut(plain(k.about), ". ")
	text = strings.TrimSuffix(text, ".")
	return strings.ToLower(text[:1]) + text[1:]
}
