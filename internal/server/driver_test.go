package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/sirupsen/logrus"
)

type handlerFunc func(ctx context.Context, r flexvolume.Request, p Peer) flexvolume.Answer

func (f handlerFunc) Serve(ctx context.Context, r flexvolume.Request, p Peer) flexvolume.Answer {
	return f(ctx, r, p)
}

// A logBuffer may be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *logBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

type daemon struct {
	path string
	log  *logBuffer
	stop func() // and wait
}

func start(t *testing.T, h handlerFunc) *daemon {
	t.Helper()
	d := &daemon{path: socketPath(t), log: &logBuffer{}}
	l, err := Listen(d.path, 0o666, "") // open, so that others get as far as the uid check
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(d.path[:strings.LastIndexByte(d.path, '/')], 0o755)
	log := logrus.New()
	log.SetOutput(d.log)
	log.SetLevel(logrus.DebugLevel) // the reconciler logs each call with its volume; these lines are for the calls that it does not see
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- (&Driver{Listener: l, Handler: h, Log: logrus.NewEntry(log)}).Serve(ctx) }()
	var once sync.Once
	d.stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("Serve: %v", err)
				}
			case <-time.After(time.Minute):
				t.Error("Serve does not end")
			}
		})
	}
	t.Cleanup(d.stop)
	return d
}

func (d *daemon) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", d.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

func request(id string, args ...string) flexvolume.Request {
	return flexvolume.Request{V: flexvolume.Version, ID: id, Verb: "mount", Args: append([]string{}, args...), Started: 1, Parent: os.Getpid()}
}

func send(t *testing.T, c net.Conn, r flexvolume.Request) {
	t.Helper()
	if err := json.NewEncoder(c).Encode(r); err != nil {
		t.Fatal(err)
	}
}

func receive(c net.Conn) (r flexvolume.Reply, err error) {
	err = json.NewDecoder(c).Decode(&r)
	return r, err
}

func echo(_ context.Context, r flexvolume.Request, p Peer) flexvolume.Answer {
	if p.Pid != os.Getpid() || int(p.UID) != os.Geteuid() {
		return flexvolume.Failure(fmt.Sprintf("peer is %+v", p))
	}
	return flexvolume.Answer{Status: flexvolume.StatusSuccess, Message: strings.Join(r.Args, " ")}
}

