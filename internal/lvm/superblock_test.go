package lvm

import (
	"encoding/binary"
	"testing"
)

func TestCopiesInTurn(t *testing.T) {
	for name, c := range map[string]struct {
		events []uint64 // by leg; 0 = it cannot be read
		failed uint64   // in the newest
		older  int      // -1 = none
	}{
		"all current":                         {[]uint64{9, 9, 9, 9}, 0, -1},
		"a power cut between two superblocks": {[]uint64{8, 8, 9, 9}, 0, -1},
		"one failed":                          {[]uint64{5, 9, 9, 9}, 1, -1},
		"one of each pair":                    {[]uint64{5, 9, 9, 5}, 0b1001, -1},
		"the first, then its copy":            {[]uint64{5, 8, 9, 9}, 1, 0},
		"the copy, then the first":            {[]uint64{8, 5, 9, 9}, 0b10, 1},
		"the second pair":                     {[]uint64{9, 9, 7, 5}, 0b1000, 3},
		"its copy cannot be read":             {[]uint64{5, 0, 9, 9}, 1, -1},
		"three pairs":                         {[]uint64{9, 9, 9, 9, 4, 6}, 0b10000, 4},
		"none":                                {nil, 0, -1},
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
		got := -1
		if s, _ := copiesInTurn(all, len(c.events)); s != nil {
			got = s.Leg
		}
		if got != c.older {
			t.Errorf("%s: got leg %d, want %d", name, got, c.older)
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
