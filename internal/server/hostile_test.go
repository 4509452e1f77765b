package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/status"
)

const (
	attackSocket = "FLEXD_SERVER_TEST_ATTACK"
	attackers    = 10_000 // connections
)

// attack makes hostile connections and keeps them all until its stdin ends: some say nothing,
// some half a request, some keep an answered connection, some ask for observations or large
// documents and do not read them.
func attack(path string) {
	first := []string{
		"",
		"GET /v1/volumes HTTP/1.1\r\nHost: flexd\r\nX-Half: ",
		"GET /healthz HTTP/1.1\r\nHost: flexd\r\n\r\n",
		"GET /v1/orphans?target=/hung/volume/file HTTP/1.1\r\nHost: flexd\r\n\r\n",
		strings.Repeat("GET /v1/volumes HTTP/1.1\r\nHost: flexd\r\n\r\n", 100),
	}
	made := 0
	for i := range attackers {
		c, err := net.Dial("unix", path)
		for ; errors.Is(err, unix.EAGAIN); c, err = net.Dial("unix", path) { // the queue is full
			time.Sleep(time.Millisecond)
		}
		if err != nil {
			break
		}
		made++
		io.WriteString(c, first[i%len(first)])
		defer c.Close()
	}
	fmt.Println(made)
	io.Copy(io.Discard, os.Stdin)
}

// A hungSource is a node on which an observation hangs.
type hungSource struct {
	source
	looks, most atomic.Int32
	free        chan struct{}
}

func (s *hungSource) List() status.List {
	l := status.List{}
	for range 1000 {
		l.Volumes = append(l.Volumes, status.Volume{VG: "vg0", LV: strings.Repeat("x", 100)})
	}
	return l
}

func (s *hungSource) Orphans(_ context.Context, targets []string) status.Orphans {
	n := s.looks.Add(1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	<-s.free
	s.looks.Add(-1)
	return status.Orphans{}
}

// resources returns how many descriptors and how many KiB of memory this process has.
func resources(t *testing.T) (fds, rss int) {
	entries, err := os.ReadDir("/proc/self/fd")
	text, err2 := os.ReadFile("/proc/self/status")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	_, rest, _ := strings.Cut(string(text), "\nVmRSS:")
	fmt.Sscan(rest, &rss)
	return len(entries), rss
}

// Another user's connections to the status socket take a few descriptors and some memory.
// Kubelet's calls and root's requests go on.
func TestHostileStatusClients(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to change the user")
	}
	d := start(t, echo)
	path := socketPath(t)
	l, err := Listen(path, 0o666, "")
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(path[:strings.LastIndexByte(path, '/')], 0o755)
	log := logrus.New()
	log.SetOutput(io.Discard)
	src := &hungSource{free: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { (&Status{Listener: l, Source: src, Log: logrus.NewEntry(log)}).Serve(ctx) })
	defer func() { close(src.free); cancel(); all.Wait() }()
	call := func(id string) {
		c := flexvolume.Client{Socket: d.path, Timeout: time.Minute, Connect: time.Minute, Parent: os.Getppid()}
		if a, err := c.Ask(request(id, id)); err != nil || a.Message != id {
			t.Errorf("call %s: %+v, %v", id, a, err)
		}
	}
	for range 100 {
		call("before")
	}
	fds, rss := resources(t)

	c := exec.Command("setpriv", "--reuid", "65534", "--clear-groups", os.Args[0])
	c.Env = append(os.Environ(), attackSocket+"="+path)
	in, _ := c.StdinPipe()
	out, _ := c.StdoutPipe()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer in.Close()
	made := make(chan string, 1)
	go func() { line, _ := bufio.NewReader(out).ReadString('\n'); made <- line }()
	mostFDs, mostRSS, calls := 0, 0, 0
	sample := func() {
		call(fmt.Sprint("c", calls))
		calls++
		f, r := resources(t)
		mostFDs, mostRSS = max(mostFDs, f), max(mostRSS, r)
	}
	for ready := false; !ready; {
		sample()
		select {
		case line := <-made:
			ready = true
			if line != fmt.Sprintln(attackers) {
				t.Errorf("only %q connections", line)
			}
		default:
		}
	}
	for range 100 {
		sample()
	}

	// Root's own requests have their share of everything.
	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}}
	for range 20 {
		resp, err := client.Get("http://flexd/healthz")
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%+v, %v", resp, err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	client.CloseIdleConnections()

	t.Logf("%d calls meanwhile; at most %d more descriptors, %d KiB more memory, %d observations at once", calls, mostFDs-fds, mostRSS-rss, src.most.Load())
	if more := mostFDs - fds; more > userConns+16 {
		t.Errorf("%d more descriptors than before", more)
	}
	if more := mostRSS - rss; more > 20<<10 && !raceDetector {
		t.Errorf("%d KiB more memory than before", more)
	}
	if n := src.most.Load(); n > userLooks || n == 0 {
		t.Errorf("%d observations at once", n)
	}
}

// Each user has a share, and root has one that the others cannot take.
func TestLimit(t *testing.T) {
	l := limit{perUser: 2, others: 3}
	taken := func(uid uint32, want bool) {
		t.Helper()
		if got := l.take(ended, uid); got != want {
			t.Errorf("uid %d: %v", uid, got)
		}
	}
	taken(1, true)
	taken(1, true)
	taken(1, false)
	taken(2, true)
	taken(2, false)
	taken(0, true)
	taken(0, true)
	taken(0, false)
	got := make(chan bool)
	go func() { got <- l.take(context.Background(), 3) }()
	l.release(1)
	if !<-got {
		t.Error("it does not wait for a release")
	}
	for _, uid := range []uint32{0, 0, 1, 2, 3} {
		l.release(uid)
	}
	if len(l.users) > 0 || l.taken != 0 {
		t.Errorf("%+v, %d", l.users, l.taken)
	}
}
