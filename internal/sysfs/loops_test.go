package sysfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// The directory of virtual devices appears with the first one. Without sysfs nothing is known.
func TestNoVirtualDevices(t *testing.T) {
	root := t.TempDir()
	if _, err := loops(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without sysfs: %v", err)
	}
	if err := os.Mkdir(filepath.Join(root, "block"), 0o755); err != nil {
		t.Fatal(err)
	}
	if all, err := loops(root); len(all) != 0 || err != nil {
		t.Errorf("without virtual devices: %v %v", all, err)
	}
	if err := os.Mkdir(filepath.Join(root, "block/loop0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := loops(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with a hidden directory: %v", err)
	}
}
