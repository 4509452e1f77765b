// Package umount unmounts for tests, on a machine whose other processes look
// at every mount at any time: df, a kubelet, another test.
package umount

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// patience is far longer than a process needs for one mount.
const patience = 10 * time.Second

// Plain unmounts what is mounted at dir, if it is not in use. A process that resolves a
// path there makes the mount busy for an instant, which is no use: Plain tries again.
func Plain(dir string) error { return unmount(dir, 0) }

// NoFollow is Plain for a path that may be a symlink by now.
func NoFollow(dir string) error { return unmount(dir, unix.UMOUNT_NOFOLLOW) }

func unmount(dir string, flags int) error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		err := unix.Unmount(dir, flags)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}
