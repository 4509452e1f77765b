package flexvolume

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRunAnswersItsOwnPanic(t *testing.T) {
	var out bytes.Buffer
	for what, boom := range map[string]func(string) string{
		"panicked, which is a bug": func(string) string { panic("the argument c2VjcmV0") },
		"panicked, which is a bug: runtime error: index out of range [0] wi": func(string) string { return []string{}[0] },
	} {
		out.Reset()
		if code := Run([]string{"lvm", "mount", podDir, "{}"}, &out, boom); code != 0 {
			t.Errorf("exit %d", code)
		}
		onlyJSON(t, out.Bytes())
		if !strings.Contains(out.String(), what) || strings.Contains(out.String(), "c2VjcmV0") {
			t.Errorf("got %s", out.String())
		}
	}
}

func TestRunWithoutVerb(t *testing.T) {
	for _, args := range [][]string{nil, {"lvm"}} {
		var out bytes.Buffer
		if code := Run(args, &out, os.Getenv); code != 0 || !strings.HasPrefix(out.String(), `{"status":"Failure","message":"no verb`) {
			t.Errorf("%d %s", code, out.String())
		}
	}
}

// flexd doctor compares the versions.
func TestPrintVersion(t *testing.T) {
	var out bytes.Buffer
	if code := Run([]string{"lvm", PrintVersion}, &out, os.Getenv); code != 0 || out.String() != `{"status":"Success","message":"devel"}`+"\n" {
		t.Errorf("%d %s", code, out.String())
	}
}

func TestRunRefusesWrongEnvironment(t *testing.T) {
	for _, value := range []string{"x", "0s", "-1s", "6m", "5"} {
		var out bytes.Buffer
		env := func(name string) string { return map[string]string{EnvTimeout: value}[name] }
		Run([]string{"lvm", "unmount", podDir}, &out, env)
		if !strings.HasPrefix(out.String(), `{"status":"Failure","message":"FLEXD_TIMEOUT=`) {
			t.Errorf("%s: %s", value, out.String())
		}
	}
}

