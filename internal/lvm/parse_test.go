package lvm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Ensure that names go through device-mapper and back, whatever LVM allows.
func TestDMName(t *testing.T) {
	for _, c := range []struct{ vg, lv, want string }{
		{"vg0", "data", "vg0-data"},
		{"vg-0", "a-b.c", "vg--0-a--b.c"},
		{"vg-", "x", "vg---x"},
		{"a--b", "c--", "a----b-c----"},
		{"+_.", "_+.", "+_.-_+."},
	} {
		n := volume.Name{VG: c.vg, LV: c.lv}
		if got := dmName(n); got != c.want {
			t.Errorf("%s: got %q, want %q", n, got, c.want)
		}
		got, layer, ok := parseDMName(c.want)
		if got != n || layer != "" || !ok {
			t.Errorf("%q: got %v %q %v", c.want, got, layer, ok)
		}
		got, layer, ok = parseDMName(c.want + "-tpool")
		if got != n || layer != "tpool" || !ok {
			t.Errorf("%q: got %v %q %v", c.want, got, layer, ok)
		}
	}
	for _, s := range []string{"", "vg0", "-x", "vg0-", "a-b-c-d", "a-b-", "--"} {
		if n, l, ok := parseDMName(s); ok {
			t.Errorf("%q: got %v %q", s, n, l)
		}
	}
}

func FuzzDMName(f *testing.F) {
	f.Add("vg-0", "a--b")
	f.Fuzz(func(t *testing.T, vg, lv string) {
		n := volume.Name{VG: vg, LV: lv}
		if got, _, ok := parseDMName(dmName(n)); checkName(vg) == nil && checkName(lv) == nil && (!ok || got != n) {
			t.Errorf("%q: got %q", n, got)
		}
		_, _, _ = parseDMName(lv)
		if id, ok := parseDMUUID(lv); ok && !IsUUID(id) {
			t.Errorf("%q: got %q", lv, id)
		}
	})
}

func TestDMUUID(t *testing.T) {
	const vg, lv = "la3KrT-Xg7I-9fu6-0jwY-5CZS-Wkey-96hrb7", "tLRoe9-kj7z-fenz-s6k6-t6CI-nlAJ-oTgOdY"
	s := dmUUID(vg, lv)
	if want := "LVM-la3KrTXg7I9fu60jwY5CZSWkey96hrb7tLRoe9kj7zfenzs6k6t6CInlAJoTgOdY"; s != want {
		t.Errorf("got %q", s)
	}
	if got, ok := parseDMUUID(s); !ok || got != lv {
		t.Errorf("got %q %v", got, ok)
	}
	for _, bad := range []string{"", s + "-tpool", s + "-real", s[1:], "CRYPT-" + s[4:], s[:67], s[:67] + "-"} {
		if got, ok := parseDMUUID(bad); ok {
			t.Errorf("%q: got %q", bad, got)
		}
	}
}

func TestCheckName(t *testing.T) {
	for s, want := range map[string]bool{
		"a": true, "a-b.c+d_e": true, "..a": true, ".a": true, strings.Repeat("x", 127): true,
		"": false, ".": false, "..": false, "-a": false, "a/b": false, "a b": false, "ä": false, "a\n": false, "@tag": false, strings.Repeat("x", 128): false,
	} {
		if got := checkName(s) == nil; got != want {
			t.Errorf("%q: got %v", s, got)
		}
	}
}

// reportOf is the last report of a transcript, judged as the provider does.
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

// Ensure that what real commands said is understood.
func TestTranscripts(t *testing.T) {
	for name, want := range map[string]error{"systemid": ErrForeignSystem, "twovgs": ErrTwoVGs, "shared": ErrShared} {
		_, err := reportOf(t, name, "vg0")
		is(t, err, want)
	}
	_, err := reportOf(t, "novg", "vg1")
	is(t, err, ErrNoVG)

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
		"snap":              {Layout: []string{"thin", "sparse"}, Role: []string{"public", "snapshot", "thinsnapshot"}, Pool: "pool", Origin: "thin", Skip: true},
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
	for name, want := range map[string]error{"nospace": ErrNoSpace, "stripes": ErrFailed} {
		all := transcript(t, name)
		res, err := all[len(all)-1].result()
		is(t, classify("vg0", err, res.Stderr), want)
	}
}

