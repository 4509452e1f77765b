package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"

	"github.com/flexd/flexd/test/host"
)

// calls measures flexdriver on a mounted volume, against the minimal cost of a Go program and against a shell
// driver.
func calls(ctx context.Context, n *host.Node, runs int) (goals []goal, err error) {
	v := host.Volume{Name: "pv1", FSType: "ext4", Options: map[string]string{"volumegroup": host.VG, "volumeID": "data", "size": "64m"}}
	global := n.GlobalDir(v)
	device, err := succeed(n.Call(ctx, "waitforattach", "", v.Blob(nil)))
	if err != nil {
		return nil, err
	}
	if err := host.Prepare(global); err != nil {
		return nil, err
	}
	if _, err := succeed(n.Call(ctx, "mountdevice", global, device, v.Blob(nil))); err != nil {
		return nil, err
	}

	mapper := n.Dir + "/mapper"
	if err := os.Mkdir(mapper, 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink(device, mapper+"/"+host.VG+"-data"); err != nil {
		return nil, err
	}
	shell := func(ctx context.Context) *exec.Cmd {
		c := exec.CommandContext(ctx, "test/host/shell-driver", "attach", v.Blob(nil), "node-1")
		c.Env = append(os.Environ(), "DEV_MAPPER="+mapper)
		return c
	}
	contestants := []struct {
		what    string
		command func(context.Context) *exec.Cmd
		took    samples
	}{
		{what: "a Go program that prints one line", command: func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "bin/bench-hello") }},
		{what: "waitforattach, active", command: func(ctx context.Context) *exec.Cmd {
			return n.Command(ctx, "waitforattach", device, v.Blob(nil))
		}},
		{what: "mountdevice, staged", command: func(ctx context.Context) *exec.Cmd {
			return n.Command(ctx, "mountdevice", global, device, v.Blob(nil))
		}},
		{what: "a shell driver's attach", command: shell},
	}
	// In an order drawn for each round: a call after the shell driver's many processes finds
	// cold caches.
	order := rand.New(rand.NewPCG(1, 2))
	for i := range runs + 10 { // the first ones warm up
		for _, j := range order.Perm(len(contestants)) {
			c := &contestants[j]
			command := c.command(ctx)
			started := time.Now()
			a, err := host.Read(command)
			took := time.Since(started)
			if _, err := succeed(a, err); err != nil {
				return nil, fmt.Errorf("%s: %w", c.what, err)
			}
			if i >= 10 {
				c.took = append(c.took, took)
			}
		}
	}
	for _, c := range contestants {
		c.took.show(c.what)
	}
	hello, sh := contestants[0].took, contestants[3].took
	for _, c := range contestants[1:3] {
		goals = append(goals,
			atMost(c.what+", to a Go program", 1.5, ratio(c.took, hello)),
			atLeast(c.what+", faster than shell", 20, ratio(sh, c.took)))
	}
	return goals, nil
}

func succeed(a host.Answer, err error) (device string, _ error) {
	if err == nil && a.Status != "Success" {
		err = fmt.Errorf("%s: %s", a.Status, a.Message)
	}
	return a.Device, err
}
