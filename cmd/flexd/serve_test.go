package main

import (
	"os"
	"testing"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/status"
)

func TestDirs(t *testing.T) {
	dir := t.TempDir()
	c := config.Default()
	c.RunDir, c.StateDir = dir+"/run", dir+"/state"
	for _, row := range []struct {
		group string
		mode  os.FileMode
	}{{"", 0o700}, {"0", 0o710}, {"0", 0o710}} {
		if os.Geteuid() != 0 && row.group != "" {
			t.Skip("needs root to give a directory to a group")
		}
		c.StatusGroup = row.group
		if err := makeDirs(c); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(c.RunDir); err != nil || st.Mode().Perm() != row.mode {
			t.Errorf("group %q: %v, %v", row.group, st.Mode(), err)
		}
		if st, err := os.Stat(c.StateDir); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("state: %v, %v", st.Mode(), err)
		}
	}
}

func TestFound(t *testing.T) {
	l := status.List{Problems: []string{"a note is unreadable"}}
	if got, want := found(l, 2), "mounts in kubelet's directories: 2; problems: a note is unreadable"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
