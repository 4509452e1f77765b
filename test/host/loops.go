package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// loops are volumes of files.
type loops struct{ dir string }

func (l loops) prepare() error { return os.MkdirAll(l.dir, 0o755) }
func (l loops) config() string { return "    provider: loopdev\n    directory: " + l.dir + "\n" }
func (l loops) remove() error  { return os.RemoveAll(l.dir) }

func (l loops) Has(lv string) (bool, error) {
	_, err := os.Stat(l.dir + "/" + lv)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// devices lists the loop devices whose file lies, or lay, in the directory.
func (l loops) devices() ([]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	var paths []string
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), l.dir+"/") {
			paths = append(paths, "/dev/"+strings.Split(f, "/")[3])
		}
	}
	return paths, err
}

// release takes the devices' files away; a device in use loses it later.
func (l loops) release() {
	devices, _ := l.devices()
	for _, path := range devices {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0)
		unix.Close(fd)
	}
}
