package status

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

var now = time.Date(2026, 7, 29, 14, 30, 0, 0, time.UTC)

func before(d time.Duration) time.Time { return now.Add(-d) }

const pods = "/var/lib/kubelet/pods/"

func volumes() List {
	web := Pod{Namespace: "default", Name: "web-0", UID: "6b2f", Dir: pods + "6b2f/volumes/flexd~lvm/data"}
	reader := Pod{Namespace: "default", Name: "report-x7k2p", UID: "90aa", Dir: pods + "90aa/volumes/flexd~lvm/data", ReadOnly: true}
	return List{
		Node: "node-1", Version: "1.2.3",
		Volumes: []Volume{
			{VG: "vg0", LV: "backup", UUID: "u1", Size: 1 << 40, State: Stuck, Step: "umount", StepSince: before(252 * time.Second), Device: "/dev/loop7", Filesystem: "xfs"},
			{VG: "vg0", LV: "data", UUID: "u2", Size: 64 << 20, State: Mounted, Device: "/dev/loop3", Filesystem: "ext4", Pods: []Pod{web, reader, {UID: "77"}, {UID: "78"}},
				FilesystemSize: 60 << 20, FilesystemUsed: 20 << 20, FilesystemFree: 36 << 20, Inodes: 100, InodesUsed: 11, FilesystemObservedAt: before(3 * time.Second)},
			{VG: "vg0", LV: "fresh", UUID: "u3", Size: 10 << 30, State: Working, Step: "mkfs", StepSince: before(12 * time.Second), Device: "/dev/loop4"},
			{VG: "vg0", LV: "full", UUID: "u6", Size: 1 << 30, State: Full, Device: "/dev/loop6", Filesystem: "xfs", FilesystemSize: 1 << 30, FilesystemUsed: 400 << 20, FilesystemFree: 600 << 20, Inodes: 100, InodesUsed: 100},
			{VG: "vg0", LV: "old", UUID: "u4", Size: 1536 << 20, State: Failed, Device: "/dev/loop5",
				Error: &Error{Step: "format", Message: "refused: crypto_LUKS found at offset 0;\nto give the data up: wipefs -a /dev/loop5\x1b[31m", At: before(130 * time.Second), CallID: "c42", Next: now.Add(8 * time.Second)}},
			{VG: "vg0", LV: "spare", UUID: "u5", Size: 3000, State: Idle, Pods: []Pod{}},
			{VG: "svg", LV: "moves", UUID: "u7", Size: 2 << 30, State: Waiting, Step: "activate", StepSince: before(75 * time.Second), Waiting: &Wait{Step: "activate", Since: before(75 * time.Second),
				Reason: "another host has it active: host node-7 (host id 7), seen since 14:00:03, its lease is live: delete the pod\x1b[31m", Holder: &Holder{HostID: 7, Host: "node-7", Since: before(75 * time.Second), Lease: "live", Renewed: before(3 * time.Second)}}},
			{VG: "vg1", LV: "gone", State: Uncertain, Pods: []Pod{web}},
		},
		Problems: []string{"note /run/flexd/claims/x.json is torn; ignored"},
	}
}

func refused() []RefusedCall {
	web := &Pod{Namespace: "default", Name: "web-1", UID: "6b30", Dir: pods + "6b30/volumes/flexd~lvm/data8"}
	return []RefusedCall{
		{VG: "files", LV: "data8", Dir: web.Dir, Pod: web, Verb: "mount", Code: "not-allowed", Message: "namespace default may not use volume group files\x1b[31m",
			First: before(3 * time.Minute), Last: before(12 * time.Second), Count: 5, CallID: "c50", Answer: "494235c787be"},
		{VG: "vg0", LV: "data", Verb: "waitforattach", Code: "no-space", Message: "it is full", First: before(time.Hour / 2), Last: before(time.Hour / 2), Count: 1, CallID: "c51"},
		{Dir: pods + "77/volumes/flexd~lvm/x", Verb: "mount", Code: "invalid", Message: "option volumegroup: missing", First: before(time.Second), Last: before(time.Second), Count: 1, CallID: "c52"},
		{VG: "files", LV: "older", Verb: "attach", Code: "not-allowed", Message: "no", First: before(50 * time.Minute), Last: before(40 * time.Minute), Count: 9, CallID: "c49"},
	}
}