// Ensure that no part of a report is ever taken for a whole one.
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
		if err == nil && (facts.Name != "vg0" || facts.ExtentSize <= 0 || !uuidPattern.MatchString(facts.UUID)) {
			t.Errorf("got %+v", facts)
		}
		if err := classify("vg0", &run.ExitError{Code: 5}, b); err == nil {
			t.Error("an error is lost")
		}
	})
}

// Ensure that only what LVM really said of this group is an absence.
func TestClassify(t *testing.T) {
	for _, c := range []struct {
		stderr string
		want   error
	}{
		{"", ErrFailed},
		{"  Something new\n", ErrFailed},
		{"  Volume group \"vg0\" not found\n  Cannot process volume group vg0\n", ErrNoVG},
		{"  Volume group \"vg00\" not found\n", ErrFailed},
		{"  Configuration node x not found\n", ErrFailed},
		{"  /dev/mapper/control: open failed: No such device\n", ErrFailed},
		{"  Failed to find logical volume \"vg0/x\"\n", ErrNoLV},
		{"  Volume group vg0 is exported\n", ErrExported},
		{"  Cannot access VG vg0 with system ID a with local system ID b.\n", ErrForeignSystem},
		{"  Cannot access VG vg0 with lock type sanlock that requires lvmlockd.\n", ErrShared},
		{"  WARNING: lvmlockd process is not running.\n  Cannot access VG vg0 due to failed lock.\n", ErrShared},
		{"  LV locked by other host: vg0/x\n", ErrElsewhere},
		{"  Can't get lock for vg0\n", ErrLocked},
		{"  Insufficient free space: 245 extents needed, but only 138 available\n", ErrNoSpace},
		{"  Volume group \"vg0\" has insufficient free space (138 extents): 250 required.\n", ErrNoSpace},
	} {
		err := classify("vg0", &run.ExitError{Step: "x", Argv: []string{"lvm"}, Code: 5}, []byte(c.stderr))
		is(t, err, c.want)
		if errors.Is(err, ErrNoVG) != (c.want == ErrNoVG) {
			t.Errorf("%q: got %v", c.stderr, err)
		}
		// Whoever was killed said nothing final.
		err = classify("vg0", &run.ExitError{Step: "x", Argv: []string{"lvm"}, Code: -1, Signal: "SIGKILL"}, []byte(c.stderr))
		is(t, err, ErrFailed)
	}
}

