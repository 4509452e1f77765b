package hosttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// NewLVM returns this machine with a flexd on it whose volumes are real ones of
// LVM. The disks are those that FLEXD_TEST_DISKS names, and are overwritten; all
// tests of a process share their one volume group, so that one of them runs at a
// time.
func NewLVM(t testing.TB) *Env {
	group.use.Lock()
	t.Cleanup(group.use.Unlock)
	group.once.Do(makeGroup)
	if group.err != nil {
		t.Fatal(group.err)
	}
	e := newReal(t, TempDir(t), logical{})
	e.Limit, e.Config.Lease = 2*time.Minute, 300*time.Millisecond
	e.Start()
	return e
}

var group struct {
	use  sync.Mutex
	once sync.Once
	made bool
	err  error
}

func makeGroup() {
	disks := strings.Split(os.Getenv("FLEXD_TEST_DISKS"), ",")
	if disks[0] == "" {
		group.err = fmt.Errorf("needs device-mapper and disks to overwrite: make test-vm")
		return
	}
	group.err = lvmCommand("vgcreate", append([]string{VG}, disks...)...)
	group.made = group.err == nil
}

// leftInGroup lists the remaining volumes of this process's tests in LVM, device-mapper and the mount
// table; "" = none.
func leftInGroup() string {
	if !group.made {
		return ""
	}
	out, err := exec.Command("sh", "-c", "lvs --noheadings "+VG+"; dmsetup ls; grep /dev/dm- /proc/self/mountinfo").CombinedOutput()
	if left := strings.TrimSpace(string(out)); left != "No devices found" {
		return fmt.Sprintf("the tests have left (%v):\n%s\n", err, left)
	}
	return ""
}

// lvmCommand returns an administrator's command, without LVM's metadata backups.
func lvmCommand(name string, args ...string) error {
	c := exec.Command("lvm", append([]string{name, "-q", "-y", "--config", "backup{backup=0 archive=0}"}, args...)...)
	c.Env = append(os.Environ(), "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// logical are the volumes of LVM.
type logical struct{}

// configure sets LVM's filter, so that not every life of flexd reads it.
func (logical) configure(c *config.Config, vg *config.VolumeGroup) {
	c.LVMFilter = lvm.DefaultFilter
	vg.Provider = "lvm"
}

func (logical) provider(c *config.Config, r run.Runner) reconcile.Provider {
	return lvm.New(lvm.Options{
		Runner: r, LockDir: filepath.Join(c.RunDir, "lanes"), Groups: map[string]lvm.Group{VG: {}},
		Filter: c.LVMFilter,
	})
}

// Make zeroes the data of earlier volumes: LVM does not.
func (logical) Make(lv string, size int64) error {
	if err := lvmCommand("lvcreate", "-Wn", "-Zn", "-L", fmt.Sprintf("%db", size), "-n", lv, VG); err != nil {
		return err
	}
	name := VG + "/" + lv
	if out, err := exec.Command("blkdiscard", "-z", "/dev/"+name).CombinedOutput(); err != nil {
		return fmt.Errorf("blkdiscard: %w\n%s", err, out)
	}
	return lvmCommand("lvchange", "-an", name)
}

// Shell activates the volume while the script runs.
func (logical) Shell(lv, script string) error {
	name := VG + "/" + lv
	return shell("lvchange -ay " + name + "; trap 'lvchange -an " + name + "' EXIT; L=/dev/" + name + "; " + script)
}

// active reads device-mapper's state from sysfs.
func (logical) active() (all []volume.LV, err error) {
	names, err := filepath.Glob("/sys/block/dm-*/dm/name")
	for _, file := range names {
		name, err := os.ReadFile(file)
		uuid, uerr := os.ReadFile(filepath.Join(filepath.Dir(file), "uuid"))
		lv, ours := strings.CutPrefix(strings.TrimSpace(string(name)), VG+"-")
		if err != nil || uerr != nil || !ours {
			continue // it went, or is another's
		}
		all = append(all, volume.LV{Name: volume.Name{VG: VG, LV: strings.ReplaceAll(lv, "--", "-")}, UUID: lvUUID(string(uuid))})
	}
	return all, err
}

// lvUUID returns the identity of a volume from its device-mapper uuid.
func lvUUID(dm string) volume.UUID {
	s := strings.TrimPrefix(strings.TrimSpace(dm), "LVM-")
	if len(s) != 64 {
		return ""
	}
	half := func(s string) string {
		return strings.Join([]string{s[:6], s[6:10], s[10:14], s[14:18], s[18:22], s[22:26], s[26:]}, "-")
	}
	return volume.UUID(half(s[:32]) + "_" + half(s[32:]))
}

// sweep waits for the commands of killed flexds, and removes all volumes.
func (s logical) sweep(e *Env) {
	locks, _ := filepath.Glob(filepath.Join(e.Config.RunDir, "lanes", "*"))
	for end := time.Now().Add(e.Limit); len(locks) > 0; {
		free, pids, err := run.LockFree(locks[0])
		switch {
		case err != nil || free:
			locks = locks[1:]
		case time.Now().After(end):
			e.T.Errorf("pids %v still work on %s", pids, locks[0])
			return
		default:
			time.Sleep(20 * time.Millisecond)
		}
	}
	if err := lvmCommand("lvremove", "-f", VG); err != nil {
		e.T.Error(err)
	}
	if left, err := s.active(); len(left) > 0 || err != nil {
		e.T.Errorf("devices are left: %v %v", left, err)
	}
}
