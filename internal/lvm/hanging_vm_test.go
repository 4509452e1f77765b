//go:build vm

package lvm

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// A disk hangs that is not suspended, and flexd knows nothing of its group: the first report
// of another group hangs and is repeated without the disk, and later ones do not read it,
// although the filter of the host accepts any name.
func TestVMHangingDisk(t *testing.T) {
	l := newLab(t)
	sectors, err := strconv.Atoi(l.sh("blockdev", "--getsz", l.disks[2]))
	if err != nil {
		t.Fatal(err)
	}
	l.sh("dmsetup", "create", "--noudevsync", "under", "--table", fmt.Sprintf("0 %d linear %s 2048", sectors-2048, l.disks[2]))
	l.sh("dmsetup", "create", "--noudevsync", "over", "--table", fmt.Sprintf("0 %d linear /dev/mapper/under 2048", sectors-4096))
	l.sh("dmsetup", "mknodes")
	t.Cleanup(func() { exec.Command("dmsetup", "resume", "--noudevsync", "under").Run() })
	l.sh("vgcreate", "-q", "vg1", "/dev/mapper/over")
	l.lv("data", "8M")
	restore := l.host(`devices/filter=["a|.*|"]`)
	defer restore()
	l.restart(Group{})
	l.CallDeadline = 20 * time.Second
	l.sh("rm", "-f", "/run/lvm/hints")
	l.sh("dmsetup", "suspend", "--nolockfs", "--noudevsync", "under")
	begun := time.Now()
	lv := l.present("data")
	if took := time.Since(begun); took > l.CallDeadline/2+2*time.Second {
		t.Errorf("it took %s", took)
	}
	if n := l.count("fullreport"); n != 2 {
		t.Errorf("%d reports", n)
	}
	var names []string
	list, err := l.DM.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range l.pending("/dev", list) {
		names = append(names, d.path)
	}
	if got := strings.Join(names, " "); got != "/dev/mapper/over" {
		t.Errorf("in flight: %q", got)
	}
	begun = time.Now()
	l.Invalidate("")
	l.activate(l.present("data"))
	l.deactivate(lv)
	_, err = l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: "there"})
	is(t, err, ErrFailed, "PVs are missing", "/dev/mapper/over")
	if took := time.Since(begun); took > l.CallDeadline/2 || errors.Is(err, ErrNoVG) || l.count("fullreport") != 2 {
		t.Errorf("%v, it took %s", err, took)
	}
	if blocks := l.Blocks(); len(blocks) != 0 {
		t.Errorf("blocked: %v", blocks)
	}
	l.sh("dmsetup", "resume", "--noudevsync", "under")
	if there, err := l.LookUp(t.Context(), volume.Name{VG: "vg1", LV: "there"}); err != nil || there.Presence != volume.Absent {
		t.Errorf("got %+v %v", there, err)
	}
}
