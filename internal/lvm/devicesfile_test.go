package lvm

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
)

// With a devices file LVM ignores filters: while a disk of another group hangs, a command gets the disks of
// its group in --devices.
func TestDevicesFile(t *testing.T) {
	f, p := newFake(t, 1)
	config := "use_devicesfile=1\ndevicesfile=\"system.devices\"\n"
	asked := 0
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		if c.Argv[1] != "lvmconfig" || !slices.Contains(c.Argv, "devices/use_devicesfile") {
			return run.Result{}, nil, false
		}
		asked++
		return run.Result{Stdout: []byte(config)}, nil, true
	}
	f.pvs = `{"pv_name":"/dev/sda","pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-000001","pv_missing":"","pv_allocatable":"allocatable","pv_size":"2143289344","pv_free":"0","pv_tags":""},{"pv_name":"[unknown]","pv_uuid":"PVPVPV-0000-0000-0000-0000-0000-000002","pv_missing":"missing","pv_allocatable":"allocatable","pv_size":"2143289344","pv_free":"0","pv_tags":""}`
	lv := f.lookUp(p, "v0")
	var argv []string
	f.before = func(words string) error { argv = strings.Fields(words); return nil }
	activate := func() string {
		t.Helper()
		delete(f.devices, dmUUID(lv.UUID))
		if err := f.activate(t.Context(), p, lv); err != nil {
			t.Fatal(err)
		}
		if i := slices.Index(argv, "--devices"); i >= 0 {
			return strings.Join(argv[i+1:i+3], " ")
		}
		return ""
	}
	p.lvmDir = t.TempDir()
	if got := activate(); got != "" || asked != 0 {
		t.Errorf("nothing hangs: got %q", got)
	}
	other := p.groups["other"]
	other.known = &Facts{PVs: []PV{{Path: "/dev/sdx"}}}
	done := make(chan struct{})
	defer close(done)
	f.devices["mpatha"] = devmapper.Mapped{Name: "mpatha", Number: "253:99", Suspended: true}
	other.open(&Block{Step: "activate", Done: done})
	is(t, other.blocked(), nil, "these disks do not respond or are suspended: "+p.Dev+"/mapper/mpatha", "dmsetup resume mpatha")
	if got := activate(); got != "" {
		t.Errorf("there is no devices file: got %q", got)
	}
	if err := os.MkdirAll(p.lvmDir+"/devices", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.lvmDir+"/devices/system.devices", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := activate(); got != "/dev/sda -y" || asked != 1 {
		t.Errorf("got %q, asked %d times", got, asked)
	}
	// A disk that the group has got since then appears to be missing.
	if _, _, err := p.groups["vg0"].look(t.Context(), true); err != nil {
		t.Errorf("as before: %v", err)
	}
	p.groups["vg0"].known.Missing = -1
	_, _, err := p.groups["vg0"].look(t.Context(), true)
	is(t, err, ErrFailed, "PVs are missing among /dev/sda", "do not respond: /dev/sdx, ")

	// As after a restart, the group's own disks are not known: all that respond may be its.
	p.groups["vg0"].known = nil
	devices := func() string {
		t.Helper()
		scope, err := p.scopeOf(t.Context(), p.groups["vg0"])
		if err != nil {
			return err.Error()
		}
		return strings.Join(scope.devices, " ")
	}
	entries := "# DEVNAME=/dev/old\nVERSION=1.1.2\n" +
		"IDTYPE=sys_wwid IDNAME=naa.1 DEVNAME=/dev/sda PVID=PV1 PART=1\n" +
		"IDTYPE=sys_serial IDNAME=2 DEVNAME=. PVID=PV2\n" +
		"IDTYPE=devname IDNAME=" + p.Dev + "/mapper/mpatha DEVNAME=" + p.Dev + "/mapper/mpatha PVID=PV3\n" +
		"IDTYPE=devname IDNAME=/dev/sdx DEVNAME=/dev/sdx PVID=PV4\n" +
		"IDTYPE=devname IDNAME=/dev/sdb DEVNAME=/dev/sdb PVID=PV5\n"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(p.lvmDir+"/devices/system.devices", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(entries)
	if got := devices(); got != "/dev/sda /dev/sdb" {
		t.Errorf("after a restart: got %q", got)
	}
	f.missing = 2 // a name in the file is outdated
	_, _, err = p.groups["vg0"].look(t.Context(), true)
	is(t, err, ErrFailed, "PVs are missing among /dev/sda, /dev/sdb")
	f.missing = 0
	if _, _, err = p.groups["vg0"].look(t.Context(), true); err != nil {
		t.Error(err)
	}
	// None of them responds.
	p.groups["vg0"].known = nil
	write("DEVNAME=/dev/sdx\n")
	if got := devices(); !strings.Contains(got, "PVs are missing") || !strings.Contains(got, "/dev/sdx") {
		t.Errorf("got %q", got)
	}
}
