//go:build vm

package lvm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// A lab is a machine with device-mapper whose disks the tests may overwrite: the VM of
// scripts/vm. FLEXD_TEST_DISKS lists the disks, separated by commas.
type lab struct {
	*testing.T
	*Provider
	*recorder
	disks []string
	dir   string
	lock  string
}

// newLab returns blank disks and a provider of vg0 on the first two.
func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Getenv("FLEXD_TEST_DISKS") == "" {
		t.Fatal("needs device-mapper and disks to overwrite: make test-vm")
	}
	l := &lab{T: t, disks: strings.Split(os.Getenv("FLEXD_TEST_DISKS"), ","), dir: t.TempDir()}
	l.lock = filepath.Join(l.dir, "lane")
	if len(l.disks) < 4 {
		t.Fatal("FLEXD_TEST_DISKS: 4 disks are needed")
	}
	l.wipe()
	t.Cleanup(l.wipe)
	l.sh("vgcreate", "-q", "vg0", l.disks[0], l.disks[1])
	l.restart(Group{})
	return l
}

// restart makes the provider forget its state.
func (l *lab) restart(g Group) {
	l.recorder = &recorder{t: l.T, Runner: run.NewExec()}
	l.Provider = New(Options{Runner: l.recorder, LockDir: filepath.Join(l.dir, "locks"), DiskDir: filepath.Join(l.dir, "disks"), Groups: map[string]Group{"vg0": g, "vg1": {}}})
}

func (l *lab) wipe() {
	l.Helper()
	// What a failed test left, from the top.
	for range 8 {
		exec.Command("dmsetup", "remove_all", "--noudevsync").Run()
		if left, _ := filepath.Glob("/sys/block/dm-*"); len(left) == 0 {
			break
		}
	}
	for _, d := range l.disks {
		if out, err := exec.Command("blkdiscard", "-z", d).CombinedOutput(); err != nil {
			l.Fatalf("%v: %s", err, out)
		}
	}
	for _, vg := range []string{"vg0", "vg1", "a-b.c+d_e"} {
		os.RemoveAll("/dev/" + vg)
		os.RemoveAll("/etc/lvm/backup/" + vg)
	}
	exec.Command("sh", "-c", "rm -f /dev/mapper/vg* /dev/mapper/a--* /etc/lvm/archive/*").Run()
}

func (l *lab) sh(argv ...string) string {
	l.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		l.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// lvm runs several commands in one process, which takes little longer than one.
func (l *lab) lvm(commands ...string) {
	l.Helper()
	c := exec.Command("lvm")
	c.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	out, err := c.CombinedOutput()
	if err != nil {
		l.Fatalf("lvm: %v\n%s", err, out)
	}
	l.Invalidate("")
}

// lv creates an inactive volume by hand.
func (l *lab) lv(name string, size string) volume.LV {
	l.Helper()
	l.sh("lvcreate", "-q", "-y", "-an", "-Zn", "-Wn", "-L", size, "-n", name, "vg0")
	l.Invalidate("")
	return l.lookUp(name)
}

func (l *lab) lookUp(name string) volume.LV {
	l.Helper()
	lv, err := l.LookUp(l.Context(), volume.Name{VG: "vg0", LV: name})
	if err != nil {
		l.Fatal(err)
	}
	return lv
}

func (l *lab) present(name string) volume.LV {
	l.Helper()
	lv := l.lookUp(name)
	if lv.Presence != volume.Present {
		l.Fatalf("%s: got %+v", name, lv)
	}
	return lv
}

func (l *lab) device(lv volume.LV) volume.Device {
	l.Helper()
	d, err := l.Device(l.Context(), lv)
	if err != nil {
		l.Fatal(err)
	}
	return d
}

func (l *lab) activate(lv volume.LV) volume.Device {
	l.Helper()
	if err := l.Activate(l.Context(), l.lock, lv); err != nil {
		l.Fatal(err)
	}
	d := l.device(lv)
	if want := "/dev/" + lv.Name.String(); d.Activity != volume.Active || d.Unusable || d.Link != want || d.Size < lv.Size {
		l.Fatalf("activate %s: got %+v", lv.Name, d)
	}
	return d
}

func (l *lab) deactivate(lv volume.LV) {
	l.Helper()
	if err := l.Deactivate(l.Context(), l.lock, lv, l.device(lv)); err != nil {
		l.Fatal(err)
	}
	if d := l.device(lv); d.Activity != volume.Inactive {
		l.Fatalf("deactivate %s: got %+v", lv.Name, d)
	}
}

// try runs a command that may fail.
func (l *lab) try(argv ...string) bool { return exec.Command(argv[0], argv[1:]...).Run() == nil }

// fragile makes a disk of device-mapper over one of the lab's. reload lets it fail all requests, or work again.
func (l *lab) fragile(name, disk string) (path string, reload func(fails bool)) {
	l.Helper()
	sectors, err := strconv.Atoi(l.sh("blockdev", "--getsz", disk))
	if err != nil {
		l.Fatal(err)
	}
	sectors -= 2048
	whole := fmt.Sprintf("0 %d linear %s 2048", sectors, disk)
	l.sh("dmsetup", "create", "--noudevsync", name, "--table", whole)
	l.sh("dmsetup", "mknodes")
	return "/dev/mapper/" + name, func(fails bool) {
		l.Helper()
		table := whole
		if fails {
			table = fmt.Sprintf("0 %d error", sectors)
		}
		l.sh("dmsetup", "reload", name, "--table", table)
		l.sh("dmsetup", "suspend", "--nolockfs", "--noudevsync", name)
		l.sh("dmsetup", "resume", "--noudevsync", name)
	}
}
