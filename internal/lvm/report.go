package lvm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/volume"
)

// The columns of a report. None needs device-mapper, for which LVM would query each active volume;
// that takes seconds for hundreds of volumes.
var columns = []struct{ report, names string }{
	{"vg", "vg_name,vg_uuid,vg_extent_size,vg_size,vg_free,vg_lock_type,vg_exported,vg_missing_pv_count,max_lv"},
	{"pv", "pv_name,pv_uuid,pv_missing,pv_allocatable,pv_size,pv_free,pv_tags"},
	{"lv", "lv_name,lv_uuid,lv_size,lv_attr,lv_tags,lv_layout,lv_role,lv_health_status,pool_lv,origin,lv_lockargs"},
}

// reportArgs returns the arguments of the report. formConfig overrides settings of the host's
// lvm.conf that change its format.
func reportArgs(s scope, vg string) []string {
	argv := append([]string{"lvm", "fullreport"}, s.words(" "+formConfig)...)
	argv = append(argv, "-a", "--reportformat", "json", "--units", "b", "--nosuffix")
	for _, c := range columns {
		argv = append(argv, "--configreport", c.report, "-o", c.names)
	}
	// Only thin segments, and those that pvmove has locked: those of all volumes would be most of the report.
	argv = append(argv, "--configreport", "seg", "-o", "lv_uuid,thin_id,devices", "-S", `segtype=thin || lv_attr=~"^..[A-Z]"`, "--configreport", "pvseg", "-o", "pv_name,pe_start,pvseg_start,pvseg_size,lv_uuid")
	return append(argv, vg)
}

const formConfig = `global{activation=0} report{prefixes=0 quoted=1 buffered=1 headings=1 aligned=1 columns_as_rows=0 separator=" " compact_output=0 compact_output_cols="" mark_hidden_devices=1 binary_values_as_numeric=0 list_item_separator=","}`

type report struct {
	Report *[]struct {
		VG    []map[string]string
		PV    []map[string]string
		LV    []map[string]string
		Seg   []map[string]string
		PVSeg []map[string]string
	}
}

// parseReport reads a whole report of one volume group. Missing or unexpected text is an
// error: with a partial report, volumes would seem to be absent.
func parseReport(text []byte, vg string) (*Facts, error) {
	var r report
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return nil, fmt.Errorf("the report does not parse: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("the report has text after its end")
	}
	if r.Report == nil || len(*r.Report) != 1 || len((*r.Report)[0].VG) != 1 {
		return nil, fmt.Errorf("the report is not about one volume group")
	}
	one := (*r.Report)[0]
	if one.PV == nil || one.LV == nil {
		return nil, fmt.Errorf("the report lacks its volumes")
	}
	f := &Facts{LVs: make(map[string]Logical, len(one.LV)), names: make(map[volume.UUID]string, len(one.LV)), inPool: map[string]volume.Amount{}, legs: map[string]int{}, thin: map[volume.UUID]int64{}, onMove: map[string][]string{}, onMissing: map[volume.UUID]bool{}, lost: map[string]loss{}, cached: map[string]string{}}
	row := &row{fields: one.VG[0]}
	f.addGroup(row)
	if row.err == nil && (f.Name != vg || f.ExtentSize <= 0) {
		return nil, fmt.Errorf("the report is about volume group %q with extents of %d bytes, not about %s", f.Name, f.ExtentSize, vg)
	}
	for _, row.fields = range one.PV {
		f.addDisk(row)
	}
	f.addExtents(row, one.PVSeg)
	for _, row.fields = range one.LV {
		f.addVolume(row)
	}
	for _, row.fields = range one.Seg {
		f.addSegment(row)
	}
	if row.err != nil {
		return nil, row.err
	}
	return f, nil
}

// twice describes the disks of the group that LVM sees twice, from the messages of a report.
func (f *Facts) twice(stderr []byte) (all []string) {
	for line := range strings.Lines(string(stderr)) {
		rest, _ := strings.CutPrefix(strings.TrimSpace(line), "WARNING: Not using device ")
		path, uuid, _ := strings.Cut(strings.TrimSuffix(rest, "."), " for PV ")
		for _, pv := range f.PVs {
			if pv.UUID == uuid {
				all = append(all, fmt.Sprintf("PV %s is on %s and on %s", uuid, pv.Path, path))
			}
		}
	}
	return all
}

func (f *Facts) addGroup(row *row) {
	f.Name = row.text("vg_name")
	f.UUID = row.uuid("vg_uuid")
	f.ExtentSize = row.number("vg_extent_size")
	f.Size = row.number("vg_size")
	f.Free = row.number("vg_free")
	f.LockType = row.text("vg_lock_type")
	f.Exported = row.flag("vg_exported", "exported")
	f.Missing = int(row.number("vg_missing_pv_count"))
	f.maxLVs = row.number("max_lv")
}

func (f *Facts) addDisk(row *row) {
	f.PVs = append(f.PVs, PV{
		Path: row.text("pv_name"), UUID: row.uuid("pv_uuid"), Missing: row.flag("pv_missing", "missing"),
		Allocatable: row.flag("pv_allocatable", "allocatable"),
		Size:        row.number("pv_size"), Free: row.number("pv_free"), Tags: row.list("pv_tags"),
	})
}