// refusing is a node whose volume data8 is known from a refused call only.
func refusing() List {
	l := List{Node: "node-1", Volumes: volumes().Volumes[1:2]}
	l.AddRefused(refused(), now)
	return l
}

func differing() []Finding {
	return []Finding{
		{Class: "stale-mapping", VG: "vg0", LV: "data", UUID: "u2", Message: "the metadata says 134217728 bytes, and the device /dev/dm-3 (vg0-data) has 67108864", Hint: "lvchange --refresh vg0/data", Since: before(2 * time.Minute)},
		{Class: "claimed-missing", VG: "vg0", LV: "logs", UUID: "u7", Dir: pods + "90aa/volumes/flexd~lvm/logs", Message: "its mount is gone\nand\x1b[31m", Hint: "delete the pod", Since: before(time.Second / 2)},
		{Class: "active-unclaimed", VG: "vg0", LV: "root", UUID: "u8", Message: "it is active, and no pod has asked for it", Hint: "flexd leaves it active", Informational: true, Since: before(50 * time.Hour)},
	}
}

func differ() List {
	l := List{Node: "node-1", Volumes: volumes().Volumes[1:2], Findings: differing()}
	l.Pools = []Pool{
		{VG: "vg0", Name: "fast", Active: true, DataUsed: 12 << 30, DataTotal: 20 << 30, MetadataUsed: 1 << 20, MetadataTotal: 8 << 20, Mode: "rw"},
		{VG: "vg0", Name: "full", Active: true, DataUsed: 20 << 30, DataTotal: 20 << 30, MetadataUsed: 1 << 20, MetadataTotal: 8 << 20, Mode: "out_of_data_space", Problem: "the pool is full: writes fail; lvextend -L +SIZE vg0/full"},
		{VG: "vg0", Name: "slow", Active: true, DataUsed: 17 << 30, DataTotal: 20 << 30, MetadataUsed: 1 << 20, MetadataTotal: 8 << 20, Mode: "rw", Warning: "85.0 % of the pool's data are used: lvextend -L +SIZE vg0/slow, or remove what is not needed"},
		{VG: "vg1", Name: "off"},
	}
	l.Problems = []string{"thin pool vg0/full: " + l.Pools[1].Problem}
	l.Groups = groups().Groups
	return l
}

func checks() Check {
	c := Check{Node: "node-1", Version: "1.2.3", Findings: differing()}
	c.Groups = []Checked{
		{VG: "vg0", Provider: "lvm", Volumes: 12, Active: 5, Seconds: 0.4},
		{VG: "vg1", Provider: "lvm", Unknown: "volume group vg1 is blocked: activate (pid 4711, waits in io_schedule) has been running since 14:02:11; look at the disks of the group and at dmesg", Seconds: 0.001},
	}
	c.Verdict = c.Judge()
	return c
}

