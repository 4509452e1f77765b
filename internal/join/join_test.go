package join

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

const pod = "/var/lib/kubelet/pods/a/volumes/flexd~lvm/data"

// well is a group in which one volume is mounted for a pod and another is
// inactive, and all agree.
func well() Group {
	return Group{
		Name: "vg0",
		Survey: Survey{
			Kind:    "lvm",
			Volumes: []Volume{{Name: "data", UUID: "u1", Size: 64 << 20}, {Name: "idle", UUID: "u2", Size: 8 << 20}},
			Devices: []Device{{UUID: "u1", Name: "data", Kernel: "vg0-data", Path: "/dev/dm-3", Number: "253:3", Size: 64 << 20, Open: 1, Link: "/dev/vg0/data"}},
		},
		Claims: []Claim{{UUID: "u1", LV: "data", Dir: pod, Phase: volume.Held, For: "pod default/web-0"}},
		Mounts: []Mount{{Dir: pod, Device: "253:3", What: "ext4 from /dev/dm-3", Owner: volume.Ours}},
		Busy:   map[volume.UUID]bool{},
	}
}

func TestDisagreements(t *testing.T) {
	unmounted := func(g *Group) { g.Mounts = nil }
	unclaimed := func(g *Group) { g.Claims, g.Mounts = nil, nil }
	inactive := func(g *Group) { g.Devices = nil }
	leased := func(g *Group) { g.Leases = []Lease{{UUID: "u1", LV: "data", Live: true}} }
	for _, row := range []struct {
		about string
		do    []func(*Group)
		want  []string // "class name: " and then words of the text or the hint, with | between
	}{
		{"all agree", nil, nil},
		{"nothing at all", []func(*Group){func(g *Group) { *g = Group{Busy: g.Busy} }}, nil},

		{"deactivated under a lease", []func(*Group){unclaimed, inactive, leased}, []string{"lv-only data: lease|no device of it|deactivated"}},
		{"the lease has ended", []func(*Group){unclaimed, inactive, func(g *Group) { g.Leases = []Lease{{UUID: "u1"}} }}, nil},
		{"a lease that cannot be held against unseen devices", []func(*Group){unclaimed, inactive, leased, func(g *Group) { g.Kernel = "EIO" }}, nil},
		{"a lease, and no metadata", []func(*Group){unclaimed, inactive, leased, func(g *Group) { g.Metadata, g.Volumes = "hangs", nil }}, nil},
		{"removed under a lease", []func(*Group){unclaimed, inactive, leased, func(g *Group) { g.Volumes = nil }}, nil},
		{"the mount of a device that is gone stands", []func(*Group){inactive, func(g *Group) { g.Mounts[0].Gone = true }}, []string{"lv-only data: is mounted from its device 253:3 for pod default/web-0|by force"}},

		{"removed while it is mounted", []func(*Group){func(g *Group) { g.Volumes = nil }}, []string{"dm-only data: mounted at " + pod + " for pod default/web-0|vgcfgrestore --list vg0|dmsetup remove vg0-data"}},
		{"removed, and nobody's", []func(*Group){unclaimed, func(g *Group) { g.Volumes = nil }}, []string{"dm-only data: /dev/dm-3 (vg0-data)|uuid u1|open 1 times"}},
		{"made anew under its name", []func(*Group){unclaimed, func(g *Group) { g.Volumes[0].UUID = "u9" }}, []string{"dm-only data: uuid u1"}},
		{"removed, as far as unread metadata goes", []func(*Group){func(g *Group) { g.Metadata, g.Volumes = "hangs", nil }}, nil},
		{"a loop device of a file that is gone", []func(*Group){unclaimed, func(g *Group) { g.Kind, g.Volumes = "loopdev", nil }}, []string{"dm-only data: put it back|losetup -d /dev/dm-3"}},

		{"mounted by the host, too", []func(*Group){func(g *Group) {
			g.Mounts = append(g.Mounts, Mount{Dir: "/mnt", Device: "253:3", What: "ext4 from /dev/dm-3", Owner: volume.Elsewhere})
		}}, []string{"mounted-unknown data: mounted at /mnt|none of kubelet's|umount /mnt"}},
		{"mounted by the host only", []func(*Group){unclaimed, func(g *Group) {
			g.Mounts = []Mount{{Dir: "/mnt", Device: "253:3", What: "ext4 from /dev/dm-3", Owner: volume.Elsewhere}}
		}}, []string{"mounted-unknown data: /mnt"}},
		{"mounted for a pod without a note", []func(*Group){func(g *Group) { g.Claims = nil }}, []string{"mounted-unknown data: no note|runDir"}},
		{"mounted, while its claim is released", []func(*Group){func(g *Group) { g.Claims[0].Phase = volume.Releasing }}, nil},
		{"kubelet's subPath", []func(*Group){func(g *Group) {
			g.Mounts = append(g.Mounts, Mount{Dir: "/var/lib/kubelet/pods/a/volume-subpaths/x/0", Device: "253:3", Owner: volume.Kubelets})
		}}, nil},

		{"activated by somebody", []func(*Group){unclaimed, func(g *Group) { g.Devices[0].Open = 0 }}, []string{"active-unclaimed data: no pod has asked|lvchange -an vg0/data"}},
		{"open for something else", []func(*Group){unclaimed}, []string{"active-unclaimed data: open (1 times)|lsblk /dev/dm-3"}},
		{"active and leased", []func(*Group){unclaimed, leased}, nil},
		{"active, its lease about to be ended", []func(*Group){unclaimed, func(g *Group) { g.Leases = []Lease{{UUID: "u1"}} }}, nil},
		{"active, in a group that is left active", []func(*Group){unclaimed, func(g *Group) { g.Keep = true }}, nil},
		{"active, the metadata unread", []func(*Group){unclaimed, func(g *Group) { g.Metadata, g.Volumes = "hangs", nil }}, nil},
		{"somebody's loop device", []func(*Group){unclaimed, func(g *Group) { g.Devices[0].UUID = "" }}, nil},

		{"unmounted by somebody", []func(*Group){unmounted}, []string{"claimed-missing data: " + pod + ", for pod default/web-0, is gone|delete the pod"}},
		{"unmounted and deactivated", []func(*Group){unmounted, inactive}, []string{"claimed-missing data: the volume is inactive"}},
		{"unmounted and deactivated, with the lease that follows", []func(*Group){unmounted, inactive, leased}, []string{"claimed-missing data: the volume is inactive"}},
		{"unmounted and removed", []func(*Group){unmounted, inactive, func(g *Group) { g.Volumes = nil }}, []string{"claimed-missing data: the volume itself is gone, too"}},
		{"unmounted, the rest unread", []func(*Group){unmounted, inactive, func(g *Group) { g.Metadata, g.Kernel, g.Volumes = "hangs", "hangs", nil }}, []string{"claimed-missing data: is gone"}},
		{"replaced by something else", []func(*Group){func(g *Group) { g.Mounts = []Mount{{Dir: pod, What: "tmpfs from tmpfs", Owner: volume.Ours}} }}, []string{"claimed-missing data: tmpfs from tmpfs is mounted there instead"}},
		{"something is mounted, which may be it", []func(*Group){inactive, func(g *Group) { g.Kernel = "hangs" }}, nil},
		{"mounted from a device that is not where the group's are", []func(*Group){inactive, func(g *Group) { g.Mounts[0].UUID = "u1" }}, nil},
		{"something is mounted that cannot be told", []func(*Group){inactive, func(g *Group) { g.Mounts[0].Unknown = true }}, nil},
		{"covered by something else", []func(*Group){func(g *Group) { g.Mounts = append(g.Mounts, Mount{Dir: pod, What: "tmpfs from tmpfs"}) }}, nil},
		{"not mounted yet", []func(*Group){unmounted, func(g *Group) { g.Claims[0].Phase = volume.Making }}, nil},
		{"one of two", []func(*Group){func(g *Group) {
			g.Claims = append(g.Claims, Claim{UUID: "u1", LV: "data", Dir: "/var/lib/kubelet/b", Phase: volume.Held, For: "pod default/b"})
		}}, []string{"claimed-missing data: /var/lib/kubelet/b, for pod default/b"}},

		{"extended without a refresh", []func(*Group){func(g *Group) { g.Volumes[0].Size = 128 << 20 }}, []string{"stale-mapping data: says 128 MiB|(vg0-data) has 64 MiB|lvchange --refresh vg0/data"}},
		{"a snapshot's store", []func(*Group){func(g *Group) { g.Volumes[0].Size = 0 }}, nil},
		{"a file that was extended", []func(*Group){func(g *Group) { g.Kind, g.Volumes[0].Size = "loopdev", 1000 }}, []string{"stale-mapping data: says 1000 bytes|losetup -c /dev/dm-3"}},
		{"renamed in the kernel only", []func(*Group){func(g *Group) { g.Devices[0].Name, g.Devices[0].Kernel = "", "mine" }}, []string{"stale-mapping data: and the kernel mine"}},
		{"renamed by lvrename", []func(*Group){func(g *Group) { g.Volumes[0].Name, g.Devices[0].Name = "other", "other" }}, []string{"stale-mapping other: it was data when flexd set it up|ask for vg0/data"}},
		{"renamed under a lease", []func(*Group){unclaimed, leased, func(g *Group) { g.Volumes[0].Name, g.Devices[0].Name = "other", "other" }}, []string{"stale-mapping other: it was data"}},
		{"broken", []func(*Group){func(g *Group) { g.Devices[0].Broken = "vg0-data has an error target" }}, []string{"stale-mapping data: error target|dmesg"}},
		{"broken, the metadata unread", []func(*Group){func(g *Group) { g.Devices[0].Broken, g.Metadata, g.Volumes = "no table", "hangs", nil }}, []string{"stale-mapping data: no table"}},
		{"broken and unclaimed is one thing", []func(*Group){unclaimed, func(g *Group) { g.Devices[0].Broken, g.Devices[0].Size = "no table", 0 }}, []string{"stale-mapping data: no table"}},
		{"suspended", []func(*Group){func(g *Group) { g.Devices[0].Suspended = true }}, []string{"stale-mapping data: is suspended|dmsetup resume vg0-data"}},
		{"no link", []func(*Group){func(g *Group) { g.Devices[0].LinkBad = true }}, []string{"stale-mapping data: /dev/vg0/data does not lead to /dev/dm-3|vgmknodes vg0"}},
		{"no link, for loopdev", []func(*Group){func(g *Group) { g.Kind, g.Devices[0].LinkBad = "loopdev", true }}, nil},
		{"the mount of a gone device, the volume gone, too", []func(*Group){inactive, func(g *Group) { g.Volumes, g.Mounts[0].Gone = nil, true }}, []string{"stale-mapping data: 253:3, which the kernel does not have"}},
		{"the mount of another, gone device", []func(*Group){func(g *Group) { g.Mounts[0].Device, g.Mounts[0].Gone = "253:9", true }}, []string{"stale-mapping data: 253:9"}},

		{"being made", []func(*Group){unclaimed, func(g *Group) { g.Volumes[0].Making, g.Devices[0].LinkBad = true, true }}, nil},
	} {
		t.Run(row.about, func(t *testing.T) {
			g := well()
			for _, do := range row.do {
				do(&g)
			}
			got := Disagreements(g)
			if len(got) != len(row.want) {
				t.Fatalf("got %+v, want %q", got, row.want)
			}
			for i, d := range got {
				head, words, _ := strings.Cut(row.want[i], ": ")
				if fmt.Sprintf("%s %s", d.Class, d.LV) != head || d.Hint == "" {
					t.Errorf("got %+v, want %q", d, row.want[i])
				}
				for w := range strings.SplitSeq(words, "|") {
					if !strings.Contains(d.Text+" "+d.Hint, w) {
						t.Errorf("%+v does not say %q", d, w)
					}
				}
			}
			// What is being worked on is not judged.
			for _, u := range []volume.UUID{"u1", "u2", "u9"} {
				g.Busy[u] = true
			}
			if got := Disagreements(g); len(got) > 0 {
				t.Errorf("busy, and got %+v", got)
			}
		})
	}
}

