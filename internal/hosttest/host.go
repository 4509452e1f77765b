package hosttest

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/flexd/flexd/internal/loopdev"
	"github.com/flexd/flexd/internal/volume"
)

// A Host is a simulated kernel with its files and devices.
type Host struct {
	broke func(format string, a ...any) // reports a broken promise: the test fails
	dirs  func() (notes, records string)

	// Pace is called before, during and after the effect of a command.
	Pace func(p Point) Fate
	// Permitted, if set, is called when flexd has permitted a mount, and Mounted when it appears. Time
	// passes in between, and callers may end.
	Permitted, Mounted func(dir, uuid string)
	// Lenient permits external changes: mounts and devices may change under flexd's
	// commands.
	Lenient bool
	// Careless is set while notes cannot be written, so that releases continue without notes.
	Careless bool

	mu        *sync.Mutex   // guards all of the following; of hosts with a common disk, the disk's
	locking   *LockManager  // of LVM's shared volume group; nil = there is none
	events    []event       // of device-mapper and LVM's metadata
	more      chan struct{} // closed at the next event
	bootID    int
	booted    time.Time
	files     map[string]*File
	loops     map[string]*loop
	mounts    []*mnt
	folders   map[string]bool // by place
	nextID    int
	nextSeq   uint64
	inodes    uint64
	version   int               // of the mount table
	changed   chan struct{}     // closed at the next change of the mount table
	holders   map[int]int       // open files, by mount ID
	frozen    map[*File]bool    // filesystems that are frozen; one stays active when it is unmounted
	elsewhere map[string]string // the mount point of a file's volume in another mount namespace
	umounts   int               // of last mounts
	live      map[*File]string
	before    map[string]*hang // by op
	after     map[string]*hang
	log       []string
	looking   func()
	hung      chan struct{}        // closed when the volume group's metadata can be read again; nil = it can
	torn      bool                 // the next read of the mount table is truncated
	blind     bool                 // the next list of devices or files cannot be read
	locks     map[string]*laneLock // by lock file
}

// A Point is a point of a command.
type Point struct {
	Op    string // "format"
	On    string // the volume or the directory it is about
	Where string // "before", "within" or "after" its effect; of mkfs also "erasing", "start", and "cleaning" after it failed
}

func (p Point) String() string { return p.Op + " " + p.On + " " + p.Where }

// A Fate says how a command continues after a point.
type Fate int

// The fates of a command.
const (
	Lives   Fate = iota
	Dies         // it is killed there
	Fails        // it ends there with an error
	Garbles      // it continues, and its answer is truncated
	Busy         // the kernel answers EBUSY
)

// A laneLock is a lane's lock held by a living command.
type laneLock struct {
	pid  int
	argv []string
	done chan struct{} // closed when it is free
}

// A File is the backing file of a volume. It survives a reboot.
type File struct {
	path string
	loopdev.FileInfo
	Type  string // the filesystem on it, "" = none
	State State
	Bytes int64 // the filesystem's size
	Data  int   // data of pods: lost by mkfs
	Note  string
	Mkfs  int      // how many times
	Tags  []string // of LVM

	mounted  bool  // flexd has mounted it
	stale    bool  // it was extended while it was blank, and what was added has other data
	lost     bool  // all of it reads as zeros, whatever it was
	looked   bool  // flexd has probed its present content
	lookedBy *Host // on this host
	blank    bool  // the last probe found it blank
	excl     bool  // a child has its device exclusively
}

// A State is the state of a file's bytes.
type State int

// The states of a file's bytes.
const (
	Blank    State = iota
	Whole          // a filesystem
	Failed         // a filesystem in error
	HalfMade       // remains of an interrupted mkfs
	Foreign        // an owner's data, which differs from the remains of an interrupted mkfs
)

type loop struct {
	loopdev.Loop
	file    *File
	openers int
	lastUse volume.Use // the result of the last check of its users
	foreign bool       // it has no mark of flexd
	owners  bool       // an operator created it
	going   bool       // detached while in use: the kernel does it when the last user ends
	fenced  bool       // each read and write fails
}

// A hang is a command that does not end.
type hang struct {
	release chan struct{}
	hard    bool // not even when it is killed
	die     bool // it is killed at that point
	hit     chan struct{}
	once    sync.Once
}

// NewHost returns a machine without volumes, with a kubelet directory.
func NewHost(broke func(string, ...any)) *Host {
	h := &Host{
		mu: new(sync.Mutex), more: make(chan struct{}),
		broke: broke, Pace: func(Point) Fate { return Lives }, dirs: func() (string, string) { return "", "" },
		files: map[string]*File{}, loops: map[string]*loop{}, folders: map[string]bool{},
		nextID: 30, nextSeq: 1, changed: make(chan struct{}), holders: map[int]int{}, frozen: map[*File]bool{}, elsewhere: map[string]string{}, live: map[*File]string{},
		before: map[string]*hang{}, after: map[string]*hang{}, locks: map[string]*laneLock{}, booted: time.Now(), bootID: 1,
	}
	h.base()
	return h
}

// NewSharedHost returns a machine that shares a disk with other machines. Its number is its host id for
// sanlock.
func NewSharedHost(broke func(string, ...any), d *Disk, id int) *Host {
	h := NewHost(broke)
	h.mu, h.files = &d.mu, d.files
	h.locking = d.manager(h, id)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users = append(d.users, h)
	return h
}

// base creates the mounts of every machine.
func (h *Host) base() {
	h.mounts = nil
	h.add(&mnt{number: "8:1", root: "/", dir: "/", typ: "ext4", src: "/dev/sda1", super: "rw", peer: 1})
	h.add(&mnt{number: "0:22", root: "/", dir: "/proc", typ: "proc", src: "proc", super: "rw", peer: 2})
	h.add(&mnt{number: "0:23", root: "/", dir: "/run", typ: "tmpfs", src: "tmpfs", super: "rw,size=1048576k", peer: 3})
}

