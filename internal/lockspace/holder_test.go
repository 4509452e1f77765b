package lockspace

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// A disk is the recorded part of a disk with leases; the rest is zero.
type disk map[int64][]byte

func (d disk) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	for offset, content := range d {
		if rel := offset - at; rel >= 0 && rel+int64(len(content)) <= int64(len(b)) {
			copy(b[rel:], content)
		}
	}
	return len(b), nil
}

func readDisk(t *testing.T, name string) disk {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	d := disk{}
	for line := range strings.Lines(string(b)) {
		offset, content, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(offset, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if d[n], err = hex.DecodeString(content); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

const (
	lv1 = "Ww5Wnf-bEUL-p8tz-XeSR-8G1X-1mSG-H5LndA" // held by host 1
	lv2 = "t5zvpC-YUMI-Ptzv-Bxq7-qVNk-Se13-SpzTfk" // held by host 2
	lv3 = "JVlEyc-YsHn-EjK5-tbGh-Y2MY-U3cR-DFXFd7" // held by host 2, shared
)

var recorded = leasesArg{
	Lockspace: "lvm_svg", SectorSize: 512, MaxHost: 2,
	Leases: []leaseArg{{lv1, 70254592}, {lv2, 71303168}, {lv3, 72351744}},
}

func TestLeases(t *testing.T) {
	d := readDisk(t, "leases-512.hex")
	got, err := leasesOn(d, recorded)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Errors) > 0 {
		t.Errorf("%v", got.Errors)
	}
	for lv, want := range map[string]owner{lv1: {ID: 1, Generation: 2, Taken: 17}, lv2: {ID: 2, Generation: 2, Taken: 1032}, lv3: {ID: 2, Generation: 2, Shared: true}} {
		if o := got.Owners[lv]; len(o) != 1 || o[0] != want {
			t.Errorf("%s: %+v, want %+v", lv, o, want)
		}
	}
	if h := got.Hosts[1]; h.Name != "n1" || h.Generation != 2 || h.Timestamp == 0 {
		t.Errorf("%+v", h)
	}
}

// Leases on a disk with sectors of 4096 bytes.
func TestLargeSectors(t *testing.T) {
	const one, two = "WB1psW-E6si-T653-uJqH-Tx3i-RorJ-JaDWqV", "ZCB0XK-1Dd7-Bdvd-LSo4-sa5z-qAnC-uGxjVQ"
	a := leasesArg{Lockspace: "lvm_svg", SectorSize: 4096, MaxHost: 1, Leases: []leaseArg{{one, 562036736}, {two, 570425344}}}
	got, err := leasesOn(readDisk(t, "leases-4096.hex"), a)
	if err != nil || len(got.Errors) > 0 {
		t.Fatalf("%v, %v", err, got)
	}
	for lv, want := range map[string]owner{one: {ID: 1, Generation: 1, Taken: 20}, two: {ID: 1, Generation: 1, Shared: true}} {
		if o := got.Owners[lv]; len(o) != 1 || o[0] != want {
			t.Errorf("%s: %+v, want %+v", lv, o, want)
		}
	}
	a.SectorSize = 512
	if got, err = leasesOn(readDisk(t, "leases-4096.hex"), a); err != nil || !strings.Contains(got.Errors[one], "sectors of 4096") {
		t.Errorf("%v, %v", err, got)
	}
}

// A record that is not understood is an error, never a free lock.
func TestStrangeLeases(t *testing.T) {
	const at = 70254592
	for name, change := range map[string]func(d disk){
		"not a record of sanlock": func(d disk) { d[at][0] ^= 1 },
		"unknown version":         func(d disk) { d[at][6] = 7 },
		"sectors of 4096":         func(d disk) { d[at][12], d[at][13] = 0, 0x10 },
		"wrong checksum":          func(d disk) { d[at][32] = 2 },
		"not on the disk":         func(d disk) { delete(d, at) },
		"belongs to":              func(d disk) { d[at] = d[71303168] },
	} {
		d := readDisk(t, "leases-512.hex")
		change(d)
		got, err := leasesOn(d, recorded)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if text := got.Errors[lv1]; !strings.Contains(text, name) || len(got.Owners[lv1]) > 0 || len(got.Owners[lv2]) != 1 {
			t.Errorf("%s: %q, %v", name, text, got.Owners)
		}
	}
}

// The area of the largest host id is read as well.
func TestMaxHost(t *testing.T) {
	a, d := recorded, readDisk(t, "leases-512.hex")
	a.MaxHost = 2000
	d[72351744+2001*512] = append(make([]byte, 128), 1, 0, 0, 0, 0, 0, 0, 0, 7)
	d[1999*512] = d[512] // its delta lease
	got, err := leasesOn(d, a)
	if err != nil {
		t.Fatal(err)
	}
	if o := got.Owners[lv3]; len(o) != 2 || o[1] != (owner{ID: 2000, Generation: 7, Shared: true}) {
		t.Errorf("%+v", o)
	}
}

// A live owner may have released a lease that another host then wrote late.
func TestReleasedOwner(t *testing.T) {
	d := readDisk(t, "leases-512.hex")
	d[70254592+2*512] = append(make([]byte, 52), 1) // the sector of host 1
	put := func(at int, v byte) { d[70254592] = slices.Clone(d[70254592]); d[70254592][at] = v }
	for writer, want := range map[byte]int{1: 1, 2: 0} {
		put(176, writer) // behind the checksum
		got, err := leasesOn(d, recorded)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(got.Owners[lv1]); n != want {
			t.Errorf("written by host %d: %d owners, want %d", writer, n, want)
		}
	}
}

// atLeases makes a node read the recorded leases.
func atLeases(t *testing.T, n *node) {
	d := readDisk(t, "leases-512.hex")
	n.leases = func(a leasesArg) (*leasesAnswer, error) {
		if a.Path != "/dev/mapper/svg-lvmlock" || a.MaxHost != 2 {
			t.Errorf("%+v", a)
		}
		return leasesOn(d, a)
	}
}

func lvs(names ...string) (all []LV) {
	for _, l := range recorded.Leases {
		if slices.Contains(names, l.Name) {
			all = append(all, LV{UUID: volume.UUID("VG_" + l.Name), LockArgs: fmt.Sprintf("1.0.0:%d", l.Offset)})
		}
	}
	return all
}

// holders returns the holders of the locks that have one.
func holders(ctx context.Context, m *Manager, vg string, lvs []LV) (map[volume.UUID]volume.Holder, error) {
	held := map[volume.UUID]volume.Holder{}
	for _, lv := range lvs {
		h, err := m.Holder(ctx, vg, lv)
		if err != nil {
			return nil, err
		}
		if h != nil {
			held[lv.UUID] = *h
		}
	}
	return held, nil
}

// The holder of a lock by the state of its lease, as sanlock of host 2 sees it.
func TestHolder(t *testing.T) {
	for _, c := range []struct {
		transcript, state string
		renewed, freeIn   int // seconds ago, in how many; 0 = not said
	}{
		{"live", "live", 2, 0},
		{"failing", "failing", 25, 52},
		{"dead", "", 0, 0},
	} {
		t.Run(c.transcript, func(t *testing.T) {
			m, n := newNode(t, c.transcript)
			now := time.Now()
			m.now = func() time.Time { return now }
			m.monotonic = func() int {
				d, _ := ParseSanlock(n.says["sanlock client status -D"].stdout)
				return d.Now
			}
			atLeases(t, n)
			held, err := holders(t.Context(), m, "svg", lvs(lv1, lv2, lv3))
			if err != nil {
				t.Fatal(err)
			}
			h, ok := held["VG_"+lv1]
			if ok != (c.state != "") || len(held) > 1 {
				t.Fatalf("%+v", held)
			}
			if !ok {
				return
			}
			if h.HostID != 1 || h.Host != "n1" || h.State != c.state || !h.Since.Equal(now) {
				t.Errorf("%+v", h)
			}
			if got := int(now.Sub(h.Renewed).Seconds()); got != c.renewed {
				t.Errorf("renewed %d s ago, want %d", got, c.renewed)
			}
			if got := h.FreeAt; c.freeIn == 0 && !got.IsZero() || c.freeIn != 0 && int(got.Sub(now).Seconds()) != c.freeIn {
				t.Errorf("free at %v, want in %d s", got, c.freeIn)
			}
			first := now
			now = now.Add(time.Minute)
			held, err = holders(t.Context(), m, "svg", lvs(lv1))
			if err != nil || !held["VG_"+lv1].Since.Equal(first) {
				t.Errorf("%+v, %v", held, err)
			}
		})
	}
}

// Rules of sanlock for the owner of a lease, beside those in transcripts.
func TestHolderRules(t *testing.T) {
	own := Leases{HostID: 2, IOTimeout: 10, Joined: 1000}
	o := owner{ID: 1, Generation: 3}
	for _, c := range []struct {
		name  string
		d     delta
		hosts map[int]host
		now   int
		state string // "" = it does not count
		free  int
	}{
		{"has left", delta{Generation: 3}, nil, 2000, "", 0},
		{"has joined again", delta{Generation: 4, Timestamp: 5}, nil, 2000, "", 0},
		{"was never looked at", delta{Generation: 3, Timestamp: 5}, nil, 2000, "unknown", 0},
		{"has joined since the last look", delta{Generation: 3, Timestamp: 5}, map[int]host{1: {Generation: 2, Timestamp: 0, LastLive: 1900}}, 2000, "unknown", 0},
		{"was never seen to renew", delta{Generation: 3, Timestamp: 5}, map[int]host{1: {Generation: 3, Timestamp: 5, LastLive: 1020, IOTimeout: 10}}, 1100, "unknown", 1161},
		{"never renewed", delta{Generation: 3, Timestamp: 5}, map[int]host{1: {Generation: 3, Timestamp: 5, LastLive: 1020, IOTimeout: 10}}, 1161, "", 0},
		{"renewed just now", delta{Generation: 3, Timestamp: 6}, map[int]host{1: {Generation: 3, Timestamp: 5, LastLive: 1020, IOTimeout: 10}}, 1161, "live", 0},
		{"renewed late", delta{Generation: 3, Timestamp: 5}, map[int]host{1: {Generation: 3, Timestamp: 5, LastLive: 1958, IOTimeout: 10}}, 2000, "failing", 2099},
		{"on the last second", delta{Generation: 3, Timestamp: 5}, map[int]host{1: {Generation: 3, Timestamp: 5, LastLive: 1860, IOTimeout: 10}}, 2000, "failing", 2001},
		{"a second later", delta{Generation: 3, Timestamp: 5}, map[int]host{1: {Generation: 3, Timestamp: 5, LastLive: 1859, IOTimeout: 10}}, 2000, "", 0},
		{"has a larger io timeout", delta{Generation: 3, Timestamp: 5}, map[int]host{1: {Generation: 3, Timestamp: 5, LastLive: 1859, IOTimeout: 20}}, 2000, "failing", 2080},
	} {
		h, alive := holder(o, c.d, c.hosts, own, c.now)
		if alive != (c.state != "") || alive && (h.state != c.state || h.freeAt != c.free) {
			t.Errorf("%s: %+v, %v; want %q, free at %d", c.name, h, alive, c.state, c.free)
		}
	}
}

// Many who ask at the same time share the reads, and one read serves only those who asked
// before it.
func TestHolderIsShared(t *testing.T) {
	m, n := newNode(t, "live")
	atLeases(t, n)
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			if _, err := holders(t.Context(), m, "svg", lvs(lv1)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if c := n.count("sanlock client host_status -s lvm_svg -D"); c > 3 {
		t.Errorf("%d reads", c)
	}
}

// Of several hosts that share a lock, the one that lives is named, not one that will be dead.
func TestManyHolders(t *testing.T) {
	m, n := newNode(t, "failing")
	n.leases = func(leasesArg) (*leasesAnswer, error) {
		return &leasesAnswer{
			Owners: map[string][]owner{lv1: {{ID: 1, Generation: 2, Shared: true}, {ID: 2, Generation: 2, Shared: true}, {ID: 3, Generation: 1, Shared: true}, {ID: 4, Generation: 1, Shared: true}}},
			Hosts:  map[int]delta{1: {Name: "n1", Generation: 2, Timestamp: 20}, 3: {Name: "n3", Generation: 1, Timestamp: 2}, 4: {Name: "n4", Generation: 2, Timestamp: 9}},
		}, nil
	}
	u := n.says["sanlock client host_status -s lvm_svg -D"]
	u.stdout += "3 timestamp 1\n    last_live=1075\n    owner_id=3\n    owner_generation=1\n    timestamp=1\n    io_timeout=2\n    owner_name=n3\n"
	n.says["sanlock client host_status -s lvm_svg -D"] = u
	m.monotonic = func() int { return 1083 }
	first := time.Now()
	now := first
	m.now = func() time.Time { return now }
	for range 2 {
		held, err := holders(t.Context(), m, "svg", lvs(lv1))
		if h := held["VG_"+lv1]; err != nil || h.Host != "n3" || h.State != "live" || !h.Since.Equal(first) {
			t.Errorf("%+v, %v", h, err)
		}
		now = now.Add(time.Second)
	}
}

// A host that has given a volume back, and has it again, is seen anew.
func TestHolderSince(t *testing.T) {
	m, n := newNode(t, "live")
	atLeases(t, n)
	m.monotonic = func() int { return 1083 }
	first := time.Now()
	now := first
	m.now = func() time.Time { return now }
	for _, step := range []struct {
		name  string
		owner []owner
		since time.Time // zero: no host has it
	}{
		{"a reader", []owner{{ID: 1, Generation: 2, Shared: true}}, first},
		{"a look later", []owner{{ID: 1, Generation: 2, Shared: true}}, first},
		{"no host", nil, time.Time{}},
		{"a reader again", []owner{{ID: 1, Generation: 2, Shared: true}}, first.Add(3 * time.Minute)},
		{"a writer", []owner{{ID: 1, Generation: 2, Taken: 7}}, first.Add(4 * time.Minute)},
		{"still", []owner{{ID: 1, Generation: 2, Taken: 7}}, first.Add(4 * time.Minute)},
		{"again, and others had it between two looks", []owner{{ID: 1, Generation: 2, Taken: 9}}, first.Add(6 * time.Minute)},
	} {
		n.leases = func(leasesArg) (*leasesAnswer, error) {
			return &leasesAnswer{Owners: map[string][]owner{lv1: step.owner}, Hosts: map[int]delta{1: {Name: "n1", Generation: 2, Timestamp: 20}}}, nil
		}
		held, err := holders(t.Context(), m, "svg", lvs(lv1))
		if err != nil || !held["VG_"+lv1].Since.Equal(step.since) {
			t.Errorf("%s: since %v (%v), want %v", step.name, held["VG_"+lv1].Since, err, step.since)
		}
		now = now.Add(time.Minute)
	}
}

func TestHolderUnknown(t *testing.T) {
	m, n := newNode(t, "live")
	atLeases(t, n)
	for _, args := range []string{"", "1.0.0", "2.0.0:70254592", "1.0.0:-4096", "1.0.0:70254593", "dlm"} {
		_, err := holders(t.Context(), m, "svg", []LV{{UUID: "VG_" + lv1, LockArgs: args}})
		if err == nil || volume.CodeOf(err) != volume.Unknown {
			t.Errorf("%q: %v", args, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.leases = func(leasesArg) (*leasesAnswer, error) { return nil, errors.New("I/O error") }
	if _, err := holders(ctx, m, "svg", lvs(lv1)); volume.CodeOf(err) != volume.Unknown {
		t.Error(err)
	}
	if _, err := holders(t.Context(), m, "svg", lvs(lv1)); volume.CodeOf(err) != volume.Unknown || !strings.Contains(err.Error(), "I/O error") {
		t.Error(err)
	}
	if _, err := holders(t.Context(), m, "other", lvs(lv1)); volume.CodeOf(err) != volume.Unknown {
		t.Error(err)
	}
}
