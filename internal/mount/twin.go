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

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// Twins are two devices with the same filesystem on them, such as an origin and its
// snapshot. Nothing is ever written to distinguish them: xfs is mounted with nouuid, and a
// btrfs is refused, since its kernel code takes devices with one fsid for one filesystem.

// mayHaveTwin reports whether the mount of an xfs may have failed because a mounted xfs has its
// UUID; the errno has many other causes. nouuid skips this check of the kernel, which has no other
// one against mounting the same bytes twice: see onlyTwins.
func mayHaveTwin(fsType string, err error) bool {
	return fsType == "xfs" && errors.Is(err, unix.EINVAL)
}

// onlyTwins verifies that each mounted xfs with this UUID, or with one that cannot be read, is on a
// device that is known to be another volume.
func onlyTwins(dev *os.File, d volume.Device) error {
	uuid, err := xfsUUID(dev)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir("/sys/fs/xfs")
	if err != nil {
		return err
	}
	names := map[string]string{} // of the other devices, by number
	for _, e := range entries {
		number, err := sysfs.Line("/sys/class/block/" + e.Name() + "/dev")
		switch {
		case errors.Is(err, os.ErrNotExist): // "stats", "debug"
		case err != nil:
			return err
		case number != d.Number:
			names[number] = e.Name()
		}
	}
	mounted := mountedXFS(names)
	for number, name := range names {
		its, ok := mounted[number]
		if ok && its != uuid || otherVolume(d.Number, number) {
			continue
		}
		unknown := ""
		if !ok { // the kernel shut it down, or it has no mount any more
			if its, err = xfsOn("/dev/" + strings.ReplaceAll(name, "!", "/")); err != nil {
				unknown = "; its UUID is unknown: " + err.Error()
			}
		}
		if its == uuid || unknown != "" {
			return &Refusal{
				What: fmt.Sprintf("the xfs %s on %s is mounted already from /dev/%s%s, which may show the same bytes%s", uuid, describeDevice(d)+loopName(d.Number), name, mappedName(number)+loopName(number), unknown),
				Hint: "unmount that one first; if it is a copy, give this one a UUID of its own (xfs_admin -U generate)",
				Why:  volume.Conflict,
			}
		}
	}
	return nil
}

// mountedXFS returns the UUIDs of the xfs on devices, by their numbers, from a mount of each in any
// mount namespace: the kernel has them in memory, and a device may hang.
func mountedXFS(names map[string]string) map[string]string {
	uuids, visited, s := map[string]string{}, views{}, procfs.NewSearch(MaxSearch)
	look := func(p procfs.Process) bool {
		if _, isNew := visited.add(p); isNew {
			addXFS(uuids, names, s, p)
		}
		return len(uuids) < len(names)
	}
	if look(procfs.Process(os.Getpid())) {
		s.Each(look)
	}
	return uuids
}

// addXFS is mountedXFS for the mounts that a process sees.
func addXFS(uuids, names map[string]string, s *procfs.Search, p procfs.Process) {
	tab := tableOf(s, p)
	root, err := unix.Open(p.Path("root"), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(root)
	for number := range names {
		if tab == nil || uuids[number] != "" {
			continue
		}
		for _, e := range tab.Of(number) {
			if e.Type != "xfs" || tab.Top(e.Dir) != e {
				continue
			}
			if uuid, err := xfsAt(root, e); err == nil {
				uuids[number] = uuid
				break
			}
		}
	}
}

// xfsAt returns the UUID of the xfs of a mount below root. It waits for no filesystem.
func xfsAt(root int, e *mounttable.Entry) (string, error) {
	dir, err := unix.Openat2(root, e.Dir, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | resolveCached,
	})
	if err != nil {
		return "", err
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return "", err
	}
	if sysfs.Number(st.Dev) != e.Number {
		return "", ErrForeign
	}
	g, err := xfsGeometryOf(dir)
	return uuidText(g.UUID[:]), err
}

func xfsOn(path string) (string, error) {
	dev, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer dev.Close()
	return xfsUUID(dev)
}

func xfsUUID(dev *os.File) (string, error) {
	b := make([]byte, 512)
	if _, err := dev.ReadAt(b, 0); err != nil {
		return "", fmt.Errorf("%s: %w", dev.Name(), err)
	}
	return uuidText(b[32:48]), nil
}

// otherVolume reports whether two devices are known to be different volumes: logical
// volumes of which neither lies on the other, or loop devices of different files of one
// filesystem.
func otherVolume(a, b string) bool {
	if x, y := lvmUUID(a), lvmUUID(b); x != "" && y != "" {
		return x != y && !liesOn(a, b, 0) && !liesOn(b, a, 0)
	}
	x, ok := loopBacking(a)
	if !ok || x.rdev != 0 {
		return false
	}
	y, ok := loopBacking(b) // b may hang: it is asked only if the answer counts
	return ok && y.rdev == 0 && x.dev == y.dev && x.ino != y.ino
}

// lvmUUID returns the device-mapper uuid of a logical volume, which contains the uuids of
// VG and LV; "" for other devices, and for parts of volumes, which have a suffix.
func lvmUUID(number string) string {
	uuid, _ := sysfs.Line("/sys/dev/block/" + number + "/dm/uuid")
	if strings.HasPrefix(uuid, "LVM-") && len(uuid) == len("LVM-")+64 {
		return uuid
	}
	return ""
}

