package lockspace

import (
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// Host 2 of the transcript reads its own locks: one that another host owns, whether that
// lives or not, or has given back, is taken. One that no other host has taken is not.
func TestOwnLocks(t *testing.T) {
	m, n := newNode(t, "live")
	d := readDisk(t, "leases-512.hex")
	reads := 0
	n.leases = func(a leasesArg) (*leasesAnswer, error) {
		if reads++; a.Path != "/dev/mapper/svg-lvmlock" || a.Lockspace != "lvm_svg" || a.MaxHost != 2 {
			t.Errorf("%+v", a)
		}
		return leasesOn(d, a)
	}
	taken := func(names ...string) map[volume.UUID]volume.Holder {
		t.Helper()
		got, err := m.Taken(t.Context(), "svg", lvs(names...))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := taken(lv1, lv2); len(got) != 1 || got["VG_"+lv1] != (volume.Holder{HostID: 1, Host: "n1"}) {
		t.Errorf("%+v", got)
	}
	if n.count("sanlock client status -D") != 1 || taken(lv2) == nil || n.count("sanlock client status -D") != 1 || reads != 2 {
		t.Errorf("the daemons are asked again: %v", reads)
	}
	untaken := func(names ...string) string { // lv1 is taken in any case
		t.Helper()
		got, err := m.Taken(t.Context(), "svg", lvs(names...))
		if len(got) != 1 || err == nil {
			t.Fatalf("%+v %v", got, err)
		}
		return err.Error()
	}
	d[71303168+3*512] = append(make([]byte, 52), 1) // lv2's sector of host 2: released,
	d[71303168][176] = 1                            // and the record is written by host 1
	if said := untaken(lv1, lv2); !strings.Contains(said, "nor another one holds its lock") {
		t.Error(said)
	}
	lease := d[71303168]
	lease[32] = 1
	if said := untaken(lv1, lv2); !strings.Contains(said, "checksum") {
		t.Error(said)
	}
	for _, last := range []byte{1, 2, 0} { // it is free; 0 = the lease was made anew
		lease[32] = last
		clear(lease[152:160])
		binary.LittleEndian.PutUint32(lease[summed:], ^crc32.Update(1, crc32.MakeTable(crc32.Castagnoli), lease[:summed]))
		if last != 1 {
			if said := untaken(lv1, lv2); !strings.Contains(said, "nor another one holds its lock") {
				t.Errorf("%d: %s", last, said)
			}
		} else if got := taken(lv2); len(got) != 1 || got["VG_"+lv2] != (volume.Holder{}) {
			t.Errorf("%+v", got)
		}
	}
	d[71303168] = make([]byte, 256) // damaged: no other host can take it
	if said := untaken(lv1, lv2); !strings.Contains(said, errNoRecord.Error()) {
		t.Error(said)
	}
	removed := binary.LittleEndian.AppendUint32(nil, clearedMagic)
	for _, record := range [][]byte{append(removed, make([]byte, 252)...), d[70254592]} { // removed; another volume's lease there
		d[71303168] = record
		if got := taken(lv2); len(got) != 1 || got["VG_"+lv2] != (volume.Holder{}) {
			t.Errorf("%+v", got)
		}
	}
	if _, err := m.Taken(t.Context(), "other", lvs(lv1)); err == nil || !strings.Contains(err.Error(), "not started") {
		t.Errorf("%v", err)
	}
}