// Ensure that the words of each command are these and no others.
func TestArgs(t *testing.T) {
	ms := []*member{
		{name: volume.Name{VG: "vg0", LV: "b"}, uuid: "U2"},
		{name: volume.Name{VG: "vg0", LV: "a"}, uuid: "U1"},
	}
	name := volume.Name{VG: "vg0", LV: "new"}
	for _, c := range []struct {
		got  []string
		want string
	}{
		{batchArgs(activate, false, ms), "lvchange -y -ay -K -S [lv_uuid=U1 || lv_uuid=U2] vg0/a vg0/b"},
		{batchArgs(activate, true, ms[:1]), "lvchange -y -aey -K -S lv_uuid=U1 vg0/a"},
		{batchArgs(deactivate, false, ms[1:]), "lvchange -y -an -S lv_uuid=U2 vg0/b"},
		{batchArgs(makeNodes, false, ms), "vgmknodes vg0/a vg0/b"},
		{createArgs(Group{}, name, 3, 4*mib), "lvcreate -y -W y -kn --addtag flexd.creating -n new -Z y -l 3 vg0"},
		{createArgs(Group{ThinPool: "pool"}, name, 3, 4*mib), "lvcreate -y -W y -kn --addtag flexd.creating -n new -V 12582912b --thinpool pool vg0"},
		{createArgs(Group{Layout: Layout{Type: "raid10", Stripes: 2, StripeSize: 65536, Mirrors: 1, PVTag: "fast"}}, name, 4, 4*mib),
			"lvcreate -y -W y -kn --addtag flexd.creating -n new -Z y -l 4 --type raid10 -i 2 -I 65536b -m 1 vg0 @fast"},
	} {
		var words []string
		for _, w := range c.got {
			if strings.Contains(w, " ") {
				w = "[" + w + "]"
			}
			words = append(words, w)
		}
		if got := strings.Join(words, " "); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	got := strings.Join(reportArgs("devices{}", "vg0"), " ")
	for _, w := range []string{"lvm fullreport --config devices{} global{activation=0}", "--reportformat json --units b --nosuffix", " vg0"} {
		if !strings.Contains(got, w) {
			t.Errorf("%q lacks %q", got, w)
		}
	}
}

func TestFilter(t *testing.T) {
	for s, want := range map[string][]string{
		`filter=["a|x|","r|.*|"]` + "\n": {`"a|x|"`, `"r|.*|"`},
		`filter="r|x,\"y|"`:              {`"r|x,\"y|"`},
		`filter=[ "a|x|" , "r|y|" ]`:     {`"a|x|"`, `"r|y|"`},
		`filter=[]`:                      nil,
		`filter=["a|x|"`:                 {"!"},
		`filter=["a|x|" "b"]`:            {"!"},
		`filter=["a|x]`:                  {"!"},
		`filter=7`:                       {"!"},
		`x=["a"]`:                        {"!"},
		``:                               {"!"},
	} {
		got, ok := parseFilter(s)
		if !ok {
			got = []string{"!"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: got %q", s, got)
		}
	}
	host := utterance{Argv: []string{"lvm"}, Stdout: "filter=[\"r|^/dev/sdz$|\"]\n"}
	for _, c := range []struct {
		own  []string
		say  utterance
		want string
	}{
		{nil, host, `devices{scan_lvs=0 filter=["r|^/dev/loop|","r|^/dev/nbd|","r|^/dev/drbd|","r|^/dev/sdz$|"]}`},
		{[]string{`a|"|`, "r|.*|"}, utterance{Code: 1}, `devices{scan_lvs=0 filter=["a|\"|","r|.*|"]}`},
		{nil, utterance{Argv: []string{"lvm"}, Code: 5, Stderr: "  Configuration node devices/filter not found\n"}, `devices{scan_lvs=0 filter=["r|^/dev/loop|","r|^/dev/nbd|","r|^/dev/drbd|"]}`},
		{nil, utterance{Argv: []string{"lvm"}, Code: 3, Stderr: "  broken\n"}, ""},
	} {
		f, _ := newFake(t, 0)
		f.hook = func(run.Cmd) (run.Result, error, bool) { res, err := c.say.result(); return res, err, true }
		conf := configuration{filter: c.own}
		got, err := conf.get(t.Context(), f)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("got %q %v, want %q", got, err, c.want)
		}
	}
}

func TestPool(t *testing.T) {
	for s, want := range map[string]string{
		"1 12/1024 100/1000 - rw discard_passdown queue_if_no_space - 1024":               "",
		"1 12/1024 850/1000 - rw discard_passdown queue_if_no_space - 1024":               "85.0 % of the pool's data are used",
		"1 1000/1024 10/1000 - rw no_discard_passdown queue_if_no_space - 1024":           "97.7 % of the pool's metadata are used",
		"1 12/1024 1000/1000 - out_of_data_space discard_passdown queue_if_no_space - 10": "the pool is full: writes wait; lvextend vg0/p",
		"1 12/1024 1000/1000 - rw discard_passdown error_if_no_space - 10":                "the pool is full: writes fail; lvextend vg0/p",
		"1 12/1024 10/1000 - ro discard_passdown queue_if_no_space needs_check 10":        "the pool's metadata must be checked: lvconvert --repair vg0/p",
		"1 12/1024 10/1000 - ro discard_passdown queue_if_no_space - 10":                  "the pool is read-only: its metadata is full or broken",
		"Fail": "the pool has failed: lvconvert --repair vg0/p",
	} {
		p := Pool{Name: volume.Name{VG: "vg0", LV: "p"}}
		if err := p.parse(s, 64000); err != nil || p.Trouble(80) != want {
			t.Errorf("%q: got %q %v, want %q", s, p.Trouble(80), err, want)
		}
	}
	for _, s := range []string{"", "x", "1 2 3 4 5", "1 1/2 x/3 - rw"} {
		if err := new(Pool).parse(s, 1); err == nil {
			t.Errorf("%q is understood", s)
		}
	}
}

func TestUevent(t *testing.T) {
	for s, want := range map[string]uevent{
		"change@/devices/virtual/block/dm-3\x00ACTION=change\x00SUBSYSTEM=block\x00MAJOR=253\x00MINOR=3\x00DEVNAME=dm-3\x00": {deviceChanged, "253:3", false},
		"x\x00ACTION=remove\x00SUBSYSTEM=block\x00MAJOR=253\x00MINOR=3\x00DEVNAME=dm-3":                                      {deviceChanged, "253:3", true},
		"x\x00ACTION=add\x00SUBSYSTEM=block\x00MAJOR=253\x00MINOR=3\x00DEVNAME=dm-3":                                         {nothingOfOurs, "253:3", false},
		"x\x00ACTION=add\x00SUBSYSTEM=block\x00MAJOR=8\x00MINOR=0\x00DEVNAME=sda":                                            {diskChanged, "8:0", false},
		"x\x00ACTION=change\x00SUBSYSTEM=block\x00MAJOR=8\x00MINOR=0\x00DEVNAME=sda":                                         {nothingOfOurs, "8:0", false},
		"x\x00ACTION=add\x00SUBSYSTEM=net\x00INTERFACE=eth0":                                                                 {},
		"": {},
	} {
		if got := parseUevent(s); got != want {
			t.Errorf("%q: got %+v", s, got)
		}
	}
}

func TestLayout(t *testing.T) {
	for _, l := range []Layout{{}, {Type: "linear"}, {Type: "striped", Stripes: 2, StripeSize: 4096}, {Type: "raid1", Mirrors: 2}, {PVTag: "ssd"}} {
		if err := l.Check(); err != nil {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for _, l := range []Layout{{Type: "thin-pool"}, {Stripes: 2}, {Type: "striped", Stripes: -1}, {Type: "striped", StripeSize: 5000}, {Mirrors: 1}, {Type: "raid5", Mirrors: 1}, {PVTag: "-x"}, {PVTag: "a b"}, {Type: "raid1", Mirrors: 99}} {
		if err := l.Check(); err == nil {
			t.Errorf("%+v is accepted", l)
		}
	}
}

// Ensure that the kernel's answers are read as they are written, and nothing
// beyond their end.
func TestReply(t *testing.T) {
	b := make(reply, 1024)
	if err := b.ask(dmStatusTable, Key{Number: "253:1000"}); err != nil {
		t.Fatal(err)
	}
	if got := b.head().Number; got != "253:1000" {
		t.Errorf("got %s", got)
	}
	copy(b[48:], "vg0-data\x00")
	copy(b[176:], "LVM-x\x00")
	ne.PutUint32(b[24:], 2)
	ne.PutUint32(b[28:], dmReadOnly|dmSuspended|dmActivePresent)
	ne.PutUint32(b[20:], 2)
	at := dmHeader
	for i, params := range []string{"8:0 2048", "error"} {
		s := b[at:]
		ne.PutUint64(s, uint64(i)*8)
		ne.PutUint64(s[8:], 8)
		copy(s[24:], []string{"linear", "error"}[i])
		copy(s[dmSpec:], params)
		next := align8(at - dmHeader + dmSpec + len(params) + 1)
		ne.PutUint32(s[20:], uint32(next))
		at = dmHeader + next
	}
	ne.PutUint32(b[12:], uint32(at-2)) // the last is aligned beyond the end
	want := Mapped{Name: "vg0-data", UUID: "LVM-x", Number: "253:1000", Open: 2, Suspended: true, ReadOnly: true, Live: true}
	if got := b.head(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	got, err := b.targets()
	if err != nil || !reflect.DeepEqual(got, []Target{{"linear", 0, 4096, "8:0 2048"}, {"error", 4096, 4096, "error"}}) {
		t.Errorf("got %+v %v", got, err)
	}
	ne.PutUint32(b[20:], 3)
	if got, err := b.targets(); err == nil {
		t.Errorf("got %+v", got)
	}
}

func FuzzReply(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 400))
	f.Fuzz(func(t *testing.T, data []byte) {
		b := make(reply, dmHeader+len(data))
		_ = b.ask(0, Key{})
		copy(b[dmHeader:], data)
		if len(data) > 4 {
			ne.PutUint32(b[20:], uint32(data[0]))
		}
		if all, _, err := b.list(); err == nil && len(all) > len(data) {
			t.Errorf("got %d devices of %d bytes", len(all), len(data))
		}
		_, _ = b.targets()
		copy(b, data) // a header that lies
		_, _, _ = b.list()
		_, _ = b.targets()
		_ = b.head()
	})
}

func ExampleBlockedError() {
	fmt.Println(&BlockedError{VG: "vg0", Block: Block{Step: "activate", Pids: []int{12}, Wchan: "io_getevents"}})
	// Output: volume group vg0 is blocked: activate (pid 12, waits in io_getevents) of an earlier flexd has not ended; look at the disks of the group and at dmesg
}
