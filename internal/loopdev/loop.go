package loopdev

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/sysfs"
	"github.com/flexd/flexd/internal/volume"
)

// identify is the child that reads the identities of loop devices. It asks all at once, since
// each may hang, and prints each answer as it comes.
func identify(arg []byte) int {
	var a identifyArg
	if err := json.Unmarshal(arg, &a); err != nil {
		return run.Answer(nil, err)
	}
	var all sync.WaitGroup
	for i, name := range a.Names {
		all.Go(func() {
			if err := identifyOne(name, a.Seqs[i], a.Directories); err != nil && !mount.Detached(err) {
				run.Answer(nil, err)
			}
		})
	}
	all.Wait()
	return 0
}

// identifyOne prints the identity of a device. It prints that the device is silent after answerTimeout, if the
// filesystem of its file is shut down, or if that incarnation of the device is gone.
func identifyOne(name string, seq uint64, directories []string) error {
	silent := func() { run.Answer([]identified{{Seq: seq, Silent: true}}, nil) }
	late := time.AfterFunc(answerTimeout, silent)
	defer late.Stop()
	dev, err := mount.OpenLoop(name)
	if mount.Detached(err) {
		silent()
	}
	if err != nil {
		return err
	}
	defer dev.Close()
	id, now, err := ask(dev, name, directories...)
	if err != nil || now != seq {
		silent()
	}
	if err != nil {
		return err
	}
	run.Answer([]identified{{Seq: now, identity: id}}, nil)
	return nil
}

// ask reads the identity of an open loop device, which cannot change while the device is
// open. Its file may be in one of the directories, and may have another path in another mount namespace.
func ask(dev *os.File, name string, directories ...string) (identity, uint64, error) {
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil {
		return identity{}, 0, fmt.Errorf("LOOP_GET_STATUS64 of %s: %w", name, err)
	}
	seq, err := sysfs.Uint("/sys/block/" + name + "/diskseq")
	if err != nil {
		return identity{}, 0, err
	}
	uuid, ours := strings.CutPrefix(unix.ByteSliceToString(info.File_name[:]), mark)
	if !ours {
		uuid = ""
	}
	at := Inode{info.Device, info.Inode}
	if unix.Major(at.Dev) == 0 && at.Dev != 0 {
		var seen Inode
		if path, _, err := backing("/sys/block/" + name); err == nil {
			seen = visible(path, at)
		}
		if seen == (Inode{}) {
			seen = inDirectory(directories, at)
		}
		at = cmp.Or(seen, at)
	}
	return identity{UUID: volume.UUID(uuid), Inode: at}, seq, nil
}

// visible returns the identity of the file at a path if stat shows it as at; zero = it does not.
func visible(path string, at Inode) Inode {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || (Inode{st.Dev, st.Ino}) != at {
		return Inode{}
	}
	return inodeOf(st.Dev, st.Ino, func(fs *unix.Statfs_t) error { return unix.Statfs(path, fs) })
}

// inDirectory returns the identity of a file with the device number of one of the directories, and so of its
// btrfs subvolume; zero = it is in none. It waits for a directory that hangs.
func inDirectory(directories []string, at Inode) Inode {
	found := make(chan Inode, len(directories))
	for _, dir := range directories {
		go func() {
			var st unix.Stat_t
			if unix.Stat(dir, &st) != nil || st.Dev != at.Dev {
				found <- Inode{}
				return
			}
			found <- inodeOf(at.Dev, at.Ino, func(fs *unix.Statfs_t) error { return unix.Statfs(dir, fs) })
		}()
	}
	for range directories {
		if id := <-found; id != (Inode{}) {
			return id
		}
	}
	return Inode{}
}

