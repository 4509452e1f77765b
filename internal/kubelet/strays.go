package kubelet

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// maxNames is the number of names that are read of a stray.
const maxNames = 4

// Strays returns unmounted directories of this driver that are not empty. It reads only the filesystem of
// kubelet's root, and enters no mount: its volume may hang.
func (l Layout) Strays() (all []volume.Stray) {
	roots, _ := l.Roots()
	for _, root := range roots {
		parents := []string{filepath.Dir(GlobalDir(root, l.Driver, "x"))}
		for _, uid := range names(root, filepath.Join(root, "pods"), -1) {
			parents = append(parents, filepath.Dir(PodDir(root, l.Driver, uid, "x")))
		}
		for _, parent := range parents {
			for _, name := range names(root, parent, -1) {
				dir := filepath.Join(parent, name)
				if place := l.Place(root, dir); place.Kind != "" {
					if left := names(root, dir, maxNames); len(left) > 0 {
						all = append(all, volume.Stray{Place: place, Dir: dir, Names: left})
					}
				}
			}
		}
	}
	return all
}

// names returns at most limit names in a directory below root; -1 = all. It returns none if the directory
// cannot be read, or is behind a mount or a link.
func names(root, dir string, limit int) []string {
	below, err := filepath.Rel(root, dir)
	if err != nil {
		return nil
	}
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(at)
	fd, err := unix.Openat2(at, below, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	found, _ := f.Readdirnames(limit)
	return found
}
