package host

import (
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/sysfs"
)

// Loops are volumes of files below a directory.
type Loops struct{ Dir string }

// Devices lists the loop devices whose file lies, or lay, in the directory, by file.
func (l Loops) Devices() map[string]string {
	all := map[string]string{}
	found, _ := sysfs.Loops()
	for _, f := range found {
		if file, ours := strings.CutPrefix(f.File, l.Dir+"/"); ours {
			all[file] = "/dev/" + f.Name
		}
	}
	return all
}

// Active lists the files.
func (l Loops) Active() []string { return slices.Sorted(maps.Keys(l.Devices())) }

// Release takes the devices' files away; a device in use loses it later.
func (l Loops) Release() {
	for _, device := range l.Devices() {
		if fd, err := unix.Open(device, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0)
			unix.Close(fd)
		}
	}
}

// Remove does nothing: the files are below the node's directory.
func (l Loops) Remove() error { return nil }

func (l Loops) prepare() error { return os.MkdirAll(l.Dir, 0o755) }
func (l Loops) config() string {
	return "provider: loopdev, directory: " + l.Dir + ", overcommit: true, reserve: 0%"
}
