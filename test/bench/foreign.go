package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
)

const (
	foreignMounts = 10000
	foreignRounds = 4  // with and without the foreign mounts, turn by turn
	foreignRuns   = 10 // of each call in a round
)

// A foreignCall is a call with its goal, in readings of the mount table: flexd reads it before the first
// step, before the mount if it has changed, and after the last step.
type foreignCall struct {
	what      string
	readings  float64
	few, many samples
}

// foreign measures calls on a node with 10,000 foreign mounts and on one with few.
func foreign(ctx context.Context, n *host.Node) (goals []goal, err error) {
	others := filepath.Join(n.Dir, "others")
	if err := os.Mkdir(others, 0o755); err != nil {
		return nil, err
	}
	defer unix.Unmount(others, unix.MNT_DETACH) //nolint:errcheck // only after an error it is mounted still
	var read samples
	calls := []foreignCall{{what: "first mount", readings: 4}, {what: "second pod's mount", readings: 3}, {what: "unmount", readings: 3}}
	for round := range foreignRounds {
		for _, many := range []bool{false, true} {
			if many {
				if err := makeForeign(others); err != nil {
					return nil, err
				}
			}
			for run := range foreignRuns {
				if err := podLives(ctx, n, round*foreignRuns+run == 0, func(c int, took time.Duration) {
					if many {
						calls[c].many = append(calls[c].many, took)
					} else {
						calls[c].few = append(calls[c].few, took)
					}
				}); err != nil {
					return nil, err
				}
				if many {
					took, err := readOnly()
					if err != nil {
						return nil, err
					}
					read = append(read, took)
				}
			}
			if many {
				if err := unix.Unmount(others, unix.MNT_DETACH); err != nil {
					return nil, err
				}
			}
		}
	}
	read.show("reading the mount table and nothing else")
	for _, c := range calls {
		c.few.show(c.what + ", few mounts")
		c.many.show(c.what + ", 10,000 mounts of others")
		more := float64(c.many.median()-c.few.median()) / float64(read.median())
		fmt.Printf("  %-44s %.2fx, %.1f readings more\n", "", ratio(c.many, c.few), more)
		goals = append(goals, goal{c.what + " among 10,000 mounts: more by", fmt.Sprintf("≤ %g readings", c.readings), fmt.Sprintf("%.1f (%.2fx)", more, ratio(c.many, c.few)), more <= c.readings})
	}
	return goals, nil
}

// makeForeign makes foreign mounts below one mount, so that they are unmounted with it.
func makeForeign(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	for i := range foreignMounts {
		d := fmt.Sprintf("%s/%d", dir, i)
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("/proc", d, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

// podLives gives two pods one volume, one after the other, and measures the calls. The volume has a
// filesystem, except the first time.
func podLives(ctx context.Context, n *host.Node, making bool, took func(call int, d time.Duration)) error {
	v := host.Volume{Name: "data", FSType: "ext4", Options: map[string]string{"volumegroup": host.VG, "volumeID": "crowd", "size": "64m"}}
	var dirs []string
	call := func(i int, args ...string) error {
		started := time.Now()
		_, err := succeed(n.Call(ctx, args...))
		if err == nil && i >= 0 && !making {
			took(i, time.Since(started))
		}
		return err
	}
	for i, name := range []string{"one", "two"} {
		pod := host.Pod{Namespace: "default", Name: name, UID: "uid-" + name}
		dir := n.PodDir(pod, v)
		dirs = append(dirs, dir)
		if err := host.Prepare(dir); err != nil {
			return err
		}
		if err := call(i, "mount", dir, v.Blob(&pod)); err != nil {
			return err
		}
	}
	for i, dir := range dirs {
		if err := call([]int{2, -1}[i], "unmount", dir); err != nil {
			return err
		}
	}
	return nil
}
