package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/server"
	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
)

// A still node is ready when told so and does nothing.
type still struct {
	shown
	ready chan struct{}
	run   func(context.Context) error
}

func (s *still) Serve(context.Context, flexvolume.Request, server.Peer) flexvolume.Answer {
	return flexvolume.Success()
}
func (s *still) Ready() <-chan struct{}        { return s.ready }
func (s *still) Run(ctx context.Context) error { return s.run(ctx) }

func untilDone(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func quiet(t *testing.T) (*logrus.Entry, *lines) {
	l := &lines{}
	log, err := newLog(config.Default(), l)
	if err != nil {
		t.Fatal(err)
	}
	return log, l
}

type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(p) }
func (l *lines) String() string              { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func TestTasks(t *testing.T) {
	for _, row := range []struct {
		about string
		run   func(context.Context) error
		told  bool // to stop
		want  string
		log   string
	}{
		{"told to stop", untilDone, true, "", "flexd stops; mounts stay as they are"},
		{"told to stop, but busy", func(ctx context.Context) error { time.Sleep(3 * time.Second); return nil }, true, "", "without waiting"},
		{"a task fails", func(context.Context) error { return errors.New("no mount table") }, false, "reconciler: no mount table", ""},
		{"a task ends", func(context.Context) error { return nil }, false, "reconciler: ended by itself", ""},
	} {
		t.Run(row.about, func(t *testing.T) {
			log, written := quiet(t)
			var err error
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if row.told {
					cancel()
				}
				begin := time.Now()
				err = runTasks(ctx, log, &still{ready: make(chan struct{}), run: row.run})
				if took := time.Since(begin); took > patience || patience >= time.Second {
					t.Errorf("ended after %v only", took)
				}
				time.Sleep(3 * time.Second) // for what was busy
			})
			if row.want == "" && err != nil || row.want != "" && (err == nil || err.Error() != row.want) {
				t.Errorf("%v, want %q", err, row.want)
			}
			if !strings.Contains(written.String(), row.log) {
				t.Errorf("log: %s", written)
			}
		})
	}
}

// systemd hears READY when the node is, not before, and then STOPPING.
func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	read := func(d time.Duration) string {
		b := make([]byte, 100)
		conn.SetReadDeadline(time.Now().Add(d))
		n, _ := conn.Read(b)
		return string(b[:n])
	}
	log, _ := quiet(t)
	ctx, cancel := context.WithCancel(context.Background())
	n := &still{ready: make(chan struct{}), run: untilDone}
	ended := make(chan error, 1)
	go func() { ended <- runTasks(ctx, log, n) }()
	if s := read(100 * time.Millisecond); s != "" {
		t.Errorf("%q before it is ready", s)
	}
	close(n.ready)
	if s := read(5 * time.Second); s != "READY=1" {
		t.Errorf("%q", s)
	}
	cancel()
	if s := read(5 * time.Second); s != "STOPPING=1" {
		t.Errorf("%q", s)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestDirs(t *testing.T) {
	dir := t.TempDir()
	c := config.Default()
	c.RunDir, c.StateDir = dir+"/run", dir+"/state"
	c.DriverSocket, c.StatusSocket = c.RunDir+"/driver.sock", c.RunDir+"/status.sock"
	for _, row := range []struct {
		group string
		mode  os.FileMode
	}{{"", 0o700}, {"0", 0o710}, {"0", 0o710}} {
		if os.Geteuid() != 0 && row.group != "" {
			t.Skip("needs root to give a directory to a group")
		}
		c.StatusGroup = row.group
		if err := makeDirs(c); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(c.RunDir); err != nil || st.Mode().Perm() != row.mode {
			t.Errorf("group %q: %v, %v", row.group, st.Mode(), err)
		}
		if st, err := os.Stat(c.StateDir); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("state: %v, %v", st.Mode(), err)
		}
	}
}

func TestTextLog(t *testing.T) {
	for _, row := range []struct {
		fields  logrus.Fields
		message string
		want    string
	}{
		{nil, "flexd is ready", "INFO   flexd is ready"},
		{logrus.Fields{"took": 12 * time.Millisecond, "step": "mkfs", "call": "c1", "volume": "vg0/a"}, "done", "INFO  volume=vg0/a call=c1 step=mkfs  done  took=12ms"},
		{logrus.Fields{"error": errors.New("a \"b\"\nc"), "empty": ""}, "one\nline\x1b[31m", `INFO   one line [31m  empty="" error="a \"b\"\nc"`},
	} {
		log, written := quiet(t)
		log.WithFields(row.fields).Info(row.message)
		_, line, _ := strings.Cut(strings.TrimSuffix(written.String(), "\n"), " ")
		if d := cmp.Diff(row.want, line); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
}
