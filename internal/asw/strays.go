package asw

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/kubelet"
)

// A Stray is one of kubelet's directories for a volume of this driver on which
// nothing is mounted and which is not empty: kubelet cannot remove it.
type Stray struct {
	kubelet.Place
	Dir   string
	Names []string // the first few
}

// maxNames is how many names of a stray are read.
const maxNames = 4

// Strays looks at kubelet's directories for this driver. It reads the disk that
// kubelet's root is on, and enters no mount: that may be of a volume that hangs.
func (o *Observer) Strays() (all []Stray) {
	for _, root := range o.Roots.Resolved() {
		parents := []string{filepath.Dir(kubelet.GlobalDir(root, o.Roots.Driver, "x"))}
		for _, uid := range names(root, filepath.Join(root, "pods"), -1) {
			parents = append(parents, filepath.Dir(kubelet.PodDir(root, o.Roots.Driver, uid, "x")))
		}
		for _, parent := range parents {
			for _, name := range names(root, parent, -1) {
				dir := filepath.Join(parent, name)
				if place, ok := kubelet.ParsePlace(root, o.Roots.Driver, dir); ok {
					if left := names(root, dir, maxNames); len(left) > 0 {
						all = append(all, Stray{place, dir, left})
					}
				}
			}
		}
	}
	return all
}

// names returns at most so many names in a directory below root; -1 = all. One that
// cannot be read, or is behind a mount or a link, has none. The kernel refuses to enter
// them; before Linux 5.6 it cannot.
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
