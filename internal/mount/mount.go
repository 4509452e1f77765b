package mount

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// The mount attributes by their usual names.
var attrs = map[string]int{
	"ro":          unix.MOUNT_ATTR_RDONLY,
	"nosuid":      unix.MOUNT_ATTR_NOSUID,
	"nodev":       unix.MOUNT_ATTR_NODEV,
	"noexec":      unix.MOUNT_ATTR_NOEXEC,
	"noatime":     unix.MOUNT_ATTR_NOATIME,
	"nodiratime":  unix.MOUNT_ATTR_NODIRATIME,
	"relatime":    unix.MOUNT_ATTR_RELATIME,
	"strictatime": unix.MOUNT_ATTR_STRICTATIME,
	"nosymfollow": unix.MOUNT_ATTR_NOSYMFOLLOW,
}

// mountVolume is the child that mounts. Until its last system call only the child itself can see
// the mount; after a failure the mount ends when the child closes it.
func mountVolume(l MountSpec) error {
	dev, err := openDevice(l.Device, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	if l.First {
		if err := unused(dev, l.Device); err != nil {
			return err
		}
	}
	mnt, err := build(dev, l)
	if err != nil {
		return err
	}
	// The mount is closed explicitly, last except for the device: an unmount at the end of the
	// process could outlive the lane's lock.
	defer unix.Close(mnt)

	// The kernel checks this only when it creates the superblock.
	size, err := liveSize(dev, l.FSType, fmt.Sprintf("/proc/self/fd/%d", mnt))
	if err != nil {
		return err
	}
	if err := fits(dev, size, l.FSType, l.Device); err != nil {
		return err
	}
	dir, where, err := openTarget(l)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := run.AwaitGo(); err != nil {
		return err
	}
	again, now, err := openTarget(l)
	if err != nil {
		return err
	}
	unix.Close(again)
	if now != where {
		return fmt.Errorf("%s became another directory, or something was mounted there, in the meantime", l.Dir)
	}
	if err := unix.MoveMount(mnt, "", dir, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		err = &os.PathError{Op: "move_mount", Path: l.Dir, Err: err}
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: a mount namespace has as many mounts as fs.mount-max allows: find the program that leaves mounts (findmnt), or raise it (sysctl fs.mount-max)", err)
		}
		return err
	}
	return nil
}

// build creates the detached mount, also of a filesystem with a mounted twin if the two can
// be distinguished.
func build(dev *os.File, l MountSpec) (mnt int, err error) {
	if l.FSType == "btrfs" {
		if err := aloneInBtrfs(dev, l.Device, l.First); err != nil {
			return -1, err
		}
	}
	if l.First { // fsck may have replaced the superblock since the probe
		if err := protect(dev, l.Device); err != nil {
			return -1, err
		}
		sb, err := readSuperblock(dev, l.FSType)
		if err == nil {
			err = embeddedAllowed(sb, l.Device)
		}
		if err == nil {
			err = sectorsFit(dev, sb.Type, sb.Sector, l.Device)
		}
		if err == nil && sb.Log && l.Device.ReadOnly {
			err = unreplayed(l)
		}
		if err == nil && !l.Device.ReadOnly {
			err = writableBelow(l.Device) // a write that fits in part may be lost: see maybeCut
		}
		if err != nil {
			return -1, err
		}
	} else if !l.ReadOnly && !l.Device.ReadOnly {
		if err := writableBelow(l.Device); errors.Is(err, unix.EROFS) {
			return -1, err
		}
	}
	mnt, err = assemble(l)
	// The kernel frees a superblock a moment after its last mount.
	for end := time.Now().Add(transient); l.First && errors.Is(err, unix.EBUSY) && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
		mnt, err = assemble(l)
	}
	if l.First && errors.Is(err, unix.EBUSY) {
		busy := &BusyError{What: describeDevice(l.Device), Holders: DeviceHolders(l.Device)}
		if sb, _ := readSuperblock(dev, l.FSType); sb.MMP && len(busy.Holders) == 0 {
			return -1, marked(l.Device, err.Error())
		}
		return -1, fmt.Errorf("%w (%w)", busy, err)
	}
	if mayHaveTwin(l.FSType, err) {
		if why := onlyTwins(dev, l.Device); why != nil {
			return -1, fmt.Errorf("%w (%w)", why, err)
		}
		again, aerr := assemble(l, "nouuid")
		if _, refused := errors.AsType[*Refusal](aerr); refused || aerr == nil {
			return again, aerr
		}
	}
	return mnt, err
}

// protect sets a device read-only if its volume became read-only while it was active: xfs writes to its log
// even for a read-only mount.
func protect(dev *os.File, d volume.Device) error {
	if !d.ReadOnly {
		return nil
	}
	if ro, err := sysfs.Uint("/sys/dev/block/" + d.Number + "/ro"); err != nil || ro != 0 {
		return err
	}
	return os.NewSyscallError("BLKROSET", unix.IoctlSetPointerInt(int(dev.Fd()), unix.BLKROSET, 1))
}

