package volume

import (
	"fmt"
	"strings"
)

// ByHand returns the path of a volume for the commands of its owner, and the command that
// must come first: flexd deactivates a volume that nothing uses, so the device of now may be
// gone, or another volume's, when a message is read. file is that of a volume which is a file;
// with it the name is not needed.
func ByHand(name Name, file string) (first, path string) {
	if file != "" {
		return "", file
	}
	return "lvchange -ay " + name.String() + "; ", "/dev/" + name.String()
}

// EraseAdvice is the remedy for a volume that holds unexpected data: look first.
func EraseAdvice(name Name, file string, size int64) string {
	first, path := ByHand(name, file)
	erase := "blkdiscard -z " + path
	if !strings.HasPrefix(path, "/dev/") {
		erase = fmt.Sprintf("fallocate -p -l %d %s", size, path)
	}
	return fmt.Sprintf("flexd never formats over data. Look at it first: %sblkid -p %s; only if nothing in it is needed: %s", first, path, erase)
}

// keepAdvice is the remedy for a volume that had a filesystem and shows something else now: a
// signature may be all that hides the filesystem.
func keepAdvice(name Name, file, fsType string) string {
	first, path := ByHand(name, file)
	return fmt.Sprintf("flexd never formats over data, and has seen %s on it before: its data may be there still. Look: %swipefs %s; if the %[1]s is among the signatures, erase only the others: wipefs -o OFFSET %[3]s. If it is not: copy the volume and repair the copy, or restore a backup. If nothing of it is needed: remove the volume",
		fsType, first, path)
}
