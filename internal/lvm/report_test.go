package lvm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/run"
)

// reportOf returns the last report of a transcript, as the provider reads it.
func reportOf(t *testing.T, name, vg string) (*Facts, error) {
	t.Helper()
	all := transcript(t, name)
	u := all[len(all)-1]
	if u.Argv[1] != "fullreport" || u.Argv[len(u.Argv)-1] != vg {
		t.Fatalf("%s: %q is no report of %s", name, u.Argv, vg)
	}
	res, err := u.result()
	if err != nil {
		return nil, classify(vg, err, res.Stderr)
	}
	return parseReport(res.Stdout, vg)
}

// Ensure that recorded outputs of commands parse.
func TestTranscripts(t *testing.T) {
	for name, want := range map[string]error{"systemid": ErrForeignSystem, "twovgs": ErrTwoVGs, "shared": ErrShared} {
		_, err := reportOf(t, name, "vg0")
		is(t, err, want)
	}
	_, err := reportOf(t, "novg", "vg1")
	is(t, err, ErrNoVG)
	res, err := transcript(t, "origin")[0].result()
	is(t, classify("vg0", err, res.Stderr), ErrFailed, "it has snapshots: remove them (lvremove)")

	f, err := reportOf(t, "exported", "vg0")
	if err != nil || !f.Exported {
		t.Errorf("exported: got %+v %v", f, err)
	}
	f, err = reportOf(t, "partial", "vg0")
	if err != nil || f.Missing != 1 || f.LVs["data"].Health != "partial" || f.LVs["there"].Health != "" || f.missing() == "" {
		t.Errorf("partial: got %+v %v", f, err)
	}
	f, err = reportOf(t, "report", "vg0")
	if err != nil || f.ExtentSize != 4*mib || len(f.PVs) != 2 || f.LVs["data"].Size != 28*mib || !slices.Equal(f.LVs["data"].Tags, []string{tagCreated}) || len(f.LVs) != 3 {
		t.Errorf("report: got %+v %v", f, err)
	}
	f, err = reportOf(t, "kinds", "vg0")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Logical{
		"thin":              {Layout: []string{"thin", "sparse"}, Role: []string{"public", "origin", "thinorigin"}, Pool: "pool"},
		"snap":              {Layout: []string{"thin", "sparse"}, Role: []string{"public", "snapshot", "thinsnapshot"}, Pool: "pool", Origin: "thin"},
		"ro":                {Layout: []string{"linear"}, Role: []string{"public"}, ReadOnly: true},
		"origin":            {Layout: []string{"linear"}, Role: []string{"public", "origin", "thickorigin"}},
		"cow":               {Layout: []string{"linear"}, Role: []string{"public", "snapshot", "thicksnapshot"}, Origin: "origin"},
		"mirrored":          {Layout: []string{"raid", "raid1"}, Role: []string{"public"}, Health: "unknown"},
		"mirrored_rimage_0": {Layout: []string{"linear"}, Role: []string{"private", "raid", "image"}, Hidden: true, Health: "unknown"},
	} {
		got := f.LVs[name]
		want.Name, want.UUID, want.Size = name, got.UUID, got.Size
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	for name, want := range map[string]error{
		"nospace": ErrNoSpace, "nospace-vg": ErrNoSpace, "nospace-mirror": ErrNoSpace, "nospace-tag": ErrNoSpace,
		"stripes": ErrFailed, "nolv": ErrNoLV, "locked": ErrLocked, "duplicate": ErrDuplicate, "duplicate-create": ErrDuplicate,
	} {
		res, err := transcript(t, name)[0].result() // looks may follow
		is(t, classify("vg0", err, res.Stderr), want)
	}
	for name, advice := range map[string]string{
		"transaction": "vgcfgrestore --force", "transaction-active": "vgcfgrestore --force", "nametaken": "dmsetup remove", "merging": "delete the pods",
	} {
		res, err := transcript(t, name)[0].result()
		is(t, classify("vg0", err, res.Stderr), ErrFailed, advice)
	}
}

// Ensure that a partial report is never used.
func TestPartialReport(t *testing.T) {
	for _, name := range []string{"report", "kinds", "partial"} {
		text := transcript(t, name)[0].Stdout
		whole, err := parseReport([]byte(text), "vg0")
		if err != nil {
			t.Fatal(err)
		}
		trimmed := strings.TrimRight(text, " \n")
		for i := 0; i < len(trimmed); i += 1 + len(trimmed)/300 {
			if f, err := parseReport([]byte(text[:i]), "vg0"); err == nil {
				t.Fatalf("%s: the first %d of %d bytes: got %+v", name, i, len(text), f)
			}
		}
		// Without any column, list or line.
		var lines []string
		for line := range strings.Lines(text) {
			lines = append(lines, line)
		}
		for i, line := range lines {
			if line == "              ,\n" || strings.TrimSpace(line) == "" {
				continue
			}
			without := strings.Join(slices.Delete(slices.Clone(lines), i, i+1), "")
			if f, err := parseReport([]byte(without), "vg0"); err == nil && !strings.Contains(line, `"lv_name"`) && !strings.Contains(line, `"pv_name"`) {
				t.Errorf("%s: without %q: got %+v", name, line, f)
			}
		}
		var tree struct {
			Report []map[string][]map[string]string
		}
		if err := json.Unmarshal([]byte(text), &tree); err != nil {
			t.Fatal(err)
		}
		for part, rows := range tree.Report[0] {
			for _, row := range rows {
				for key, value := range row {
					for _, change := range []func(){
						func() { delete(row, key) },
						func() {
							if strings.Contains(key, "size") || strings.Contains(key, "uuid") || strings.Contains(key, "count") || strings.Contains(key, "free") || key == "lv_attr" || key == "vg_name" {
								row[key] = "?"
							} else {
								delete(row, key)
							}
						},
					} {
						change()
						b, _ := json.Marshal(tree)
						if f, err := parseReport(b, "vg0"); err == nil {
							t.Errorf("%s: %s without %s: got %+v", name, part, key, f)
						}
						row[key] = value
					}
				}
			}
		}
		b, _ := json.Marshal(tree)
		if again, err := parseReport(b, "vg0"); err != nil || !reflect.DeepEqual(again, whole) {
			t.Errorf("%s: the test changed it: %v", name, err)
		}
		if _, err := parseReport([]byte(text+"{}"), "vg0"); err == nil {
			t.Error("two reports are taken for one")
		}
		if _, err := parseReport([]byte(text), "vg1"); err == nil {
			t.Error("another group's report is taken")
		}
	}
}

func FuzzReport(f *testing.F) {
	names, _ := filepath.Glob("testdata/*.transcript")
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"report":[{"vg":[],"lv":[]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		facts, err := parseReport(b, "vg0")
		if err == nil && (facts.Name != "vg0" || facts.ExtentSize <= 0 || !isUUID(facts.UUID)) {
			t.Errorf("got %+v", facts)
		}
		if err := classify("vg0", &run.ExitError{Argv: []string{"lvm"}, Code: 5}, b); err == nil {
			t.Error("an error is lost")
		}
	})
}
