package lvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

const vgUUID = "VGVGVG-0000-0000-0000-0000-0000-VGVGVG"

// A fakeLVM is a volume group and its device-mapper in memory. It executes the provider's commands, and
// refuses others.
type fakeLVM struct {
	t *testing.T

	mu   sync.Mutex
	lvs  map[string]*fakeLV // guarded by mu, as all that follows
	free int64
	pvs  string // JSON
	gaps string // JSON: free extents
	segs string // JSON: segments of thin volumes

	maxLVs  int
	missing int      // disks; LVM creates and extends nothing then
	ran     []string // what was started

	// Of a shared group, as lvmlockd has it.
	lockType string
	locks    map[string]string // LV → "ex" or "sh" of this host
	others   map[string]string // the same of another host
	noLock   string            // what a command says that gets no lock of the group; "" = it gets one
	noUnlock bool              // a deactivation cannot give back the lock

	volumeList   []string // activation/volume_list of the host; nil = none
	readOnlyList string

	before  func(words string) error                  // called without mu; an error is the command's
	running int                                       // commands that change something
	broken  map[string]string                         // LV → what lvchange says of it
	devices map[string]devmapper.Mapped               // by uuid
	status  map[string]string                         // of the one target of the device of that uuid; none = its table
	failing map[string]bool                           // device-mapper cannot query the device of that uuid
	hook    func(c run.Cmd) (run.Result, error, bool) // instead of all else
}

type fakeLV struct {
	uuid         volume.UUID
	size         int64
	tags         []string
	layout, role string // "" = that of its device
	attr         string // "" = those of a plain volume
	origin       string // of a thick snapshot
	pool         string // of a thin volume, or the cache of a cached one
	health       string
}

func fakeUUID(n int) volume.UUID {
	return identity(vgUUID, fmt.Sprintf("LVLVLV-0000-0000-0000-0000-0000-%06d", n))
}

func newFake(t *testing.T, n int) (*fakeLVM, *Provider) {
	f := &fakeLVM{t: t, lvs: map[string]*fakeLV{}, free: 1 << 30, broken: map[string]string{}, devices: map[string]devmapper.Mapped{}}
	for i := range n {
		f.lvs[fmt.Sprintf("v%d", i)] = &fakeLV{uuid: fakeUUID(i), size: 8 * mib}
	}
	return f, f.provider(Group{})
}

func (f *fakeLVM) provider(g Group) *Provider {
	dir := f.t.TempDir()
	p := New(Options{Runner: f, DM: f, LockDir: filepath.Join(dir, "locks"), DiskDir: filepath.Join(dir, "disks"), Dev: filepath.Join(dir, "dev"), Groups: map[string]Group{"vg0": g, "other": g}})
	p.Leads = func(string, string) bool { return true } // its commands make no nodes
	p.diskGone = func(string) bool { return false }
	p.diskID, p.udevDir = func(path string) string { return path }, filepath.Join(dir, "udev")
	p.devicesOn = f.devicesOn
	p.requests = func(string) (bool, int64) { return false, 0 }
	p.pending = func(string, []devmapper.Mapped) []disk { return nil }
	return p
}

// devicesOn returns the devices on a device, as sysfs does.
func (f *fakeLVM) devicesOn(number string) (on []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.devices {
		if slices.ContainsFunc(m.Targets, func(t devmapper.Target) bool { return slices.Contains(strings.Fields(t.Params), number) }) {
			on = append(on, m.Number)
		}
	}
	return on, nil
}

func (f *fakeLVM) List() ([]devmapper.Mapped, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []devmapper.Mapped
	for _, m := range f.devices {
		all = append(all, m)
	}
	return all, nil
}

func (f *fakeLVM) Device(key devmapper.Key) (devmapper.Mapped, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for uuid, m := range f.devices {
		if key.UUID != "" && uuid == key.UUID || key.UUID == "" && m.Number == key.Number {
			if f.failing[uuid] {
				return devmapper.Mapped{}, errors.New("the answer does not parse")
			}
			return m, nil
		}
	}
	return devmapper.Mapped{}, devmapper.ErrNoDevice
}

func (f *fakeLVM) Status(key devmapper.Key) (devmapper.Mapped, error) {
	m, err := f.Device(key)
	if params, ok := f.status[m.UUID]; ok && err == nil {
		m.Targets = slices.Clone(m.Targets)
		m.Targets[0].Params = params
	}
	return m, err
}

// commands returns the first words of the commands that were started since the last time.
func (f *fakeLVM) commands() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	ran := f.ran
	f.ran = nil
	return ran
}

