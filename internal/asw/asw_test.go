package asw

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// A machine is a provider of volumes by name and by device number.
type machine struct {
	lvs     map[volume.Name]volume.LV
	devices map[volume.UUID]volume.Device
	err     error
}

func (m *machine) LookUp(_ context.Context, n volume.Name) (volume.LV, error) {
	if m.err != nil {
		return volume.LV{}, m.err
	}
	if lv, ok := m.lvs[n]; ok {
		return lv, nil
	}
	return volume.LV{Presence: volume.Absent, Name: n}, nil
}

func (m *machine) Device(_ context.Context, lv volume.LV) (volume.Device, error) {
	if d, ok := m.devices[lv.UUID]; ok {
		return d, m.err
	}
	return volume.Device{Activity: volume.Inactive}, m.err
}

func (m *machine) Identify(_ context.Context, number string) (volume.Identity, error) {
	for uuid, d := range m.devices {
		if d.Number == number {
			return volume.Identity{UUID: uuid, Name: m.lvs2(uuid)}, nil
		}
	}
	return volume.Identity{}, nil
}

func (m *machine) lvs2(uuid volume.UUID) volume.Name {
	for n, lv := range m.lvs {
		if lv.UUID == uuid {
			return n
		}
	}
	return volume.Name{}
}

var (
	nameA = volume.Name{VG: "vg", LV: "a"}
	nameB = volume.Name{VG: "vg", LV: "b"}
)

func twoVolumes() *machine {
	return &machine{
		lvs: map[volume.Name]volume.LV{
			nameA: {Presence: volume.Present, Name: nameA, UUID: "A", Size: 1 << 20},
			nameB: {Presence: volume.Present, Name: nameB, UUID: "B", Size: 1 << 20},
		},
		devices: map[volume.UUID]volume.Device{
			"A": {Activity: volume.Active, Path: "/dev/loop1", Number: "7:1", Size: 1 << 20},
			"B": {Activity: volume.Active, Path: "/dev/loop2", Number: "7:2", Size: 1 << 20},
		},
	}
}

const (
	podDir    = "/k/pods/u/volumes/flexd~lvm/data"
	globalDir = "/k/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/data"
	otherDir  = "/k/pods/u/volumes/other~lvm/data"
)

// line is one line of mountinfo.
func line(id, number, root, dir, optional, fs, source string) string {
	if optional != "" {
		optional += " "
	}
	return id + " 1 " + number + " " + root + " " + dir + " rw,relatime " + optional + "- " + fs + " " + source + " rw"
}

// over is a line whose mount is on another than the root.
func over(parent, line string) string { return strings.Replace(line, " 1 ", " "+parent+" ", 1) }

func observer(m *machine) *Observer {
	o := New([]Layout{kubelet.Layout{Dirs: []string{"/k"}, Driver: "flexd/lvm"}}, map[string]Provider{"vg": m},
		func(volume.UUID) (volume.RecordFacts, error) { return volume.RecordFacts{State: volume.NoRecord}, nil }, nil)
	o.FSError = func(string, string) string { return "" }
	o.Gone = func(string) bool { return false }
	return o
}

