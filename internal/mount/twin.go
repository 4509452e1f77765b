package mount

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// Twins are two devices with the same filesystem on them, such as an origin and
// its snapshot. Nothing is ever written to tell them apart: xfs is told not to
// mind, and a btrfs is refused, since its kernel code takes devices with one
// fsid for one filesystem.

// mayHaveTwin explains an xfs that could not be mounted: it may have the UUID of one
// that is. The errno is that of much else, so one tries again without that check,
// which is all that nouuid leaves out.
func mayHaveTwin(fsType string, err error) bool {
	return fsType == "xfs" && errors.Is(err, unix.EINVAL)
}

// aloneInBtrfs refuses a btrfs whose fsid is mounted from another device.
func aloneInBtrfs(dev *os.File, d volume.Device) error {
	sb, err := readSuperblock(dev, "btrfs")
	if err != nil {
		return fmt.Errorf("%s: %w", d.Path, err)
	}
	mounted := sysfs{}.btrfsDevices(sb.FSID)
	if len(mounted) == 0 || mounted.has(d.Number) {
		return nil
	}
	return &Refusal{
		What: fmt.Sprintf("the btrfs %s on %s is mounted already from %s: the kernel would take the two for one filesystem", sb.FSID, describeDevice(d), mounted),
		Hint: "unmount that one first, or give this copy an fsid of its own (btrfstune -u) if it may be changed",
	}
}

// btrfsIsOf makes sure that the btrfs of an open directory is on that device,
// and not on another that has the same fsid.
func btrfsIsOf(fd int, d volume.Device) error {
	var info struct { // struct btrfs_ioctl_fs_info_args
		_    [16]byte
		FSID [16]byte
		_    [1024 - 32]byte
	}
	if err := ioctl(fd, btrfsFSInfo, unsafe.Pointer(&info)); err != nil {
		return fmt.Errorf("BTRFS_IOC_FS_INFO: %w", err)
	}
	if on := (sysfs{}).btrfsDevices(uuidText(info.FSID[:])); !on.has(d.Number) {
		return fmt.Errorf("%w: the mount is of %s, not of %s", ErrChanged, on, describeDevice(d))
	}
	return nil
}

// btrfsKnown explains EEXIST: the kernel remembers, from a scan, another device
// that has the fsid and was written later.
func btrfsKnown(fsType string, err error) string {
	if fsType != "btrfs" || !errors.Is(err, unix.EEXIST) {
		return ""
	}
	return "; the kernel knows another device with the same fsid: let it forget those that are not mounted (btrfs device scan --forget)"
}

// A member is a block device of a btrfs.
type member struct{ name, number string }

type members []member

func (m members) has(number string) bool {
	return slices.ContainsFunc(m, func(d member) bool { return d.number == number })
}

func (m members) String() string {
	var all []string
	for _, d := range m {
		all = append(all, "/dev/"+d.name+mappedName(d.number))
	}
	return cmp.Or(strings.Join(all, " and "), "no device that is known")
}

// btrfsDevices returns the devices of a mounted btrfs; none if it is not mounted.
func (sysfs) btrfsDevices(fsid string) members {
	return membersIn("/sys/fs/btrfs/" + fsid + "/devices")
}

func membersIn(dir string) (all members) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if b, err := os.ReadFile(filepath.Join(dir, e.Name(), "dev")); err == nil {
			all = append(all, member{e.Name(), strings.TrimSpace(string(b))})
		}
	}
	return all
}

func describeDevice(d volume.Device) string { return d.Path + mappedName(d.Number) }

// mappedName is what device-mapper calls a device, for people: " (vg0-data)".
func mappedName(number string) string {
	b, err := os.ReadFile("/sys/dev/block/" + number + "/dm/name")
	if err != nil {
		return ""
	}
	return " (" + strings.TrimSpace(string(b)) + ")"
}

func uuidText(b []byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
