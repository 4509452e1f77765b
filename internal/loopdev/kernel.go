package loopdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/sysfs"
)

// The extended attributes of a volume's file. Only root can write them.
const (
	uuidAttr    = "trusted.flexd.uuid"
	createdAttr = "trusted.flexd.created" // "flexd", or createdFor and the namespace
	createdFor  = "flexd for "
)

// A Kernel reads names, attributes and sysfs, without a child. It opens no device.
type Kernel interface {
	// File reads the attributes of a volume's file, without following a symlink. A missing
	// file is not an error, also if something else is in the place of a directory.
	File(path string) (FileInfo, error)
	// Files lists the names in a directory. If it is none, errors.Is(err, fs.ErrNotExist) holds, too.
	Files(dir string) ([]string, error)
	// Directory returns a directory as the kernel names it, without symlinks. A missing
	// directory keeps its given name.
	Directory(dir string) (string, error)
	// Space returns the space of the filesystem of a directory.
	Space(dir string) (Space, error)
	// NeedsSpace is mount.NeedsSpace.
	NeedsSpace(path string) (bool, error)
	// Loops lists the loop devices that have a backing file: only Name, Seq,
	// BackingFile and Deleted are filled in.
	Loops() ([]Loop, error)
	// Loop returns one loop device, given as "loop3" or "7:3". A device without a backing
	// file has an empty BackingFile; one that does not exist is an error for which
	// errors.Is(err, fs.ErrNotExist) holds, for one that is attached meanwhile errors.Is(err, errChanging).
	Loop(name string) (Loop, error)
}

// A FileInfo has the attributes of a volume's file.
type FileInfo struct {
	Exists   bool
	Dir      bool
	Regular  bool
	Links    int // number of hard links
	Inode    Inode
	Birth    int64  // see volume.File
	UUID     string // of the extended attribute, "" = none
	Created  bool   // created by flexd
	Size     int64
	Blocks   int64 // bytes that it occupies
	ReadOnly bool  // it has no write permission bit

	Namespace string // for which flexd created it, "" = not known
}

// A Space is the space of a filesystem.
type Space struct {
	Size, Free        int64  // bytes
	Root              int64  // Free, and what only root gets
	Inodes, InodeFree uint64 // 0 Inodes = it needs none
}

// An Inode identifies a file independently of its name; zero = not known.
type Inode struct {
	Dev uint64 `json:"dev,omitempty"`
	Ino uint64 `json:"ino,omitempty"`
}

// subvolume reports whether the file may be in a btrfs subvolume: the number of a disk is that of another filesystem.
func (i Inode) subvolume() bool { return unix.Major(i.Dev) == 0 || i.Dev>>32 != 0 }

// inodeOf identifies a file. A snapshot of a btrfs subvolume has the same inode numbers, and the device number
// of a deleted subvolume is used again, so the subvolume's fsid takes its place.
func inodeOf(dev, ino uint64, statfs func(*unix.Statfs_t) error) Inode {
	var fs unix.Statfs_t
	if unix.Major(dev) == 0 && statfs(&fs) == nil && fs.Type == unix.BTRFS_SUPER_MAGIC {
		return Inode{uint64(uint32(fs.Fsid.Val[0]))<<32 | uint64(uint32(fs.Fsid.Val[1])), ino}
	}
	return Inode{dev, ino}
}

// inodeOfFile is inodeOf for an open file.
func inodeOfFile(f *os.File) (Inode, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return inodeOf(st.Dev, st.Ino, func(fs *unix.Statfs_t) error { return unix.Fstatfs(int(f.Fd()), fs) }), err
}

// A Loop is a loop device as sysfs shows it.
type Loop struct {
	Name        string // "loop3"
	Number      string // "7:3"
	Seq         uint64 // diskseq: counts what was attached, never reused in a boot
	BackingFile string // without " (deleted)"
	Deleted     bool   // the backing file was deleted
	Silent      bool   // see Provider.silent; only where that was looked for
	Hidden      bool   // see Provider.hidden; only where that was looked for
	Size        int64
	ReadOnly    bool
	Ending      bool  // losetup -d was run on it while it was in use: the kernel detaches it at its last close
	Part        bool  // it has an offset or a size limit, which flexd never sets
	Inode       Inode // of the backing file; only where it was just attached

	NoNode, MakeNode string // see noNode; only of a device with a backing file
}

