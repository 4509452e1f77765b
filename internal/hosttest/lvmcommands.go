package hosttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// LVM's commands on a shared volume group, as lvm2 with lvmlockd executes them.

const (
	dmMajor    = "253:"
	extentSize = 4 << 20
	groupSize  = 64 << 30
	groupUUID  = "VGVGVG-0000-0000-0000-0000-0000-VGVGVG"
	groupDir   = "/sim/" + VG
)

// lvmCommands are the commands that flexd may start. Like ops, an unknown one fails the test.
var lvmCommands = map[string]func(*process, []string) (any, error){
	"fullreport": fullReport,
	"lvmconfig":  lvmConfig,
	"lvchange":   lvChange,
	"lvcreate":   lvCreate,
	"lvextend":   lvExtend,
	"vgmknodes":  func(*process, []string) (any, error) { return &said{}, nil },
	"vgchange":   vgChange,
}

// said is the output of a command of LVM.
type said struct {
	stdout, stderr string
	code           int
}

func (s *said) warn(format string, a ...any) {
	s.stderr += fmt.Sprintf("  "+format+"\n", a...)
}

func (s *said) fail(format string, a ...any) {
	s.warn(format, a...)
	s.code = 5
}

// reply is the result of the command's process.
func (s *said) reply(c run.Cmd, err error) ([]byte, []byte, error) {
	switch {
	case errors.Is(err, errKilled):
		return nil, nil, &run.ExitError{Step: c.Step, Argv: c.Argv, Code: -1, Signal: "SIGKILL"}
	case err != nil:
		s.fail("%v", err)
	}
	if s.code != 0 {
		return []byte(s.stdout), []byte(s.stderr), &run.ExitError{Step: c.Step, Argv: c.Argv, Code: s.code, Stderr: strings.TrimSpace(s.stderr)}
	}
	return []byte(s.stdout), []byte(s.stderr), nil
}

// lvmNames returns the volumes that a command names, for the name of its points.
func lvmNames(argv []string) string {
	var all []string
	for i, a := range argv {
		switch {
		case a == "-n":
			all = append(all, VG+"/"+argv[i+1])
		case strings.HasPrefix(a, VG+"/"):
			all = append(all, a)
		case strings.HasPrefix(a, "-a") && len(a) > 2:
			all = append(all, a)
		}
	}
	return strings.Join(append(all, VG)[:max(len(all), 1)], " ")
}

// option returns the value of an option.
func option(args []string, name string) (string, bool) {
	if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
		return args[i+1], true
	}
	return "", false
}

// unreachable is LVM's failure without the disk, or nil.
func (h *Host) unreachable() *said {
	if !h.locking.cutOff {
		return nil
	}
	s := &said{}
	s.fail("Volume group %q not found", VG)
	s.fail("Cannot process volume group %s", VG)
	return s
}

// lockGroup takes the lock of the group for a command, with retries; unlock, which needs the
// host's mutex, ends it. A command waits for one of the same host.
func (p *process) lockGroup(shared bool) (unlock func(), failed *said) {
	m := p.h.locking
	for tries := 0; ; time.Sleep(time.Second) {
		p.h.mu.Lock()
		failed := p.h.unreachable()
		waits := m.users > 0 && !(shared && m.sharing)
		var err error
		if failed == nil && !waits {
			err = m.acquire(groupLock, shared)
		}
		if failed == nil && !waits && err == nil {
			m.users, m.sharing = m.users+1, shared
			unlock = m.unlocker()
		}
		p.h.mu.Unlock()
		switch tries++; {
		case unlock != nil:
			return unlock, nil
		case failed != nil:
			return nil, failed
		case err != nil && (!errors.Is(err, errHeldByHost) || tries > 3):
			return nil, lockError(err)
		}
	}
}

// unlocker returns the end of a use of the group's lock by a command, which lvmlockd may
// outlive or not.
func (m *LockManager) unlocker() func() {
	life := m.life
	return func() {
		if m.life != life {
			return
		}
		if m.users--; m.users == 0 {
			_ = m.release(groupLock)
		}
	}
}

func lockError(err error) *said {
	s := &said{}
	switch {
	case errors.Is(err, errNoLockd):
		s.warn("WARNING: lvmlockd process is not running.")
		s.fail("VG %s lock failed: lvmlockd is not running.", VG)
	case errors.Is(err, errNoLockspace):
		s.fail("VG %s lock failed: lock start has not been done.", VG)
	case errors.Is(err, errLeaseIO):
		s.fail("VG %s lock failed: storage failed for sanlock leases", VG)
	default:
		s.fail("VG %s lock failed: held by other host.", VG)
	}
	s.fail("Cannot access VG %s due to failed lock.", VG)
	return s
}

