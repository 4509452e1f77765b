package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// check is the child that repairs errors of an ext4 that need no decision.
func check(a checkArg) error {
	dev, err := openDevice(a.Device, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := unused(dev, a.Device); err != nil {
		return err // e2fsck does not notice plain openers
	}
	if sb, err := readSuperblock(dev, "ext4"); err == nil {
		if err := fits(dev, sb.Size, "ext4", a.Device); err != nil {
			return err // e2fsck would drop the blocks beyond the end
		}
		if sb.Log {
			if err := replay(dev, a.Device, sb); err != nil {
				return err
			}
		}
	}
	p, err := tool(limits{memory: a.Memory}, "e2fsprogs", nil, "e2fsck", "-p", a.Device.Path)
	if err != nil {
		return err
	}
	return e2fsckError(a.Device, p.code, oneLine(p.out, p.errs))
}

// replay makes the kernel replay the journal of an ext4 before e2fsck reads it. If a write fails,
// for example because the directory of a loop device is full, the kernel refuses the mount and
// keeps the journal; e2fsck would discard the journal and lose its contents. e2fsck also does not
// replay every journal with fast commits. It repairs the other errors that the kernel reports, such
// as a group descriptor that is torn on the disk, but intact in the journal.
func replay(dev *os.File, d volume.Device, sb superblock) error {
	mnt, err := build(dev, MountSpec{Device: d, FSType: "ext4", First: true, onlyJournal: true})
	if err == nil {
		err = unix.Close(mnt)
	}
	_, refused := errors.AsType[*Refusal](err)
	_, busy := errors.AsType[*BusyError](err)
	damaged := errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EBADMSG) || errors.Is(err, unix.EINVAL)
	switch {
	case err == nil, damaged && !sb.FastCommit:
		return unused(dev, d) // the kernel frees the superblock a moment after the mount
	case refused, busy:
		return err
	}
	return &Refusal{
		What: fmt.Sprintf("the kernel could not replay the journal of %s: %v", d.Path, err),
		Hint: "look at dmesg and at the disk: when it takes writes again, the next mount replays it. If it does not, copy the volume before you run e2fsck, which may drop what the journal has; then: " + handle(d).Command("e2fsck -f DEV"),
		Why:  volume.Damaged,
	}
}

// marked refuses an ext4 whose MMP block is in use. The mark of an e2fsck that was killed also stops the
// next one.
func marked(d volume.Device, said string) *Refusal {
	return &Refusal{
		What: fmt.Sprintf("the MMP block of the ext4 on %s says that another node uses it, or that an e2fsck was killed: %s", d.Path, said),
		Hint: "make sure that no other node uses the volume, since both would destroy its data; then, and the next mount checks it: " + handle(d).Command("tune2fs -f -E clear_mmp DEV"),
		Why:  volume.Damaged,
	}
}

// e2fsckError explains e2fsck's exit status, a sum of bits.
func e2fsckError(d volume.Device, code int, said string) error {
	dev := d.Path
	switch {
	case code&^1 == 0: // clean, or corrected
		return nil
	case code&4 != 0 && strings.Contains(said, "MMP"):
		return marked(d, said)
	case code&4 != 0:
		return &Refusal{
			What: fmt.Sprintf("e2fsck found errors on %s that it may not repair by itself: %s", dev, said),
			Hint: "look at dmesg and at the disk, and copy the volume if its data is needed; then: " + handle(d).Command("e2fsck -f DEV"),
			Why:  volume.Damaged,
		}
	case code&8 != 0 && strings.Contains(said, "e2fsck -b "): // as after an e2fsck that was killed while it wrote the superblock
		return &Refusal{
			What: fmt.Sprintf("e2fsck cannot use the superblock of %s: %s", dev, said),
			Hint: "look at dmesg and at the disk, and copy the volume if its data is needed; then, with a backup superblock (8193 if its blocks have 1024 bytes): " + handle(d).Command("e2fsck -b 32768 DEV"),
			Why:  volume.Damaged,
		}
	case code&8 != 0:
		return fmt.Errorf("e2fsck could not check %s: %s", dev, said)
	case code&2 != 0:
		return fmt.Errorf("e2fsck repaired %s, and requires a reboot before it is used: %s", dev, said)
	case code&32 != 0:
		return fmt.Errorf("e2fsck of %s was cancelled", dev)
	}
	return fmt.Errorf("e2fsck of %s: exit status %d: %s", dev, code, said)
}
