package sysfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ensure that lines of any length are read, and that an empty file is no error.
func TestLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, n := range []int{0, 1, 254, 255, 256, 257, 511, 512, 4096} {
		want := strings.Repeat("x", n)
		for _, end := range []string{"", "\n"} {
			if err := os.WriteFile(path, []byte(want+end), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := Line(path); got != want || err != nil {
				t.Errorf("%d bytes: got %d, %v", n, len(got), err)
			}
		}
	}
	if _, err := Line(path + ".not"); !os.IsNotExist(err) {
		t.Errorf("got %v", err)
	}
}
