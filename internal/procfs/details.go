package procfs

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// Details are the facts that /proc shows of a process.
type Details struct {
	Pid    int
	Parent int
	Comm   string
	Args   []string // not of a foreign process
	Exe    string   // with " (deleted)" if the file was replaced; "" = it cannot be read
	Mounts string   // its mount namespace; "" = it cannot be read
	Cgroup string
	// Foreign is the reason why root on the node itself has not started the process; "" = it has.
	// Every user can start a process with any name and arguments.
	Foreign string

	proc string
}

// Unreadable is the Foreign of a process that this one may not inspect.
const Unreadable = "its namespaces cannot be read"

// Path returns the path of one of its files.
func (d Details) Path(name string) string { return d.proc + "/" + name }

// Env returns a variable of the environment that it was started with.
func (d Details) Env(name string) string {
	text, _ := os.ReadFile(d.Path("environ"))
	for v := range strings.SplitSeq(string(text), "\x00") {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// Named returns the processes with one of these names in the /proc below root, without
// those whose parent has the same name: they are about to execute another program.
func Named(root string, names ...string) (all []Details, err error) {
	entries, err := os.ReadDir(root + "/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		proc := root + "/proc/" + e.Name()
		comm := word(proc + "/comm")
		if !slices.Contains(names, comm) {
			continue
		}
		d := Details{Pid: pid, Comm: comm, proc: proc}
		if s, err := readStat(proc); err == nil {
			d.Parent = s.parent
		}
		if word(root+"/proc/"+strconv.Itoa(d.Parent)+"/comm") == comm {
			continue
		}
		d.Exe, _ = os.Readlink(proc + "/exe")
		d.Mounts, _ = os.Readlink(proc + "/ns/mnt")
		d.Cgroup = word(proc + "/cgroup")
		d.Foreign = d.foreign(root)
		if d.Foreign == "" || d.Foreign == Unreadable { // another user's memory may be on a filesystem that hangs
			if line, err := os.ReadFile(proc + "/cmdline"); err == nil && len(line) > 0 {
				d.Args = strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
			}
		}
		if _, err := os.Stat(proc + "/comm"); err == nil { // it has not ended
			all = append(all, d)
		}
	}
	return all, nil
}

func (d Details) foreign(root string) string {
	text, err := os.ReadFile(d.Path("status"))
	if err != nil {
		return err.Error()
	}
	status := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.Join(strings.Fields(value), " ")
	}
	theirs, _ := os.Readlink(d.Path("ns/user"))
	ours, _ := os.Readlink(root + "/proc/self/ns/user")
	switch {
	// The owner of /proc/PID is not evidence: it is root for every process that is not dumpable.
	case status["Uid"] != "0 0 0 0":
		return "root did not start it"
	case strings.Contains(status["NSpid"], " "):
		return "it runs in another pid namespace"
	case theirs == "":
		return Unreadable
	case theirs != ours:
		return "it runs in another user namespace"
	case OfPod(d.Cgroup):
		return "it runs in a pod"
	}
	// Only now, since an executable of a pod may be on a filesystem that hangs.
	if st, err := os.Stat(d.Path("exe")); err == nil && st.Mode()&os.ModeSetuid != 0 {
		return "its executable is setuid"
	}
	return ""
}

func word(file string) string {
	text, _ := os.ReadFile(file)
	return strings.TrimSpace(string(text))
}

// System returns a file of the kernel in the /proc below root, "" if it cannot be read.
func System(root, name string) string { return word(root + "/proc/" + name) }