func TestAnswer(t *testing.T) {
	d := start(t, echo)
	c := d.dial(t)
	send(t, c, request("c1", "/dir", `{"password":"hunter2"}`))
	r, err := receive(c)
	if err != nil || r.ID != "c1" || r.Answer.Status != flexvolume.StatusSuccess || !strings.HasPrefix(r.Answer.Message, "/dir") {
		t.Fatalf("%+v, %v", r, err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("after the answer: %d, %v", n, err)
	}
	d.stop()
	if log := d.log.String(); !strings.Contains(log, "call=c1") || !strings.Contains(log, "verb=mount") || strings.Contains(log, "hunter2") {
		t.Errorf("log: %s", log)
	}
}

// A call is logged before the handler can block.
func TestLogOnEntry(t *testing.T) {
	var d *daemon
	entered := make(chan string, 1)
	d = start(t, func(ctx context.Context, _ flexvolume.Request, _ Peer) flexvolume.Answer {
		entered <- d.log.String()
		<-ctx.Done()
		return flexvolume.Success()
	})
	send(t, d.dial(t), request("c1"))
	if log := <-entered; !strings.Contains(log, "called") || !strings.Contains(log, "call=c1") {
		t.Errorf("log on entry: %q", log)
	}
}

func TestGarbage(t *testing.T) {
	d := start(t, echo)
	for about, text := range map[string]string{
		"no JSON":       "GET / HTTP/1.1\n",
		"empty line":    "\n",
		"array":         "[]\n",
		"secret inside": `{"v":1,"id":"c1","verb":"mount","args":["hunter2", 3]}` + "\n",
		"no id":         `{"v":1,"verb":"mount","args":[]}` + "\n",
		"version":       `{"v":9,"id":"c1","verb":"mount","args":[]}` + "\n",
		"zeros":         strings.Repeat("\x00", 100) + "\n",
		"too long":      strings.Repeat("x", 3<<20),
	} {
		t.Run(about, func(t *testing.T) {
			c := d.dial(t)
			go io.WriteString(c, text)
			r, err := receive(c)
			if err != nil || r.Answer.Status != flexvolume.StatusFailure || !strings.HasPrefix(r.Answer.Message, "flexd cannot read the request: ") {
				t.Errorf("%+v, %v", r, err)
			}
			if strings.Contains(r.Answer.Message, "hunter2") {
				t.Errorf("quotes the arguments: %s", r.Answer.Message)
			}
		})
	}
	c := d.dial(t) // half a request is no request, and gets no answer
	io.WriteString(c, `{"v":1,"id":"c1"`)
	c.(*net.UnixConn).CloseWrite()
	if b, err := io.ReadAll(c); len(b) != 0 || err != nil {
		t.Errorf("half a request: %q, %v", b, err)
	}
	d.stop()
	if strings.Contains(d.log.String(), "hunter2") {
		t.Error("the log quotes the arguments")
	}
}

// A client that says nothing is dropped without an answer, one that is slow but
// not too slow is served.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	d := start(t, echo)
	silent, slow := d.dial(t), d.dial(t)
	var b bytes.Buffer
	json.NewEncoder(&b).Encode(request("c1", "x"))
	go func() {
		for _, c := range b.Bytes() {
			slow.Write([]byte{c})
			time.Sleep(time.Millisecond)
		}
	}()
	if r, err := receive(slow); err != nil || r.Answer.Status != flexvolume.StatusSuccess {
		t.Errorf("slow: %+v, %v", r, err)
	}
	begin := time.Now()
	if b, err := io.ReadAll(silent); len(b) != 0 || err != nil {
		t.Errorf("silent: %q, %v", b, err)
	}
	if took := time.Since(begin); took > requestTime+2*time.Second {
		t.Errorf("dropped after %v only", took)
	}
}

