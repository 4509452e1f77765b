package lvm

import (
	"encoding/binary"
	"slices"
	"testing"
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

func TestFailedLegs(t *testing.T) {
	all := []superblock{{Leg: 0, Events: 21}, {Leg: 1, Events: 24, Failed: 0b1}, {Leg: 2, Events: 29, Failed: 0b11}}
	for legs, want := range []int{0, 0, 1, 2} {
		if got := failedLegs(all[:legs]); got != want {
			t.Errorf("%d legs: got %d, want %d", legs, got, want)
		}
	}
}
