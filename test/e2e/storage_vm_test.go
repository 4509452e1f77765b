//go:build vm

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// soon is how long the virtual machine may take for what is quick.
	soon = time.Minute
	// pace is how much slower than its host it is.
	pace = 15
	// LVM's commands make thousands of system calls, and each damage of a file takes seconds here:
	// strikes of them are drawn for each verb, and twice as many damages.
	exhaustive, strikes = false, 10
	// slowSize makes mkfs take long enough to be caught at it; slowText is how it is shown.
	slowSize, slowText = "128Mi", "128 MiB"
	// block is how the kernel calls the device of a volume.
	block = "/dev/dm-"
)

// long are the tests that run only with FLEXD_SOAK or by name: they take long and show little about LVM, and
// the host runs them each time.
var long = []string{
	"TestHundredTimes", "TestDirectoryKept", "TestDetachMeanwhile", "TestPodsComeAndGo", "TestReadOnlyBesideReadWrite",
	"TestAnyOrder", "TestFlexdriverKilled", "TestKubeletDies", "TestDamagedFiles", "TestForeignMounts",
	"TestGroupTakenFromConfiguration", "TestErrorReportedWithoutCall", "TestFilesystemInError",
	"TestLoad", "TestOptionsAsAttacks", "TestSecrets", "TestRootBehindSymlink",
	"TestRootUnderTwoPaths", "TestOtherNamespace", "TestFlexdriverKilledAtEachCall",
	"TestMkfsKilled", "TestRecoveryAsSeen", "TestOrphans", "TestNoRoom", "TestNoRoomAtTheStart", "TestStatusSocket",
	"TestTornWithoutRoom", "TestReadOnlyRun", "TestOptionsThatHold", "TestSecondFlexd", "TestSIGTERM", "TestRunDirectoryLost",
	"TestCrashLoop", "TestMountedOverKubeletsDirectory", "TestBusyThenWantedAgain", "TestPlainOpen", "TestRootBoundOnItself",
	"TestMountedBySomethingElse", "TestRemountedReadOnly", "TestCrowd", "TestFlexdKilledAtEachCall", "TestLateAfterRestart",
	"TestPropagationChanges", "TestExplain", "TestReload", "TestKillAnywhere", "TestMeddlingAtEachPoint", "TestBusy", "TestNeverFormat",
	"TestHistory", "TestMountOnMissingDirectory", "TestMemberInFiles", "TestRefusedByConfiguration",
	// These are about the mount table and kubelet's directories, which are the same for loop devices.
	"TestRootAtAnotherPath", "TestRootMoved", "TestRootUnderSlavePaths", "TestRenamedDirectory", "TestAnotherDriversDirectory",
	"TestBtrfsSubvolumes", "TestRemountedWithoutFlag", "TestLogReaderGone",
}

// restricted are the tests for which systemd starts flexd, under the restrictions of its unit.
var restricted = []string{"TestUnit", "TestSystemd", "TestExpand", "TestThinAndThick", "TestFrozen"}

// tools are the required programs.
var tools = []string{"lvm"}

// disks may be overwritten: those of scripts/vm.
var disks = strings.Split(os.Getenv("FLEXD_TEST_DISKS"), ",")

func lacks() string {
	if len(disks) < 4 {
		return "device-mapper, and four disks to overwrite: make test-vm"
	}
	return ""
}

// executables returns the directory of flexd and flexdriver, which were built outside.
func executables(string) (string, error) {
	if dir := os.Getenv("FLEXD_TEST_BIN"); dir != "" {
		return dir, nil
	}
	return "", errors.New("FLEXD_TEST_BIN does not say where flexd and flexdriver are: make test-vm")
}

// groups is the storage of LVM. The group vg0 has the first two disks and is
// there for all tests; further groups are a test's own.
type groups struct {
	h    *host
	more []string // groups on the other disks
}

func newStorage(h *host) storage {
	s := &groups{h: h}
	makeVG0.Do(func() { s.lvm("vgcreate", "vg0", disks[0], disks[1]) })
	return s
}

