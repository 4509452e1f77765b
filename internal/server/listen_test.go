package server

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// socketPath is short: t.TempDir's may be longer than a socket's path can be.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "flexd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// leave makes a socket whose daemon is dead.
func leave(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
}

func TestListen(t *testing.T) {
	for _, row := range []struct {
		about string
		there func(t *testing.T, path string)
		group string
		want  string // in the error; "" = it listens
	}{
		{"nothing there", func(t *testing.T, path string) {}, "", ""},
		{"dead socket", leave, "", ""},
		{"group by number", leave, strconv.Itoa(os.Getegid()), ""},
		{"no such group", func(t *testing.T, path string) {}, "no-such-group", `there is no group "no-such-group" on this machine`},
		{"living daemon", func(t *testing.T, path string) {
			l, err := Listen(path, 0o600, "")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}, "", "another flexd is running, or systemd listens for it (socket "},
		{"full queue", func(t *testing.T, path string) {
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			if err == nil {
				err = syscall.Bind(fd, &syscall.SockaddrUnix{Name: path})
			}
			if err == nil {
				err = syscall.Listen(fd, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { syscall.Close(fd) })
			for {
				c, err := net.Dial("unix", path)
				if err != nil {
					return
				}
				t.Cleanup(func() { c.Close() })
			}
		}, "", "another flexd seems to be running"},
		{"datagram socket", func(t *testing.T, path string) {
			c, err := net.ListenPacket("unixgram", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}, "", "another flexd seems to be running"},
		{"file", func(t *testing.T, path string) { os.WriteFile(path, []byte("data"), 0o600) }, "", "something else is there"},
		{"directory", func(t *testing.T, path string) { os.Mkdir(path, 0o700) }, "", "something else is there"},
		{"symlink to a dead socket", func(t *testing.T, path string) { leave(t, path+"2"); os.Symlink(path+"2", path) }, "", "something else is there"},
		{"no directory", func(t *testing.T, path string) { os.Remove(filepath.Dir(path)) }, "", "no such file or directory"},
	} {
		t.Run(row.about, func(t *testing.T) {
			path := socketPath(t)
			row.there(t, path)
			before, _ := os.Lstat(path)
			l, err := Listen(path, 0o660, row.group)
			if row.want != "" {
				if err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), path) {
					t.Errorf("error %v, want %q and the path", err, row.want)
				}
				after, _ := os.Lstat(path)
				if before != nil && (after == nil || !os.SameFile(before, after)) {
					t.Error("what was there is gone")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if st, err := os.Lstat(path); err != nil || st.Mode() != os.ModeSocket|0o660 {
				t.Errorf("mode %v, %v", st.Mode(), err)
			}
		})
	}
}

// At no instant may others connect: before chmod the socket is root's alone,
// whatever the umask.
func TestListenIsPrivateFromTheStart(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := socketPath(t)
	l, err := Listen(path, 0o600, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if st, _ := os.Lstat(path); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
}

// A socket on which systemd listens is taken, unless its file was removed: no client
// would reach it.
func TestInherited(t *testing.T) {
	path := socketPath(t)
	systemd, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	systemd.(*net.UnixListener).SetUnlinkOnClose(false)
	other, err := net.Listen("unix", path+"2")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l, err := Listen(path, 0o640, "", nil, other, systemd)
	if err != nil || l != systemd {
		t.Fatalf("%v, %v", l, err)
	}
	if st, err := os.Lstat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	l, err = Listen(path, 0o640, "", other, systemd)
	if err != nil || l == systemd {
		t.Fatalf("%v, %v", l, err)
	}
	defer l.Close()
	systemd.Close()
	if c, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
}

// A daemon that was killed leaves its own socket where systemd's was removed.
func TestInheritedWithoutFile(t *testing.T) {
	path := socketPath(t)
	systemd, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	systemd.(*net.UnixListener).SetUnlinkOnClose(false)
	defer systemd.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	killed, err := Listen(path, 0o600, "", systemd)
	if err != nil || killed == systemd {
		t.Fatalf("%v, %v", killed, err)
	}
	killed.(*net.UnixListener).SetUnlinkOnClose(false)
	killed.Close()
	l, err := Listen(path, 0o600, "", systemd)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("no client reaches the daemon: %v", err)
	} else {
		c.Close()
	}
}

// /var/run is a link to /run.
func TestInheritedByLink(t *testing.T) {
	path := socketPath(t)
	systemd, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	link := filepath.Join(t.TempDir(), "l")
	if err := os.Symlink(filepath.Dir(path), link); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(filepath.Join(link, filepath.Base(path)), 0o600, "", systemd); err != nil || l != systemd {
		t.Errorf("%v, %v", l, err)
	}
}

func TestListenLongPath(t *testing.T) {
	if _, err := Listen("/tmp/"+strings.Repeat("x", 103), 0o600, ""); err == nil || !strings.Contains(err.Error(), "108 bytes, at most 107") {
		t.Error(err)
	}
}

func TestLock(t *testing.T) {
	path := socketPath(t) + ".lock"
	os.WriteFile(path, []byte("4294967295 an old and longer text\n"), 0o600)
	f, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if pid, _ := os.ReadFile(path); string(pid) != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("the lock file holds %q", pid)
	}
	if _, err := Lock(path); err == nil || !strings.Contains(err.Error(), "another flexd is running (pid "+strconv.Itoa(os.Getpid())+", ") {
		t.Errorf("second lock: %v", err)
	}
	f.Close()
	if f, err = Lock(path); err != nil {
		t.Fatalf("lock of a dead daemon: %v", err)
	}
	f.Close()
}