func TestHangUp(t *testing.T) {
	entered, left := make(chan bool), make(chan error, 1)
	d := start(t, func(ctx context.Context, _ flexvolume.Request, _ Peer) flexvolume.Answer {
		entered <- true
		<-ctx.Done()
		left <- context.Cause(ctx)
		return flexvolume.Success()
	})
	c := d.dial(t)
	send(t, c, request("c1"))
	<-entered
	c.Close()
	select {
	case err := <-left:
		if err.Error() != "the caller hung up" {
			t.Errorf("the handler learns %q", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the handler does not learn that the caller hung up")
	}
	for range 500 { // the handler ends before its end is logged
		if strings.Contains(d.log.String(), "the caller hung up") {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	d.stop()
	if !strings.Contains(d.log.String(), "the caller hung up") {
		t.Errorf("log: %s", d.log)
	}
}

func TestPanic(t *testing.T) {
	d := start(t, func(_ context.Context, r flexvolume.Request, _ Peer) flexvolume.Answer {
		if r.Args[0] == "index" {
			return flexvolume.Failure(r.Args[5])
		}
		panic("with the secret hunter2")
	})
	for _, arg := range []string{"index", "text"} {
		c := d.dial(t)
		send(t, c, request("c9", arg))
		r, err := receive(c)
		if err != nil || r.Answer.Status != flexvolume.StatusFailure || r.Answer.Message != "a bug in flexd, its log has the details: journalctl -u flexd | grep panic" {
			t.Errorf("%+v, %v", r, err)
		}
	}
	d.stop()
	log := d.log.String()
	if strings.Contains(log, "hunter2") || !strings.Contains(log, "index out of range") || !strings.Contains(log, "driver_test.go") {
		t.Errorf("log: %s", log)
	}
}

// At shutdown no waiting caller gets an answer, not even from a handler that returns one:
// it would be final to kubelet.
func TestShutdown(t *testing.T) {
	const callers = 20
	entered := make(chan bool, callers)
	d := start(t, func(ctx context.Context, r flexvolume.Request, _ Peer) flexvolume.Answer {
		entered <- true
		<-ctx.Done()
		if r.Args[0] == "0" { // one that does not end with its context
			time.Sleep(2 * time.Second)
		}
		return flexvolume.Failure("cancelled")
	})
	var conns []net.Conn
	for i := range callers {
		c := d.dial(t)
		send(t, c, request("c1", fmt.Sprint(i)))
		conns = append(conns, c)
	}
	for range callers {
		<-entered
	}
	begin := time.Now()
	d.stop()
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("Serve ended after %v only", took)
	}
	for i, c := range conns {
		if b, err := io.ReadAll(c); len(b) != 0 || err != nil {
			t.Errorf("caller %d: %q, %v", i, b, err)
		}
	}
	if _, err := net.Dial("unix", d.path); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// A call that the handler does not answer is one for the next flexd: the connection ends.
func TestNoAnswer(t *testing.T) {
	d := start(t, func(context.Context, flexvolume.Request, Peer) flexvolume.Answer { return flexvolume.Answer{} })
	c := d.dial(t)
	send(t, c, request("c1"))
	if b, err := io.ReadAll(c); len(b) != 0 || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

// flexdriver's own client finds its answer at the next daemon.
func TestRestart(t *testing.T) {
	entered := make(chan bool, 1)
	first := start(t, func(ctx context.Context, _ flexvolume.Request, _ Peer) flexvolume.Answer {
		entered <- true
		<-ctx.Done()
		return flexvolume.Failure("cancelled")
	})
	got := make(chan string, 1)
	go func() {
		c := flexvolume.Client{Socket: first.path, Timeout: 20 * time.Second, Connect: 10 * time.Second, Parent: os.Getppid()}
		a, err := c.Ask(request("c1", "again"))
		got <- fmt.Sprint(a.Status, a.Message, err)
	}()
	<-entered
	first.stop()
	l, err := Listen(first.path, 0o600, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log := logrus.New()
	log.SetOutput(io.Discard)
	go (&Driver{Listener: l, Handler: handlerFunc(echo), Log: logrus.NewEntry(log)}).Serve(ctx)
	if g := <-got; g != "Successagain<nil>" {
		t.Error(g)
	}
}

func TestManyCallers(t *testing.T) {
	const callers = 2000
	var limit syscall.Rlimit
	syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	if limit.Cur < 2*callers+100 {
		t.Skipf("needs %d descriptors, has %d", 2*callers+100, limit.Cur)
	}
	var inside atomic.Int32
	all := make(chan bool)
	d := start(t, func(_ context.Context, r flexvolume.Request, _ Peer) flexvolume.Answer {
		if inside.Add(1) == callers {
			close(all) // none waits for another, all are inside at once
		}
		<-all
		return flexvolume.Answer{Status: flexvolume.StatusSuccess, Message: r.Args[0]}
	})
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			c := flexvolume.Client{Socket: d.path, Timeout: time.Minute, Connect: time.Minute, Parent: os.Getppid()}
			want := fmt.Sprint(i)
			if a, err := c.Ask(request("c"+want, want)); err != nil || a.Message != want {
				t.Errorf("%d: %+v, %v", i, a, err)
			}
		})
		if i%100 == 99 {
			time.Sleep(time.Millisecond) // poll(2) keeps a thread each: let them start in turn
		}
	}
	wg.Wait()
}

// A second daemon that looks whether we live is no event worth a line.
func TestProbeIsQuiet(t *testing.T) {
	d := start(t, echo)
	if _, err := Listen(d.path, 0o600, ""); err == nil || !strings.Contains(err.Error(), "another flexd is running") {
		t.Error(err)
	}
	d.dial(t).Close()
	d.stop()
	if d.log.String() != "" {
		t.Errorf("log: %s", d.log)
	}
}
