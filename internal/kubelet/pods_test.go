package kubelet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

const podUID = "6b2f1c3e-0000-4000-8000-000000000001"

// tree makes files below a directory; a name that ends in "/" is a directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := dir + "/" + name
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "/") {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func TestLifeOfPods(t *testing.T) {
	const (
		systemd = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod6b2f1c3e_0000_4000_8000_000000000001.slice"
		plain   = "kubepods/besteffort/pod" + podUID
		full    = "populated 1\nfrozen 0\n"
		empty   = "populated 0\nfrozen 0\n"
		worked  = "usage_usec 17\nuser_usec 17\n"
		idle    = "usage_usec 0\nuser_usec 0\n"
	)
	for _, row := range []struct {
		name  string
		files map[string]string
		want  volume.Life
		why   string
	}{
		{"v2, systemd, running", map[string]string{"cgroup.procs": "", systemd + "/cgroup.events": full}, volume.Running, "processes are in its control group"},
		{"v2, systemd, no process", map[string]string{"cgroup.procs": "", systemd + "/cgroup.events": empty, systemd + "/cpu.stat": worked}, volume.Ended, "no process"},
		{"v2, none was ever there", map[string]string{"cgroup.procs": "", systemd + "/cgroup.events": empty, systemd + "/cpu.stat": idle}, volume.LifeUnknown, "may not have started yet"},
		{"v2, cgroupfs, running", map[string]string{"cgroup.procs": "", plain + "/cgroup.events": full}, volume.Running, ""},
		{"v2, guaranteed, running", map[string]string{"cgroup.procs": "", "kubepods/pod" + podUID + "/cgroup.events": full}, volume.Running, ""},
		{"v2, a static pod's uid", map[string]string{"cgroup.procs": "", "kubepods.slice/kubepods-pod" + "0123456789abcdef" + ".slice/cgroup.events": full}, volume.LifeUnknown, "may not have started yet"},
		{"v2, none yet", map[string]string{"cgroup.procs": "", "kubepods/besteffort/cgroup.events": full}, volume.LifeUnknown, "may not have started yet"},
		{"v2, below --cgroup-root", map[string]string{"cgroup.procs": "", "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod6b2f1c3e_0000_4000_8000_000000000001.slice/cgroup.events": full}, volume.Running, ""},
		{"both drivers have been in use", map[string]string{"cgroup.procs": "", plain + "/cgroup.events": empty, systemd + "/cgroup.events": full}, volume.Running, ""},
		{"what the kernel says does not parse", map[string]string{"cgroup.procs": "", plain + "/cgroup.events": "populated\n"}, volume.LifeUnknown, "does not parse"},
		{"v1, running", map[string]string{"cpu/cgroup.procs": "1\n", "memory/cgroup.procs": "1\n",
			"cpu/" + plain + "/cgroup.procs": "", "memory/" + plain + "/cgroup.procs": "", "memory/" + plain + "/c1/cgroup.procs": "4711\n"}, volume.Running, ""},
		{"v1, no process", map[string]string{"cpu/cgroup.procs": "1\n", "cpu/" + plain + "/cgroup.procs": "", "cpu/" + plain + "/c1/cgroup.procs": "\n", "cpu/" + plain + "/cpuacct.usage": "17\n"}, volume.Ended, "no process"},
		{"v1, none yet", map[string]string{"cpu/cgroup.procs": "1\n", "cpu/kubepods/cgroup.procs": ""}, volume.LifeUnknown, "may not have started yet"},
		{"a directory that is no control group", map[string]string{"cgroup.procs": "", plain + "/": ""}, volume.LifeUnknown, "is no control group"},
		{"no kubelet", map[string]string{"cgroup.procs": "", "system.slice/ssh.service/cgroup.events": full}, volume.LifeUnknown, "kubelet has no control groups (kubepods)"},
		{"no control groups", map[string]string{}, volume.LifeUnknown, "kubelet has no control groups"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := NewCgroups(tree(t, row.files))
			c.seesAll = func() error { return nil }
			if got, why := c.Look().Life(podUID); got != row.want || !strings.Contains(why, row.why) {
				t.Errorf("got %v, %q", got, why)
			}
			if got, _ := c.Look().Life("00000000-0000-4000-8000-000000000009"); got != volume.LifeUnknown {
				t.Errorf("of another pod: got %v", got)
			}
			c.seesAll = func() error { return errors.New("there are others") }
			want := row.want
			if strings.HasPrefix(row.name, "v1") && want == volume.Ended {
				want = volume.LifeUnknown
			}
			if got, why := c.Look().Life(podUID); got != want {
				t.Errorf("where not all processes are seen: got %v, %q", got, why)
			}
		})
	}
}