// errChanging is the error of a device that was attached anew while it was looked at.
var errChanging = errors.New("the device is changing")

// NewKernel returns the real Kernel for a daemon: if a filesystem hangs, its methods return
// an error after answerTime.
func NewKernel() Kernel { return &daemonKernel{hung: map[string]int{}} }

// answerTime is how long the daemon waits for the filesystem of a volume group.
const answerTime = 5 * time.Second

// A daemonKernel reads files in goroutines that it can abandon.
type daemonKernel struct {
	kernel
	mu   sync.Mutex
	hung map[string]int // by path: abandoned reads that have not ended
}

func (k *daemonKernel) File(path string) (FileInfo, error) { return within(k, path, k.kernel.File) }

func (k *daemonKernel) Files(dir string) ([]string, error) { return within(k, dir, k.kernel.Files) }

func (k *daemonKernel) Space(dir string) (Space, error) { return within(k, dir, k.kernel.Space) }

func (k *daemonKernel) NeedsSpace(path string) (bool, error) {
	return within(k, path, k.kernel.NeedsSpace)
}

func (k *daemonKernel) Directory(dir string) (string, error) {
	return within(k, dir, k.kernel.Directory)
}

// within runs one read of a path, and none while an earlier one hangs.
func within[T any](k *daemonKernel, path string, look func(string) (T, error)) (T, error) {
	type result struct {
		found T
		err   error
	}
	k.mu.Lock()
	hung := k.hung[path] > 0
	k.mu.Unlock()
	if hung {
		return result{}.found, &hangError{path}
	}
	results := make(chan result, 1)
	go func() {
		found, err := look(path)
		results <- result{found, err}
	}()
	late := time.NewTimer(answerTime)
	defer late.Stop()
	select {
	case r := <-results:
		return r.found, r.err
	case <-late.C:
	}
	k.mu.Lock()
	k.hung[path]++
	k.mu.Unlock()
	go func() {
		<-results
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.hung[path]--; k.hung[path] == 0 {
			delete(k.hung, path)
		}
	}()
	return result{}.found, &hangError{path}
}

// A hangError is the error of a path whose filesystem does not answer.
type hangError struct{ path string }

func (e *hangError) Error() string {
	return e.path + " does not respond: its filesystem hangs; check its disk or server, and dmesg"
}

// kernel is the real Kernel for a child, which has a deadline.
type kernel struct{}

func (kernel) Directory(dir string) (string, error) {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real, nil
	}
	return dir, nil
}