func groups() GroupList {
	return GroupList{Node: "node-1", Version: "1.2.3", Groups: []Group{
		{Name: "files", Provider: "loopdev", Directory: "/srv/files", Size: 100 << 30, Free: 91 << 30, LargestVolume: new(int64(10 << 30)), State: GroupOK, ObservedAt: before(0),
			Disks: []Disk{{Device: "/srv/files", Size: 100 << 30, Free: 91 << 30}}},
		{Name: "gone", Provider: "lvm", State: GroupMissing, Error: "volume group gone does not exist\nor is\x1b[31m filtered"},
		{Name: "hangs", Provider: "lvm", Size: 10 << 30, Free: 1 << 30, State: GroupUnknown, Error: "the report does not end", ObservedAt: before(3 * time.Hour)},
		{Name: "thick", Provider: "lvm", Size: 20 << 30, State: GroupFull, LargestVolume: new(int64(0)), Error: "no space in volume group thick", ObservedAt: before(time.Second),
			Disks: []Disk{{Device: "", Size: 10 << 30, Problem: "it is missing"}, {Device: "/dev/sdb", Size: 10 << 30, Free: 4 << 30, Problem: "it is not allocatable: pvchange -xy /dev/sdb"}}},
		{Name: "thin", Provider: "lvm", Size: 40 << 30, Free: 2 << 30, LargestVolume: new(int64(3 << 30)), State: GroupOK, ObservedAt: before(time.Second),
			ThinPools: []ThinPool{
				{Name: "fast", State: PoolOK, Size: 20 << 30, Used: 12 << 30, MetadataSize: 8 << 20, MetadataUsed: 1 << 20},
				{Name: "full", State: PoolFull, Size: 20 << 30, Used: 20 << 30, MetadataSize: 8 << 20, MetadataUsed: 1 << 20, Problem: "the pool is full: writes fail; lvextend -L +SIZE thin/full"},
				{Name: "off", State: PoolInactive, Size: 20 << 30},
				{Name: "slow", State: PoolOK, Size: 20 << 30, Used: 17 << 30, MetadataSize: 8 << 20, MetadataUsed: 1 << 20, Warning: "85.0 % of the pool's data are used"},
			}, Disks: []Disk{{Device: "/dev/sda", Size: 40 << 30, Free: 2 << 30}}},
		{Name: "san", Provider: "lvm", Size: 40 << 30, Free: 2 << 30, State: GroupOK, ObservedAt: before(time.Second),
			Locks: &Locks{Type: "sanlock", State: "started", Since: before(time.Hour), HostID: 3, HostName: "node-1", IOTimeout: 10, Renewed: before(4 * time.Second), Watchdog: "live", ObservedAt: before(time.Second)}},
		{Name: "joins", Provider: "lvm", Size: 40 << 30, Free: 2 << 30, State: GroupOK, ObservedAt: before(time.Second),
			Locks: &Locks{State: "starting", Since: before(7 * time.Second), Reason: "the lockspace of volume group joins has been starting since 12:00:01: sanlock takes about 25 s to join it", ObservedAt: before(0)}},
		{Name: "lost", Provider: "lvm", Size: 40 << 30, Free: 2 << 30, State: GroupUnusable, Error: "volume group lost has lost its locks", ObservedAt: before(time.Second),
			Locks: &Locks{Type: "sanlock", State: "lost", Since: before(30 * time.Second), Reason: "volume group lost has lost its locks", Watchdog: "live"}},
	}}
}

func story() VolumeDetail {
	v := volumes().Volumes[1]
	v.UUID = "5f0c1f4e-7a39-4c7f-9a0e-0d9a8a2f1f10"
	v.Error = &Error{Step: "mount", Message: "mount: exit status 32", At: before(3 * time.Hour), CallID: "c7", Next: now.Add(2 * time.Minute)}
	return VolumeDetail{
		Volume: v,
		Claims: []Claim{
			{Kind: "staged", Phase: "held", Dir: "/var/lib/kubelet/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/data", Since: before(26 * time.Hour), Mounted: true, Name: "data"},
			{Kind: "published", Phase: "making", Dir: v.Pods[1].Dir, Since: before(3 * time.Second), Pod: &v.Pods[1], Note: "adopted from the mount table"},
		},
		Lease: &Lease{Until: now.Add(22 * time.Second), Live: true},
		Calls: []Call{
			{ID: "c43", Verb: "mount", Dir: v.Pods[1].Dir, Since: before(3 * time.Second), Deadline: now.Add(267 * time.Second)},
			{ID: "c44", Verb: "waitforattach", Since: before(time.Second), Deadline: now.Add(269 * time.Second)},
		},
		Observed: []Fact{{"volume", "present, 64.0 MiB"}, {"device", "/dev/loop3 (7:3), 64.0 MiB, read-write"}, {"filesystem", "ext4"}},
		Plan:     []string{"mount read-only at " + v.Pods[1].Dir},
		Refused:  []string{"staging under another name: kubelet could not unmount either"},
		Stuck:    &Child{Step: "fsck", Pid: 4711, Wchan: "io_schedule", Since: before(5 * time.Minute), Hint: "look at the disk below /srv/vg0"},
		History: []Operation{
			{Step: "mount", Started: before(2 * time.Minute), Seconds: 0.0234, CallIDs: []string{"c40", "c41"}},
			{Step: "mkfs", Started: before(3 * time.Minute), Seconds: 12.34, Error: "exit status 1: no space", CallIDs: []string{"c40"}},
			{Step: "activate", Started: before(20 * time.Hour), Seconds: 75},
		},
		Findings: differing()[:1],
	}
}

