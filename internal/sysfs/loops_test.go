package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// A loop device whose file has a path that the kernel cannot show hides no other device.
func TestLongPath(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := unix.Open(t.TempDir(), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 250)
	for range 17 {
		if err := unix.Mkdirat(dir, name, 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(dir, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(dir)
		if dir = next; err != nil {
			t.Fatal(err)
		}
	}
	file, err := unix.Openat(dir, "file", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	if err := unix.Ftruncate(file, 1<<20); err != nil {
		t.Fatal(err)
	}
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Close(control)
	n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
	if err != nil {
		t.Fatal(err)
	}
	loop, err := os.OpenFile(fmt.Sprint("/dev/loop", n), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer loop.Close()
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_FD, file); err != nil {
		t.Fatal(err)
	}
	defer unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0)
	all, err := Loops()
	if err != nil || !slices.Contains(all, Loop{fmt.Sprint("loop", n), LongPath}) {
		t.Errorf("got %v, %v", all, err)
	}
}
