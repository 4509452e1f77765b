package procfs

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNamed(t *testing.T) {
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	all, err := Named("", "sleep")
	i := slices.IndexFunc(all, func(d Details) bool { return d.Pid == c.Process.Pid })
	if err != nil || i < 0 {
		t.Fatal(all, err)
	}
	d := all[i]
	want := ""
	if os.Getuid() != 0 {
		want = "root did not start it"
	}
	ours, _ := OwnNamespace("mnt")
	if d.Foreign != want || !slices.Equal(d.Args, c.Args) || d.Parent != os.Getpid() || d.Mounts != ours || d.Exe == "" || d.Env("PATH") != os.Getenv("PATH") {
		t.Errorf("%+v", d)
	}
}

// Nothing that a pod's process has on a filesystem is looked at, which may hang: its
// executable, and the memory with its arguments.
func TestNamedStranger(t *testing.T) {
	root := t.TempDir()
	proc := root + "/proc/7"
	if err := os.MkdirAll(proc+"/ns", 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"comm": "kubelet\n", "status": "Uid:\t0\t0\t0\t0\nNSpid:\t7\t1\n", "setuid": ""} {
		if err := os.WriteFile(proc+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(unix.Mkfifo(proc+"/cmdline", 0o600), os.Chmod(proc+"/setuid", 0o700|os.ModeSetuid), os.Symlink("setuid", proc+"/exe")); err != nil {
		t.Fatal(err)
	}
	all, err := Named(root, "kubelet")
	if err != nil || len(all) != 1 || all[0].Foreign != "it runs in another pid namespace" || all[0].Args != nil {
		t.Errorf("%+v, %v", all, err)
	}
}
