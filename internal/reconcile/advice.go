package reconcile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// withAdvice adds the remedy to an error about a file in flexd's run or state directory.
func (n *Node) withAdvice(err error) error {
	var at string
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		at = e.Path
	} else if e, ok := errors.AsType[*os.LinkError](err); ok {
		at = e.New
	}
	for _, dir := range []string{n.Config.Get().RunDir, n.Config.Get().StateDir} {
		if !strings.HasPrefix(at, dir+"/") {
			continue
		}
		meanwhile := "; unmount works meanwhile"
		if strings.HasPrefix(at, filepath.Dir(n.lockFile("x"))) {
			meanwhile = "" // no step runs without its lock file
		}
		switch {
		case errors.Is(err, unix.EROFS):
			advice := fmt.Sprintf("remount the filesystem of %s read-write%s", dir, meanwhile)
			return volume.Errorf(volume.Failed, "%w (%s)", err, advice)
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
			how := "is full"
			var st unix.Statfs_t
			if unix.Statfs(dir, &st) == nil && st.Files > 0 && st.Ffree == 0 {
				how = "has no inode left"
			}
			advice := fmt.Sprintf("the filesystem of %s %s: make room there%s", dir, how, meanwhile)
			return volume.Errorf(volume.NoSpace, "%w (%s)", err, advice)
		}
	}
	return err
}
