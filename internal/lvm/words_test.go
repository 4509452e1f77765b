package lvm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Ensure that only LVM's own message about this group counts as an absence.
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
		{"  WARNING: No free extents on physical volume \"/dev/vdb\".\n  No specified PVs have space available.\n", ErrNoSpace},
	} {
		err := classify("vg0", &run.ExitError{Step: "x", Argv: []string{"lvm"}, Code: 5}, []byte(c.stderr))
		is(t, err, c.want)
		if errors.Is(err, ErrNoVG) != (c.want == ErrNoVG) {
			t.Errorf("%q: got %v", c.stderr, err)
		}
		// The output of a killed process is not final.
		err = classify("vg0", &run.ExitError{Step: "x", Argv: []string{"lvm"}, Code: -1, Signal: "SIGKILL"}, []byte(c.stderr))
		is(t, err, ErrFailed)
	}
}

// A message that only flexd's --config causes is not quoted.
func TestOneLine(t *testing.T) {
	got := oneLine([]byte("  Please remove the lvm.conf filter, it is ignored with the devices file.\n  WARNING: Activation disabled.\n  Volume group \"vg1\" not found\n  Volume group \"vg1\" not found\n  Cannot process volume group vg1\n"))
	if want := `Volume group "vg1" not found; Cannot process volume group vg1`; got != want {
		t.Errorf("got %q", got)
	}
}

// Ensure the arguments of each command.
func TestArgs(t *testing.T) {
	ms := []*member{
		{name: volume.Name{VG: "vg0", LV: "b"}, uuid: "V_U2"},
		{name: volume.Name{VG: "vg0", LV: "a"}, uuid: "V_U1"},
	}
	name := volume.Name{VG: "vg0", LV: "new"}
	onFast := Layout{Type: "striped", Stripes: 2, PVTag: "fast"}
	for _, c := range []struct {
		got  []string
		want string
	}{
		{batchArgs(activate, ms), "lvchange -y -ay -K -S [(vg_uuid=V && lv_uuid=U1) || (vg_uuid=V && lv_uuid=U2)] vg0/a vg0/b"},
		{batchArgs(exclusive, ms[:1]), "lvchange -y -aey -K -S [(vg_uuid=V && lv_uuid=U1)] vg0/a"},
		{batchArgs(deactivate, ms[1:]), "lvchange -y -an -S [(vg_uuid=V && lv_uuid=U2)] vg0/b"},
		{batchArgs(makeNodes, ms), "vgmknodes vg0/a vg0/b"},
		{createArgs(Group{}, name, 3, 4*mib, ""), "lvcreate -y -W y -kn --addtag flexd.creating -n new -Z y -l 3 vg0"},
		{createArgs(Group{ThinPool: "pool"}, name, 3, 4*mib, "team-a"), "lvcreate -y -W y -kn --addtag flexd.creating -n new --addtag flexd.namespace=team-a -V 12582912b --thinpool pool vg0"},
		{createArgs(Group{Layout: Layout{Type: "raid10", Stripes: 2, StripeSize: 65536, Mirrors: 1, PVTag: "fast"}}, name, 4, 4*mib, ""),
			"lvcreate -y -W y -kn --addtag flexd.creating -n new -Z y -l 4 --type raid10 -i 2 -I 65536b -m 1 vg0 @fast"},
		{extendArgs(Group{Layout: onFast}, Logical{Tags: []string{"x", tagCreated}}, name, 8*mib), "lvextend -y -L 8388608b vg0/new @fast"},
		{extendArgs(Group{Layout: onFast}, Logical{Tags: []string{tagCreating}}, name, 8*mib), "lvextend -y -L 8388608b vg0/new @fast"},
		{extendArgs(Group{}, Logical{Tags: []string{tagCreated}}, name, 8*mib), "lvextend -y -L 8388608b vg0/new"},
		// What is not ours, and what lies in a pool.
		{extendArgs(Group{Layout: onFast}, Logical{Tags: []string{"x"}}, name, 8*mib), "lvextend -y -L 8388608b vg0/new"},
		{extendArgs(Group{Layout: onFast}, Logical{Tags: []string{tagCreated}, Pool: "pool"}, name, 8*mib), "lvextend -y -L 8388608b vg0/new"},
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
	got := strings.Join(reportArgs(scope{config: "devices{}"}, "vg0"), " ")
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
		{nil, host, `devices{scan_lvs=0 filter=["r|^/dev/loop|","r|^/dev/nbd|","r|^/dev/drbd|","r|^/dev/sdz$|"]} ` + plainOutput},
		{[]string{`a|"|`, "r|.*|"}, utterance{Code: 1}, `devices{scan_lvs=0 filter=["a|\"|","r|.*|"]} ` + plainOutput},
		{nil, utterance{Argv: []string{"lvm"}, Code: 5, Stderr: "  Configuration node devices/filter not found\n"}, `devices{scan_lvs=0 filter=["r|^/dev/loop|","r|^/dev/nbd|","r|^/dev/drbd|"]} ` + plainOutput},
		{nil, utterance{Argv: []string{"lvm"}, Code: 3, Stderr: "  broken\n"}, ""},
	} {
		f, p := newFake(t, 0)
		f.hook = func(run.Cmd) (run.Result, error, bool) { res, err := c.say.result(); return res, err, true }
		p.config.filter = c.own
		s, err := p.scopeOf(t.Context(), p.groups["vg0"])
		if got := s.config; got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("got %q %v, want %q", s.config, err, c.want)
		}
	}
}