// Ensure that in no combination of what was seen a volume is told of twice for
// one cause, and that nothing is told of what was not seen.
func TestEveryCombination(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	coin := func() bool { return r.IntN(2) == 0 }
	classes := map[Class]int{}
	for range 200_000 {
		var g Group
		g.Name, g.Kind = "vg0", []string{"lvm", "loopdev"}[r.IntN(2)]
		if coin() {
			g.Volumes = []Volume{{Name: "data", UUID: "u1", Size: int64(r.IntN(3)) << 20, Making: r.IntN(9) == 0}}
		}
		if coin() {
			g.Devices = []Device{{UUID: "u1", Name: []string{"data", "", "x"}[r.IntN(3)], Kernel: "k", Path: "/dev/dm-1", Number: "253:1",
				Size: 1 << 20, Open: r.IntN(2), Suspended: r.IntN(5) == 0, LinkBad: r.IntN(5) == 0}}
		}
		if r.IntN(5) == 0 {
			g.Metadata, g.Volumes = "unread", nil
		}
		if r.IntN(5) == 0 {
			g.Kernel = "unread"
		}
		if coin() {
			g.Leases = []Lease{{UUID: "u1", LV: "data", Live: coin()}}
		}
		for i := range r.IntN(3) {
			g.Claims = append(g.Claims, Claim{UUID: "u1", LV: "data", Dir: fmt.Sprint("/pod", i), Phase: []volume.Phase{volume.Making, volume.Held, volume.Releasing}[r.IntN(3)], For: "a pod"})
		}
		for range r.IntN(3) {
			m := Mount{Dir: fmt.Sprint("/pod", r.IntN(3)), Device: []string{"253:1", "253:2", ""}[r.IntN(3)], Owner: volume.Owner(1 + r.IntN(3))}
			m.Gone = m.Device == "253:2" && coin()
			g.Mounts = append(g.Mounts, m)
		}
		got := Disagreements(g)
		bad := func(why string) { t.Fatalf("seed %d: %s\n%+v\n%+v", seed, why, g, got) }
		for i, d := range got {
			classes[d.Class]++
			has := func(c Class) bool { return slices.ContainsFunc(got, func(o Disagreement) bool { return o.Class == c }) }
			switch {
			case i > 0 && d.Same(got[i-1]):
				bad("told twice")
			case d.Text == "" || d.Hint == "" || d.LV == "" || strings.Contains(d.Text+d.Hint, "%!"):
				bad("without words")
			case g.Metadata != "" && (d.Class == DMOnly || d.Class == LVOnly || d.Class == ActiveUnclaimed):
				bad("told of metadata that was not read")
			case g.Kernel != "" && d.Class == LVOnly:
				bad("told of a device that was not looked for")
			case d.Class == DMOnly && len(got) > 1, d.Class == ActiveUnclaimed && len(got) > 1:
				bad("one cause, two names")
			case d.Class == LVOnly && (has(ClaimedMissing) || len(g.Devices) > 0):
				bad("lv-only with a device or beside claimed-missing")
			case d.Class == ClaimedMissing && slices.ContainsFunc(g.Mounts, func(m Mount) bool {
				return m.Dir == d.Dir && len(g.Devices) > 0 && m.Device == "253:1"
			}):
				bad("claimed-missing, and mounted")
			}
		}
	}
	for _, c := range []Class{LVOnly, DMOnly, MountedUnknown, ActiveUnclaimed, ClaimedMissing, StaleMapping} {
		if classes[c] == 0 {
			t.Errorf("seed %d: no %s came up", seed, c)
		}
	}
}
