package lvm

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/run"
)

func TestCopiesInTurn(t *testing.T) {
	for name, c := range map[string]struct {
		events []uint64 // by leg; 0 = it cannot be read
		failed uint64   // in the newest
		older  []int
	}{
		"all current":                         {[]uint64{9, 9, 9, 9}, 0, nil},
		"a power cut between two superblocks": {[]uint64{8, 8, 9, 9}, 0, nil},
		"one failed":                          {[]uint64{5, 9, 9, 9}, 1, nil},
		"one of each pair":                    {[]uint64{5, 9, 9, 5}, 0b1001, nil},
		"the first, then its copy":            {[]uint64{5, 8, 9, 9}, 1, []int{0}},
		"the copy, then the first":            {[]uint64{8, 5, 9, 9}, 0b10, []int{1}},
		"the second pair":                     {[]uint64{9, 9, 7, 5}, 0b1000, []int{3}},
		"its copy cannot be read":             {[]uint64{5, 0, 9, 9}, 1, nil},
		"three pairs":                         {[]uint64{9, 9, 9, 9, 4, 6}, 0b10000, []int{4}},
		"two pairs":                           {[]uint64{5, 8, 5, 8, 9, 9}, 0b1111, []int{0, 2}},
		"none":                                {nil, 0, nil},
	} {
		var all []superblock
		for leg, events := range c.events {
			if events > 0 {
				all = append(all, superblock{Leg: leg, Events: events})
				if events == 9 {
					all[len(all)-1].Failed = c.failed
				}
			}
		}
		var got []int
		for _, s := range copiesInTurn(all, len(c.events)) {
			got = append(got, s.Leg)
		}
		if !slices.Equal(got, c.older) {
			t.Errorf("%s: got legs %d, want %d", name, got, c.older)
		}
	}
}

func TestParseSuperblock(t *testing.T) {
	b := make([]byte, 4096)
	if s, ok := parseSuperblock(b); ok {
		t.Errorf("zeros: %+v", s)
	}
	binary.LittleEndian.PutUint32(b, 0x64526d44)
	binary.LittleEndian.PutUint64(b[16:], 26)
	binary.LittleEndian.PutUint64(b[24:], 5)
	if s, ok := parseSuperblock(b); !ok || s.Events != 26 || s.Failed != 5 {
		t.Errorf("%+v, %t", s, ok)
	}
}

func TestNewest(t *testing.T) {
	all := []superblock{{Leg: 0, Events: 21}, {Leg: 1, Events: 24, Failed: 0b1}, {Leg: 2, Events: 29, Failed: 0b11}, {Leg: 3}}
	if got := newest(all); got.Leg != 2 {
		t.Errorf("got %+v", got)
	}
}

// A RAID with parity is diagnosed after the kernel has refused it, by the failed legs in the newest superblock.
func TestTooManyFailed(t *testing.T) {
	for _, row := range []struct {
		kind, failed string
		want         string
	}{
		{"raid5", "0", ""}, {"raid5", "1", ""}, {"raid5", "3", "2 legs of the raid5 vg0/v have failed"}, {"raid4", "6", "2 legs of the raid4"},
		{"raid6", "3", ""}, {"raid6", "7", "3 legs of the raid6"}, {"raid1", "3", ""},
	} {
		f, p := newFake(t, 0)
		f.lvs["v"] = &fakeLV{uuid: fakeUUID(0), size: 8 * mib, layout: "raid," + row.kind}
		lv := f.lookUp(p, "v")
		f.hook = func(c run.Cmd) (run.Result, error, bool) {
			return run.Result{Stdout: []byte(`{"value":[{"leg":0,"events":3,"failed":0},{"leg":2,"events":9,"failed":` + row.failed + `}]}`)}, nil, c.Argv[0] != "lvm"
		}
		err := p.groups["vg0"].tooManyFailed(t.Context(), "", p.groups["vg0"].lastFacts(), lv.UUID)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%+v: got %v", row, err)
		}
	}
}