// attach is the child that attaches a file to a loop device.
func attach(a attachArg) (Loop, error) {
	if len(mark)+len(a.UUID) >= 64 || a.UUID == "" {
		return Loop{}, fmt.Errorf("%q is not a uuid", a.UUID)
	}
	file, err := openFile(a.File, a.UUID, a.ReadOnly)
	if err != nil {
		return Loop{}, advised(err, filepath.Dir(a.File))
	}
	defer file.Close()
	if err := notAttached(file, a.After, a.Others); err != nil {
		return Loop{}, err
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return Loop{}, fmt.Errorf("%w (is the module loop loaded?)", err)
	}
	defer control.Close()

	config := unix.LoopConfig{Fd: uint32(file.Fd())}
	copy(config.Info.File_name[:63], mark+string(a.UUID))
	if a.ReadOnly {
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	at, err := inodeOfFile(file)
	if err != nil {
		return Loop{}, err
	}
	last := 0
	var missing []error // of devices without their node
	for tries := 0; tries < 100 && len(missing) < 10; tries++ {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err == nil && (tries > 10 || len(missing) > 0) { // it stays free, also if another program has it open exclusively
			n, err = freeAfter(control, max(n, last))
		}
		if err != nil {
			return Loop{}, fmt.Errorf("LOOP_CTL_GET_FREE: %w", err)
		}
		last = n
		name := fmt.Sprintf("loop%d", n)
		if err := checkNode(name); err != nil {
			missing = append(missing, err)
			continue
		}
		l, err := configure(name, &config, a)
		if errors.Is(err, unix.EBUSY) {
			continue // attached from outside meanwhile
		}
		l.Inode = at
		return l, err
	}
	if len(missing) > 0 {
		return Loop{}, missing[0]
	}
	return Loop{}, errors.New("found no free loop device in 100 attempts")
}

// checkNode verifies that a loop device has its node. The kernel makes none where something else is, such as the
// directory of a hostPath volume, which is not to be opened.
func checkNode(name string) error {
	number, err := sysfs.Line("/sys/block/" + name + "/dev")
	if err != nil {
		return err
	}
	if why, remedy := noNode(name, number); why != "" {
		return fmt.Errorf("%s: %s", why, remedy)
	}
	return nil
}

// noNode returns why a loop device with that number has no node, and the remedy; "" = it has one.
func noNode(name, number string) (why, remedy string) {
	path := "/dev/" + name
	if mount.IsNode(path, number) {
		var fs unix.Statfs_t
		if unix.Statfs(path, &fs) == nil && fs.Flags&unix.ST_NODEV != 0 {
			return path + " is on a filesystem that is mounted nodev", "mount -o remount,dev /dev"
		}
		return "", ""
	}
	var st unix.Statx_t
	const how = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if unix.Statx(unix.AT_FDCWD, path, how, unix.STATX_TYPE, &st) == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return path + " is hidden by a mount over it", "umount " + path
	}
	mknod := fmt.Sprintf("mknod -m 660 %s b %s", path, strings.Replace(number, ":", " ", 1))
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return path + " does not exist", "flexd needs the host's /dev, where the kernel makes the nodes of new devices (devtmpfs); if it was removed there: " + mknod
	}
	return fmt.Sprintf("%s is not the block device %s: a program made or replaced it", path, number),
		fmt.Sprintf("move it away, and make the node: mv --backup=numbered -T %[1]s %[1]s.moved && %[2]s", path, mknod)
}

// freeAfter returns the first loop device after n that has no file, and creates it if it does not exist.
func freeAfter(control *os.File, n int) (int, error) {
	attached, err := sysfs.Loops()
	if err != nil {
		return 0, err
	}
	has := map[string]bool{}
	for _, l := range attached {
		has[l.Name] = true
	}
	for n++; has[fmt.Sprint("loop", n)]; n++ {
	}
	if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, n); err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, os.NewSyscallError("LOOP_CTL_ADD", err)
	}
	return n, nil
}

func configure(name string, config *unix.LoopConfig, a attachArg) (Loop, error) {
	how := os.O_RDWR
	if a.ReadOnly {
		how = os.O_RDONLY
	}
	dev, err := os.OpenFile("/dev/"+name, how, 0)
	if err != nil {
		return Loop{}, err
	}
	defer dev.Close()
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), config); err != nil {
		return Loop{}, fmt.Errorf("LOOP_CONFIGURE of %s: %w", name, err)
	}
	if !a.ReadOnly {
		if err := resetDevice(dev, name); err != nil {
			return Loop{}, err
		}
	}
	l, err := kernel{}.Loop(name)
	if err != nil {
		return Loop{}, err
	}
	if l.BackingFile != a.File {
		return Loop{}, fmt.Errorf("%s is attached to %s, not to %s", name, l.BackingFile, a.File)
	}
	return l, nil
}

// resetDevice resets the settings that an earlier use left on a device: read-only (blockdev --setro), and a
// disabled write cache, because of which the kernel sends no flush to the file.
func resetDevice(dev *os.File, name string) error {
	if err := unix.IoctlSetPointerInt(int(dev.Fd()), unix.BLKROSET, 0); err != nil {
		return fmt.Errorf("BLKROSET of %s: %w", name, err)
	}
	cache := "/sys/block/" + name + "/queue/write_cache"
	if mode, err := sysfs.Line(cache); err != nil || mode == "write back" {
		return err
	}
	return os.WriteFile(cache, []byte("write back"), 0)
}