// A change of the host's filter, as for a new disk, applies from the next command on.
func TestFilterChanges(t *testing.T) {
	f, p := newFake(t, 0)
	p.lvmDir = t.TempDir()
	host, asked := `"r|one|"`, 0
	f.hook = func(c run.Cmd) (run.Result, error, bool) {
		asked++
		return run.Result{Stdout: []byte("filter=[" + host + "]")}, nil, true
	}
	has := func(want string, reads int) {
		t.Helper()
		scope, err := p.scopeOf(t.Context(), p.groups["vg0"])
		if err != nil || !strings.HasSuffix(scope.config, ","+want+"]} "+plainOutput) || asked != reads {
			t.Errorf("got %q %v, want %s, asked %d times", scope.config, err, want, asked)
		}
	}
	has(`"r|one|"`, 1)
	has(`"r|one|"`, 1)
	host = `"r|two|"`
	if err := os.WriteFile(p.lvmDir+"/lvmlocal.conf", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	has(`"r|two|"`, 2)
	host = `"r|three|"`
	if err := os.WriteFile(p.lvmDir+"/lvmlocal.conf", []byte("#"), 0o600); err != nil {
		t.Fatal(err)
	}
	has(`"r|three|"`, 3)
	has(`"r|three|"`, 3)
}

func TestPool(t *testing.T) {
	for s, want := range map[string]string{
		"1 12/1024 100/1000 - rw discard_passdown queue_if_no_space - 1024":               "",
		"1 12/1024 850/1000 - rw discard_passdown queue_if_no_space - 1024":               "85.0 % of the pool's data are used: lvextend -L +SIZE vg0/p, or remove volumes that are not needed",
		"1 1000/1024 10/1000 - rw no_discard_passdown queue_if_no_space - 1024":           "97.7 % of the pool's metadata are used: lvextend --poolmetadatasize +SIZE vg0/p, or remove volumes that are not needed",
		"1 12/1024 1000/1000 - out_of_data_space discard_passdown queue_if_no_space - 10": "the pool is full: writes wait for a minute, then fail; lvextend -L +SIZE vg0/p",
		"1 12/1024 1000/1000 - rw discard_passdown error_if_no_space - 10":                "the pool is full: writes fail; lvextend -L +SIZE vg0/p",
		"1 12/1024 10/1000 - ro discard_passdown queue_if_no_space needs_check 10":        "the pool's metadata must be checked: if a disk of it is missing or has become too small (pvs, dmesg, flexd check), bring that back first: until then nothing that is deactivated becomes active again. Unmount and deactivate its volumes, then lvchange -an vg0/p; lvchange -ay --config 'global/thin_check_options=[\"-q\",\"--clear-needs-check-flag\"]' vg0/p. Only if that reports a failed check: lvconvert --repair vg0/p, then the same lvchange -ay",
		"1 12/1024 10/1000 - ro discard_passdown queue_if_no_space - 10":                  "the pool is read-only: its metadata is full or broken; if full: lvextend --poolmetadatasize +SIZE vg0/p",
		"Fail": "the pool has failed: if a disk of it is missing or has become too small (pvs, dmesg, flexd check), bring that back first: until then nothing that is deactivated becomes active again. Unmount and deactivate its volumes, then lvchange -an vg0/p; lvchange -ay --config 'global/thin_check_options=[\"-q\",\"--clear-needs-check-flag\"]' vg0/p. Only if that reports a failed check: lvconvert --repair vg0/p, then the same lvchange -ay",
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

func ExampleBlockedError() {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	fmt.Println(&BlockedError{VG: "vg0", Block: Block{Step: "activate", Pids: []int{12}, Wchan: "io_getevents", Since: since}})
	fmt.Println(&BlockedError{VG: "vg0", Block: Block{Step: "extend", Pids: []int{12}, Wchan: "locks_lock_inode_wait", For: "LVM's lock of vg0, which pid 7 (vgs) holds", Since: since}})
	fmt.Println(&BlockedError{VG: "vg0", Block: Block{Step: "activate", Pids: []int{12}, Wchan: "io_getevents", Since: since, Disks: []string{"/dev/mapper/mpatha"}}})
	fmt.Println(&BlockedError{VG: "vg0", Block: Block{Step: "lvm report", Pids: []int{12}, Wchan: "exit_aio", Since: since, Disks: []string{"/dev/mapper/disk", "/dev/sda"}, Suspended: []string{"disk"}}})
	// Output:
	// volume group vg0 is blocked: activate (pid 12, waits in io_getevents) has been running since 03:04:05; look at the disks of the group and at dmesg
	// volume group vg0 is blocked: extend (pid 12, waits in locks_lock_inode_wait, for LVM's lock of vg0, which pid 7 (vgs) holds) has been running since 03:04:05; look at the disks of the group and at dmesg
	// volume group vg0 is blocked: activate (pid 12, waits in io_getevents) has been running since 03:04:05; these disks do not respond or are suspended: /dev/mapper/mpatha; look at them and at dmesg
	// volume group vg0 is blocked: lvm report (pid 12, waits in exit_aio) has been running since 03:04:05; these disks do not respond or are suspended: /dev/mapper/disk, /dev/sda; look at them and at dmesg; if no running command has suspended them (ps ax): dmsetup resume disk
}