func diagnosis() Diagnosis {
	d := Diagnosis{Node: "node-1", Version: "v1", Examinations: []Examination{
		{Area: "kubelet", Name: "process", Result: ResultOK, Evidence: "kubelet is process 812, /usr/bin/kubelet; root directory /var/lib/kubelet (kubelet's default)", Why: "it runs the driver"},
		{Area: "kubelet", Name: "root-directory", Result: ResultError, Evidence: "/data\x1b[2J is not in kubeletRoots", Why: "flexd mounts only below kubeletRoots, and refuses every other directory.",
			Remedy: []string{"set kubeletRoots", "move kubelet's root directory back, which is a long command that is never broken into lines"}},
		{Area: "kubelet", Name: "mount-propagation", Result: ResultSkipped, Evidence: "no kubelet runs", Why: "a pod would write to the disk below"},
		{Area: "lvm", Name: "volume-groups", Result: ResultUnknown, Evidence: "vgs hangs", Why: "pods get volumes of these groups", Remedy: []string{"dmesg | tail"}},
		{Area: "lvm", Name: "devices", Result: ResultWarning, Evidence: "lvmFilter has no effect", Why: "LVM sees only disks that its filters accept"},
	}}
	d.Result = d.Judge()
	return d
}

// events are those of two days.
func events() Events {
	at := func(d time.Duration) time.Time { return now.Add(-d).UTC() }
	web := &EventPod{Namespace: "default", Name: "web-0", UID: "90aa"}
	return Events{
		Node: "node-1",
		Events: []Event{
			{ID: 1, Time: at(26 * time.Hour), Type: FlexdEvent, Message: "starts, version 1.2.3"},
			{ID: 2, Time: at(25 * time.Hour), Type: FoundEvent, VG: "vg0", LV: "data", Code: "lv-only", Message: "it has no device"},
			{ID: 3, Time: at(time.Hour), Type: StepEvent, VG: "vg0", LV: "data", Step: "activate", CallID: "c1", CallIDs: []string{"c1", "c2"}, Pod: web, Duration: 0.03},
			{ID: 4, Time: at(time.Hour - time.Second), Type: StepEvent, VG: "vg0", LV: "data", Step: "fsck", CallID: "c2", Code: "failed", Message: "fsck: \x1b[31mit fails\n", Duration: 0.5},
			{ID: 5, Time: at(time.Hour - 2*time.Second), Type: StepEvent, VG: "vg0", LV: "data", Step: "mount", CallID: "c1", Pod: web, Dir: pods + "90aa/volumes/flexd~lvm/data", Duration: 75},
			{ID: 6, Time: at(time.Hour - 3*time.Second), Type: CallEvent, VG: "vg0", LV: "data", Verb: "mount", CallID: "c1", Pod: web, Dir: pods + "90aa/volumes/flexd~lvm/data", Duration: 4},
			{ID: 7, Time: at(time.Minute), Type: CallEvent, VG: "vg0", LV: "big", Verb: "mount", CallID: "c9", CallIDs: []string{"c7", "c8", "c9"}, Count: 9, First: at(30 * time.Minute),
				Code: "no-space", Message: "create: too large", Answer: "0123", Pod: &EventPod{UID: "91bb"}, Dir: pods + "91bb/volumes/flexd~lvm/big"},
		},
		Waiting: []Event{{Time: at(90 * time.Second), Type: CallEvent, VG: "vg0", LV: "data", Verb: "unmount", CallID: "c4", Dir: pods + "90aa/volumes/flexd~lvm/data", Pod: web, Duration: 90, Message: "umount runs for 1m28s"}},
		Last:    7,
	}
}

