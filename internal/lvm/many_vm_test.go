//go:build vm

package lvm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// Ensure that concurrent requests for volumes share commands, and that a failure of one does not fail the
// others.
func TestVMGroupCommit(t *testing.T) {
	l := newLab(t)
	const n = 20
	var lvs []volume.LV
	var commands []string
	for i := range n {
		commands = append(commands, fmt.Sprintf("lvcreate -q -y -an -Zn -Wn -L 4M -n v-%d vg0", i))
	}
	l.lvm(commands...)
	for i := range n {
		lvs = append(lvs, l.present(fmt.Sprintf("v-%d", i)))
	}
	all := func(do func(lv volume.LV) error) []error {
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i, lv := range lvs {
			wg.Go(func() { errs[i] = do(lv) })
		}
		wg.Wait()
		return errs
	}
	l.count("")
	start := time.Now()
	for i, err := range all(func(lv volume.LV) error { return l.Activate(t.Context(), l.lock, lv) }) {
		if d := l.device(lvs[i]); err != nil || d.Activity != volume.Active || d.Link == "" {
			t.Errorf("%s: %v %+v", lvs[i].Name, err, d)
		}
	}
	took := time.Since(start)
	l.recorder.mu.Lock()
	joined := l.said[len(l.said)-1]
	l.recorder.mu.Unlock()
	if got := l.count(""); got > 2 {
		t.Errorf("%d commands", got)
	}
	for _, err := range all(func(lv volume.LV) error { return l.Deactivate(t.Context(), l.lock, lv, volume.Device{}) }) {
		if err != nil {
			t.Error(err)
		}
	}
	if got := l.count("lvchange"); got > 4 { // on a slow machine some arrive after another command has begun; see TestGroupCommit
		t.Errorf("%d commands", got)
	}
	t.Logf("activation of %d took %s; %d words", n, took, len(joined.Argv))

	// Two are not what they were.
	l.sh("lvremove", "-q", "-y", "vg0/v-7", "vg0/v-8")
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "4M", "-n", "v-8", "vg0")
	for i, err := range all(func(lv volume.LV) error { return l.Activate(t.Context(), l.lock, lv) }) {
		switch i {
		case 7:
			is(t, err, ErrNoLV, "does not exist any more")
		case 8:
			if err == nil || !strings.Contains(err.Error(), "another volume") {
				t.Errorf("got %v", err)
			}
		default:
			if err != nil {
				t.Errorf("%s: %v", lvs[i].Name, err)
			}
		}
	}
	if d := l.device(l.present("v-8")); d.Activity != volume.Inactive {
		t.Errorf("the new v-8 was activated: %+v", d)
	}
}

// Ensure that a hanging command blocks its group at once and only while it exists, that nothing is killed,
// and that operations without commands continue.
func TestVMStuck(t *testing.T) {
	l := newLab(t)
	l.sh("sh", "-c", "echo 0 $(($(blockdev --getsz "+l.disks[3]+")-2048)) linear "+l.disks[3]+" 2048 | dmsetup create slow --noudevsync && dmsetup mknodes")
	l.sh("vgcreate", "-q", "vg1", "/dev/mapper/slow")
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "8M", "-n", "one", "vg1")
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "8M", "-n", "two", "vg1")
	find := func(name string) volume.LV {
		lv, err := l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: name})
		if err != nil {
			t.Fatal(err)
		}
		return lv
	}
	one, two := find("one"), find("two")
	l.activate(two)
	l.sh("dmsetup", "suspend", "--noudevsync", "slow")
	defer l.try("dmsetup", "resume", "--noudevsync", "slow")

	l.commandTimeout = time.Second
	var stuck *run.StuckError
	if err := l.Activate(t.Context(), l.lock, one); !errors.As(err, &stuck) {
		t.Fatalf("got %v", err)
	}
	start := time.Now()
	var blocked *BlockedError
	if err := l.Deactivate(t.Context(), l.lock, two, volume.Device{}); !errors.As(err, &blocked) || blocked.Pids[0] != stuck.Pid || errors.As(err, new(*run.StuckError)) {
		t.Errorf("got %v", err)
	}
	if d := l.device(two); d.Activity != volume.Active { // no command is needed
		t.Errorf("got %+v", d)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %s", took)
	}
	// The next flexd sees it, and which volume it is about.
	l.restart(Group{})
	if b, ok := l.Blocks()["vg1"]; !ok || len(b.Volumes) != 1 || b.Volumes[0] != "vg1/one" {
		t.Errorf("got %+v", l.Blocks())
	}
	if d := l.device(one); !d.Unusable {
		t.Errorf("got %+v", d)
	}
	l.sh("dmsetup", "resume", "--noudevsync", "slow")
	select {
	case <-stuck.Done:
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
	for i := 0; len(l.Blocks()) > 0; i++ {
		if i > 500 {
			t.Fatalf("still blocked: %+v", l.Blocks())
		}
		time.Sleep(10 * time.Millisecond)
	}
	if d := l.device(one); d.Activity != volume.Active {
		t.Errorf("it was not killed, but did nothing: %+v", d)
	}
	l.deactivate(one)
	l.deactivate(two)
}

