package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/volume"
)

// Cgroups are the control groups of this machine, below dir (/sys/fs/cgroup).
// The processes of a pod are in a control group with the pod's uid in its name.
type Cgroups struct {
	dir string
	ran *sync.Map // the uids of pods that were seen with a process

	seesAll func() error         // whether the lists of processes (v1) are complete; replaced in tests
	crio    func() (bool, error) // whether CRI-O runs; replaced in tests
}

// NewCgroups returns the control groups below dir.
func NewCgroups(dir string) Cgroups { return Cgroups{dir, new(sync.Map), procfs.SeesAll, crio} }

// crio reports whether the node's container runtime is CRI-O.
func crio() (bool, error) {
	found, err := procfs.Named("", "crio")
	return slices.ContainsFunc(found, func(d procfs.Details) bool { return d.Foreign == "" || d.Foreign == procfs.Unreadable }), err
}

// Pods are kubelet's control groups at one instant.
type Pods struct {
	dirs map[string][]string // by uid; one in each hierarchy
	why  string              // why the processes of pods are unknown
	of   Cgroups
	crio func() (bool, error) // that of Cgroups, called once
}

// Look finds the pods' control groups: kubelet's own tree in each hierarchy, with the names
// of either cgroup driver (kubepods/burstable/podUID, or
// kubepods.slice/.../kubepods-burstable-podU_I_D.slice).
func (c Cgroups) Look() Pods {
	p := Pods{dirs: map[string][]string{}, of: c, crio: sync.OnceValues(c.crio)}
	trees := 0
	for _, hierarchy := range c.hierarchies() {
		found, err := cgroupRoots(hierarchy)
		for _, tree := range found {
			if err == nil {
				err = p.add(tree, 2)
			}
		}
		if err != nil {
			return Pods{why: "kubelet's control groups cannot be read: " + err.Error()}
		}
		trees += len(found)
	}
	if trees == 0 {
		p.why = "kubelet has no control groups (kubepods) below " + c.dir
	}
	return p
}

// Unknown returns why the processes of pods are unknown, "" if they are known.
func (p Pods) Unknown() string { return p.why }

// hierarchies returns the directory itself (v2), or the directories in it (v1, and both).
func (c Cgroups) hierarchies() (all []string) {
	if exists(filepath.Join(c.dir, "cgroup.procs")) {
		return []string{c.dir}
	}
	entries, _ := os.ReadDir(c.dir) // a missing directory has no control groups
	for _, e := range entries {     // symlinks are second names
		if dir := filepath.Join(c.dir, e.Name()); e.IsDir() && exists(filepath.Join(dir, "cgroup.procs")) {
			all = append(all, dir)
		}
	}
	return all
}

// treeDepth is the maximal depth of kubelet's --cgroup-root.
const treeDepth = 3

// cgroupRoots finds the directories named kubepods in a hierarchy.
func cgroupRoots(dir string) (found []string, err error) {
	var walk func(dir string, depth int) error
	walk = func(dir string, depth int) error {
		names, err := subdirectories(dir)
		for _, name := range names {
			below := filepath.Join(dir, name)
			switch {
			case IsCgroupRoot(name):
				found = append(found, below)
			case depth > 1:
				if err := walk(below, depth-1); err != nil {
					return err
				}
			}
		}
		return err
	}
	return found, walk(dir, treeDepth)
}

// subdirectories returns the names of the directories in a directory; a missing one has none.
func subdirectories(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if isGone(err) {
		return nil, nil
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// add adds the pods in a part of kubelet's tree, which has one level for the QoS classes.
func (p Pods) add(dir string, depth int) error {
	names, err := subdirectories(dir)
	for _, name := range names {
		below := filepath.Join(dir, name)
		if uid := PodOfCgroup(name); uid != "" {
			p.dirs[uid] = append(p.dirs[uid], below)
		} else if depth > 1 {
			if err := p.add(below, depth-1); err != nil {
				return err
			}
		}
	}
	return err
}

// Life reports whether a pod still has a process, with the evidence. A pod that never had a
// process has not ended: its volumes are mounted before its start, which may wait long for
// a Secret, another volume, or the node's network.
func (p Pods) Life(uid string) (volume.Life, string) {
	if p.why != "" {
		return volume.LifeUnknown, p.why
	}
	dirs := p.dirs[uid]
	for _, dir := range dirs {
		switch n, err := populated(dir); {
		case err != nil:
			return volume.LifeUnknown, err.Error()
		case n:
			p.of.ran.Store(uid, true)
			return volume.Running, "processes are in its control group " + dir
		}
	}
	if len(dirs) != len(p.Events(uid)) { // v1 lists processes
		if err := p.of.seesAll(); err != nil {
			return volume.LifeUnknown, err.Error()
		}
	}
	if _, ran := p.of.ran.Load(uid); !ran && !slices.ContainsFunc(dirs, used) {
		return volume.LifeUnknown, "none of its pod's processes was ever seen: it may not have started yet"
	}
	if len(dirs) == 0 {
		return volume.Ended, "its pod's control group is gone"
	}
	// CRI-O runs no pause process, so there is none while the containers wait for
	// an image or for their next start.
	switch crio, err := p.crio(); {
	case err != nil:
		return volume.LifeUnknown, err.Error()
	case crio:
		return volume.LifeUnknown, "no process is in its pod's control group, but with CRI-O that is so between two starts of its containers, too"
	}
	return volume.Ended, "no process is in its pod's control group"
}

// Forget forgets all pods except those in but.
func (p Pods) Forget(but map[string]bool) {
	p.of.ran.Range(func(uid, _ any) bool {
		if !but[uid.(string)] {
			p.of.ran.Delete(uid)
		}
		return true
	})
}

// used reports whether the processes of a control group have used CPU time.
func used(dir string) bool {
	stat, _ := os.ReadFile(filepath.Join(dir, "cpu.stat")) // v2
	for line := range strings.Lines(string(stat)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "usage_usec "); ok {
			return n != "0"
		}
	}
	usage, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage")) // v1
	return err == nil && string(bytes.TrimSpace(usage)) != "0"
}

// Events returns the files in which the kernel announces the first and the last
// process of a pod, one for each hierarchy; none with v1.
func (p Pods) Events(uid string) (files []string) {
	for _, dir := range p.dirs[uid] {
		file := filepath.Join(dir, "cgroup.events")
		if !exists(file) {
			return nil
		}
		files = append(files, file)
	}
	return files
}

// populated reports whether a control group, or one below it, has a process.
func populated(dir string) (bool, error) {
	events, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if err == nil {
		for line := range strings.Lines(string(events)) {
			if n, ok := strings.CutPrefix(strings.TrimSpace(line), "populated "); ok {
				return n != "0", nil
			}
		}
		return false, fmt.Errorf("%s/cgroup.events does not parse", dir)
	}
	if !isGone(err) {
		return false, err
	}
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil && !isGone(err) || len(bytes.TrimSpace(procs)) > 0 {
		return true, err
	}
	if err != nil && exists(dir) {
		return false, fmt.Errorf("%s is no control group", dir)
	}
	names, err := subdirectories(dir)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if some, err := populated(filepath.Join(dir, name)); some || err != nil {
			return some, err
		}
	}
	return false, nil
}