// With CRI-O a pod has no process between two starts of its containers: it ends only with the removal of its
// control group.
func TestLifeWithCRIO(t *testing.T) {
	const dir = "kubepods/besteffort/pod" + podUID
	root := tree(t, map[string]string{"cgroup.procs": "", dir + "/cgroup.events": "populated 0\n", dir + "/cpu.stat": "usage_usec 17\n"})
	c := NewCgroups(root)
	for _, row := range []struct {
		runs bool
		err  error
		want volume.Life
	}{{false, nil, volume.Ended}, {true, nil, volume.LifeUnknown}, {false, errors.New("unreadable"), volume.LifeUnknown}} {
		c.crio = func() (bool, error) { return row.runs, row.err }
		if got, why := c.Look().Life(podUID); got != row.want {
			t.Errorf("%+v: got %v, %q", row, got, why)
		}
	}
	c.crio = func() (bool, error) { return true, nil }
	c.ran.Store(podUID, true)
	if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
		t.Fatal(err)
	}
	if got, why := c.Look().Life(podUID); got != volume.Ended {
		t.Errorf("without its control group: got %v, %q", got, why)
	}
}

// Pods remembers that a pod has run, after its cgroup is gone, until it is forgotten.
func TestPodHasRunIsRemembered(t *testing.T) {
	const dir = "kubepods/besteffort/pod" + podUID
	root := tree(t, map[string]string{"cgroup.procs": "", dir + "/cgroup.events": "populated 1\n"})
	c := NewCgroups(root)
	if got, why := c.Look().Life(podUID); got != volume.Running {
		t.Fatalf("got %v, %q", got, why)
	}
	if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		but  map[string]bool
		want volume.Life
	}{{map[string]bool{podUID: true}, volume.Ended}, {nil, volume.LifeUnknown}} {
		pods := c.Look()
		pods.Forget(row.but)
		if got, why := pods.Life(podUID); got != row.want {
			t.Errorf("but %v: got %v, %q", row.but, got, why)
		}
	}
}

// A pod's end is notified without polling.
func TestPodEvents(t *testing.T) {
	const file = "kubepods/besteffort/pod" + podUID + "/cgroup.events"
	dir := tree(t, map[string]string{"cgroup.procs": "", file: "populated 1\n"})
	pods := NewCgroups(dir).Look()
	e, err := OpenPodEvents()
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan struct{}, 100)
	go e.Each(t.Context(), func() { heard <- struct{}{} })
	if files := pods.Events(podUID); len(files) != 1 || !e.Follow(files) {
		t.Fatalf("files: %q", files)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte("populated 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	select {
	case <-heard:
	case <-time.After(time.Minute):
		t.Fatal("no notification")
	}
	if !e.Follow(nil) || len(e.w.WatchList()) != 0 {
		t.Error("it is followed forever")
	}
	if e.Follow([]string{filepath.Join(dir, "gone")}) {
		t.Error("what is gone is followed")
	}
}

// With the kernel's own control groups, if the machine has them and allows their creation: a pod starts, its
// process ends, its group is removed.
func TestLifeOfPodsInTheKernel(t *testing.T) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	v2 := ""
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); strings.Contains(line, " - cgroup2 ") {
			v2 = fields[4]
		}
	}
	dir := filepath.Join(v2, fmt.Sprintf("flexd-test-%d", os.Getpid()))
	pod := filepath.Join(dir, "kubepods.slice", "kubepods-pod"+strings.ReplaceAll(podUID, "-", "_")+".slice")
	container := filepath.Join(pod, "c1")
	if v2 == "" || os.MkdirAll(container, 0o755) != nil {
		t.Skip("no control groups (v2) that may be changed")
	}
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() { c.Process.Kill(); c.Wait() })
	t.Cleanup(func() {
		stop()
		for _, d := range []string{container, pod, filepath.Dir(pod), dir} {
			os.Remove(d)
		}
	})
	if err := os.WriteFile(container+"/cgroup.procs", []byte(strconv.Itoa(c.Process.Pid)), 0o644); err != nil {
		t.Skip(err)
	}
	cgroups := NewCgroups(dir)
	is := func(want volume.Life, why string) {
		t.Helper()
		if got, how := cgroups.Look().Life(podUID); got != want || !strings.Contains(how, why) {
			t.Errorf("got %v, %q; want %v", got, how, want)
		}
	}
	is(volume.Running, pod)
	e, err := OpenPodEvents()
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan struct{}, 100)
	go e.Each(t.Context(), func() { heard <- struct{}{} })
	if files := cgroups.Look().Events(podUID); len(files) != 1 || !e.Follow(files) {
		t.Fatalf("files: %q", files)
	}
	hears := func(what string) {
		t.Helper()
		select {
		case <-heard:
		case <-time.After(time.Minute):
			t.Errorf("no notification: %s", what)
		}
	}
	stop()
	hears("its last process ended")
	is(volume.Ended, "no process")
	for len(heard) > 0 {
		<-heard
	}
	if err := errors.Join(os.Remove(container), os.Remove(pod)); err != nil {
		t.Fatal(err)
	}
	is(volume.Ended, "is gone")
}