func table(t *testing.T, lines ...string) *mounttable.Table {
	t.Helper()
	tab, err := mounttable.Read(strings.NewReader(strings.Join(append([]string{line("1", "8:1", "/", "/", "shared:1", "ext4", "/dev/sda1")}, lines...), "\n") + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// kubeletsRoot is kubelet's root bound on itself below a shared parent.
var kubeletsRoot = line("30", "8:1", "/k", "/k", "shared:1", "ext4", "/dev/sda1")

func TestTargetStates(t *testing.T) {
	mine := func(id string) string { return line(id, "7:1", "/", podDir, "", "ext4", "/dev/loop1") }
	foreign := func(id string) string { return line(id, "0:40", "/", podDir, "", "tmpfs", "none") }
	for _, c := range []struct {
		name  string
		lines []string
		want  volume.TargetState
	}{
		{"nothing is mounted", nil, volume.TargetState{}},
		{"ours", []string{mine("50")}, volume.TargetState{This: true}},
		{"a foreign one", []string{foreign("50")}, volume.TargetState{Other: "tmpfs from none"}},
		{"ours, covered", []string{mine("50"), over("50", foreign("51"))}, volume.TargetState{Other: "tmpfs from none", Under: true}},
		{"ours, over itself", []string{mine("50"), over("50", mine("51")), over("51", mine("52"))}, volume.TargetState{This: true, Below: 2}},
		{"a foreign one, covered by ours", []string{foreign("50"), over("50", mine("51"))}, volume.TargetState{This: true}},
		{"ours, with the copy below kubelet's root bound on itself", []string{kubeletsRoot, over("30", mine("50")), mine("51")}, volume.TargetState{This: true}},
		{"ours, mounted before kubelet's root was bound on itself", []string{mine("50"), kubeletsRoot}, volume.TargetState{Other: "ext4 from /dev/sda1 (over all of /k)", Under: true}},
		{"a foreign one, mounted before that", []string{foreign("50"), kubeletsRoot}, volume.TargetState{}},
		{"ours, hidden by a mount above", []string{mine("50"), line("51", "0:40", "/", "/k/pods", "", "tmpfs", "none")},
			volume.TargetState{Other: "tmpfs from none (over all of /k/pods)", Under: true}},
		{"another volume", []string{line("50", "7:2", "/", podDir, "", "ext4", "/dev/loop2")}, volume.TargetState{Other: "volume vg/b (uuid B, not A)"}},
		{"a part of ours", []string{line("50", "7:1", "/sub", podDir, "", "ext4", "/dev/loop1")}, volume.TargetState{Other: "/sub of volume vg/a (uuid A)"}},
	} {
		h := observer(twoVolumes()).Assemble(t.Context(), Target{UUID: "A", Name: nameA, Dirs: []string{podDir}}, table(t, c.lines...))
		if got := h.Targets[podDir]; got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

// Of a btrfs a mount of the noted subvolume counts, never a bound directory; without a note,
// the top level, or what was mounted at the start.
func TestSubvolumes(t *testing.T) {
	const another = "/k/pods/u2/volumes/flexd~lvm/data"
	btrfs := func(root, subvolume, id string) string {
		return line("50", "7:1", root, podDir, "", "btrfs", "/dev/loop1") + ",space_cache=v2,subvolid=" + id + ",subvol=" + subvolume
	}
	for _, c := range []struct {
		name  string
		mount string
		notes map[string]string
		found bool
		mine  bool
	}{
		{"the top level", btrfs("/", "/", "5"), nil, false, true},
		{"a subvolume", btrfs("/@", "/@", "256"), nil, false, false},
		{"at the start", btrfs("/@", "/@", "256"), nil, true, true},
		{"with commas and blanks", btrfs(`/a,b\040c`, `/a,b\040c`, "256"), nil, true, true},
		{"with commas as Linux writes them since", btrfs(`/a,b`, `/a\054b`, "256"), nil, true, true},
		{"a directory at the start", btrfs("/old", "/", "5"), nil, true, false},
		{"a directory of the noted one", btrfs("/@/old", "/@", "256"), map[string]string{podDir: "256"}, true, false},
		{"the noted one", btrfs("/@", "/@", "256"), map[string]string{podDir: "256"}, false, true},
		{"the noted one, renamed", btrfs("/@old", "/@old", "256"), map[string]string{podDir: "256"}, false, true},
		{"another in its place", btrfs("/snap", "/snap", "257"), map[string]string{podDir: "256"}, true, false},
		{"the top level in its place", btrfs("/", "/", "5"), map[string]string{podDir: "256"}, true, false},
		{"being mounted", btrfs("/@", "/@", "256"), map[string]string{podDir: "", another: "5"}, false, true},
		{"that of another claim", btrfs("/@", "/@", "256"), map[string]string{another: "256"}, false, true},
		{"not that of another claim", btrfs("/snap", "/snap", "257"), map[string]string{another: "256"}, false, false},
		{"nor the top level", btrfs("/", "/", "5"), map[string]string{another: "256"}, false, false},
		{"at the start, beside another claim", btrfs("/snap", "/snap", "257") + "\n" + strings.Replace(btrfs("/@", "/@", "256"), podDir, another, 1), map[string]string{another: "256"}, true, false},
		{"at the start, with two", btrfs("/snap", "/snap", "257") + "\n" + strings.Replace(btrfs("/@", "/@", "256"), podDir, another, 1), nil, true, true},
	} {
		o, tab := observer(twoVolumes()), table(t, c.mount)
		o.Subvolumes = func(dir string) []string {
			if noted, ok := c.notes[dir]; ok {
				return []string{noted}
			}
			return nil
		}
		if c.found {
			o.Found(tab)
		}
		for _, e := range tab.All() {
			if e.Dir == podDir && o.whole(e, []string{podDir, another}) != c.mine {
				t.Errorf("%s: %v is the volume: %v", c.name, e.Root, !c.mine)
			}
		}
	}
}

// A volume that was renamed while it is in use is identified by its device.
func TestRenamed(t *testing.T) {
	m := twoVolumes()
	other := volume.Name{VG: "vg", LV: "other"}
	lv := m.lvs[nameA]
	look := func() volume.LV {
		return observer(m).Assemble(t.Context(), Target{UUID: "A", Name: nameA}, table(t)).LV
	}
	if got := look(); got.Presence != volume.Present || got.Now != (volume.Name{}) {
		t.Errorf("not renamed: %+v", got)
	}
	delete(m.lvs, nameA)
	if got := look(); got.Presence != volume.Absent || got.Now != (volume.Name{}) || got.Reason != "" {
		t.Errorf("removed: %+v", got)
	}
	m.lvs[other] = lv
	if got := look(); got.Presence != volume.Absent || got.Now != other || got.Reason != "it is now named vg/other" {
		t.Errorf("renamed: %+v", got)
	}
	m.lvs[nameA] = volume.LV{Presence: volume.Present, Name: nameA, UUID: "C"}
	if got := look(); got.Presence != volume.Absent || got.Now != other || !strings.HasSuffix(got.Reason, "by now (uuid C; this one was A); it is now named vg/other") {
		t.Errorf("another in its place: %+v", got)
	}
	delete(m.devices, "A")
	if got := look(); got.Now != (volume.Name{}) {
		t.Errorf("without a device: %+v", got)
	}
}

// Ensure that a mount is flexd's only at a directory of this driver, and kubelet's
// only as a subPath of one of these.
func TestOwners(t *testing.T) {
	const subPath = "/k/pods/u/volume-subpaths/data/c/0"
	mine := func(id, dir string) string { return line(id, "7:1", "/", dir, "shared:50", "ext4", "/dev/loop1") }
	bound := line("31", "8:1", "/k", "/data/k", "shared:1", "ext4", "/dev/sda1")
	const boundDir = "/data" + podDir
	for _, c := range []struct {
		name  string
		lines []string
		want  string // of each mount: dir, owner, kind
	}{
		{"ours", []string{mine("50", globalDir), mine("51", podDir)}, globalDir + " 1 staged; " + podDir + " 1 published"},
		{"another volume", []string{mine("50", podDir), line("51", "7:2", "/", "/mnt", "", "ext4", "/dev/loop2")}, podDir + " 1 published"},
		{"subPath", []string{mine("50", podDir), line("51", "7:1", "/sub", subPath, "shared:50", "ext4", "/dev/loop1")}, podDir + " 1 published; " + subPath + " 2 "},
		{"subPath of a volume that is not ours", []string{mine("50", "/mnt"), mine("51", subPath)}, "/mnt 3 ; " + subPath + " 3 "},
		{"an administrator's", []string{mine("50", podDir), line("51", "7:1", "/", "/mnt", "", "ext4", "/dev/loop1")}, podDir + " 1 published; /mnt 3 "},
		{"an administrator's bind of ours", []string{mine("50", podDir), mine("51", "/mnt")}, podDir + " 1 published; /mnt 3 "},
		{"a bind at another of kubelet's directories", []string{mine("50", podDir), mine("51", "/k/somewhere")}, podDir + " 1 published; /k/somewhere 3 "},
		{"another FlexVolume driver's", []string{mine("50", otherDir)}, otherDir + " 3 "},
		{"a CSI driver's pod", []string{mine("50", "/k/pods/u/volumes/kubernetes.io~csi/data/mount")}, "/k/pods/u/volumes/kubernetes.io~csi/data/mount 3 "},
		{"a CSI driver's global mount", []string{mine("50", "/k/plugins/kubernetes.io/csi/x.example.org/0123/globalmount")}, "/k/plugins/kubernetes.io/csi/x.example.org/0123/globalmount 3 "},
		{"kubelet's pods", []string{mine("50", "/k/pods")}, "/k/pods 3 "},
		{"a part of it at our directory", []string{line("50", "7:1", "/sub", podDir, "", "ext4", "/dev/loop1")}, podDir + " 3 "},

		{"kubelet's root seen at two places", []string{bound, mine("50", podDir), over("31", mine("51", boundDir))}, podDir + " 1 published"},
		{"at two that do not share", []string{strings.Replace(bound, "shared:1 ", "", 1), mine("50", podDir), over("31", mine("51", boundDir))}, podDir + " 1 published; " + boundDir + " 3 "},
		{"at two of which the second follows", []string{strings.Replace(bound, "shared:1", "master:1", 1), mine("50", podDir), over("31", mine("51", boundDir))}, podDir + " 1 published"},
		{"at two of which the second leads", []string{strings.Replace(bound, "shared:1", "shared:7", 1),
			line("32", "8:1", "/k", "/k", "master:7", "ext4", "/dev/sda1"), over("32", mine("50", podDir)), over("31", mine("51", boundDir))},
			podDir + " 1 published; " + boundDir + " 3 "},
		{"kubelet's root bound on itself", []string{kubeletsRoot, over("30", mine("50", podDir)), mine("51", podDir)}, podDir + " 1 published"},
		{"with a subPath", []string{kubeletsRoot, over("30", mine("50", podDir)), mine("51", podDir), over("30", mine("52", subPath)), mine("53", subPath)}, podDir + " 1 published; " + subPath + " 2 "},
		{"bound later", []string{mine("50", podDir), kubeletsRoot}, podDir + " 1 published"},
		{"an administrator's, and its copy", []string{kubeletsRoot, over("30", mine("50", podDir)), mine("51", podDir), over("30", mine("52", "/k/x")), mine("53", "/k/x")},
			podDir + " 1 published; /k/x 3 "},
	} {
		h := observer(twoVolumes()).Assemble(t.Context(), Target{UUID: "A", Name: nameA}, table(t, c.lines...))
		var got []string
		for _, m := range h.Mounts {
			got = append(got, fmt.Sprintf("%s %d %s", m.Dir, m.Owner, m.Kind))
		}
		if got := strings.Join(got, "; "); got != c.want {
			t.Errorf("%s: got\n%s, want\n%s", c.name, got, c.want)
		}
	}
}

// A subPath belongs to another driver only if that has the volume mounted.
func TestBindLeft(t *testing.T) {
	const subPath = "/k/pods/u/volume-subpaths/data/c/0"
	left := line("51", "7:1", "/sub", subPath, "", "ext4", "/dev/loop1")
	for _, c := range []struct {
		lines                 []string
		bindLeft, otherDriver bool
	}{
		{[]string{left}, true, false},
		{[]string{left, line("50", "7:1", "/", "/mnt", "", "ext4", "/dev/loop1")}, true, false},
		{[]string{left, line("50", "7:1", "/", otherDir, "", "ext4", "/dev/loop1")}, false, true},
		{[]string{left, line("50", "7:1", "/", podDir, "", "ext4", "/dev/loop1")}, false, false},
	} {
		o, tab := observer(twoVolumes()), table(t, c.lines...)
		for _, m := range o.Assemble(t.Context(), Target{UUID: "A", Name: nameA}, tab).Mounts {
			if m.Dir == subPath && (m.BindLeft != c.bindLeft || m.OtherDriver != c.otherDriver) {
				t.Errorf("%v: %+v", c.lines, m)
			}
		}
		for _, m := range o.MountsOf("7:1", "/dev/loop1", nil, tab.Devices()) {
			if m.Dir == subPath && (m.BindLeft != c.bindLeft || m.Other != c.otherDriver) {
				t.Errorf("%v: %+v", c.lines, m)
			}
		}
	}
}

// The mount of a claim counts also when kubelet's root is elsewhere by now.
func TestOutside(t *testing.T) {
	const (
		former  = "/former/pods/u/volumes/flexd~lvm/data"
		subPath = "/former/pods/u/volume-subpaths/data/c/0"
	)
	tab := table(t, line("50", "7:1", "/", podDir, "", "ext4", "/dev/loop1"), line("51", "7:1", "/", former, "", "ext4", "/dev/loop1"), line("52", "7:1", "/", "/mnt", "", "ext4", "/dev/loop1"), line("53", "7:1", "/d", subPath, "", "ext4", "/dev/loop1"))
	for _, m := range observer(twoVolumes()).MountsOf("7:1", "/dev/loop1", []string{podDir, former}, tab.Devices()) {
		if m.Outside != (m.Dir == former) || (m.Owner == volume.Ours) != (m.Dir != "/mnt" && m.Dir != subPath) {
			t.Errorf("%+v", m)
		}
	}
	for _, m := range observer(twoVolumes()).Assemble(t.Context(), Target{UUID: "A", Name: nameA}, tab).Mounts { // without a note
		if m.OtherRoot != (m.Dir == former || m.Dir == subPath) {
			t.Errorf("%+v", m)
		}
	}
}

// Only a device that is mounted read-write is marked, and whose file is on a filesystem that accepts no writes.
func TestNoWrites(t *testing.T) {
	mounted := func(id, number, dir, fs, super string) string {
		return strings.TrimSuffix(line(id, number, "/", dir, "", fs, "/dev/x"), "rw") + super
	}
	for _, c := range []struct {
		name, super, bound, over string // of the directory, of the filesystem of a bound file, of one over the directory
		device, mount            bool   // read-only
		at, option               string
	}{
		{name: "writable", super: "rw"},
		{name: "stopped", super: "rw,emergency_ro", at: "/vg", option: "emergency_ro"},
		{name: "shut down", super: "ro,shutdown", at: "/vg", option: "shutdown"},
		{name: "read-only", super: "ro", at: "/vg", option: "ro"},
		{name: "a bound file", super: "rw", bound: "ro", at: "/vg/a", option: "ro"},
		{name: "bound from a writable one", super: "ro", bound: "rw"},
		{name: "hidden", super: "rw", over: "ro"},
		{name: "a read-only device", super: "ro", device: true},
		{name: "mounted read-only", super: "ro", mount: true},
	} {
		lines := []string{mounted("40", "8:1", "/vg", "ext4", c.super)}
		if c.bound != "" {
			lines = append(lines, over("40", mounted("41", "8:2", "/vg/a", "ext4", c.bound)))
		}
		g := join.Group{
			Survey: join.Survey{Directory: "/vg", Volumes: []join.Volume{{Name: "a", UUID: "A"}}, Devices: []join.Device{{Name: "a", UUID: "A", Number: "7:1", ReadOnly: c.device}}},
			Mounts: []join.Mount{{Dir: podDir, Device: "7:1", ReadOnly: c.mount}},
		}
		if c.over != "" {
			lines, g.Volumes = append(lines, over("40", mounted("41", "8:2", "/vg", "ext4", c.over))), nil
		}
		AddNoWrites(&g, table(t, lines...))
		want, remedy := "", ""
		if c.at != "" {
			want, remedy = volume.NoWrites("ext4", c.at, c.option)
		}
		if d := g.Devices[0]; d.Failed != want || d.Remedy != remedy {
			t.Errorf("%s: got %q, %q", c.name, d.Failed, d.Remedy)
		}
	}
}

// What a mounted filesystem says of itself.
func TestMountedInError(t *testing.T) {
	for _, c := range []struct {
		name, dir, fs, super string
		device               func(*volume.Device)
		counted, want        string
	}{
		{"nothing", podDir, "ext4", "rw", nil, "", ""},
		{"ext4 counts", podDir, "ext4", "rw", nil, "ext4 counts 1 errors", "ext4 counts 1 errors"},
		{"ext4 was stopped", podDir, "ext4", "rw,emergency_ro", nil, "", "ext4 says emergency_ro"},
		{"ext4 was shut down", podDir, "ext4", "rw,shutdown", nil, "", "ext4 says shutdown"},
		{"errors=remount-ro", podDir, "ext4", "ro", nil, "ext4 counts 1 errors", "ext4 counts 1 errors"},
		{"the volume was read-only", podDir, "ext4", "ro", nil, "", ""},
		{"btrfs was forced", globalDir, "btrfs", "ro,space_cache=v2", nil, "", "if it was remounted by hand: mount -o remount,rw " + globalDir},
		{"a read-only volume", podDir, "xfs", "ro,norecovery", func(d *volume.Device) { d.ReadOnly = true }, "", ""},
		{"an operator's own", "/mnt", "xfs", "ro", nil, "", ""},
	} {
		m := twoVolumes()
		if d := m.devices["A"]; c.device != nil {
			c.device(&d)
			m.devices["A"] = d
		}
		o := observer(m)
		o.FSError = func(string, string) string { return c.counted }
		h := o.Assemble(t.Context(), Target{UUID: "A", Name: nameA}, table(t, strings.TrimSuffix(line("50", "7:1", "/", c.dir, "", c.fs, "/dev/loop1"), "rw")+c.super))
		if bad := h.FS.Content == volume.FilesystemFailed; bad != (c.want != "") || !strings.Contains(h.FS.What, c.want) {
			t.Errorf("%s: got %+v", c.name, h.FS)
		}
	}
	// What its volume is decides whether a superblock that is read-only is one.
	ro := table(t, strings.TrimSuffix(line("50", "7:1", "/", podDir, "", "btrfs", "/dev/loop1"), "rw")+"ro")
	gone := twoVolumes()
	delete(gone.lvs, nameA)
	pending := func(_ context.Context, _ Provider, name volume.Name) (volume.LV, error) {
		return volume.LV{Name: name, Pending: true}, nil
	}
	for _, c := range []struct {
		name   string
		m      *machine
		lookUp func(context.Context, Provider, volume.Name) (volume.LV, error)
		want   bool
	}{{"its name is gone", gone, nil, true}, {"its group was not waited for", twoVolumes(), pending, false}} {
		h := observer(c.m).Assemble(t.Context(), Target{UUID: "A", Name: nameA, LookUp: c.lookUp}, ro)
		if bad := h.FS.Content == volume.FilesystemFailed; bad != c.want {
			t.Errorf("%s: got %+v, %+v", c.name, h.FS, h.LV)
		}
	}
}

// What cannot be read is unknown; a name that means another volume by now is
// never followed.
func TestUnknownIsNotAbsent(t *testing.T) {
	broken := twoVolumes()
	broken.err = errors.New("the disk does not answer")
	replaced := twoVolumes()
	replaced.lvs[nameA] = volume.LV{Presence: volume.Present, Name: nameA, UUID: "new"}
	for _, c := range []struct {
		name     string
		m        *machine
		target   Target
		presence volume.Presence
		activity volume.Activity
		reason   string
	}{
		{"as it should be", twoVolumes(), Target{UUID: "A", Name: nameA}, volume.Present, volume.Active, ""},
		{"the provider fails", broken, Target{UUID: "A", Name: nameA}, volume.PresenceUnknown, volume.ActivityUnknown, "does not answer"},
		{"the name means another", replaced, Target{UUID: "A", Name: nameA}, volume.Absent, volume.Active, "uuid new"},
		{"it is gone", twoVolumes(), Target{UUID: "C", Name: volume.Name{VG: "vg", LV: "c"}}, volume.Absent, volume.Inactive, ""},
		{"its group is not configured", twoVolumes(), Target{UUID: "A", Name: volume.Name{VG: "old", LV: "a"}}, volume.PresenceUnknown, volume.ActivityUnknown, `"old" is not configured`},
	} {
		h := observer(c.m).Assemble(t.Context(), c.target, table(t))
		if h.LV.Presence != c.presence || h.Device.Activity != c.activity || !strings.Contains(h.LV.Reason, c.reason) {
			t.Errorf("%s: %+v, %+v", c.name, h.LV, h.Device)
		}
		if h.LV.UUID != c.target.UUID {
			t.Errorf("%s: the volume became %s", c.name, h.LV.UUID)
		}
	}
}

// Ensure that a read-only LV is not written, even if its device is writable.
func TestReadOnlyVolume(t *testing.T) {
	m := twoVolumes()
	lv := m.lvs[nameA]
	lv.ReadOnly = true
	m.lvs[nameA] = lv
	for name, want := range map[volume.Name]bool{nameA: true, nameB: false} {
		if h := observer(m).Assemble(t.Context(), Target{UUID: m.lvs[name].UUID, Name: name}, table(t)); h.Device.ReadOnly != want {
			t.Errorf("%s: got %+v", name, h.Device)
		}
	}
}

// Ensure that a record is that of the state directory joined with that in the volume's tags,
// and unknown while one of them is.
func TestRecordInTags(t *testing.T) {
	for _, c := range []struct {
		file    volume.RecordFacts
		err     error
		tag     volume.RecordTag
		want    volume.Record
		partial bool
	}{
		{volume.RecordFacts{State: volume.NoRecord}, nil, volume.RecordTag{Shared: true, State: volume.Seen, Type: "xfs"}, volume.Seen, true},
		{volume.RecordFacts{State: volume.Seen, Type: "xfs"}, nil, volume.RecordTag{Shared: true, State: volume.Seen}, volume.Seen, false},
		{volume.RecordFacts{State: volume.Seen, Type: "xfs"}, nil, volume.RecordTag{Shared: true, State: volume.NoRecord}, volume.Seen, true},
		{volume.RecordFacts{State: volume.Seen, Type: "xfs"}, nil, volume.RecordTag{}, volume.Seen, false},
		{volume.RecordFacts{}, errors.New("damaged"), volume.RecordTag{Shared: true, State: volume.Seen, Type: "xfs"}, volume.RecordUnknown, false},
	} {
		m := twoVolumes()
		lv := m.lvs[nameA]
		lv.Tagged = c.tag
		m.lvs[nameA] = lv
		o := New(nil, map[string]Provider{"vg": m}, func(volume.UUID) (volume.RecordFacts, error) { return c.file, c.err }, nil)
		h := o.Assemble(t.Context(), Target{UUID: "A", Name: nameA}, &mounttable.Table{})
		if h.Record != c.want || h.RecordPartial != c.partial || h.Record == volume.Seen && h.RecordType != "xfs" {
			t.Errorf("%+v: got %v %q, partial %v", c, h.Record, h.RecordType, h.RecordPartial)
		}
	}
}