// createExcl is FSCONFIG_CMD_CREATE_EXCL, which refuses to reuse a superblock.
// Linux before 6.6 does not have it.
const createExcl = 8

func create(fs int, exclusive bool) error {
	if exclusive {
		_, _, errno := unix.Syscall6(unix.SYS_FSCONFIG, uintptr(fs), createExcl, 0, 0, 0, 0)
		if errno == 0 {
			return nil
		}
		if errno != unix.EOPNOTSUPP {
			return errno
		}
	}
	return unix.FsconfigCreate(fs)
}

// assemble creates the detached mount and checks whether it can be used.
func assemble(l MountSpec, more ...string) (mnt int, err error) {
	attr, err := attributes(l)
	if err != nil {
		return -1, err
	}
	fs, err := unix.Fsopen(l.FSType, unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENODEV) {
		return -1, fmt.Errorf("this kernel has no %s", l.FSType)
	}
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", l.FSType, err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", l.Device.Path); err != nil {
		return -1, fmt.Errorf("source %s: %w%s", l.Device.Path, err, messages(fs))
	}
	for _, o := range slices.Concat(superOptions(l), defaultErrors(l), l.Super, more) {
		if key, value, isString := strings.Cut(o, "="); isString {
			err = unix.FsconfigSetString(fs, key, value)
		} else {
			err = unix.FsconfigSetFlag(fs, key)
		}
		if err != nil {
			return -1, fmt.Errorf("%s does not take the option %q: %w%s", l.FSType, o, err, messages(fs))
		}
	}
	if err := create(fs, l.First); err != nil {
		return -1, l.explain(err, messages(fs))
	}
	mnt, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w%s", err, messages(fs))
	}
	if err := usable(mnt, l); err != nil && !l.onlyJournal {
		unix.Close(mnt)
		return -1, err
	}
	return mnt, nil
}

// explain returns the error of a mount that the kernel refused; said has the kernel's messages.
func (l MountSpec) explain(err error, said string) error {
	if l.FSType == "xfs" && l.Device.ReadOnly && errors.Is(err, unix.EROFS) {
		return unreplayed(l)
	}
	remedy := ""
	switch {
	case !l.First && !l.Device.ReadOnly && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS)): // before Linux 6.6
		remedy = "; the volume is read-only, and its filesystem is mounted read-write: delete the pods that use it, or make the volume writable, as flexd check says"
	case l.FSType == "btrfs":
		remedy = explainBtrfs(err)
	case l.FSType == "xfs" && (errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EBADMSG)):
		remedy = "; if the next mount fails, too, and never with -L, which drops its log: " + handle(l.Device).Command("xfs_repair DEV")
	}
	if said == "" && errors.Is(err, unix.EINVAL) {
		said = " (see dmesg)"
	}
	err = fmt.Errorf("%s on %s: %w%s%s", l.FSType, l.Device.Path, err, said, remedy)
	if isFailure(err) {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return err
}

// unreplayed refuses a filesystem whose journal the kernel cannot replay.
func unreplayed(l MountSpec) error {
	h := handle(l.Device)
	how, command := " (first take it out of activation/read_only_volume_list in lvm.conf, if it is there)", fmt.Sprintf("lvchange -prw %[1]s; if its device is active: blockdev --setrw /dev/%[1]s", h.Name)
	if h.File != "" {
		how, command = "", fmt.Sprintf("chmod u+w %[1]s; losetup -nO NAME -j %[1]s | xargs -r losetup -d", volume.Quote(h.File))
	}
	return &Refusal{
		What: fmt.Sprintf("the %s on %s was not unmounted cleanly, and its journal cannot be replayed on a read-only device: the last writes would be missing", l.FSType, describeDevice(l.Device)),
		Hint: fmt.Sprintf("make the volume writable%s, and the next mount, also a read-only one, replays it: %s", how, command),
		Why:  volume.Conflict,
	}
}

// superOptions adds the options for a read-only device. A snapshot of a mounted xfs needs
// norecovery, because its log always has a record.
func superOptions(l MountSpec) []string {
	switch {
	case !l.Device.ReadOnly:
		return []string{"rw"}
	case l.FSType == "xfs" && handle(l.Device).File == "":
		return []string{"ro", "norecovery"}
	}
	return []string{"ro"}
}

