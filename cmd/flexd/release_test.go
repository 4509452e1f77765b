package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The command resolves what flexd compares with its mount table, and does not access the
// directory itself.
func TestResolve(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	os.Mkdir(dir+"/pods", 0o755)
	os.Symlink("pods", dir+"/link")
	os.Symlink("nowhere", dir+"/pods/target")
	for target, want := range map[string]string{
		dir + "/link/target":     dir + "/pods/target", // a link itself is no volume's directory
		dir + "/link/../pods/a/": dir + "/pods/a",
		dir + "/missing/a":       dir + "/missing/a",
		"/":                      "/",
		"vg0/data":               "vg0/data",
		"../x":                   "../x",
	} {
		if got := resolve(target); got != want {
			t.Errorf("%s: %s, want %s", target, got, want)
		}
	}
}
