package procfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Namespace returns the process's namespace of that kind ("mnt", "pid"):
// "mnt:[4026531841]".
func (p Process) Namespace(kind string) (string, error) { return os.Readlink(p.Path("ns/" + kind)) }

// OwnNamespace is Namespace of this process.
func OwnNamespace(kind string) (string, error) { return os.Readlink("/proc/self/ns/" + kind) }

// ThreadNamespace is Namespace of the calling thread.
func ThreadNamespace(kind string) (string, error) {
	return os.Readlink("/proc/thread-self/ns/" + kind)
}

// HostPids is the initial pid namespace, which always has this number.
var HostPids = "pid:[4026531836]" // another in tests

// SeesAll returns an error unless /proc has every process of the machine: in a container
// without hostPID a process that is not found may still exist.
func SeesAll() error {
	switch name, err := OwnNamespace("pid"); {
	case err != nil:
		return fmt.Errorf("the processes of this machine cannot be listed: %w", err)
	case name != HostPids:
		return errors.New("flexd does not see all processes of this machine: it runs in a pid namespace of its own (a container without hostPID)")
	}
	return nil
}

// A Task is a thread, by its directory.
type Task string

// Tasks returns all threads of all processes.
func Tasks() ([]Task, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	if err != nil || len(dirs) == 0 {
		return nil, fmt.Errorf("the processes of this machine cannot be listed: %v", err)
	}
	tasks := make([]Task, len(dirs))
	for i, dir := range dirs {
		tasks[i] = Task(dir)
	}
	return tasks, nil
}

// Path returns the path of one of its files.
func (t Task) Path(name string) string { return string(t) + "/" + name }

// Process returns the process of the thread.
func (t Task) Process() Process {
	pid, _ := strconv.Atoi(strings.Split(string(t), "/")[2])
	return Process(pid)
}
