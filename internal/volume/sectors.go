package volume

import "fmt"

// SmallSectors describes a filesystem whose sectors are smaller than the logical blocks of its device, and
// the remedy. LVM gives a device the largest blocks of its disks.
func SmallSectors(fsType string, sector, block int64, device string, h Handle) (what, hint string) {
	cause := "a part of it is on a disk with such blocks, or was when it was activated"
	switch {
	case h.File != "":
		cause = "it was attached with such blocks"
		hint = fmt.Sprintf("delete the pods that use it, then: losetup -d %s; the next mount attaches it with blocks of 512", device)
	case h.Name == Name{}:
		hint = "give it a device with the former blocks"
	default:
		hint = fmt.Sprintf("lvs -o+devices %[1]s shows its disks, and blockdev --getss DISK their blocks: move its part from each DISK with larger ones, also while it is mounted: pvmove -n %[2]s DISK OTHER (for a thin volume without -n). The OTHER disk has blocks of at most %[3]d; if none has room, add one first: vgextend %[4]s OTHER. The device of a thin volume, an origin or a snapshot has the smaller blocks only after its next activation: delete its pods (of a thin volume those of all volumes in its pool), and lvchange -an each of these volumes; the next mount activates it", h.Name, h.Name.LV, sector, h.Name.VG)
	}
	return fmt.Sprintf("its %s has sectors of %d bytes, and its device %s logical blocks of %d, because %s: the kernel can neither extend it nor mount it again", fsType, sector, device, block, cause), hint
}
