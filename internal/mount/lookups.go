package mount

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// A lookup is a path that mkfs looks up because of a mount.
type lookup struct {
	path string
	of   *mounttable.Entry
	file bool // path is the file of the loop device that is mounted
}

// mayLookUp refuses a mkfs that would hang or fail at another mount: to see whether its device is mounted, mkfs.xfs and
// mkfs.btrfs look up the sources of all mounts, and mkfs.btrfs also the files of all mounted loop devices.
func mayLookUp(fsType string, table *mounttable.Table) error {
	if fsType == "ext4" {
		return nil
	}
	seen := map[string]bool{}
	var now atomic.Pointer[lookup]
	found := make(chan *lookup, 1)
	go func() {
		fails := func(l lookup) bool {
			if seen[l.path] {
				return false
			}
			seen[l.path] = true
			now.Store(&l)
			var st unix.Stat_t
			return isFailure(unix.Stat(l.path, &st)) && l.file
		}
		for _, e := range table.All() {
			if !strings.HasPrefix(e.Source, "/") {
				continue
			}
			l := lookup{path: e.Source, of: e}
			if !fails(l) && fsType == "btrfs" && strings.HasPrefix(e.Source, "/dev/loop") {
				file, err := sysfs.Line("/sys/block/" + filepath.Base(e.Source) + "/loop/backing_file")
				l = lookup{file, e, true}
				if err == nil && fails(l) {
					found <- &l
					return
				}
			}
		}
		found <- nil
	}()
	does := "has failed"
	var l *lookup
	select {
	case l = <-found:
	case <-time.After(belowTimeout):
		l, does = now.Load(), "does not respond"
	}
	if l == nil {
		return nil
	}
	return &Refusal{
		What: fmt.Sprintf("mkfs.%s would look up %s, because %s is mounted at %s, and the filesystem of that path %s", fsType, l.path, l.of.Source, l.of.Dir, does),
		Hint: "repair that filesystem, or, if nothing needs it, unmount it (umount -l)", Why: volume.Failed,
	}
}