func (f *fakeLVM) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	if f.hook != nil {
		if res, err, ok := f.hook(c); ok {
			return res, err
		}
	}
	if c.Argv[0] != "lvm" {
		f.mu.Lock()
		f.ran = append(f.ran, c.Argv[2])
		f.mu.Unlock()
		return run.Result{Stdout: []byte(`{"value":null}`)}, nil
	}
	filtered(f.t, c.Argv)
	words := strings.Join(c.Argv[1:], " ")
	f.mu.Lock()
	f.ran = append(f.ran, c.Argv[1])
	if c.Mutates {
		if f.running++; f.running > 1 {
			f.t.Errorf("two commands at once: %s", words)
		}
		if c.Lock == "" || !c.NoKill {
			f.t.Errorf("changes something without the lane's lock, or may be killed: %+v", c)
		}
	}
	before := f.before
	f.mu.Unlock()
	var err error
	if before != nil {
		err = before(words)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Mutates {
		f.running--
	}
	if err != nil {
		return run.Result{}, err
	}
	say := f.execute(c.Argv[1], c.Argv[2:])
	if say.Code != 0 {
		say.Argv = c.Argv
	}
	return say.result()
}

func (f *fakeLVM) execute(command string, args []string) (u utterance) {
	fail := func(format string, a ...any) {
		u.Code = 5
		u.Stderr += fmt.Sprintf("  "+format+"\n", a...)
	}
	last := args[len(args)-1]
	switch command {
	case "lvmconfig":
		if last == "activation/volume_list" && f.volumeList != nil {
			u.Stdout = fmt.Sprintf("volume_list=%q\n", f.volumeList)
			return u
		}
		if last == "activation/read_only_volume_list" && f.readOnlyList != "" {
			u.Stdout = "read_only_volume_list=" + f.readOnlyList + "\n"
			return u
		}
		fail("Configuration node devices/filter not found")
	case "vgs":
		u.Stdout = "  vgtag,other\n"
	case "fullreport":
		if last != "vg0" {
			fail("Volume group %q not found", last)
			fail("Cannot process volume group %s", last)
			return u
		}
		if u.Stdout = f.report(); f.noLock != "" {
			u.Stderr += "  " + f.noLock + "\n  Reading VG vg0 without a lock.\n"
		}
	case "lvchange":
		i := slices.Index(args, "-S")
		mode := ""
		switch {
		case slices.Contains(args, "-aey"):
			mode = "ex"
		case slices.Contains(args, "-asy"):
			mode = "sh"
		}
		on := slices.Contains(args, "-ay") || mode != ""
		if f.noLock != "" && on {
			fail("%s", f.noLock)
			fail("Cannot access VG vg0 due to failed lock.")
			return u
		}
		if f.lockType != "" && slices.Contains(args, "-ay") {
			f.t.Error("activates without saying for whom")
		}
		for _, name := range args[i+2:] {
			lv := f.lvs[strings.TrimPrefix(name, "vg0/")]
			if f.lvs["["+strings.TrimPrefix(name, "vg0/")+"]"] != nil {
				fail("Operation not permitted on hidden LV %s.", name)
				continue
			}
			if lv == nil {
				fail("Failed to find logical volume %q", name)
				continue
			}
			if !strings.Contains(args[i+1], selection(lv.uuid)) {
				continue
			}
			if why := f.broken[strings.TrimPrefix(name, "vg0/")]; why != "" {
				fail("%s", why)
				continue
			}
			uuid := dmUUID(lv.uuid)
			if own := strings.TrimPrefix(name, "vg0/"); mode != "" && !f.lock(own, mode) {
				fail("LV locked by other host: %s", name)
				fail("Failed to lock logical volume %s.", name)
				continue
			}
			if on && f.devices[uuid].Live || slices.Contains(args, "--refresh") { // it changes nothing
				continue
			}
			switch open := f.openMember(lv); {
			case slices.Contains(args, "--deltag") || slices.Contains(args, "--addtag"):
				for i, word := range args {
					switch {
					case word == "--deltag":
						lv.tags = slices.DeleteFunc(lv.tags, func(tag string) bool { return tag == args[i+1] })
					case word == "--addtag" && !slices.Contains(lv.tags, args[i+1]):
						lv.tags = append(lv.tags, args[i+1])
					}
				}
			case on && f.volumeList != nil && !slices.Contains(f.volumeList, "vg0"): // without a word
			case on && lv.thick():
				f.activateFamily(lv)
			case on:
				n := volume.Name{VG: "vg0", LV: strings.TrimPrefix(name, "vg0/")}
				f.devices[uuid] = devmapper.Mapped{Name: dmName(n), UUID: uuid, Number: fmt.Sprintf("253:%d", len(f.devices)), Live: true, Targets: []devmapper.Target{{Type: "linear", Length: lv.size}}}
			case open != "":
				fail("Logical volume vg0/%s in use.", open)
			default:
				if f.noUnlock {
					u.Stderr += fmt.Sprintf("  Failed to unlock logical volume %s.\n", name)
				} else {
					delete(f.locks, strings.TrimPrefix(name, "vg0/"))
				}
				for hidden, m := range f.lvs { // a thin snapshot that is to be merged
					if strings.HasPrefix(hidden, "[") && m.origin == strings.TrimPrefix(name, "vg0/") {
						delete(f.devices, dmUUID(m.uuid))
					}
				}
				for _, m := range f.familyOf(lv) {
					for _, layer := range []string{"", "-real", "-cow"} {
						delete(f.devices, dmUUID(m.uuid)+layer)
					}
				}
			}
		}
	case "vgmknodes":
	case "lvcreate":
		name := args[slices.Index(args, "-n")+1]
		var extents int64
		f.lvs[name] = &fakeLV{uuid: fakeUUID(1000 + len(f.lvs))}
		if i := slices.Index(args, "--thinpool"); i >= 0 {
			fmt.Sscan(strings.TrimSuffix(args[slices.Index(args, "-V")+1], "b"), &f.lvs[name].size)
			f.lvs[name].layout, f.lvs[name].role, f.lvs[name].pool = "thin,sparse", "public", args[i+1]
		} else {
			fmt.Sscan(args[slices.Index(args, "-l")+1], &extents)
			f.lvs[name].size = extents * 4 * mib
		}
		for i, word := range args {
			if word == "--addtag" {
				f.lvs[name].tags = append(f.lvs[name].tags, args[i+1])
			}
		}
	case "lvremove":
		name := strings.TrimPrefix(last, "vg0/")
		lv := f.lvs[name]
		if want, tag, _ := strings.Cut(args[slices.Index(args, "-S")+1], " && lv_tags="); want != selection(lv.uuid) || !slices.Contains(lv.tags, tag) {
			return u // without a word
		}
		for part, l := range f.lvs {
			if bare := strings.Trim(part, "[]"); bare == name || strings.HasPrefix(bare, name+"_r") {
				delete(f.lvs, part)
				delete(f.devices, dmUUID(l.uuid))
			}
		}
	case "lvextend":
		if f.noLock != "" {
			fail("%s", f.noLock)
			return u
		}
		if f.others[strings.TrimPrefix(last, "vg0/")] != "" {
			fail("LV locked by other host: %s", last)
			return u
		}
		lv := f.lvs[strings.TrimPrefix(last, "vg0/")]
		fmt.Sscan(strings.TrimSuffix(args[slices.Index(args, "-L")+1], "b"), &lv.size)
		if m, ok := f.devices[dmUUID(lv.uuid)]; ok {
			m.Targets = []devmapper.Target{{Type: "linear", Length: lv.size}}
			f.devices[m.UUID] = m
		}
	default:
		f.t.Errorf("no such command in the fake: %s %q", command, args)
	}
	return u
}