// addExtents adds the extents of disks.
func (f *Facts) addExtents(row *row, segments []map[string]string) {
	missing := map[string]bool{}
	for _, pv := range f.PVs {
		missing[pv.Path] = pv.Missing
	}
	for _, row.fields = range segments {
		disk := row.text("pv_name")
		if missing[disk] && row.text("lv_uuid") != "" {
			f.onMissing[identity(f.UUID, row.uuid("lv_uuid"))] = true
		}
		if !strings.HasPrefix(disk, "/") { // "[unknown]": LVM allocates nothing on it
			continue
		}
		start := row.number("pe_start") + row.number("pvseg_start")*f.ExtentSize
		e := extent{disk: disk, start: start / 512, end: (start + row.number("pvseg_size")*f.ExtentSize) / 512}
		if row.text("lv_uuid") == "" {
			f.free = append(f.free, span{extent: e})
		} else {
			f.used = append(f.used, span{extent: e, owner: string(identity(f.UUID, row.uuid("lv_uuid")))})
		}
	}
}

// addSegment adds a segment of a thin volume, or of a volume that pvmove has locked.
func (f *Facts) addSegment(row *row) {
	id := identity(f.UUID, row.uuid("lv_uuid"))
	if row.text("thin_id") != "" {
		f.thin[id] = row.number("thin_id")
		return
	}
	for device := range strings.SplitSeq(row.fields["devices"], ",") {
		name, _, _ := strings.Cut(device, "(")
		if name = strings.Trim(name, "[]"); ofPvmove(name) {
			f.onMove[name] = append(f.onMove[name], f.names[id])
		}
	}
}

func (f *Facts) addVolume(row *row) {
	l := row.logical()
	l.UUID = identity(f.UUID, string(l.UUID))
	if _, twice := f.LVs[l.Name]; twice && row.err == nil {
		row.err = fmt.Errorf("the report has %s/%s twice", f.Name, l.Name)
	}
	f.LVs[l.Name], f.names[l.UUID] = l, l.Name
	f.count(l)
	if !l.Hidden {
		f.visible++
	}
	if l.Cache != "" {
		f.cached[l.Cache] = l.Name
	}
	for _, mark := range []string{"_rimage_", "_mimage_"} {
		if raid, leg, _ := strings.Cut(l.Name, mark); l.Hidden && leg != "" && strings.Trim(leg, "0123456789") == "" {
			f.legs[raid]++
		}
	}
}

// A row reads the fields of one object, and stores the first error.
type row struct {
	fields map[string]string
	err    error
}

func (r *row) fail(key, what string) {
	if r.err == nil {
		r.err = fmt.Errorf("the report's %s %s", key, what)
	}
}

func (r *row) text(key string) string {
	v, ok := r.fields[key]
	if !ok {
		r.fail(key, "is missing")
	}
	return v
}

func (r *row) uuid(key string) string {
	v := r.text(key)
	if !isUUID(v) {
		r.fail(key, fmt.Sprintf("is not a uuid: %q", v))
	}
	return v
}

func (r *row) number(key string) int64 {
	v := r.text(key)
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		r.fail(key, fmt.Sprintf("is not a number: %q", v))
	}
	return n
}

// flag reads a column that is a given word or empty.
func (r *row) flag(key, word string) bool {
	v := r.text(key)
	if v != "" && v != word {
		r.fail(key, fmt.Sprintf("is neither %q nor empty: %q", word, v))
	}
	return v == word
}

func (r *row) list(key string) []string {
	v := r.text(key)
	if v == "" {
		return nil
	}
	return strings.Split(v, ",")
}

func (r *row) logical() Logical {
	l := Logical{
		Name:   r.text("lv_name"),
		UUID:   volume.UUID(r.uuid("lv_uuid")),
		Size:   r.number("lv_size"),
		Tags:   r.list("lv_tags"),
		Layout: r.list("lv_layout"),
		Role:   r.list("lv_role"),
		Health: r.text("lv_health_status"),
		Pool:   strings.Trim(r.text("pool_lv"), "[]"),
		Origin: strings.Trim(r.text("origin"), "[]"),

		LockArgs: r.fields["lv_lockargs"],
	}
	if inner, ok := strings.CutPrefix(l.Name, "["); ok {
		l.Name, l.Hidden = strings.TrimSuffix(inner, "]"), true
	}
	attr := r.text("lv_attr")
	if len(attr) < 3 || !strings.Contains("wrR-", attr[1:2]) {
		r.fail("lv_attr", fmt.Sprintf("is not understood: %q", attr))
		return l
	}
	if slices.Contains(l.Layout, "cache") || slices.Contains(l.Layout, "writecache") {
		l.Pool, l.Cache = "", l.Pool // unlike a thin volume, it has its own extents and lock
	}
	l.ReadOnly = attr[1] == 'r'
	l.Zeroes = slices.Contains(l.Layout, "pool") && len(attr) > 7 && attr[7] == 'z'
	l.Locked = attr[2] >= 'A' && attr[2] <= 'Z'
	if l.Name == "" {
		r.fail("lv_name", "is empty")
	}
	return l
}