// liesOn reports whether one device is, or may be, on top of another.
func liesOn(upper, lower string, depth int) bool {
	if upper == lower || depth > 16 {
		return true
	}
	if on, ok := loopBacking(upper); ok {
		return on.rdev != 0 && liesOn(sysfs.Number(on.rdev), lower, depth+1)
	}
	slaves, _ := filepath.Glob("/sys/dev/block/" + upper + "/slaves/*/dev")
	return slices.ContainsFunc(slaves, func(s string) bool {
		number, err := sysfs.Line(s)
		return err != nil || liesOn(number, lower, depth+1)
	})
}

// loopBacking is backingOf for the device with that number; false if it is not a loop device.
func loopBacking(number string) (backing, bool) {
	if _, err := os.Stat("/sys/dev/block/" + number + "/loop"); err != nil {
		return backing{}, false
	}
	dev, err := OpenLoop(filepath.Base(nodeOf(number)))
	if err != nil {
		return backing{}, false
	}
	defer dev.Close()
	on, err := backingOf(dev)
	return on, err == nil
}

// onOneDevice refuses a btrfs on several devices: its mount would show the data
// of other volumes, and write to them.
func onOneDevice(sb superblock, d volume.Device) error {
	if sb.Devices <= 1 {
		return nil
	}
	return &Refusal{
		What: fmt.Sprintf("%s is one of %d devices of the btrfs %s; flexd mounts only filesystems on one device", describeDevice(d), sb.Devices, sb.FSID),
		Hint: "to keep the data on one of them, remove the others from the mounted filesystem: btrfs device remove DEVICE DIRECTORY",
		Why:  volume.Conflict,
	}
}

// aloneInBtrfs refuses a btrfs on several devices, and the first mount of one whose fsid is mounted
// from another device. Linux 6.7 gives one of two mounted copies a temporary fsid: only btrfsIsOf
// verifies a further mount.
func aloneInBtrfs(dev *os.File, d volume.Device, first bool) error {
	sb, err := readSuperblock(dev, "btrfs")
	if err != nil {
		return fmt.Errorf("%s: %w", d.Path, err)
	}
	if err := onOneDevice(sb, d); err != nil {
		return err
	}
	mounted := btrfsDevices(sb.FSID)
	if !first || len(mounted) == 0 || mounted.only(d.Number) {
		return nil
	}
	return &Refusal{
		What: fmt.Sprintf("the btrfs %s on %s is mounted already from %s: the kernel would take the two for one filesystem", sb.FSID, describeDevice(d)+loopName(d.Number), mounted),
		Hint: "unmount that one first, or give this copy an fsid of its own (btrfstune -u) if it may be changed",
		Why:  volume.Conflict,
	}
}

// btrfsInfo is struct btrfs_ioctl_fs_info_args.
type btrfsInfo struct {
	MaxID   uint64 // the largest id of a device
	Devices uint64
	FSID    [16]byte
	_       [1024 - 32]byte
}

func btrfsInfoOf(fd int) (info btrfsInfo, err error) {
	if err := ioctl(fd, btrfsFSInfo, unsafe.Pointer(&info)); err != nil {
		return info, fmt.Errorf("BTRFS_IOC_FS_INFO: %w", err)
	}
	return info, nil
}

// btrfsIsOf verifies that the btrfs of an open directory is on that device only, and not on
// another one with the same fsid.
func btrfsIsOf(fd int, d volume.Device) error {
	info, err := btrfsInfoOf(fd)
	if err != nil {
		return err
	}
	if on := btrfsDevices(uuidText(info.FSID[:])); info.Devices != 1 || !on.only(d.Number) {
		return fmt.Errorf("%w: the mount is of %d devices, %s, not of %s alone", ErrChanged, info.Devices, on, describeDevice(d))
	}
	return nil
}

// explainBtrfs explains EACCES, and EEXIST: the kernel remembers, from a scan, another device with
// the same fsid that was written later.
func explainBtrfs(err error) string {
	if errors.Is(err, unix.EACCES) {
		return "; a btrfs with the seed flag can only be mounted if its device is read-only (lvchange -pr; chmod a-w for a file); btrfstune -S 0 clears the flag"
	}
	if !errors.Is(err, unix.EEXIST) {
		return ""
	}
	return "; the kernel knows another device with the same fsid: unregister the devices that are not mounted (btrfs device scan --forget)"
}

// A member is a block device of a btrfs.
type member struct{ name, number string }

type members []member

func (m members) only(number string) bool { return len(m) == 1 && m[0].number == number }

func (m members) String() string {
	var all []string
	for _, d := range m {
		all = append(all, "/dev/"+d.name+mappedName(d.number)+loopName(d.number))
	}
	return cmp.Or(strings.Join(all, " and "), "no known device")
}

// btrfsDevices returns the devices of a mounted btrfs; none if it is not mounted.
func btrfsDevices(fsid string) (all members) {
	dir := "/sys/fs/btrfs/" + fsid + "/devices"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if number, err := sysfs.Line(filepath.Join(dir, e.Name(), "dev")); err == nil {
			all = append(all, member{e.Name(), number})
		}
	}
	return all
}

func describeDevice(d volume.Device) string { return d.Path + mappedName(d.Number) }

// mappedName returns device-mapper's name of a device for a message: " (vg0-data)".
func mappedName(number string) string {
	name, err := sysfs.Line("/sys/dev/block/" + number + "/dm/name")
	if err != nil {
		return ""
	}
	return " (" + name + ")"
}

// loopName returns the file of a loop device for a message: " (/srv/vg0/data)".
func loopName(number string) string {
	file, err := backingFile(number)
	if err != nil {
		return ""
	}
	return " (" + file + ")"
}

func uuidText(b []byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