func attributes(l MountSpec) (int, error) {
	attr := 0
	if l.ReadOnly || l.Device.ReadOnly {
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	for _, a := range l.Attrs {
		bit, ok := attrs[a]
		if !ok {
			return 0, fmt.Errorf("%q is not a mount attribute", a)
		}
		attr |= bit
	}
	return attr, nil
}

// usable verifies that the detached mount is of the given device, and reads its root.
func usable(mnt int, l MountSpec) error {
	fd, err := unix.Openat(mnt, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		err = list(fd, "its root directory")
	}
	if isFailure(err) {
		return fmt.Errorf("%w: %s on %s: %w", ErrFailed, l.FSType, l.Device.Path, err)
	}
	if err != nil {
		return fmt.Errorf("%s on %s: %w", l.FSType, l.Device.Path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%s on %s: %w", l.FSType, l.Device.Path, err)
	}
	if err := writable(fd, l); err != nil {
		return err
	}
	if l.FSType == "btrfs" { // its device number is not that of a device
		return btrfsIsOf(fd, l.Device)
	}
	if n := sysfs.Number(st.Dev); n != l.Device.Number {
		return fmt.Errorf("%w: the mount is of %s, not of %s", ErrChanged, n, l.Device.Number)
	}
	return nil
}

// writable verifies that a filesystem is not read-only although the request wants to write: a feature of an ext4,
// an error during the mount, or a read-only subvolume of a btrfs, which does not show in its flags.
func writable(fd int, l MountSpec) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fmt.Errorf("%s on %s: %w", l.FSType, l.Device.Path, err)
	}
	subvolume := l.FSType == "btrfs" && st.Flags&unix.ST_RDONLY == 0 && errors.Is(unix.Faccessat(fd, ".", unix.W_OK, 0), unix.EROFS)
	if l.ReadOnly || l.Device.ReadOnly || st.Flags&unix.ST_RDONLY == 0 && !subvolume {
		return nil
	}
	if subvolume {
		return &Refusal{
			What: fmt.Sprintf("the default subvolume of the btrfs on %s is read-only, as a snapshot is", describeDevice(l.Device)),
			Hint: "mount it by hand, then: btrfs property set DIR ro false; or make another one the default: btrfs subvolume set-default; or mount it with readOnly: true",
			Why:  volume.Conflict,
		}
	}
	hint := "look at dmesg and at the disk, or mount it with readOnly: true"
	if l.FSType == "ext4" {
		hint += "; if dmesg has no error, it may have the feature read-only: " + handle(l.Device).Command("tune2fs -O ^read-only DEV")
	}
	return &Refusal{
		What: fmt.Sprintf("the kernel mounts the %s on %s only read-only", l.FSType, describeDevice(l.Device)),
		Hint: hint,
		Why:  volume.Conflict,
	}
}

// fits verifies that a filesystem of that size is not larger than its device.
func fits(dev *os.File, size int64, fsType string, d volume.Device) error {
	if room, err := sizeOf(dev); err != nil || size <= room {
		return err
	}
	remedy := ""
	if h := handle(d); h.Name == (volume.Name{}) {
		remedy = volume.CutFile(size, 0, cmp.Or(h.File, h.Path), d.Path)
	} else {
		remedy = volume.CutLV(size, 0, h.Name)
	}
	return &Refusal{
		What: fmt.Sprintf("the %s on %s has %s, more than its device: the volume was made smaller than its filesystem", fsType, describeDevice(d), volume.Bytes(size)),
		Hint: "stop writing to it: " + remedy,
		Why:  volume.Damaged,
	}
}

// A place is the identity of a directory: its inode and its mount.
type place struct {
	mount, ino   uint64
	major, minor uint32
}

// openTarget opens the directory to mount on. It creates nothing, and follows no link below
// the root, which a pod could have created.
func openTarget(l MountSpec) (int, place, error) {
	root, rel := "/", l.Dir
	if l.Root != "" {
		root = l.Root
		var ok bool
		if rel, ok = strings.CutPrefix(l.Dir, strings.TrimSuffix(l.Root, "/")+"/"); !ok {
			return -1, place{}, fmt.Errorf("%s does not lie below %s", l.Dir, l.Root)
		}
	}
	if !filepath.IsAbs(l.Dir) || filepath.Clean(l.Dir) != l.Dir {
		return -1, place{}, fmt.Errorf("%q is not a clean path", l.Dir)
	}
	base, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, place{}, targetError(root, err)
	}
	defer unix.Close(base)
	fd, err := unix.Openat2(base, strings.TrimPrefix(rel, "/"), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, place{}, targetError(l.Dir, err)
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, &st); err != nil {
		unix.Close(fd)
		return -1, place{}, targetError(l.Dir, err)
	}
	return fd, place{mount: st.Mnt_id, ino: st.Ino, major: st.Dev_major, minor: st.Dev_minor}, nil
}

func targetError(dir string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: %s", ErrNoDir, dir)
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("a symlink is on the way to %s", dir)
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: %s is not a directory", ErrNoDir, dir)
	}
	return &os.PathError{Op: "open", Path: dir, Err: err}
}

// messages reads the kernel's log of a filesystem context, which has more detail than the
// errno.
func messages(fs int) string {
	var said []string
	var buf [1024]byte
	for range 32 {
		n, err := unix.Read(fs, buf[:])
		if err != nil || n <= 0 {
			break
		}
		// "e ext4: Unknown parameter 'x'": the first letter is the severity.
		_, text, _ := strings.Cut(strings.TrimSpace(string(buf[:n])), " ")
		said = append(said, text)
	}
	if len(said) == 0 {
		return ""
	}
	return " (" + strings.Join(said, "; ") + ")"
}
