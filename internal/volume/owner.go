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

// A Handle identifies a volume in the commands of its owner. flexd deactivates a volume that nothing
// uses, so when a message is read, its device may be gone or belong to another volume.
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

// Command returns the command line that runs the owner's commands on the volume, with DEV as its device.
// A file is attached to a loop device, or its present one is used, so that the commands and a mount
// exclude each other as on LVM.
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

// reading is Command for commands that only read the volume.
func (h Handle) reading(commands string) string {
	if h.File != "" {
		return strings.ReplaceAll(commands, "DEV", Quote(h.File))
	}
	return h.Command(commands)
}

// EraseAdvice returns the remedy for a volume with unexpected data: look at it first.
func EraseAdvice(h Handle) string {
	// wipefs comes first, because blkdiscard refuses a device with a signature; with -f it would also
	// erase a mounted one.
	erase := "wipefs -a DEV && blkdiscard -z DEV"
	if h.File != "" {
		erase = "wipefs -a DEV && blkdiscard DEV" // punches a hole in the file
	}
	return fmt.Sprintf("flexd never formats over data. Look at it first: %s; only if nothing in it is needed: %s", h.reading("blkid -p DEV"), h.Command(erase))
}

// keepAdvice returns the remedy for a volume that had a filesystem and now has another content: perhaps
// only a signature hides the filesystem.
func keepAdvice(h Handle, fsType string) string {
	return fmt.Sprintf("flexd never formats over data, and has seen %s on it before: its data may still be there. Look at it: %s; if the %s is among the signatures, erase only the others: %s. If it is not: copy the volume and repair the copy, or restore a backup. If its data is not needed: remove the volume",
		fsType, h.reading("wipefs DEV"), fsType, h.Command("wipefs -o OFFSET DEV"))
}
