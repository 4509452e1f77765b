package page_test

import (
	"time"

	"github.com/flexd/flexd/internal/status"
)

const (
	pods   = "/var/lib/kubelet/pods/"
	global = "/var/lib/kubelet/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/"
)

func pod(namespace, name, uid, lv string) status.Pod {
	return status.Pod{Namespace: namespace, Name: name, UID: uid, Dir: pods + uid + "/volumes/flexd~lvm/" + lv}
}

// problems is a node with a volume in every state, and one that has not been invented yet.
func problems() *node {
	web, report := pod("default", "web-0", "6b2f7c1e-93d0-4a53-8f21-0d9a8a2f1f10", "data"), pod("default", "report-x7k2p", "90aa4d8e-1be2-47ce-8d7a-52f0c31e7b66", "data")
	report.ReadOnly = true
	shop := pod("shop", "postgres-0", "0cc5b3de-0c0f-4ea3-9f0c-30a0bb9ef001", "orders")
	soon := began.Add(time.Hour) // it does not come while the page is looked at
	n := &node{list: status.List{
		Node: "node-1", Version: "1.2.3",
		Volumes: []status.Volume{
			{VG: "vg0", LV: "backup", UUID: "u1", Size: 1 << 40, State: status.Stuck, Step: "umount", StepSince: before(252 * time.Second), Device: "/dev/dm-7", Filesystem: "xfs",
				Error: &status.Error{Step: "umount", Code: "in-progress", Message: "umount has been running since 14:02:11 (pid 4711 waits in io_schedule)", At: before(time.Minute)}},
			{VG: "vg0", LV: "cache", UUID: "u9", Size: 5 << 30, State: status.Active, Device: "/dev/dm-9"},
			{VG: "vg0", LV: "data", UUID: "5f0c1f4e-7a39-4c7f-9a0e-0d9a8a2f1f10", Size: 64 << 20, State: status.Mounted, Device: "/dev/dm-3", Filesystem: "ext4", Pods: []status.Pod{web, report}},
			{VG: "vg0", LV: "fresh", UUID: "u3", Size: 10 << 30, State: status.Working, Step: "mkfs", StepSince: before(12 * time.Second), Device: "/dev/dm-4"},
			{VG: "vg0", LV: "moves", UUID: "u13", Size: 2 << 30, State: status.Waiting, Step: "activate", StepSince: before(75 * time.Second), Waiting: &status.Wait{Step: "activate", Since: before(75 * time.Second),
				Reason: "another host has it active: host node-7 (host id 7), seen since 14:00:03, its lease is live (renewed at 14:01:12): delete the pod that uses the volume there; if there is none, check that kubelet runs there, or power that host off"}},
			{VG: "vg0", LV: "old", UUID: "u4", Size: 1536 << 20, State: status.Failed, Device: "/dev/dm-5",
				Error: &status.Error{Step: "format", Code: "not-blank", Message: "refused: crypto_LUKS found at offset 0, and flexd never formats over data;\nto give the data up: wipefs -a /dev/vg0/old", At: before(130 * time.Second), CallID: "c42", Next: soon}},
			{VG: "vg0", LV: "orders", UUID: "u6", Size: 200 << 30, State: status.Faulty, Device: "/dev/dm-6", Filesystem: "xfs", Pods: []status.Pod{shop}},
			{VG: "vg0", LV: "spare", UUID: "u5", Size: 3 << 30, State: status.Idle},
			{VG: "vg1", LV: "gone", UUID: "u7", Size: 20 << 30, State: status.Missing, Pods: []status.Pod{pod("default", "web-1", "6b30", "gone")}},
			{VG: "vg1", LV: "hangs", UUID: "u8", State: status.Uncertain, Error: &status.Error{Step: "observe", Code: "unknown", Message: "volume group vg1 cannot be read: vgs (pid 812) has been running since 14:02:11; look at its disks and at dmesg", At: before(time.Minute)}},
			{VG: "vg1", LV: "left", UUID: "u10", Size: 1 << 30, State: status.Orphaned, Device: "/dev/dm-11", Filesystem: "ext4", Pods: []status.Pod{{UID: "77", Dir: pods + "77/volumes/flexd~lvm/left"}}},
			{VG: "vg1", LV: "strange", UUID: "u11", Size: 1 << 30, State: "levitating"},
		},
		Problems: []string{"the note /run/flexd/notes/x.json is torn; flexd ignores it"},
		Findings: []status.Finding{
			{Class: "stale-mapping", VG: "vg0", LV: "data", UUID: "5f0c1f4e-7a39-4c7f-9a0e-0d9a8a2f1f10", Message: "the metadata says 128 MiB, and the device /dev/dm-3 (vg0-data) has 64.0 MiB", Hint: "lvchange --refresh vg0/data", Since: before(2 * time.Minute)},
			{Class: "faulty", VG: "vg0", LV: "orders", UUID: "u6", Message: "its filesystem is in error: xfs has shut down", Hint: "save what can be read, look at dmesg, then delete the pods: the next mount runs fsck", Since: before(40 * time.Minute)},
			{Class: "active-unclaimed", VG: "vg0", LV: "root", UUID: "u12", Message: "it is active, and no pod has asked for it", Hint: "flexd leaves it as it is; lvchange -an vg0/root if it is not needed", Informational: true, Since: before(50 * time.Hour)},
			{Class: "claimed-missing", VG: "vg1", LV: "gone", UUID: "u7", Dir: pods + "6b30/volumes/flexd~lvm/gone", Message: "its mount is gone: the pod writes to the disk below", Hint: "delete the pod, so that kubelet mounts the volume again", Since: before(3 * time.Second)},
			{Class: "orphaned-pod", VG: "vg1", LV: "left", UUID: "u10", Dir: pods + "77/volumes/flexd~lvm/left", Message: "the pod has no process, and kubelet has not asked for the unmount", Hint: "restart kubelet with the driver installed, or flexd release vg1/left", Since: before(26 * time.Hour)},
		},
		Pools: []status.Pool{
			{VG: "vg0", Name: "fast", Active: true, DataUsed: 12 << 30, DataTotal: 20 << 30, MetadataUsed: 1 << 20, MetadataTotal: 8 << 20, Mode: "rw"},
			{VG: "vg0", Name: "slow", Active: true, DataUsed: 18 << 30, DataTotal: 20 << 30, MetadataUsed: 6 << 20, MetadataTotal: 8 << 20, Mode: "rw", Warning: "90.0 % of the pool's data are used: lvextend -L +SIZE vg0/slow, or remove what is not needed"},
		},
	}}
	n.list.AddRefused([]status.RefusedCall{
		{VG: "files", LV: "data8", Dir: pods + "6b31/volumes/flexd~lvm/data8", Pod: &status.Pod{Namespace: "default", Name: "web-8", UID: "6b31"}, Verb: "mount", Code: "not-allowed",
			Message: "namespace default may not use volume group files: flexd.yaml allows shop; ask an administrator to add it, or use vg0",
			First:   before(3 * time.Minute), Last: before(12 * time.Second), Count: 5, CallID: "c50", Answer: "494235c787be"},
		{Dir: pods + "77/volumes/flexd~lvm/x", Verb: "mount", Code: "invalid", Message: "option volumegroup: missing", First: before(20 * time.Minute), Last: before(20 * time.Minute), Count: 1, CallID: "c52"},
	}, began)
	n.details = map[string]status.VolumeDetail{
		"vg0/data": {
			Volume: n.list.Volumes[3],
			Claims: []status.Claim{
				{Kind: "staged", Phase: "held", Dir: global + "data", Since: before(26 * time.Hour), Mounted: true, Name: "data"},
				{Kind: "published", Phase: "held", Dir: web.Dir, Since: before(26 * time.Hour), Mounted: true, Pod: &web},
				{Kind: "published", Phase: "making", Dir: report.Dir, Since: before(3 * time.Second), Pod: &report, Note: "adopted from the mount table"},
			},
			Lease:    &status.Lease{Until: began.Add(22 * time.Second), Live: true},
			Calls:    []status.Call{{ID: "c43", Verb: "mount", Dir: report.Dir, Since: before(3 * time.Second), Deadline: began.Add(267 * time.Second)}},
			Observed: []status.Fact{{Name: "volume", Value: "present, 64.0 MiB"}, {Name: "device", Value: "/dev/dm-3 (253:3), 64.0 MiB, read-write"}, {Name: "mount", Value: web.Dir + " (ext4)"}},
			Plan:     []string{"mount read-only at " + report.Dir},
			Refused:  []string{"staging under another name: kubelet could not unmount either"},
			Findings: n.list.Findings[:1],
		},
	}
	id := uint64(0)
	event := func(ago time.Duration, e status.Event) {
		id++
		e.ID, e.Time, e.VG, e.LV = id, before(ago), "vg0", "data"
		n.events.Events = append(n.events.Events, e)
	}
	caller := &status.EventPod{Namespace: web.Namespace, Name: web.Name, UID: web.UID}
	event(26*time.Hour+5*time.Second, status.Event{Type: status.StepEvent, Step: "activate", Duration: 0.4, CallID: "c3", Pod: caller})
	event(26*time.Hour+time.Second, status.Event{Type: status.StepEvent, Step: "mkfs", Duration: 3.2, CallID: "c3", Pod: caller})
	event(26*time.Hour, status.Event{Type: status.CallEvent, Verb: "mount", Duration: 4.3, CallID: "c3", Pod: caller, Dir: web.Dir})
	event(2*time.Minute, status.Event{Type: status.StepEvent, Step: "fsck", Duration: 12.34, CallID: "c40", CallIDs: []string{"c40", "c41"}, Code: "damaged", Message: "exit status 8: no such device"})
	event(time.Minute, status.Event{Type: status.FoundEvent, Code: "stale-mapping", Message: "the device has 64.0 MiB"})
	return n
}