// notAttached verifies that the file has no loop device yet, under any path. It does not
// open a device without need, because the device may hang.
func notAttached(file *os.File, after uint64, others []uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return err
	}
	loops, err := kernel{}.Loops()
	if err != nil {
		return err
	}
	for _, l := range loops {
		if l.Seq <= after && (filepath.Base(l.BackingFile) != filepath.Base(file.Name()) || slices.Contains(others, l.Seq)) {
			continue
		}
		dev, err := mount.OpenLoop(l.Name)
		if mount.Detached(err) {
			continue
		}
		if err != nil {
			return err
		}
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		dev.Close()
		if err != nil && !mount.Detached(err) {
			// The filesystem of that device's file does not respond, ours does: the files differ.
			if l.BackingFile != file.Name() && unix.Fstat(int(file.Fd()), &st) == nil {
				continue
			}
			return fmt.Errorf("LOOP_GET_STATUS64 of %s, which is attached to %s: %w: look at dmesg, end its users, and detach it: losetup -d /dev/%[1]s", l.Name, l.BackingFile, err)
		}
		if err == nil && info.Device == st.Dev && info.Inode == st.Ino {
			return fmt.Errorf("%s is attached to /dev/%s already, as %s", file.Name(), l.Name, l.BackingFile)
		}
	}
	return nil
}

// openOurs opens a loop device and verifies that it is the observed one, and flexd's.
// Otherwise it returns ErrChanged. If that incarnation of the device is known to be the volume's,
// the filesystem of its file need not respond.
func openOurs(d volume.Device, uuid volume.UUID, flags int, known bool) (*os.File, error) {
	name := filepath.Base(d.Path)
	if err := checkNode(name); err != nil {
		return nil, err
	}
	dev, err := os.OpenFile(d.Path, os.O_RDONLY|flags, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, &mount.BusyError{What: d.Path, Holders: mount.DeviceHolders(d)}
	}
	if err != nil {
		return nil, err
	}
	id, seq, err := ask(dev, name)
	if err != nil && known && !mount.Detached(err) {
		id.UUID = uuid
		seq, err = sysfs.Uint("/sys/block/" + name + "/diskseq")
	}
	switch {
	case err != nil:
	case seq != d.Seq || id.UUID != uuid || uuid == "":
		err = fmt.Errorf("%w: %s is no longer the volume %s", mount.ErrChanged, d.Path, uuid)
	default:
		return dev, nil
	}
	dev.Close()
	return nil, err
}

// detach is the child that detaches a loop device.
func detach(a detachArg) error {
	name := filepath.Base(a.Device.Path)
	if gone(name, a.Device.Seq) {
		return nil
	}
	dev, err := openOurs(a.Device, a.UUID, unix.O_EXCL, a.Known)
	if err != nil {
		if gone(name, a.Device.Seq) {
			return nil
		}
		return err
	}
	defer dev.Close()
	// The kernel accepts the detach of an open device, and detaches it at the last close.
	// udev opens every device briefly.
	for tries := 0; ; tries++ {
		holders := mount.DeviceHolders(a.Device)
		if len(holders) == 0 {
			break
		}
		if holders[0].Cut { // the search found none, but ended early: the kernel knows
			dev.Close()
			if err := mount.Unused(a.Device); err != nil {
				return err
			}
			if dev, err = openOurs(a.Device, a.UUID, unix.O_EXCL, a.Known); err != nil {
				return err
			}
			defer dev.Close()
			break
		}
		if tries == 20 || holders[len(holders)-1].Cut { // each search would take as long
			return &mount.BusyError{What: a.Device.Path, Holders: holders}
		}
		time.Sleep(50 * time.Millisecond)
	}
	if l, err := (kernel{}).Loop(name); err != nil || deleted(dev, l, a.File) {
		return cmp.Or(err, onlyCopy(l, a.File))
	}
	_ = unix.IoctlSetPointerInt(int(dev.Fd()), unix.BLKROSET, 0) // set when the volume became read-only; it would remain
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("LOOP_CLR_FD of %s: %w", a.Device.Path, err)
	}
	if err := dev.Close(); err != nil {
		return err
	}
	for range 40 {
		if gone(name, a.Device.Seq) {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return &mount.BusyError{What: a.Device.Path, Holders: mount.DeviceHolders(a.Device)}
}

// deleted reports whether a device has a deleted file. A hard link of a deleted name may be at path.
func deleted(dev *os.File, l Loop, path string) bool {
	id, _, err := ask(dev, l.Name)
	if err != nil {
		return l.Deleted
	}
	if !l.Deleted && !id.deleted() {
		return false
	}
	f, err := kernel{}.File(path)
	return err != nil || f.Inode != id.Inode
}

// gone reports whether that incarnation of a loop device has ended.
func gone(name string, seq uint64) bool {
	l, err := kernel{}.Loop(name)
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	return err == nil && (l.BackingFile == "" || l.Seq != seq)
}
