package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/test/umount"
)

// landedBelow mounts the device below another mount, which is shared if shared is true.
func (r *rig) landedBelow(shared bool) (dir string) {
	r.Helper()
	below := r.mkdir("below")
	if shared {
		for _, err := range []error{unix.Mount("tmpfs", below, "tmpfs", 0, ""), unix.Mount("", below, "", unix.MS_SHARED, "")} {
			if err != nil {
				r.Fatal(err)
			}
		}
		r.Cleanup(func() { umount.Plain(below) })
	}
	dir = r.mkdir("below/m")
	r.mount(r.spec(dir))
	return dir
}

// amongOurs runs the test again in a new pid namespace if there are processes that even root may not read. It
// returns whether it did.
func amongOurs(t *testing.T) bool {
	const inside = "FLEXD_TEST_PIDS"
	if _, err := os.Readlink("/proc/1/ns/mnt"); err == nil || os.Getenv(inside) != "" {
		return false
	}
	need(t, "unshare")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", exe, "-test.run", "^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), inside+"=1")
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return true
}

// Ensure that an unmount which must leave no other mount of the device fails while another
// mount namespace has one, names a process there, and also unmounts the copies that
// follow the mount.
func TestUnmountAlone(t *testing.T) {
	if amongOurs(t) {
		return
	}
	for _, row := range []struct {
		name    string
		shared  bool // the mount below it
		unshare []string
		holder  string // how the other namespace has it; "" = it does not keep it
	}{
		{"no other namespace", false, nil, ""},
		{"a copy of its own", false, []string{"unshare", "-m", "--propagation", "unchanged"}, "%s"},
		{"a copy that was cut off", true, []string{"unshare", "-m", "--propagation", "private"}, "%s"},
		{"a copy that follows", true, []string{"unshare", "-m", "--propagation", "slave"}, ""},
		{"a copy that follows a copy", true, []string{"unshare", "-m", "--propagation", "slave", "sh", "-c",
			`mount --make-rshared / && { tail --pid=$$ -f /dev/null & exec unshare -m --propagation slave "$@"; }`, "sh"}, ""},
		{"a copy in one peer group", true, []string{"unshare", "-m", "--propagation", "unchanged"}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t, 64*mib)
			r.format("ext4")
			dir := r.landedBelow(row.shared)
			if row.unshare != nil {
				c := exec.Command(row.unshare[0], append(row.unshare[1:], "sleep", "60")...)
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				stop := func() { c.Process.Kill(); c.Wait() }
				defer stop()
				comm := fmt.Sprintf("/proc/%d/comm", c.Process.Pid)
				for b := []byte(nil); strings.TrimSpace(string(b)) != "sleep"; b, _ = os.ReadFile(comm) {
					time.Sleep(time.Millisecond) // it is not in its namespace yet
				}
				if row.holder != "" {
					ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", c.Process.Pid))
					if err != nil {
						t.Fatal(err)
					}
					err = r.UnmountAlone(t.Context(), r.lock, dir, r.dev.Number, true)
					var busy *BusyError
					if !errors.As(err, &busy) || len(busy.Holders) != 1 || busy.Holders[0].Pid != c.Process.Pid || busy.Holders[0].Comm != "sleep" ||
						!strings.Contains(busy.Holders[0].How, fmt.Sprintf("mounted in its mount namespace %s at "+row.holder, ns, dir)) {
						t.Errorf("got %v", err)
					}
					if len(r.mounts()) != 1 {
						t.Error("it is gone all the same")
					}
					stop()
					time.Sleep(10 * time.Millisecond)
				}
			}
			if err := r.UnmountAlone(t.Context(), r.lock, dir, r.dev.Number, true); err != nil {
				t.Error(err)
			}
			if len(r.mounts()) != 0 {
				t.Error("it is still mounted")
			}
		})
	}
}

// A mount table of another namespace that is too large proves nothing either.
func TestReadTable(t *testing.T) {
	if _, err := readTable("/proc/self/mountinfo"); err != nil {
		t.Error(err)
	}
	defer func(n int) { maxTable = n }(maxTable)
	maxTable = 1
	if _, err := readTable("/proc/self/mountinfo"); !errors.Is(err, errTableTooLarge) || gone(err) {
		t.Errorf("got %v", err)
	}
}

// Ensure that an unreadable mount namespace without a process proves nothing.
func TestUnmountAloneUnreadableNamespace(t *testing.T) {
	if amongOurs(t) {
		return
	}
	r := newRig(t, 64*mib)
	r.format("ext4")
	dir := r.mkdir("m")
	r.mount(r.spec(dir))
	private := r.mkdir("ns") // the kernel keeps a mount namespace on a private mount only
	for _, err := range []error{unix.Mount("tmpfs", private, "tmpfs", 0, ""), unix.Mount("", private, "", unix.MS_PRIVATE, "")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	defer umount.Plain(private)
	file := filepath.Join(private, "mnt")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// The kernel keeps only a namespace with a higher number than one's own, and
	// newer ones (6.18) give out numbers by the processor.
	var out []byte
	err := errors.New("no processor")
	for cpu := 0; err != nil && cpu < runtime.NumCPU(); cpu++ {
		out, err = exec.Command("taskset", "-c", strconv.Itoa(cpu), "unshare", "--mount="+file, "--propagation", "private", "true").CombinedOutput()
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := r.UnmountAlone(t.Context(), r.lock, dir, r.dev.Number, true); err == nil || !strings.Contains(err.Error(), "without a process") || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
	if len(r.mounts()) != 1 {
		t.Error("it is gone all the same")
	}
	if err := umount.Plain(file); err != nil {
		t.Fatal(err)
	}
	if err := r.UnmountAlone(t.Context(), r.lock, dir, r.dev.Number, true); err != nil {
		t.Error(err)
	}
}

// Ensure that there is no proof if flexd does not see all processes.
func TestUnmountAloneInAPidNamespace(t *testing.T) {
	defer func(old string) { procfs.HostPids = old }(procfs.HostPids)
	procfs.HostPids = "pid:[1]"
	if err := procfs.SeesAll(); err == nil || !strings.Contains(err.Error(), "pid namespace of its own") {
		t.Errorf("got %v", err)
	}
	if _, err := elsewhere(nil, nil, "7:0"); err == nil {
		t.Error("it was looked all the same")
	}
}
