//go:build vm

package reboot

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/flexd/flexd/test/host"
)

// The lives of a node. In each of them one pod outlives the end, and one does not.
const (
	firstLife  = "first life"      // ends with a power cut, while a third pod's volume is being made
	afterCut   = "after power cut" // systemd starts flexd, and reboots the machine
	afterClean = "after clean end" // ends as it likes
	whichLife  = "FLEXD_TEST_LIFE" // the environment of the test in the VM
	whichMode  = "FLEXD_TEST_ATTACH"
)

// wasCut is the status of a VM whose power the test cut: no other end looks so.
const wasCut = 42

// TestReboot is the host's part, and in the VM that it boots again and again it
// is the node's.
func TestReboot(t *testing.T) {
	if life := os.Getenv(whichLife); life != "" {
		attach, err := strconv.ParseBool(os.Getenv(whichMode))
		if err != nil {
			t.Fatal(err)
		}
		live(t, life, attach)
		return
	}
	if os.Getenv("FLEXD_TEST_DISKS") != "" {
		t.Fatal("boots machines itself, and is not for one: scripts/test-vm ./test/reboot")
	}
	modes := []bool{true, false}
	if os.Getenv("FLEXD_SOAK") == "" { // three boots each: one of the two, at random
		i := host.Random(t).IntN(2)
		modes = modes[i : i+1]
	}
	for _, attach := range modes {
		t.Run(fmt.Sprintf("attach=%v", attach), func(t *testing.T) {
			m := machine{dir: t.TempDir(), test: "TestReboot", attach: attach}
			m.boot(t, firstLife, wasCut)
			m.boot(t, afterCut, rebooted)
			m.boot(t, afterClean, map[bool]int{true: hung, false: 0}[attach])
		})
	}
}

// A machine has two disks that outlive its boots: LVM's and the node's own.
type machine struct {
	dir    string
	test   string
	attach bool
}

// boot boots the machine for one life, which must end with that status.
func (m machine) boot(t *testing.T, life string, want int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	vm := exec.CommandContext(t.Context(), root+"/scripts/vm", "-yqt", "240",
		"-D", m.dir+"/lvm:2G", "-D", m.dir+"/node:1G",
		"-e", whichLife+"="+life, "-e", fmt.Sprintf("%s=%v", whichMode, m.attach), "-e", "FLEXD_TEST_BIN="+root+"/bin/vm",
		"--", self, "-test.v", "-test.run", "^"+m.test+"$")
	vm.WaitDelay = 10 * time.Second
	started := time.Now()
	out, err := vm.CombinedOutput()
	took := time.Since(started)
	status := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		status = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if status != want {
		t.Fatalf("%s: status %d, not %d, after %.1f s:\n%s", life, status, want, took.Seconds(), out)
	}
	t.Logf("%s: %.1f s", life, took.Seconds())
}