// fullReport reads the metadata, without a lock if none is granted.
func fullReport(p *process, args []string) (any, error) {
	unlock, failed := p.lockGroup(true)
	h := p.h
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &said{}
	if failed == nil {
		defer unlock()
	} else {
		s.warn("Reading VG %s without a lock.", VG)
	}
	if gone := h.unreachable(); gone != nil {
		return gone, nil
	}
	if h.locking.reported.IsZero() {
		h.locking.reported = time.Now()
	}
	var vols []*File
	var used int64
	for _, f := range h.files {
		vols = append(vols, f)
		used += f.Size
	}
	slices.SortFunc(vols, func(a, b *File) int { return strings.Compare(a.path, b.path) })
	rows := map[string][]map[string]string{"vg": {{
		"vg_name": VG, "vg_uuid": groupUUID, "vg_extent_size": fmt.Sprint(extentSize), "vg_size": fmt.Sprint(groupSize), "vg_free": fmt.Sprint(groupSize - used),
		"vg_lock_type": "sanlock", "vg_exported": "", "vg_missing_pv_count": "0", "max_lv": "0", "vg_lock_args": "1.0.0:lvmlock"}},
		"pv": {{"pv_name": "/dev/sim", "pv_uuid": "PVPVPV-0000-0000-0000-0000-0000-PVPVPV", "pv_missing": "", "pv_allocatable": "allocatable",
			"pv_size": fmt.Sprint(groupSize), "pv_free": fmt.Sprint(groupSize - used), "pv_tags": ""}},
		"lv": {}, "seg": {}, "pvseg": {}}
	for i, f := range vols {
		_, lv, _ := strings.Cut(f.UUID, "_")
		rows["lv"] = append(rows["lv"], map[string]string{"lv_name": path.Base(f.path), "lv_uuid": lv, "lv_size": fmt.Sprint(f.Size), "lv_attr": "-wi-XX----",
			"lv_tags": strings.Join(f.Tags, ","), "lv_layout": "linear", "lv_role": "public", "lv_health_status": "", "pool_lv": "", "origin": "",
			"lv_lockargs": fmt.Sprintf("1.0.0:%d", (69+i)<<20)})
	}
	one := map[string][]map[string]string{}
	for i, a := range args {
		if a != "--configreport" {
			continue
		}
		kind, columns := args[i+1], strings.Split(args[i+3], ",")
		one[kind] = []map[string]string{}
		for _, all := range rows[kind] {
			row := map[string]string{}
			for _, c := range columns {
				v, known := all[c]
				if !known {
					h.broke("the report has an unknown column: %s", c)
				}
				row[c] = v
			}
			one[kind] = append(one[kind], row)
		}
	}
	text, err := json.Marshal(map[string]any{"report": []any{one}})
	s.stdout = string(text)
	return s, err
}

func lvmConfig(*process, []string) (any, error) {
	s := &said{}
	s.fail("Configuration node not found")
	return s, nil
}

// lvChange activates, deactivates, tags and refreshes.
func lvChange(p *process, args []string) (any, error) {
	h := p.h
	mode := ""
	for _, a := range args {
		if strings.HasPrefix(a, "-a") {
			mode = a
		}
	}
	selection, _ := option(args, "-S")
	change, refresh := mode == "", slices.Contains(args, "--refresh")
	unlock, failed := p.lockGroup(!change || refresh)
	s := &said{}
	if failed != nil && mode != "-an" {
		return failed, nil
	}
	if failed != nil { // LVM deactivates without a lock
		if failed.code == 5 && strings.Contains(failed.stderr, "not found") {
			return failed, nil
		}
		unlock = func() {}
		s.warn("Reading VG %s without a lock.", VG)
	}
	locked := []*File{}
	h.mu.Lock()
	for _, name := range args {
		lv, ok := strings.CutPrefix(name, VG+"/")
		if !ok {
			continue
		}
		f := h.files[path.Join(groupDir, lv)]
		if f == nil {
			s.fail("Failed to find logical volume %q", name)
			continue
		}
		_, uuid, _ := strings.Cut(f.UUID, "_")
		if selection != "" && !strings.Contains(selection, "lv_uuid="+uuid) {
			continue
		}
		if slices.Contains([]string{"-aey", "-ay", "-asy"}, mode) {
			switch err := h.locking.acquire(f.UUID, mode == "-asy"); {
			case err == nil:
			case strings.Contains(strings.Join(args, " "), "skiplv"):
				h.broke("%s is activated without its lock: %v", f.path, err)
			default:
				s.refuse(lv, err)
				continue
			}
		}
		locked = append(locked, f)
	}
	h.mu.Unlock()
	if err := p.pace("within"); err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		unlock()
		return s, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer unlock()
	if gone := h.unreachable(); gone != nil {
		return gone, nil
	}
	for _, f := range locked {
		switch {
		case mode == "-an":
			if !h.removeDevice(s, f) {
				continue
			}
			h.mu.Unlock()
			err := p.pace("unlocking")
			if h.mu.Lock(); err != nil {
				return s, err
			}
			h.unlock(s, f)
		case mode != "":
			h.activate(p, f)
		case refresh:
			if l := h.deviceOf(f); l != nil {
				l.Size = f.Size
				h.event(f.UUID)
			}
		default:
			f.retag(args)
			h.event("")
		}
	}
	return s, nil
}

