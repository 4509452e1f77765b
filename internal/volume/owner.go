package volume

import (
	"fmt"
	"strings"
)

// Quote returns a path as a word of a shell's command line.
func Quote(path string) string {
	if path != "" && strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+,:@") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// A Handle is how the commands of a volume's owner reach it. flexd deactivates a volume that
// nothing uses, so the device of now may be gone, or another volume's, when a message is read.
type Handle struct {
	Name Name   // of a logical volume
	File string // of a volume that is a file
	Path string // of the device, where neither is known
}

// Handle returns the handle of a volume.
func (lv LV) Handle() Handle {
	if lv.File.Path != "" {
		return Handle{File: lv.File.Path}
	}
	return Handle{Name: lv.Name}
}

// Command returns the command line with which an owner applies commands to the volume; in
// commands DEV is its device. A file gets a loop device, or its present one: a mount excludes
// the commands then, and they exclude a mount, as on LVM.
func (h Handle) Command(commands string) string {
	replace := func(dev string) string { return strings.ReplaceAll(commands, "DEV", dev) }
	switch {
	case h.File != "":
		return fmt.Sprintf("L=$(losetup -Lf --show %s); %s; losetup -d $L", Quote(h.File), replace("$L"))
	case h.Path != "":
		return replace(h.Path)
	}
	return fmt.Sprintf("lvchange -ay %s; %s", h.Name, replace("/dev/"+h.Name.String()))
}

// reading is Command for commands that only read.
func (h Handle) reading(commands string) string {
	if h.File != "" {
		return strings.ReplaceAll(commands, "DEV", Quote(h.File))
	}
	return h.Command(commands)
}

// EraseAdvice is the remedy for a volume that holds unexpected data: look first.
func EraseAdvice(h Handle) string {
	// blkdiscard refuses what has a signature, and its -f would erase what is mounted, too.
	erase := "wipefs -a DEV && blkdiscard -z DEV"
	if h.File != "" {
		erase = "wipefs -a DEV && blkdiscard DEV" // punches a hole in the file
	}
	return fmt.Sprintf("flexd never formats over data. Look at it first: %s; only if nothing in it is needed: %s", h.reading("blkid -p DEV"), h.Command(erase))
}

// keepAdvice is the remedy for a volume that had a filesystem and shows something else now: a
// signature may be all that hides the filesystem.
func keepAdvice(h Handle, fsType string) string {
	return fmt.Sprintf("flexd never formats over data, and has seen %s on it before: its data may be there still. Look: %s; if the %s is among the signatures, erase only the others: %s. If it is not: copy the volume and repair the copy, or restore a backup. If nothing of it is needed: remove the volume",
		fsType, h.reading("wipefs DEV"), fsType, h.Command("wipefs -o OFFSET DEV"))
}
