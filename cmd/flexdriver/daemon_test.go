package main

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
)

// A daemon is a flexd that behaves as the test wants.
type daemon struct {
	socket string
	serve  func(n int, c net.Conn) // n counts connections from 1; c is closed afterwards

	mu       sync.Mutex
	listener net.Listener
	requests []flexvolume.Request
	conns    int
	wait     sync.WaitGroup
	came     chan struct{} // gets a value for each connection
	hungUp   chan struct{} // gets a value when a client of silent hung up
}

// start listens; the daemon ends with the test.
func start(t *testing.T, serve func(d *daemon, n int, c net.Conn)) *daemon {
	t.Helper()
	d := &daemon{socket: filepath.Join(t.TempDir(), "driver.sock"), came: make(chan struct{}, 1000), hungUp: make(chan struct{}, 1000)}
	d.serve = func(n int, c net.Conn) { serve(d, n, c) }
	if err := d.listen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.stop(); d.wait.Wait() })
	return d
}

func (d *daemon) listen() error {
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.listener = l
	d.mu.Unlock()
	d.wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.conns++
			n := d.conns
			d.mu.Unlock()
			d.wait.Go(func() { d.serve(n, c); c.Close() })
			d.came <- struct{}{}
		}
	})
	return nil
}

// stop closes the listener and removes the socket's file.
func (d *daemon) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listener.Close()
}

// read reads a request and remembers it.
func (d *daemon) read(c net.Conn) flexvolume.Request {
	q, err := flexvolume.ReadRequest(c)
	if err == nil {
		d.mu.Lock()
		d.requests = append(d.requests, q)
		d.mu.Unlock()
	}
	return q
}

// The behaviours. Each but stale reads the request first.

func answers(a flexvolume.Answer) func(*daemon, int, net.Conn) {
	return func(d *daemon, _ int, c net.Conn) {
		flexvolume.WriteReply(c, flexvolume.Reply{ID: d.read(c).ID, Answer: a})
	}
}

// says writes text as it is, where ID stands for the call's id.
func says(text func(id string) string) func(*daemon, int, net.Conn) {
	return func(d *daemon, _ int, c net.Conn) { io.WriteString(c, text(d.read(c).ID)) }
}

// silent takes the request and waits until the client hangs up.
func silent(d *daemon, _ int, c net.Conn) {
	d.read(c)
	io.Copy(io.Discard, c)
	d.hungUp <- struct{}{}
}

// diesMidAnswer says half a line, is gone for a while, and answers when asked again.
func diesMidAnswer(d *daemon, n int, c net.Conn) {
	q := d.read(c)
	if n > 1 {
		flexvolume.WriteReply(c, flexvolume.Reply{ID: q.ID, Answer: flexvolume.Answer{Status: flexvolume.StatusSuccess, Device: "/dev/vg/lv", Attached: new(true)}})
		return
	}
	d.stop()
	io.WriteString(c, `{"v":1,"id":"`+q.ID+`","answer":{"status":"Fail`)
	d.wait.Go(func() {
		time.Sleep(100 * time.Millisecond)
		if err := d.listen(); err != nil {
			panic(err)
		}
	})
}

// stale leaves a socket's file without a listener.
func stale(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "driver.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}
