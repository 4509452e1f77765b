package flexserve

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/boottime"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/test/umount"
)

// The clock of a caller in another time namespace may be days behind: a call does not begin before the start
// of its process.
func TestCallerInTimeNamespace(t *testing.T) {
	f := &Frontend{Boot: boottime.Now}
	now := boottime.Now()
	c, leave := f.caller(flexvolume.Request{Started: 1}, os.Getpid())
	defer leave()
	if age := now - c.Started; age > time.Minute*10 || c.Started > now {
		t.Errorf("the call is %v old", age)
	}
}

// A caller in a chroot of the same mount namespace sees other directories at flexd's paths.
func TestCallerInChroot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	own, err := OwnNamespaces()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := syscall.Mount("/", dir, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := umount.Plain(dir); err != nil {
			t.Error(err)
		}
	}()
	for root, want := range map[string]bool{"": false, dir: true} {
		c := exec.Command("/bin/sh", "-c", "read line")
		c.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if got, err := (namespace{c.Process.Pid, own}).Other(); err != nil || got != want {
			t.Errorf("root %q: got %v, %v", root, got, err)
		}
		in.Close()
		_ = c.Wait()
	}
}
