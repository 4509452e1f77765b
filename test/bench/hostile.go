package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
)

const (
	hostileChild = "hostile" // the argument that makes us the attacker
	hostileConns = 10_000
)

// hostile measures calls while another user keeps 10,000 connections to the status socket,
// and makes a thousand more in each second.
func hostile(ctx context.Context, n *host.Node, runs int) ([]goal, error) {
	v := host.Volume{Name: "pv1", FSType: "ext4", Options: map[string]string{"volumegroup": host.VG, "volumeID": "data", "size": "64m"}}
	device, err := succeed(n.Call(ctx, "waitforattach", "", v.Blob(nil)))
	if err != nil {
		return nil, err
	}
	const turns = 5
	measure := func(took *samples) error {
		for i := range runs/turns + 5 { // the first ones warm up
			command := n.Command(ctx, "waitforattach", device, v.Blob(nil))
			started := time.Now()
			a, err := host.Read(command)
			if _, err := succeed(a, err); err != nil {
				return err
			}
			if i >= 5 {
				*took = append(*took, time.Since(started))
			}
		}
		return nil
	}

	// As a member of statusGroup.
	socket := n.StatusSocket()
	for dir := filepath.Dir(socket); dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		return nil, err
	}
	var alone, beside samples
	for range turns {
		if err := measure(&alone); err != nil {
			return nil, err
		}
		stop, err := startAttack(ctx, socket)
		if err != nil {
			return nil, err
		}
		err = measure(&beside)
		stop()
		if err != nil {
			return nil, err
		}
	}
	alone.show("waitforattach, active")
	beside.show(fmt.Sprintf("  beside %d hostile connections", hostileConns))
	return []goal{atMost("p99 of a call beside hostile connections", 2, float64(beside.at(0.99))/float64(alone.at(0.99)))}, nil
}

// startAttack starts attack as another user, and returns when it has its connections.
func startAttack(ctx context.Context, socket string) (stop func(), err error) {
	exe, err := os.Open("/proc/self/exe") // go run keeps it where others may not look
	if err != nil {
		return nil, err
	}
	defer exe.Close()
	c := exec.CommandContext(ctx, "setpriv", "--reuid", "65534", "--clear-groups", "/proc/self/fd/3", hostileChild, socket)
	c.ExtraFiles = []*os.File{exe}
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	stop = func() { in.Close(); c.Wait() }
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "\n" {
		stop()
		return nil, errors.New("the connections were not made: " + line)
	}
	return stop, nil
}

// attack makes the connections until stdin ends.
func attack(socket string) {
	requests := []string{"", "GET /v1/volumes HTTP/1.1\r\n", "GET /v1/volumes HTTP/1.1\r\nHost: x\r\n\r\n", "GET /v1/orphans?target=/a HTTP/1.1\r\nHost: x\r\n\r\n"}
	conns := make([]net.Conn, hostileConns)
	connect := func(i int) {
		c, err := net.Dial("unix", socket)
		for ; errors.Is(err, unix.EAGAIN); c, err = net.Dial("unix", socket) { // the queue is full
			time.Sleep(time.Millisecond)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		io.WriteString(c, requests[i%len(requests)])
		if old := conns[i]; old != nil {
			old.Close()
		}
		conns[i] = c
	}
	for i := range conns {
		connect(i)
	}
	fmt.Println()
	go func() {
		for i := 0; ; i = (i + 1) % hostileConns {
			connect(i)
			time.Sleep(time.Millisecond)
		}
	}()
	io.Copy(io.Discard, os.Stdin)
}
