package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/flexd/flexd/test/host"
)

const (
	idleVolumes = 20
	idlePods    = 50 // of each volume
)

// idle observes a flexd that has nothing to do.
func idle(ctx context.Context, n *host.Node, rest time.Duration) (goals []goal, err error) {
	started := time.Now()
	if err := claim(ctx, n); err != nil {
		return nil, err
	}
	claims := 0
	for i := range idleVolumes {
		s, err := n.Volume(volumeName(i))
		if err != nil {
			return nil, err
		}
		for _, c := range s.Claims {
			if c.Phase == "held" && c.Mounted {
				claims++
			}
		}
	}
	fmt.Printf("  %d claims held and mounted, made in %.0fs\n", claims, time.Since(started).Seconds())
	if want := idleVolumes * idlePods; claims != want {
		return nil, fmt.Errorf("%d claims, not %d", claims, want)
	}
	time.Sleep(3 * time.Second) // let the last events pass

	w, err := watch(ctx, n, rest)
	if err != nil {
		return nil, err
	}
	fmt.Printf("  watched for %v: %v of CPU time, %d system calls seen by strace\n", rest, w.cpu, w.calls)
	for _, l := range w.lines {
		fmt.Println("    " + l)
	}
	share := float64(w.cpu) / float64(rest) * 100
	return []goal{
		{"at rest: processes started", "0", strconv.Itoa(w.started), w.started == 0},
		{"at rest: files opened or scanned", "0", strconv.Itoa(w.looks), w.looks == 0},
		{"at rest: of a core", "< 0.2 %", fmt.Sprintf("%.3f %%", share), share < 0.2},
		{"at rest: resident", "< 40 MiB", fmt.Sprintf("%.1f MiB", float64(w.resident)/(1<<20)), w.resident < 40<<20},
	}, nil
}

func volumeName(i int) string { return fmt.Sprintf("data%d", i) }

// claim makes all the claims through flexdriver, as kubelet does with
// attach:false.
func claim(ctx context.Context, n *host.Node) error {
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		errs  []error
		slots = make(chan struct{}, 8)
	)
	for p := range idlePods {
		for i := range idleVolumes {
			all.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				v := host.Volume{Name: "data", FSType: "ext4", Options: map[string]string{"volumegroup": host.VG, "volumeID": volumeName(i), "size": "16m"}}
				pod := host.Pod{Namespace: "default", Name: fmt.Sprintf("pod-%d-%d", i, p), UID: fmt.Sprintf("uid-%d-%d", i, p)}
				dir := n.PodDir(pod, v)
				err := host.Prepare(dir)
				if err == nil {
					_, err = succeed(n.Call(ctx, "mount", dir, v.Blob(&pod)))
				}
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	return errors.Join(errs[:min(3, len(errs))]...)
}

// A watched has the system calls of an idle flexd.
type watched struct {
	cpu      time.Duration
	resident int64
	calls    int // system calls
	started  int // of them: processes and programs
	looks    int // of them: files opened or asked for, directories and the mount table read
	lines    []string
}

// starting and looking are the system calls that idleness forbids. A thread is
// no process: clone counts without CLONE_THREAD only.
var (
	starting = []string{"execve", "execveat", "fork", "vfork", "clone", "clone3"}
	looking  = []string{"open", "openat", "openat2", "getdents64", "readlinkat", "newfstatat", "statx"}
)

func watch(ctx context.Context, n *host.Node, rest time.Duration) (watched, error) {
	var w watched
	dir := filepath.Join(n.Dir, "trace") // not beside the configuration, whose directory flexd watches
	if err := os.Mkdir(dir, 0o700); err != nil {
		return w, err
	}
	trace := filepath.Join(dir, "trace")
	strace := exec.CommandContext(ctx, "strace", "-f", "-qq", "-y", "-o", trace, "-p", strconv.Itoa(n.Pid()))
	strace.Stderr = os.Stderr
	if err := strace.Start(); err != nil {
		return w, fmt.Errorf("strace is needed: %w", err)
	}
	time.Sleep(time.Second) // it attaches to each thread
	before, err := cpuTime(n.Pid())
	if err != nil {
		return w, err
	}
	select {
	case <-time.After(rest):
	case <-ctx.Done():
		return w, ctx.Err()
	}
	after, err := cpuTime(n.Pid())
	if err != nil {
		return w, err
	}
	w.cpu = after - before
	strace.Process.Signal(syscall.SIGINT) // it detaches and ends
	strace.Wait()
	if w.resident, err = resident(n.Pid()); err != nil {
		return w, err
	}
	return w, w.count(trace)
}

// count reads what strace wrote: "PID call(...) = result" a line.
func (w *watched) count(trace string) error {
	f, err := os.Open(trace)
	if err != nil {
		return err
	}
	defer f.Close()
	kinds := map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		_, rest, ok := strings.Cut(lines.Text(), " ")
		call, args, called := strings.Cut(strings.TrimSpace(rest), "(")
		if !ok || !called || strings.HasPrefix(call, "<") || strings.HasPrefix(call, "+") {
			continue // the second half of a call, or an end
		}
		w.calls++
		kinds[call]++
		switch {
		case slices.Contains(starting, call) && !strings.Contains(args, "CLONE_THREAD"):
			w.started++
			w.lines = append(w.lines, rest)
		case slices.Contains(looking, call) || strings.Contains(call, "read") && strings.Contains(args, "/mountinfo>"):
			w.looks++
			w.lines = append(w.lines, rest)
		}
	}
	if len(w.lines) > 10 {
		w.lines = append(w.lines[:10], "...")
	}
	for call, n := range kinds {
		w.lines = append(w.lines, fmt.Sprintf("%s: %d", call, n))
	}
	return nil
}

// cpuTime is what a process' threads have used, those that have ended included.
func cpuTime(pid int) (time.Duration, error) {
	// Fields 14 and 15 count in ticks; the sum over the threads is exact, and
	// Go's threads do not end.
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("flexd (pid %d) is gone", pid)
	}
	var sum time.Duration
	for _, t := range tasks {
		text, err := os.ReadFile(t)
		if err != nil {
			continue
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// resident is a process' resident memory in bytes.
func resident(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.Fields(kb)[0], 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("no VmRSS")
}
