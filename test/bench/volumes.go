package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/flexd/flexd/test/host"
)

// The disk that scripts/vm.d/volumes makes.
const (
	manyVG      = "many"
	manyVolumes = 200 // v1 and on
	formatted   = 12  // fs1 and on, with an ext4
)

func manyName(i int) string { return fmt.Sprintf("v%d", i+1) }

// manyNode returns a flexd that uses that volume group, ready and warm.
func manyNode() (*host.Node, error) {
	dir, err := os.MkdirTemp("", "flexd-")
	if err != nil {
		return nil, err
	}
	run, err := os.MkdirTemp("/run", "flexd-") // in memory, as on a node
	if err != nil {
		return nil, err
	}
	n, err := host.Reopen("bin", time.Hour, dir, run)
	if err != nil {
		return nil, err
	}
	if err = n.Configure(host.Settings{Lease: time.Hour, Groups: "  - {name: " + manyVG + ", provider: lvm, namespaces: ['*']}\n"}); err == nil {
		err = n.Start()
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	time.Sleep(3 * time.Second) // it reads the group's metadata
	return n, nil
}

func manyVolume(lv string) host.Volume {
	return host.Volume{Name: lv, FSType: "ext4", Options: map[string]string{"volumegroup": manyVG, "volumeID": lv}}
}

// command runs a command and returns its duration.
func command(ctx context.Context, argv ...string) (time.Duration, error) {
	started := time.Now()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	took := time.Since(started)
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(argv[:min(4, len(argv))], " "), err, out)
	}
	return took, err
}

// letAllGo deactivates everything without flexd, and waits until flexd has noticed.
func letAllGo(ctx context.Context) error {
	_, err := command(ctx, "lvm", "vgchange", "-q", "-an", manyVG)
	time.Sleep(3 * time.Second)
	return err
}

// together measures 200 concurrent calls for volumes.
func together(ctx context.Context, rounds int) (goals []goal, err error) {
	n, err := manyNode()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, letAllGo(context.WithoutCancel(ctx)), n.Close()) }()
	heard, err := hearStarts(n.Pid())
	if err != nil {
		return nil, err
	}
	bare := []string{"lvm", "lvchange", "-q", "-ay", "-K"}
	var blobs []string
	for i := range manyVolumes {
		bare = append(bare, manyVG+"/"+manyName(i))
		blobs = append(blobs, manyVolume(manyName(i)).Blob(nil))
	}
	var bares, bursts, singles, again samples
	most, programs, idle := 0, map[string]int{}, 0
	for round := range rounds + 1 {
		took, err := command(ctx, bare...)
		if err != nil {
			return nil, err
		}
		bares = append(bares, took)
		if err := letAllGo(ctx); err != nil {
			return nil, err
		}
		if _, _, err := heard.take(); err != nil {
			return nil, err
		}
		if took, err = burst(n, "waitforattach", blobs); err != nil {
			return nil, err
		}
		bursts = append(bursts, took)
		forks, what, err := heard.take()
		if err != nil {
			return nil, err
		}
		if forks >= most {
			most, programs = forks, what
		}
		// And once more, now that all is done.
		if took, err = burst(n, "waitforattach", blobs); err != nil {
			return nil, err
		}
		again = append(again, took)
		if forks, what, err = heard.take(); err != nil {
			return nil, err
		}
		if idle += forks; forks > 0 {
			fmt.Printf("  what is done already starts %v\n", what)
		}
		if err := letAllGo(ctx); err != nil {
			return nil, err
		}
		if round == 0 { // nothing is warm: neither flexd, nor LVM, nor the kernel
			fmt.Printf("  the first time: one lvchange %v, flexd %v\n", bares[0].Round(time.Millisecond), bursts[0].Round(time.Millisecond))
			bares, bursts, again = nil, nil, nil
		}
	}
	// As a shell driver does it: one after the other, each a command of its own.
	const few = 20
	for i := range few {
		took, err := command(ctx, "lvm", "lvchange", "-q", "-ay", "-K", manyVG+"/"+manyName(i))
		if err != nil {
			return nil, err
		}
		singles = append(singles, took)
	}
	bares.show("one lvchange that names all 200")
	bursts.show("flexd, 200 connections")
	again.show("flexd, the same when all are active")
	singles.show(fmt.Sprintf("a shell driver's lvchange, each (%d measured)", few))
	fmt.Printf("  200 of them, one after the other, would take %v\n", (200 * singles.median()).Round(100*time.Millisecond))
	fmt.Printf("  processes that flexd started, at most: %d %v\n", most, programs)
	return []goal{
		atMost("200 volumes at once, to one lvchange of them all", 1.5, turnByTurn(bursts, bares)),
		{"200 volumes at once: processes started", "≤ 6", fmt.Sprint(most), most <= 6},
		{"the same again: processes started", "0", fmt.Sprint(idle), idle == 0},
	}, nil
}