// lock takes the lock of a volume for this host, as lvmlockd does: it grants a lock that it has without
// reading the disk. It knows no pools.
func (f *fakeLVM) lock(name, mode string) bool {
	if f.locks[name] == mode {
		return true
	}
	if other := f.others[name]; other == "ex" || other == "sh" && mode == "ex" {
		return false
	}
	if f.locks == nil {
		f.locks = map[string]string{}
	}
	f.locks[name] = mode
	return true
}

func (f *fakeLVM) report() string {
	var lvs []string
	for name, lv := range f.lvs {
		layout, role := lv.layout, lv.role
		if layout == "" {
			layout, role = "linear", "public"
			if m := f.devices[dmUUID(lv.uuid)]; len(m.Targets) > 0 && typed[m.Targets[0].Type] {
				layout = m.Targets[0].Type
			}
		}
		lvs = append(lvs, fmt.Sprintf(`{"lv_name":%q,"lv_uuid":%q,"lv_size":"%d","lv_attr":%q,"lv_tags":%q,"lv_layout":%q,"lv_role":%q,"lv_health_status":%q,"pool_lv":%q,"origin":%q,"lv_lockargs":%q}`,
			name, lv.uuid.Earlier(), lv.size, cmp.Or(lv.attr, "-wi-XX----"), strings.Join(lv.tags, ","), layout, role, lv.health, lv.pool, lv.origin, map[bool]string{true: "1.0.0:70254592"}[f.lockType != "" && (lv.pool == "" || layout == "cache") && !strings.Contains(role, "thicksnapshot")]))
	}
	return fmt.Sprintf(`{"report":[{"vg":[{"vg_name":"vg0","vg_uuid":%q,"vg_extent_size":"4194304","vg_size":"%d","vg_free":"%d","vg_lock_type":%q,"vg_exported":"","vg_missing_pv_count":"%d","max_lv":"%d"}],"pv":[%s],"lv":[%s],"pvseg":[%s],"seg":[%s]}]}`,
		vgUUID, 1<<31, f.free, f.lockType, f.missing, f.maxLVs, f.pvs, strings.Join(lvs, ","), f.gaps, f.segs)
}

func (f *fakeLVM) lookUp(p *Provider, name string) volume.LV {
	f.t.Helper()
	lv, err := p.LookUp(f.t.Context(), volume.Name{VG: "vg0", LV: name})
	if err != nil {
		f.t.Fatal(err)
	}
	return lv
}

// eventually fails if the condition does not become true soon.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 2000 {
		if holds() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

// Blocks returns the commands that hang, by volume group.
func (p *Provider) Blocks() map[string]Block {
	all := map[string]Block{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, g := range p.groups {
		g.mu.Lock()
		if g.block != nil {
			all[name] = *g.block
		}
		g.mu.Unlock()
	}
	return all
}