// Boot is the time since boot.
func (h *Host) Boot() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.booted)
}

// BootID names this boot.
func (h *Host) BootID() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("boot-%d", h.bootID)
}

// Reboot drops all state of the kernel. Kubelet's directories and the volumes' files stay.
func (h *Host) Reboot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bootID++
	h.booted = time.Now()
	h.loops = map[string]*loop{}
	h.holders, h.elsewhere, h.frozen = map[int]int{}, map[string]string{}, map[*File]bool{}
	h.live, h.locks = map[*File]string{}, map[string]*laneLock{} // their processes are dead, see pace
	h.base()
	h.tableChanged()
}

// Uptime moves the boot-time clock, as after a long suspend.
func (h *Host) Uptime(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.booted = h.booted.Add(-d)
}

// AddFile creates a volume's file, as an administrator would.
func (h *Host) AddFile(f File, path string) *File {
	h.mu.Lock()
	defer h.mu.Unlock()
	f.path = path
	f.Exists, f.Regular, f.Links, f.Inode = true, true, 1, h.inode()
	h.files[path] = &f
	return &f
}

// FileAt returns the volume's file, or nil.
func (h *Host) FileAt(path string) *File {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.files[path]
}

// WasBlank reports whether a volume is blank, or was when flexd probed it last and has been
// written or resized since.
func (h *Host) WasBlank(path string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.files[path]
	return f != nil && (f.State == Blank || f.blank && !f.looked)
}

// Change changes a file under the host's lock.
func (h *Host) Change(path string, change func(*File)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h.files[path])
}

func (h *Host) inode() loopdev.Inode {
	h.inodes++
	return loopdev.Inode{Dev: 1, Ino: h.inodes}
}

func (h *Host) newLoop(f *File) *loop {
	for i := 0; ; i++ {
		name := fmt.Sprintf("loop%d", i)
		if h.loops[name] != nil {
			continue
		}
		h.nextSeq++
		l := &loop{file: f, Loop: loopdev.Loop{Name: name, Number: fmt.Sprintf("7:%d", i), Seq: h.nextSeq,
			BackingFile: f.path, Inode: f.Inode, Size: f.Size, ReadOnly: f.ReadOnly}}
		h.loops[name] = l
		return l
	}
}

// loopOf returns the file's device, except an operator's own device.
func (h *Host) loopOf(f *File) *loop {
	for _, name := range h.loopNames() {
		if l := h.loops[name]; l.file == f && !l.foreign {
			return l
		}
	}
	return nil
}

func (h *Host) loopNames() []string {
	return slices.Sorted(maps.Keys(h.loops))
}

// File implements loopdev.Kernel.
func (h *Host) File(path string) (loopdev.FileInfo, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.files[path]; f != nil {
		info := f.FileInfo
		info.Birth = int64(info.Inode.Ino) // no number is used again
		return info, nil
	}
	dir := h.folders[h.place(path)]
	return loopdev.FileInfo{Exists: dir, Dir: dir}, nil
}

// Space implements loopdev.Kernel: there is enough.
func (h *Host) Space(string) (loopdev.Space, error) {
	return loopdev.Space{Size: 1 << 60, Free: 1 << 60, Root: 1 << 60}, nil
}

// NeedsSpace implements loopdev.Kernel.
func (h *Host) NeedsSpace(string) (bool, error) { return false, nil }

// Directory implements loopdev.Kernel; there are no symlinks here.
func (h *Host) Directory(dir string) (string, error) { return dir, nil }

// Files implements loopdev.Kernel.
func (h *Host) Files(dir string) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.unread(dir); err != nil {
		return nil, err
	}
	if !h.folders[h.place(dir)] {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: fs.ErrNotExist}
	}
	var names []string
	for file := range h.files {
		if path.Dir(file) == dir {
			names = append(names, path.Base(file))
		}
	}
	return names, nil
}

// Loops implements loopdev.Kernel.
func (h *Host) Loops() ([]loopdev.Loop, error) {
	h.takeTime()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.unread("/sys/block"); err != nil {
		return nil, err
	}
	var all []loopdev.Loop
	for _, n := range h.loopNames() {
		l := h.seenLoop(h.loops[n])
		all = append(all, loopdev.Loop{Name: l.Name, Seq: l.Seq, BackingFile: l.BackingFile, Deleted: l.Deleted})
	}
	return all, nil
}

// unread fails once if the test has requested it.
func (h *Host) unread(dir string) error {
	if !h.blind {
		return nil
	}
	h.blind = false
	return &fs.PathError{Op: "open", Path: dir, Err: syscall.EIO}
}

// Blind makes the next list of devices or files fail.
func (h *Host) Blind() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.blind = true
}

func (h *Host) seenLoop(l *loop) loopdev.Loop {
	seen := l.Loop
	seen.Deleted = h.files[l.BackingFile] != l.file
	return seen
}

// Loop implements loopdev.Kernel.
func (h *Host) Loop(name string) (loopdev.Loop, error) {
	h.takeTime()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.loops {
		if l.Name == name || l.Number == name {
			return h.seenLoop(l), nil
		}
	}
	if strings.HasPrefix(name, "loop") || strings.HasPrefix(name, "7:") {
		return loopdev.Loop{Name: name}, nil // free
	}
	return loopdev.Loop{}, fs.ErrNotExist
}

func (h *Host) logf(format string, a ...any) {
	h.log = append(h.log, fmt.Sprintf(format, a...))
}