// first measures the first call for a volume against the LVM commands that it needs, started from a program
// with as many processes.
func first(ctx context.Context, rounds int) (goals []goal, err error) {
	all, err := hearStarts(os.Getpid()) // flexd will be one of them
	if err != nil {
		return nil, err
	}
	n, err := manyNode()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, letAllGo(context.WithoutCancel(ctx)), n.Close()) }()
	flexd, err := hearStarts(n.Pid())
	if err != nil {
		return nil, err
	}
	type contestant struct {
		what     string
		took     samples
		forks    int
		programs map[string]int
	}
	// flexd looks again after what others did; that is no part of what is measured next.
	settled := func() error {
		for range 30 {
			time.Sleep(time.Second)
			if forks, _, err := flexd.take(); err != nil || forks == 0 {
				return err
			}
		}
		return errors.New("flexd does not come to rest")
	}
	contest := func(c *contestant, before func() error, command *exec.Cmd) error {
		if err := settled(); err != nil {
			return err
		}
		if _, _, err := all.take(); err != nil {
			return err
		}
		if err := before(); err != nil {
			return err
		}
		started := time.Now()
		a, err := host.Read(command)
		took := time.Since(started)
		if _, err := succeed(a, err); err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		c.took = append(c.took, took)
		c.forks, c.programs, err = all.take()
		return err
	}
	off := func(lv string) error {
		_, err := command(ctx, "lvm", "lvchange", "-q", "-an", manyVG+"/"+lv)
		time.Sleep(200 * time.Millisecond)
		return err
	}
	var (
		activation  = contestant{what: "one report and one lvchange -ay -K"}
		known       = contestant{what: "waitforattach"}
		changed     = contestant{what: "waitforattach, the group was just changed"}
		mounting    = contestant{what: "probe, fsck, mount"}
		mountdevice = contestant{what: "mountdevice"}
		idle        int
	)
	nothing := func() error { return nil }
	do := func(args ...string) error {
		_, err := succeed(n.Call(ctx, args...))
		if err != nil {
			err = fmt.Errorf("%s: %w", args[0], err)
		}
		return err
	}
	// again makes calls that find all done.
	again := func(calls ...[]string) error {
		if err := settled(); err != nil {
			return err
		}
		for _, args := range calls {
			if err := do(args...); err != nil {
				return fmt.Errorf("again: %w", err)
			}
			forks, programs, err := flexd.take()
			if err != nil {
				return err
			}
			if idle += forks; forks > 0 {
				fmt.Printf("  %s, done already, starts %v\n", args[0], programs)
			}
		}
		return nil
	}
	dir := n.Dir + "/floor"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	for i := range min(rounds, formatted) {
		lv := fmt.Sprintf("fs%d", i+1)
		v, device := manyVolume(lv), "/dev/"+manyVG+"/"+lv
		global := n.GlobalDir(v)
		pod := host.Pod{Namespace: "default", Name: "pod", UID: "uid-" + lv}
		published := n.PodDir(pod, v)
		floor := func(c *contestant, words ...string) error {
			return contest(c, nothing, exec.CommandContext(ctx, "bin/bench-floor", words...))
		}
		call := func(c *contestant, args ...string) error { return contest(c, nothing, n.Command(ctx, args...)) }
		run := func(argv ...string) error { _, err := command(ctx, argv...); return err }
		for _, step := range []func() error{
			func() error {
				return floor(&activation, "lvm", "fullreport", "--reportformat", "json", manyVG, "--",
					"lvm", "lvchange", "-q", "-ay", "-K", manyVG+"/"+lv)
			},
			func() error {
				return floor(&mounting, "via", "blkid", "-p", "-o", "export", device, "--",
					"via", "e2fsck", "-p", device, "--", "mount", "-t", "ext4", device, dir)
			},
			func() error { return run("umount", dir) },
			func() error { return off(lv) },
			func() error { return call(&known, "waitforattach", "", v.Blob(nil)) },
			func() error { return off(lv) },
			func() error {
				change := func() error { return run("lvm", "lvchange", "-q", "--addtag", "seen", manyVG+"/"+lv) }
				return contest(&changed, change, n.Command(ctx, "waitforattach", "", v.Blob(nil)))
			},
			func() error { return host.Prepare(global) },
			func() error { return call(&mountdevice, "mountdevice", global, device, v.Blob(nil)) },
			func() error {
				return again([]string{"attach", v.Blob(nil), "node-1"}, []string{"isattached", v.Blob(nil), "node-1"},
					[]string{"waitforattach", device, v.Blob(nil)}, []string{"mountdevice", global, device, v.Blob(nil)})
			},
			func() error { return host.Prepare(published) },
			func() error { return do("mount", published, v.Blob(&pod)) },
			func() error { return again([]string{"mount", published, v.Blob(&pod)}) },
			func() error { return do("unmount", published) },
			func() error { return again([]string{"unmount", published}) },
			func() error { return do("unmountdevice", global) },
			func() error { return again([]string{"unmountdevice", global}) },
			func() error { return do("detach", v.Name, "node-1") }, // and then it is deactivated
			func() error { return again([]string{"detach", v.Name, "node-1"}) },
			func() error { return off(lv) },
		} {
			if err := step(); err != nil {
				return nil, err
			}
		}
	}
	for _, c := range []contestant{activation, known, changed, mounting, mountdevice} {
		c.took.show(c.what)
		fmt.Printf("    %d processes %v\n", c.forks, c.programs)
	}
	return []goal{
		atMost("first waitforattach, to its bare commands", 1.3, ratio(known.took, activation.took)),
		atMost("the same, right after the group was changed", 1.3, ratio(changed.took, activation.took)),
		atMost("first mountdevice, to its bare commands", 1.3, ratio(mountdevice.took, mounting.took)),
		{"verbs that find all done: processes started", "0", fmt.Sprint(idle), idle == 0},
	}, nil
}