func (kernel) File(path string) (FileInfo, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return FileInfo{}, nil
	} else if err != nil {
		return FileInfo{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	dev := unix.Mkdev(st.Dev_major, st.Dev_minor)
	fi := FileInfo{
		Exists:   true,
		Dir:      st.Mode&unix.S_IFMT == unix.S_IFDIR,
		Regular:  st.Mode&unix.S_IFMT == unix.S_IFREG,
		Links:    int(st.Nlink),
		Inode:    inodeOf(dev, st.Ino, func(fs *unix.Statfs_t) error { return unix.Statfs(path, fs) }),
		Size:     int64(st.Size),
		Blocks:   int64(st.Blocks) * 512,
		ReadOnly: st.Mode&0o222 == 0,
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		fi.Birth = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	if !fi.Regular {
		return fi, nil
	}
	uuid, err := attribute(func(b []byte) (int, error) { return unix.Lgetxattr(path, uuidAttr, b) })
	if err != nil {
		return FileInfo{}, &fs.PathError{Op: "getxattr", Path: path, Err: err}
	}
	created, err := attribute(func(b []byte) (int, error) { return unix.Lgetxattr(path, createdAttr, b) })
	if err != nil {
		return FileInfo{}, &fs.PathError{Op: "getxattr", Path: path, Err: err}
	}
	fi.UUID, fi.Created = uuid, created != ""
	if namespace, ok := strings.CutPrefix(created, createdFor); ok {
		fi.Namespace = namespace
	}
	return fi, nil
}

func (kernel) Space(dir string) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Space{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	block := int64(st.Bsize)
	return Space{int64(st.Blocks) * block, int64(st.Bavail) * block, mount.FreeBelow(dir, &st), st.Files, st.Ffree}, nil
}

func (kernel) NeedsSpace(path string) (bool, error) { return mount.NeedsSpace(path) }

func (kernel) Files(dir string) ([]string, error) {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%w (%w)", err, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// attribute reads an extended attribute; a missing one is empty.
func attribute(get func([]byte) (int, error)) (string, error) {
	var b [256]byte
	n, err := get(b[:])
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return "", nil
	case errors.Is(err, unix.ERANGE):
		return "longer than any attribute of flexd", nil
	case err != nil:
		return "", err
	}
	return strings.TrimSpace(string(b[:n])), nil // setfattr -v "$(...)" may leave a newline
}

func (kernel) Loops() ([]Loop, error) {
	all, err := sysfs.Loops()
	if err != nil {
		return nil, err
	}
	var loops []Loop
	for _, found := range all {
		n, l := found.Name, Loop{Name: found.Name}
		l.BackingFile, l.Deleted = strings.CutSuffix(found.File, " (deleted)")
		if l.Seq, err = sysfs.Uint("/sys/block/" + n + "/diskseq"); err != nil {
			if now, _, berr := backing("/sys/block/" + n); berr == nil && now == "" {
				continue // detached or removed meanwhile
			}
			return nil, fmt.Errorf("%s: %w (the kernel counts disks since Linux 5.15)", n, err)
		}
		loops = append(loops, l)
	}
	return loops, nil
}

func (kernel) Loop(name string) (Loop, error) {
	dir := "/sys/block/" + name
	if strings.Contains(name, ":") {
		dir = "/sys/dev/block/" + name
	}
	if to, err := os.Readlink(dir); err != nil {
		return Loop{}, err
	} else if name = filepath.Base(to); !strings.HasPrefix(name, "loop") {
		return Loop{}, fmt.Errorf("%s is not a loop device", name)
	}
	l := Loop{Name: name}
	var err error
	if l.Number, err = sysfs.Line(dir + "/dev"); err != nil {
		return Loop{}, err
	}
	// The sequence number is read first and last: the values in between belong to one
	// incarnation of the device.
	if l.Seq, err = sysfs.Uint(dir + "/diskseq"); err != nil {
		return Loop{}, err
	}
	sectors, err := sysfs.Uint(dir + "/size")
	if err != nil {
		return Loop{}, err
	}
	l.Size = int64(sectors) * 512
	ro, err := sysfs.Uint(dir + "/ro")
	if err != nil {
		return Loop{}, err
	}
	l.ReadOnly = ro != 0
	if l.BackingFile, l.Deleted, err = backing(dir); err != nil {
		return Loop{}, err
	}
	if l.BackingFile != "" {
		l.NoNode, l.MakeNode = noNode(name, l.Number)
		for attr, set := range map[string]*bool{"offset": &l.Part, "sizelimit": &l.Part, "autoclear": &l.Ending} {
			n, err := sysfs.Uint(dir + "/loop/" + attr)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return Loop{}, err
			}
			*set = *set || n > 0
		}
	}
	again, err := sysfs.Uint(dir + "/diskseq")
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), err == nil && again != l.Seq:
		return Loop{}, fmt.Errorf("/dev/%s: %w", name, errChanging)
	case err != nil:
		return Loop{}, err
	}
	return l, nil
}

// backing reads a loop device's backing file; "" if it has none.
func backing(dir string) (path string, deleted bool, err error) {
	path, err = sysfs.Line(dir + "/loop/backing_file")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return "", false, nil
	}
	if errors.Is(err, unix.ENAMETOOLONG) {
		return sysfs.LongPath, false, nil
	}
	if err != nil {
		return "", false, err
	}
	path, deleted = strings.CutSuffix(path, " (deleted)")
	return path, deleted, nil
}