// refuse is the message about the lock of a volume.
func (s *said) refuse(lv string, err error) {
	if errors.Is(err, errHeldByHost) {
		s.fail("LV locked by other host: %s/%s", VG, lv)
	} else {
		s.fail("LV %s/%s lock failed: error -210", VG, lv)
	}
	s.fail("Failed to lock logical volume %s/%s.", VG, lv)
}

// activate creates the device of a volume.
func (h *Host) activate(p *process, f *File) {
	if l := h.deviceOf(f); l != nil {
		return
	}
	if h.locking.disk.volume(f.UUID) == nil {
		return // it was removed meanwhile
	}
	if p != nil {
		h.mu.Unlock()
		h.mustBeNoted(f.UUID, "name:"+VG+":"+path.Base(f.path))
		h.mu.Lock()
	}
	h.nextSeq++
	minor := strconv.FormatUint(1000+h.nextSeq, 10) // none twice
	h.loops["dm-"+minor] = &loop{file: f, Loop: loopdev.Loop{Name: "dm-" + minor, Number: dmMajor + minor, BackingFile: f.path, Size: f.Size}}
	h.event(f.UUID)
}

// removeDevice removes the device of a volume, and reports whether there is none any more.
func (h *Host) removeDevice(s *said, f *File) bool {
	if l := h.deviceOf(f); l != nil {
		if h.openOf(l) > 0 {
			s.fail("Logical volume %s/%s in use.", VG, path.Base(f.path))
			return false
		}
		delete(h.loops, l.Name)
		h.event(f.UUID)
	}
	return true
}

// unlock ends the lock of a volume.
func (h *Host) unlock(s *said, f *File) {
	if err := h.locking.release(f.UUID); err != nil {
		s.warn("Failed to unlock logical volume %s/%s.", VG, path.Base(f.path))
	}
}

// openOf returns how often a device is open.
func (h *Host) openOf(l *loop) int {
	n := l.openers + len(h.mountsOf(l.file))
	if op := h.live[l.file]; h.frozen[l.file] || op != "" && op != "umount" {
		n++
	}
	return n
}

// retag changes the tags as the options say.
func (f *File) retag(args []string) {
	for i, a := range args {
		switch a {
		case "--deltag":
			f.Tags = slices.DeleteFunc(slices.Clone(f.Tags), func(tag string) bool { return tag == args[i+1] })
		case "--addtag":
			if !slices.Contains(f.Tags, args[i+1]) {
				f.Tags = append(slices.Clone(f.Tags), args[i+1])
			}
		}
	}
	f.Created = slices.Contains(f.Tags, "flexd")
}

func lvCreate(p *process, args []string) (any, error) {
	h := p.h
	unlock, failed := p.lockGroup(false)
	if failed != nil {
		return failed, nil
	}
	s := &said{}
	name, _ := option(args, "-n")
	extents, _ := option(args, "-l")
	n, err := strconv.ParseInt(extents, 10, 64)
	if err != nil {
		h.broke("lvcreate: %v", err)
	}
	at := path.Join(groupDir, name)
	h.mu.Lock()
	if h.files[at] != nil {
		s.fail("Logical Volume %q already exists in volume group %q", name, VG)
	}
	if s.code != 0 {
		unlock()
		h.mu.Unlock()
		return s, nil
	}
	f := h.locking.disk.add(at, File{FileInfo: loopdev.FileInfo{Size: n * extentSize}})
	f.retag(args)
	_ = h.locking.acquire(f.UUID, false) // no host can have it
	h.event("")
	h.mu.Unlock()
	err = p.pace("within")
	h.mu.Lock()
	defer h.mu.Unlock()
	defer unlock()
	if err != nil {
		return s, err
	}
	if _, ok := h.locking.held[f.UUID]; !ok { // lvmlockd died
		return lockError(errNoLockd), nil
	}
	h.activate(p, f)
	return s, nil
}

