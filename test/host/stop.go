package host

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Stop sends SIGSTOP and waits until it holds each thread: one that runs may go on
// for a moment, long enough to answer a call. It says whether the process is stopped;
// else it has ended.
func Stop(pid int) bool {
	syscall.Kill(pid, syscall.SIGSTOP)
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(time.Millisecond) {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		states := map[byte]bool{}
		for _, file := range threads {
			if stat, err := os.ReadFile(file); err == nil {
				_, state, _ := strings.Cut(string(stat), ") ")
				states[state[0]] = true
			}
		}
		switch {
		case states['Z'] || len(states) == 0:
			return false
		case len(states) == 1 && states['T']:
			return true
		}
	}
	return false
}

// Freeze stops a command that flexd runs, in the middle of its work, and returns
// its pid: the first word is its program's name, or an operation of flexd's own;
// the others are among its arguments. It returns 0 when over says that there will be none.
// It is quick: mkfs takes an instant, and the machine may be busy.
func (n *Node) Freeze(over func() bool, words ...string) int {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) == nil {
		defer unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 0)
	}
	sleep := func(d time.Duration) { // in this thread: another one, without its priority, wakes it from time.Sleep
		ts := unix.NsecToTimespec(int64(d))
		unix.Nanosleep(&ts, nil)
	}
	others := map[string]bool{} // that will not become it
	var took time.Duration
	for end := time.Now().Add(soon); time.Now().Before(end) && !over(); sleep(min(max(took, 200*time.Microsecond), 5*time.Millisecond)) {
		begun := time.Now()
		proc, err := os.Open("/proc")
		if err != nil {
			panic(err)
		}
		names, _ := proc.Readdirnames(-1)
		proc.Close()
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil || others[name] {
				continue
			}
			comm, _ := os.ReadFile("/proc/" + name + "/comm")
			switch strings.TrimSpace(string(comm)) {
			case "exe", words[0]:
				if n.runs(name, words) && Stop(pid) {
					return pid
				}
				stat, _ := os.ReadFile("/proc/" + name + "/stat")
				others[name] = strings.Contains(string(stat), ") Z ") // a thousand of them would make this too slow
			case "flexd":
			default:
				others[name] = true
			}
		}
		took = time.Since(begun)
	}
	return 0
}

// runs says whether a process is that command of this node's flexd.
func (n *Node) runs(pid string, words []string) bool {
	// First, since the command line of another process in a page fault may not be readable for seconds.
	if in, _ := os.Readlink("/proc/" + pid + "/fd/0"); !strings.HasPrefix(in, n.Run+"/") {
		return false
	}
	cmdline, _ := os.ReadFile("/proc/" + pid + "/cmdline")
	argv := strings.Split(string(cmdline), "\x00")
	if len(argv) > 2 && argv[1] == "child" { // /proc/self/exe child OPERATION
		argv = argv[2:]
	}
	for i, w := range words {
		if i == 0 && filepath.Base(argv[0]) != w || i > 0 && !slices.Contains(argv, w) {
			return false
		}
	}
	return true
}