// listen is a fake flexd: serve gets each connection's reader and number.
func listen(t *testing.T, serve func(n int, q Request, err error, c net.Conn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			q, err := ReadRequest(bufio.NewReader(c))
			serve(n, q, err, c)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return path
}

func client(path string) Client {
	return Client{Socket: path, Timeout: 10 * time.Second, Connect: time.Second, Parent: os.Getppid()}
}

func TestClientAsksAgainUnderTheSameID(t *testing.T) {
	var ids []string
	c := client(listen(t, func(n int, q Request, err error, c net.Conn) {
		ids = append(ids, q.ID)
		if n == 4 {
			WriteReply(c, Reply{ID: q.ID, Answer: Answer{Status: StatusSuccess, Device: "/dev/x"}})
		} else {
			io.WriteString(c, `{"v":1,"id":"`[:n*3])
		}
	}))
	a, err := c.Ask(Request{ID: "ab12", Verb: "waitforattach", Args: []string{"", "{}"}})
	if err != nil || a.Device != "/dev/x" || strings.Join(ids, " ") != "ab12 ab12 ab12 ab12" {
		t.Errorf("%+v, %v, asked as %s", a, err, ids)
	}
}

// A daemon that closes the connection before it has read the whole request may still have answered.
func TestClientReadsAnswerBeforeHangup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			WriteReply(c, Reply{ID: "ab12", Answer: Failure("enough")})
			c.(*net.UnixConn).CloseWrite()
			time.Sleep(50 * time.Millisecond)
			c.Close()
		}
	}()
	c := client(path)
	a, err := c.Ask(Request{ID: "ab12", Verb: "mount", Args: []string{strings.Repeat("x", MaxLine/2)}})
	if err != nil || a.Message != "enough" {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestClientPassesTheLargestMessage(t *testing.T) {
	size := 0
	c := client(listen(t, func(n int, q Request, err error, c net.Conn) {
		time.Sleep(50 * time.Millisecond)
		size = len(q.Args[0])
		WriteReply(c, Reply{ID: q.ID, Answer: Failure(strings.Repeat("x", 2000))})
	}))
	if a, err := c.Ask(Request{ID: "ab12", Verb: "mount", Args: []string{strings.Repeat("x", MaxLine-100)}}); err != nil || len(a.Message) != MaxMessage || size != MaxLine-100 {
		t.Errorf("%d bytes arrived, %d came back, %v", size, len(a.Message), err)
	}
}

func TestClientEnds(t *testing.T) {
	silent := func(n int, q Request, err error, c net.Conn) { io.Copy(io.Discard, c) }
	deaf := listen(t, silent)
	missing := filepath.Join(t.TempDir(), "s")
	restarting := listen(t, func(n int, q Request, err error, c net.Conn) {})
	lock, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	free := lock.Name() + ".free"
	if err := errors.Join(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX), os.WriteFile(free, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		c     Client
		want  func(error) bool
		least time.Duration
	}{
		{"never an answer", Client{Socket: deaf, Timeout: 250 * time.Millisecond, Connect: time.Second, Parent: os.Getppid()}, is(ErrDeadline), 250 * time.Millisecond},
		{"never an answer of a flexd that lives", Client{Socket: deaf, Timeout: 250 * time.Millisecond, Connect: 50 * time.Millisecond, Lock: lock.Name(), Parent: os.Getppid()}, is(ErrDeadline), 250 * time.Millisecond},
		{"systemd listens", Client{Socket: deaf, Timeout: time.Minute, Connect: 250 * time.Millisecond, Lock: free, Parent: os.Getppid()}, down(errNoFlexd), 250 * time.Millisecond},
		{"systemd listens from boot on", Client{Socket: deaf, Timeout: time.Minute, Connect: 250 * time.Millisecond, Lock: missing, Parent: os.Getppid()}, down(errNoFlexd), 250 * time.Millisecond},
		{"always hangs up", Client{Socket: restarting, Timeout: 250 * time.Millisecond, Connect: time.Second, Parent: os.Getppid()}, is(ErrDeadline), 250 * time.Millisecond},
		{"nothing listens", Client{Socket: missing, Timeout: time.Minute, Connect: 250 * time.Millisecond, Parent: os.Getppid()}, down(syscall.ENOENT), 250 * time.Millisecond},
		{"nothing listens, a hint", Client{Socket: missing, Timeout: time.Minute, Connect: time.Minute, Once: true, Parent: os.Getppid()}, down(syscall.ENOENT), 0},
		{"a path too long", Client{Socket: strings.Repeat("x", 200), Timeout: time.Minute, Connect: 50 * time.Millisecond, Parent: os.Getppid()}, down(syscall.EINVAL), 0},
		{"the parent is gone while it waits", Client{Socket: deaf, Timeout: time.Minute, Connect: time.Second, Parent: -1}, is(ErrOrphaned), 0},
		{"the parent is gone while it connects", Client{Socket: missing, Timeout: time.Minute, Connect: time.Minute, Parent: -1}, is(ErrOrphaned), 0},
	} {
		start := time.Now()
		a, err := tt.c.Ask(Request{ID: "ab12", Verb: "unmount", Args: []string{"/x"}})
		if took := time.Since(start); !tt.want(err) || took < tt.least || took > tt.least+20*time.Second {
			t.Errorf("%s: %+v, %v after %v", tt.name, a, err, took)
		}
	}
}

// A flexd that was killed while a disk hangs neither answers nor closes the connection, and the next one has
// replaced its lock file, or its socket: the call goes to the new one.
func TestClientLeavesADyingFlexd(t *testing.T) {
	dir := t.TempDir()
	locked := func(path string) {
		f, err := os.Create(path)
		if err == nil {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
	}
	locked(dir + "/lock")
	locked(dir + "/next")
	for _, replaced := range []string{"socket", "lock"} {
		var socket string
		socket = listen(t, func(n int, q Request, err error, conn net.Conn) {
			if n > 1 {
				WriteReply(conn, Reply{ID: q.ID, Answer: Success()})
				return
			}
			if replaced == "lock" {
				err = errors.Join(err, os.Rename(dir+"/next", dir+"/lock"))
			} else {
				err = errors.Join(err, os.Rename(socket, socket+".old"), os.Symlink(socket+".old", socket))
			}
			if err != nil {
				t.Error(err)
			}
			io.Copy(io.Discard, conn)
		})
		c := Client{Socket: socket, Timeout: time.Minute, Connect: 50 * time.Millisecond, Lock: dir + "/lock", Parent: os.Getppid()}
		if a, err := c.Ask(Request{ID: "ab12", Verb: "unmount", Args: []string{"/x"}}); err != nil || a.Status != StatusSuccess {
			t.Errorf("%s: %+v, %v", replaced, a, err)
		}
	}
}

// A full backlog means that flexd runs: flexdriver waits for it.
func TestClientWaitsForAFullBacklog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for {
		s, err := dial(path)
		if err == syscall.EAGAIN {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
	}
	c := Client{Socket: path, Timeout: 300 * time.Millisecond, Connect: 50 * time.Millisecond, Once: true, Parent: os.Getppid()}
	if _, err := c.Ask(Request{ID: "ab12", Verb: "attach", Args: nil}); err != ErrDeadline {
		t.Error(err)
	}
	c.Lock, c.Timeout = path+".lock", time.Minute // no flexd has started
	if _, err := c.Ask(Request{ID: "ab12", Verb: "attach", Args: nil}); !down(errNoFlexd)(err) {
		t.Error(err)
	}
}

func is(want error) func(error) bool { return func(err error) bool { return err == want } }

func down(errno error) func(error) bool {
	return func(err error) bool {
		e, ok := err.(*DownError)
		return ok && e.Err == errno
	}
}

func TestNewID(t *testing.T) {
	a, b := newID(), newID()
	if a == b || !validID(a) || len(a) != 12 {
		t.Error(a, b)
	}
}

// The manual page has every verb, and the environment with its defaults.
func TestManualPage(t *testing.T) {
	const file = "../../docs/man/flexdriver.8"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(string(b), `\-`, "-")
	for _, word := range []string{
		Init, GetVolumeName, ExpandVolume, Attach, Detach, IsAttached, WaitForAttach, MountDevice, Mount, ExpandFS, Unmount, UnmountDevice, PrintVersion,
		EnvSocket, EnvTimeout, EnvConnect, DefaultSocket, DefaultTimeout.String(), DefaultConnect.String(), initFile("PLUGINDIR/VENDOR~DRIVER/DRIVER"),
	} {
		if !regexp.MustCompile(`[ \n"]` + regexp.QuoteMeta(word) + `["., \n]`).MatchString(page) {
			t.Errorf("%s has no %s", file, word)
		}
	}
	if groff, err := exec.LookPath("groff"); err != nil {
		t.Skip(err)
	} else if out, err := exec.Command(groff, "-man", "-ww", "-z", file).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%s", err, out)
	}
}