// add creates a volume with a uuid of its own.
func (d *Disk) add(path string, f File) *File {
	d.made++
	f.path = path
	f.UUID = fmt.Sprintf("%s_LVLVLV-0000-0000-0000-0000-0000-%06d", groupUUID, d.made)
	f.Exists, f.Regular, f.Links = true, true, 1
	d.files[path] = &f
	return &f
}

func lvExtend(p *process, args []string) (any, error) {
	h := p.h
	unlock, failed := p.lockGroup(false)
	if failed != nil {
		return failed, nil
	}
	s := &said{}
	text, _ := option(args, "-L")
	size, err := strconv.ParseInt(strings.TrimSuffix(text, "b"), 10, 64)
	if err != nil {
		h.broke("lvextend: %v", err)
	}
	if err := p.pace("within"); err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		unlock()
		return s, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer unlock()
	lv := path.Base(lvmNames(args))
	f := h.files[path.Join(groupDir, lv)]
	if f == nil {
		s.fail("Failed to find logical volume %q", VG+"/"+lv)
		return s, nil
	}
	_, had := h.locking.held[f.UUID]
	if err := h.locking.acquire(f.UUID, false); err != nil {
		s.refuse(lv, err)
		return s, nil
	}
	f.stale = f.stale || f.State == Blank && size > f.Size
	f.Size = max(f.Size, size)
	if l := h.deviceOf(f); l != nil {
		l.Size = f.Size
		h.event(f.UUID)
	} else if !had {
		_ = h.locking.release(f.UUID)
	}
	h.event("")
	return s, nil
}

// vgChange starts and stops the lockspace.
func vgChange(p *process, args []string) (any, error) {
	m := p.h.locking
	s := &said{}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	switch {
	case !m.lvmlockd:
		return lockError(errNoLockd), nil
	case slices.Contains(args, "--lockstart"):
		m.lockstart()
		if m.space == joining {
			s.warn("VG %s starting sanlock lockspace", VG)
			s.warn("Starting locking.  Waiting for sanlock may take a few seconds to 3 min...")
		}
	case slices.Contains(args, "--lockstop"):
		if !m.lockstop() {
			s.fail("VG %s stop failed: LVs must first be deactivated", VG)
		}
	default:
		p.h.broke("an unknown vgchange: %q", args)
	}
	return s, nil
}

// An event is a change that flexd hears of: of a volume's device, or of the metadata by
// a command of this host ("").
type event struct {
	uuid string
	at   time.Time
}

func (h *Host) event(uuid string) {
	h.events = append(h.events, event{uuid, time.Now()})
	close(h.more)
	h.more = make(chan struct{})
}

// A deviceMapper is the device-mapper of a host.
type deviceMapper struct{ h *Host }

// List implements lvm.DM.
func (d deviceMapper) List() ([]devmapper.Mapped, error) {
	h := d.h
	h.takeTime()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.unread("/dev/mapper/control"); err != nil {
		return nil, err
	}
	var all []devmapper.Mapped
	for _, name := range h.loopNames() {
		all = append(all, h.mapped(h.loops[name]))
	}
	return all, nil
}

// Device implements lvm.DM.
func (d deviceMapper) Device(key devmapper.Key) (devmapper.Mapped, error) {
	h := d.h
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.loops {
		if m := h.mapped(l); key.UUID != "" && m.UUID == key.UUID || key.UUID == "" && m.Number == key.Number {
			return m, nil
		}
	}
	return devmapper.Mapped{}, devmapper.ErrNoDevice
}

// Status implements lvm.DM.
func (d deviceMapper) Status(key devmapper.Key) (devmapper.Mapped, error) { return d.Device(key) }

func (h *Host) mapped(l *loop) devmapper.Mapped {
	target := "linear"
	if l.fenced {
		target = "error"
	}
	return devmapper.Mapped{Name: VG + "-" + path.Base(l.BackingFile), UUID: lvm.DeviceUUID(volume.UUID(l.file.UUID)), Number: l.Number, Open: h.openOf(l),
		ReadOnly: l.ReadOnly, Live: true, Targets: []devmapper.Target{{Type: target, Length: l.Size}}}
}