var makeVG0 sync.Once

// lvm runs a command of an administrator's.
func (s *groups) lvm(command string, args ...string) string {
	s.h.t.Helper()
	return strings.TrimSpace(s.h.sh(append([]string{"env", "LVM_SUPPRESS_FD_WARNINGS=1", "lvm", command, "-qq"}, args...)...))
}

func (h *host) lvm(command string, args ...string) string {
	h.t.Helper()
	return h.storage.(*groups).lvm(command, args...)
}

// identity is the uuid of a volume in flexd's documents.
func (h *host) identity(name string) string {
	h.t.Helper()
	return h.lvm("lvs", "--noheadings", "--separator", "_", "-o", "vg_uuid,lv_uuid", name)
}

func (s *groups) group(vg string) string {
	if vg != "vg0" {
		s.groupOn(vg, disks[2])
	}
	return "provider: lvm" + everyNamespace
}

func (s *groups) missing(vg string) (config, called string) {
	return "provider: lvm" + everyNamespace, vg
}

// groupOn makes a volume group that is not one disk's.
func (s *groups) groupOn(vg string, disks ...string) {
	s.h.t.Helper()
	s.more = append(s.more, vg)
	s.lvm("vgcreate", append([]string{"-y", vg}, disks...)...)
}

func (s *groups) volume(name string, size int64, fill func(path string)) {
	s.h.t.Helper()
	vg, lv, _ := strings.Cut(name, "/")
	s.lvm("lvcreate", "-y", "-ay", "-Zn", "-Wn", "-L", fmt.Sprintf("%db", size), "-n", lv, vg)
	s.h.sh("blkdiscard", "-f", "-z", s.device(name)) // the extents may have been another test's
	if fill != nil {
		fill(s.device(name))
	}
	s.deactivate(name)
}

func (s *groups) volumes() []string {
	return strings.Fields(s.lvm("lvs", "--noheadings", "--separator", "/", "-o", "vg_name,lv_name"))
}

func (s *groups) extend(name string, size int64) {
	s.h.t.Helper()
	s.lvm("lvextend", "-L", fmt.Sprintf("%db", size), name)
}

func (s *groups) open(name string, f func(path string)) {
	s.h.t.Helper()
	if slices.Contains(s.Active(), name) {
		f(s.device(name))
		return
	}
	s.lvm("lvchange", "-ay", name)
	f(s.device(name))
	s.deactivate(name)
}

func (s *groups) device(name string) string { return "/dev/" + name }

// Active asks device-mapper, not LVM.
func (s *groups) Active() (all []string) {
	files, _ := filepath.Glob("/sys/block/dm-*/dm/name")
	for _, file := range files {
		b, _ := os.ReadFile(file)
		name := strings.NewReplacer("--", "-", "-", "/").Replace(strings.TrimSpace(string(b)))
		all = append(all, name)
	}
	return all
}

func (s *groups) deactivate(name string) {
	s.h.t.Helper()
	s.lvm("lvchange", "-an", name)
}

func (s *groups) remove(name string) {
	s.h.t.Helper()
	s.lvm("lvremove", "-y", name)
}

// Release is called until none is active: what lies on top goes first.
func (s *groups) Release() { exec.Command("dmsetup", "remove_all", "--noudevsync").Run() }

// Remove makes vg0 empty and the other disks blank.
func (s *groups) Remove() error {
	exec.Command("lvm", "lvremove", "-ff", "-y", "-qq", "vg0").Run()
	if len(s.more) == 0 {
		return nil
	}
	for _, disk := range disks[2:] {
		if f, err := os.OpenFile(disk, os.O_WRONLY, 0); err == nil {
			f.Write(make([]byte, 2*mib))
			f.Close()
		}
	}
	for _, vg := range s.more {
		os.RemoveAll("/dev/" + vg)
	}
	os.Remove("/run/lvm/hints") // where LVM thinks that there are labels
	return nil
}