func TestGolden(t *testing.T) {
	for _, g := range []struct {
		file  string
		write func(*strings.Builder) error
	}{
		{"table", func(b *strings.Builder) error { return WriteTable(b, volumes(), now, Layout{}) }},
		{"table-100", func(b *strings.Builder) error { return WriteTable(b, volumes(), now, Layout{Width: 100}) }},
		{"table-well", func(b *strings.Builder) error {
			return WriteTable(b, List{Node: "node-1", Volumes: volumes().Volumes[1:2]}, now, Layout{})
		}},
		{"table-empty", func(b *strings.Builder) error {
			return WriteTable(b, List{Node: "node-1", Problems: []string{"the mount table cannot be read: EIO"}}, now, Layout{Width: 80})
		}},
		{"table-differ", func(b *strings.Builder) error { return WriteTable(b, differ(), now, Layout{}) }},
		{"table-differ-100", func(b *strings.Builder) error { return WriteTable(b, differ(), now, Layout{Width: 100}) }},
		{"table-refused", func(b *strings.Builder) error { return WriteTable(b, refusing(), now, Layout{}) }},
		{"table-refused-100", func(b *strings.Builder) error { return WriteTable(b, refusing(), now, Layout{Width: 100}) }},
		{"refused.json", func(b *strings.Builder) error { return WriteJSON(b, refusing()) }},
		{"check-refused", func(b *strings.Builder) error {
			return WriteCheck(b, Check{Node: "node-1", Verdict: Agree, Groups: []Checked{{VG: "vg0", Provider: "lvm"}}, RefusedCalls: refused()}, now)
		}},
		{"story-refused", func(b *strings.Builder) error {
			return WriteVolumeDetail(b, RefusedDetail(Refusals(refused(), Volume{VG: "files", LV: "data8"})), now)
		}},
		{"table-wide", func(b *strings.Builder) error { return WriteTable(b, volumes(), now, Layout{Wide: true, Width: 100}) }},
		{"table-color", func(b *strings.Builder) error { return WriteTable(b, volumes(), now, Layout{Color: true, Width: 100}) }},
		{"table-color-30", func(b *strings.Builder) error { return WriteTable(b, volumes(), now, Layout{Color: true, Width: 30}) }},
		{"groups", func(b *strings.Builder) error { return WriteGroups(b, groups(), now, Layout{}) }},
		{"groups-60", func(b *strings.Builder) error { return WriteGroups(b, groups(), now, Layout{Width: 60, Color: true}) }},
		{"groups-wide", func(b *strings.Builder) error { return WriteGroups(b, groups(), now, Layout{Width: 60, Wide: true}) }},
		{"groups-none", func(b *strings.Builder) error { return WriteGroups(b, GroupList{Node: "node-1"}, now, Layout{}) }},
		{"groups.json", func(b *strings.Builder) error { return WriteJSON(b, groups()) }},
		{"check", func(b *strings.Builder) error { return WriteCheck(b, checks(), now) }},
		{"check.json", func(b *strings.Builder) error { return WriteJSON(b, checks()) }},
		{"story", func(b *strings.Builder) error { return WriteVolumeDetail(b, story(), now) }},
		{"story-idle", func(b *strings.Builder) error {
			return WriteVolumeDetail(b, VolumeDetail{Volume: volumes().Volumes[5], Lease: &Lease{Until: before(time.Minute)}}, now)
		}},
		{"diagnosis", func(b *strings.Builder) error { return WriteDiagnosis(b, diagnosis(), false, Layout{}) }},
		{"diagnosis-all", func(b *strings.Builder) error {
			return WriteDiagnosis(b, diagnosis(), true, Layout{Width: 60, Color: true})
		}},
		{"diagnosis.json", func(b *strings.Builder) error { return WriteJSON(b, diagnosis()) }},
		{"events", func(b *strings.Builder) error { return WriteEvents(b, events(), now) }},
		{"events.json", func(b *strings.Builder) error { return WriteJSON(b, events()) }},
		{"events-today", func(b *strings.Builder) error {
			return WriteEvents(b, Events{Events: events().Events[2:5], More: true, Problems: []string{"the history cannot be written"}}, now)
		}},
		{"events-none", func(b *strings.Builder) error { return WriteEvents(b, Events{Oldest: events().Events[0].Time}, now) }},
		{"logs", func(b *strings.Builder) error { return WriteCall(b, "c1", Events{Events: events().Events[2:6]}, now) }},
		{"logs-answer", func(b *strings.Builder) error { return WriteCall(b, "0123", Events{Events: events().Events[6:]}, now) }},
		{"logs-waits", func(b *strings.Builder) error {
			return WriteCall(b, "c4", Events{Events: events().Events[1:2], Waiting: events().Waiting}, now)
		}},
		{"list.json", func(b *strings.Builder) error { return WriteJSON(b, volumes()) }},
		{"story.json", func(b *strings.Builder) error { return WriteJSON(b, story()) }},
		{"story-idle.json", func(b *strings.Builder) error { return WriteJSON(b, VolumeDetail{}) }},
	} {
		t.Run(g.file, func(t *testing.T) {
			var b strings.Builder
			if err := g.write(&b); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", g.file+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), b.String()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestTableNeverWiderThanTheTerminal(t *testing.T) {
	for width := 1; width < 250; width++ {
		var b strings.Builder
		if err := WriteTable(&b, List{Volumes: volumes().Volumes}, now, Layout{Width: width}); err != nil {
			t.Fatal(err)
		}
		table, _, _ := strings.Cut(b.String(), "\n\n")
		for line := range strings.SplitSeq(table, "\n") {
			if n := len([]rune(line)); n > max(width, 3) {
				t.Fatalf("width %d: %d characters: %q", width, n, line)
			}
		}
	}
}

func TestSize(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 1 << 20: "1.00 MiB", 64 << 20: "64.0 MiB", 500 << 30: "500 GiB",
		1<<20 - 1: "1.00 MiB", 10<<20 - 1: "10.0 MiB", 100<<20 - 1: "100 MiB", 1023 << 20: "1023 MiB", 1<<63 - 1: "8.00 EiB",
	} {
		if got := Size(bytes); got != want {
			t.Errorf("%d: %s, want %s", bytes, got, want)
		}
	}
}

func TestAges(t *testing.T) {
	for d, want := range map[time.Duration][2]string{
		-time.Hour:             {"0s", "now"},
		300 * time.Millisecond: {"0s", "now"},
		59 * time.Second:       {"59s", "59s ago"},
		252 * time.Second:      {"4m12s", "4m ago"},
		42 * time.Minute:       {"42m", "42m ago"},
		185 * time.Minute:      {"3h05m", "3h ago"},
		50 * time.Hour:         {"2d2h", "2d ago"},
	} {
		if got := [2]string{age(d), ago(d)}; got != want {
			t.Errorf("%v: %v, want %v", d, got, want)
		}
	}
}

// The JSON is a promise, and a promise that is not written down is none.
func TestEveryFieldIsDocumented(t *testing.T) {
	var text []byte
	for _, page := range []string{"status.md", "explain.md"} {
		b, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b...)
	}
	// One section per type, so that "since" of a call does not pass for that of a claim.
	sections := map[string]string{}
	for _, s := range strings.Split(string(text), "\n### ")[1:] {
		title, body, _ := strings.Cut(s, "\n")
		sections[title], _, _ = strings.Cut(body, "\n## ")
	}
	for _, v := range []any{List{}, Volume{}, Pod{}, Wait{}, Holder{}, Error{}, VolumeDetail{}, Claim{}, Lease{}, Call{}, Fact{}, Child{}, Operation{}, Finding{}, Pool{}, Check{}, Checked{}, Group{}, Locks{}, Disk{}, ThinPool{}, RefusedCall{}, Diagnosis{}, Examination{}, Events{}, Event{}, EventPod{}, Explanation{}, ExplainedVolume{}, ExplainedCall{}, SkippedVolume{}, Explained{}} {
		typ := reflect.TypeOf(v)
		section, ok := sections[typ.Name()]
		if !ok {
			t.Errorf("docs/status.md has no section %q", typ.Name())
			continue
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.Anonymous {
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !strings.Contains(section, "| `"+name+"` |") {
				t.Errorf("docs/status.md, %s: no line for `%s`", typ.Name(), name)
			}
		}
	}
	for _, s := range States {
		if !strings.Contains(sections["Volume"], "`"+string(s)+"`") {
			t.Errorf("docs/status.md, Volume: the state %s is not explained", s)
		}
	}
}

func TestSelection(t *testing.T) {
	all := differ()
	all.Volumes = volumes().Volumes
	all.AddRefused(refused(), now)
	for _, row := range []struct {
		Selection
		want string
	}{
		{Selection{}, "files/data8 svg/moves vg0/backup vg0/data vg0/fresh vg0/full vg0/old vg0/spare vg1/gone"},
		{Selection{Target: "vg1"}, "vg1/gone"},
		{Selection{Target: "vg0/old"}, "vg0/old"},
		{Selection{Target: "u3"}, "vg0/fresh"},
		{Selection{Target: "fresh"}, "vg0/fresh"},
		{Selection{Target: "default/web-0"}, "vg0/data vg1/gone"},
		{Selection{Target: "90aa"}, "vg0/data"},
		{Selection{Target: "/dev/loop7"}, "vg0/backup"},
		{Selection{Target: pods + "90aa/volumes/flexd~lvm/data/a/file"}, "vg0/data"},
		{Selection{Target: pods + "90aa/volumes/flexd~lvm/data2"}, ""},
		{Selection{Target: "default/"}, ""},
		{Selection{Target: "-"}, ""},
		{Selection{States: []string{"failed", "stuck"}}, "vg0/backup vg0/old"},
		{Selection{VG: "vg0", Namespace: "default"}, "vg0/data"},
		{Selection{Target: "vg0/old", VG: "vg1"}, ""},
	} {
		l := row.Of(all)
		var got []string
		for _, v := range l.Volumes {
			got = append(got, v.VG+"/"+v.LV)
		}
		if s := strings.Join(got, " "); s != row.want {
			t.Errorf("%+v: %q, want %q", row.Selection, s, row.want)
		}
	}
	all.Groups = []Group{{Name: "vg0"}, {Name: "vg1"}, {Name: "vg2"}}
	l := Selection{VG: "vg0"}.Of(all)
	if len(l.Findings) != 3 || len(l.RefusedCalls) != 1 || len(l.Pools) != 3 || len(l.Groups) != 1 || len(all.Volumes) != 9 {
		t.Errorf("%+v", l)
	}
	// Those of no listed volume, and without a group.
	all.Findings = append(all.Findings, Finding{Class: "stray-files", LV: "x", Dir: pods + "1/volumes/flexd~lvm/x"})
	if l := (Selection{}).Of(all); len(l.Findings) != 4 {
		t.Errorf("%+v", l.Findings)
	}
	if l := (Selection{Target: pods + "1/volumes/flexd~lvm/x"}).Of(all); len(l.Findings) != 1 {
		t.Errorf("%+v", l.Findings)
	}
}

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 7, 29, 14, 30, 0, 0, time.FixedZone("", 3600))
	for text, want := range map[string]string{
		"90m": "2026-07-29T13:00:00+01:00", "2d": "2026-07-27T14:30:00+01:00", "1h30m": "2026-07-29T13:00:00+01:00",
		"09:15": "2026-07-29T09:15:00+01:00", "2026-07-01": "2026-07-01T00:00:00+01:00", "2026-07-01 08:00": "2026-07-01T08:00:00+01:00",
		"2026-07-01T08:00:00Z": "2026-07-01T08:00:00Z",
		"":                     "", "-1h": "", "yesterday": "", "-2d": "", "d": "", "25:00": "",
	} {
		got, err := ParseSince(text, now)
		if (err != nil) != (want == "") || err == nil && got.Format(time.RFC3339) != want {
			t.Errorf("%q: %s, %v; want %q", text, got.Format(time.RFC3339), err, want)
		}
	}
}

func TestEventQueryResolve(t *testing.T) {
	for target, want := range map[string]string{"vg0/data": "u2", "/dev/loop7": "u1", "default/web-0": "", "": ""} {
		q := EventQuery{Target: target}
		q.Resolve(List{Volumes: []Volume{{VG: "vg0", LV: "backup", UUID: "u1", Device: "/dev/loop7"}, {VG: "vg0", LV: "data", UUID: "u2"}, {VG: "vg0", LV: "data"}}})
		if got := strings.Join(q.UUIDs, " "); got != want {
			t.Errorf("%q: %q, want %q", target, got, want)
		}
	}
}