// Ensure that changes by others are reported, and that flexd's own activations cause no
// new report.
func TestVMWatch(t *testing.T) {
	l := newLab(t)
	lv := l.lv("data", "8M")
	ctx, cancel := context.WithCancel(t.Context())
	heard, devices := make(chan string, 1000), make(chan volume.UUID, 1000)
	done := make(chan error)
	go func() {
		done <- l.Watch(ctx, func(vg string, volumes map[volume.UUID]time.Time) {
			heard <- vg
			for uuid := range volumes {
				devices <- uuid
			}
		})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for l.Provider.watch.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	for rested := 0; rested < 2; rested++ { // it warms up
		time.Sleep(2 * time.Second)
		if l.count("") > 0 {
			rested = -1
		}
	}
	quiet := func() {
		for len(heard) > 0 {
			<-heard
		}
	}
	expect := func(what string) {
		t.Helper()
		select {
		case vg := <-heard:
			if vg != "vg0" {
				t.Errorf("%s: notified of %q", what, vg)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s: no notification", what)
		}
	}
	quiet()
	l.count("")
	for most, do := range []func(){func() { l.activate(lv) }, func() { l.deactivate(lv) }} {
		do()
		if got := l.count("fullreport"); got > most { // a deactivation needs facts that are new
			t.Errorf("our own command %d costs %d reports", most, got)
		}
		expect("a device")
		time.Sleep(200 * time.Millisecond)
		if len(devices) == 0 {
			t.Errorf("the changed device is not reported")
		}
		for len(devices) > 0 {
			if got := <-devices; got != lv.UUID {
				t.Errorf("%s is reported, want %s", got, lv.UUID)
			}
		}
	}
	l.present("data")
	if got := l.count("fullreport"); got != 0 {
		t.Errorf("our own commands cost %d reports", got)
	}
	quiet()
	for _, c := range [][]string{
		{"lvrename", "-q", "vg0/data", "vg0/other"},
		{"lvextend", "-q", "-L", "12M", "vg0/other"},
		{"lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", "4M", "-n", "data", "vg0"},
	} {
		l.sh(c...)
		expect(c[0])
		time.Sleep(100 * time.Millisecond)
		quiet()
		switch got := l.lookUp("data"); c[0] {
		case "lvrename", "lvextend":
			if got.Presence != volume.Absent {
				t.Errorf("%s: got %+v", c[0], got)
			}
		default:
			if got.UUID == lv.UUID || got.Presence != volume.Present {
				t.Errorf("%s: got %+v", c[0], got)
			}
		}
		if c[0] == "lvextend" && l.present("other").Size != 12*mib {
			t.Errorf("got %+v", l.present("other"))
		}
	}
}

// Ensure that many devices are listed as dmsetup lists them.
func TestVMList(t *testing.T) {
	l := newLab(t)
	for i := range 60 {
		l.sh("sh", "-c", fmt.Sprintf("echo 0 8 linear %s %d | dmsetup create --noudevsync -u LVM-%064d name-%d", l.disks[3], 4096+8*i, i, i))
	}
	start := time.Now()
	all, err := devmapper.New().List()
	took := time.Since(start)
	if err != nil || len(all) != 60 {
		t.Fatalf("got %d %v", len(all), err)
	}
	want := l.sh("dmsetup", "info", "-c", "--noheadings", "-o", "name,uuid,major,minor", "--separator", " ")
	for _, m := range all {
		line := m.Name + " " + m.UUID + " " + strings.ReplaceAll(m.Number, ":", " ")
		if !strings.Contains(want+"\n", line+"\n") {
			t.Errorf("dmsetup does not say %q", line)
		}
		full, err := l.DM.Device(devmapper.Key{UUID: m.UUID})
		if err != nil || full.Name != m.Name || full.Size() != 4096 || full.Targets[0].Type != "linear" {
			t.Fatalf("got %+v %v", full, err)
		}
	}
	t.Logf("%d devices in %s", len(all), took)
}
