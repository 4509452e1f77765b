package procfs

import (
	"os"
	"os/exec"
	"slices"
	"testing"
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
