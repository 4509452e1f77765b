package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/status"
)

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
		stop  bool // the context ends
		want  string
		log   string
	}{
		{"stopped", untilDone, true, "", "flexd stops; mounts stay as they are"},
		{"stopped, but busy", func(ctx context.Context) error { time.Sleep(3 * time.Second); return nil }, true, "", "without waiting"},
		{"a task fails", func(context.Context) error { return errors.New("no mount table") }, false, "reconciler: no mount table", ""},
		{"a task ends", func(context.Context) error { return nil }, false, "reconciler: ended by itself", ""},
	} {
		t.Run(row.about, func(t *testing.T) {
			log, written := quiet(t)
			var err error
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if row.stop {
					cancel()
				}
				begin := time.Now()
				err = runTasks(ctx, log, make(chan struct{}), nil, []task{{"reconciler", row.run}})
				if took := time.Since(begin); took > shutdownTimeout || shutdownTimeout >= time.Second {
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

// notifySocket returns the socket on which systemd would receive flexd's notifications.
func notifySocket(t *testing.T) *net.UnixConn {
	path := filepath.Join(t.TempDir(), "n")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return conn
}

// systemd receives READY when the node is ready, not before, and then STOPPING.
func TestNotify(t *testing.T) {
	conn := notifySocket(t)
	read := func(d time.Duration) string {
		b := make([]byte, 100)
		conn.SetReadDeadline(time.Now().Add(d))
		n, _ := conn.Read(b)
		return string(b[:n])
	}
	log, _ := quiet(t)
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- runTasks(ctx, log, ready, func() string { return "" }, []task{{"reconciler", untilDone}})
	}()
	if s := read(100 * time.Millisecond); s != "" {
		t.Errorf("%q before it is ready", s)
	}
	close(ready)
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

// systemd hears of flexd while its state can be read, not while a lock is held for ever.
func TestWatchdog(t *testing.T) {
	conn := notifySocket(t)
	log, _ := quiet(t)
	asked, answers := make(chan struct{}), make(chan status.List)
	w := watchdog{time.Millisecond, func() status.List { asked <- struct{}{}; return <-answers }, log}
	go w.Serve(t.Context())
	b := make([]byte, 100)
	for range 3 {
		<-asked
		conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if n, err := conn.Read(b); err == nil {
			t.Errorf("%q while the state cannot be read", b[:n])
		}
		answers <- status.List{}
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := conn.Read(b); err != nil || string(b[:n]) != "WATCHDOG=1" {
			t.Errorf("%q, %v", b[:n], err)
		}
	}
	close(answers)
	go func() {
		for range asked {
		}
	}()
}
