package asw

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A KernelLog has the kernel's messages about filesystems; nil = the log cannot be read. An error in
// it only causes a check. Only a lost write is a fact, because no other source keeps it after a pod's
// syncfs(2) has returned the error.
type KernelLog struct {
	records io.ReadCloser       // each read returns one
	open    func() (int, error) // opens the log again, from the oldest record on; nil = it cannot be opened

	mu     sync.Mutex
	logged map[string]string // by device, since its filesystem was mounted: the first lost write; "" = other errors
}

// OpenKernelLog reads /dev/kmsg from the oldest record on: flexd may have been away when a
// filesystem failed.
func OpenKernelLog() (*KernelLog, error) {
	fd, err := openKernelLog()
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/kmsg", Err: err}
	}
	k := NewKernelLog(os.NewFile(uintptr(fd), "/dev/kmsg"))
	k.open = openKernelLog
	if err := k.readPast(func(record []byte) (int, error) { return unix.Read(fd, record) }); err != nil {
		k.records.Close()
		return nil, err
	}
	return k, nil
}

func openKernelLog() (fd int, err error) {
	return unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// During returns the first write to a device that the kernel logs as lost while do runs. Each may read that record later.
func (k *KernelLog) During(path string, do func() error) (lost string, err error) {
	if k == nil || k.open == nil {
		return "", do()
	}
	fd, oerr := k.open()
	if oerr != nil {
		return "", do()
	}
	defer unix.Close(fd)
	if _, serr := unix.Seek(fd, 0, io.SeekEnd); serr != nil {
		return "", do()
	}
	err = do()
	for record := make([]byte, maxRecord); lost == ""; {
		n, rerr := unix.Read(fd, record)
		switch {
		case rerr == nil:
			if text := kernelText(string(record[:n])); match(lostWrite(), text) == filepath.Base(path) {
				lost = text
			}
		case rerr != unix.EPIPE && rerr != unix.EINTR:
			return "", err
		}
	}
	return lost, err
}

// readPast reads the existing records. Their lost writes only cause a check: if there are many mounts,
// the kernel does not log each, and a device may have had another filesystem.
func (k *KernelLog) readPast(read func(record []byte) (int, error)) error {
	record := make([]byte, maxRecord)
	for {
		switch n, err := read(record); err {
		case nil:
			k.add(string(record[:n]))
		case unix.EPIPE, unix.EINTR:
		case unix.EAGAIN:
			for device := range k.logged {
				k.logged[device] = ""
			}
			return nil
		default:
			return err
		}
	}
}

const maxRecord = 8 << 10 // the kernel's own limit

// NewKernelLog returns the log of records in the format of /dev/kmsg.
func NewKernelLog(records io.ReadCloser) *KernelLog {
	return &KernelLog{records: records, logged: map[string]string{}}
}

// Each calls notify with the kernel's name of a device ("loop3", "dm-7") whenever the kernel
// logs an error of the filesystem on it, until ctx is done.
func (k *KernelLog) Each(ctx context.Context, notify func(device string)) error {
	stop := context.AfterFunc(ctx, func() { k.records.Close() })
	defer stop()
	record := make([]byte, maxRecord)
	for {
		n, err := k.records.Read(record)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, unix.EPIPE): // records were overwritten before they were read
		case err != nil:
			return err
		default:
			if device := k.add(string(record[:n])); device != "" {
				notify(device)
			}
		}
	}
}

// add remembers a record, and returns the device if it is about an error. A mount, or a new file of a
// loop device, ends the errors of an earlier filesystem: the order of the records decides, without
// clocks. ext4 does not log every mount if there are many.
func (k *KernelLog) add(record string) (device string) {
	text := kernelText(record)
	k.mu.Lock()
	defer k.mu.Unlock()
	if begun := match(aboutBegin(), text); begun != "" {
		delete(k.logged, begun)
		return ""
	}
	lost := text
	if device = match(lostWrite(), text); device == "" && bad().MatchString(text) {
		device, lost = match(aboutDevice(), text), ""
	}
	if device != "" {
		k.logged[device] = cmp.Or(k.logged[device], lost)
	}
	return device
}

// Logged returns the first write that the kernel logged as lost since the filesystem on a device
// was mounted, and whether it logged any error.
func (k *KernelLog) Logged(path string) (lost string, bad bool) {
	if k == nil {
		return "", false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	lost, bad = k.logged[filepath.Base(path)]
	return lost, bad
}

// Forget is called when the filesystem on a device is not mounted.
func (k *KernelLog) Forget(path string) {
	if k != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.logged, filepath.Base(path))
	}
}

// The error messages of filesystems. Messages about mounts and unmounts have the same form, so only
// the words distinguish them.
var (
	aboutDevice = lazily(`(?:EXT4-fs \(([\w!-]+)\): shut down|EXT4-fs (?:error|warning|abort)?.*\(device ([\w!-]+)|XFS \(([\w!-]+)\)|BTRFS (?:error|critical|warning) \(device ([\w!-]+)|I/O error, dev ([\w!-]+))`)
	aboutBegin  = lazily(`^(?:([\w!-]+): detected capacity change from 0 to|EXT4-fs \(([\w!-]+)\): mounted|XFS \(([\w!-]+)\): Mounting|BTRFS info \(device ([\w!-]+).*\): .*checksum algorithm)`)
	// btrfs counts all errors that a device ever had, so that only the first kind is certain.
	lostWrite = lazily(`^(?:Buffer I/O error on dev(?:ice)? ([\w!-]+), .*lost \w+ page write|EXT4-fs warning \(device ([\w!-]+)\): .*I/O error -?\d+ writing to inode|EXT4-fs error \(device ([\w!-]+)\): ext4_put_super.*: Couldn't clean up the journal|EXT4-fs \(([\w!-]+)\): .*Data will be lost|([\w!-]+): writeback error on inode|BTRFS error \(device ([\w!-]+).*\): bdev \S+ errs: wr [1-9]\d*, rd 0, flush 0, corrupt 0)`)
	bad       = lazily(`(?i)error|abort|corrupt|shut ?down|shutting|forced|remounting|I/O`)
)

// lazily compiles an expression on first use: children of flexd start often and never need
// it.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// kernelText returns the text of a record that the kernel wrote, "" for others: records of processes
// have a facility, so that their priority has more than one digit.
func kernelText(record string) string {
	head, text, _ := strings.Cut(record, ";")
	if len(head) < 2 || head[1] != ',' {
		return ""
	}
	text, _, _ = strings.Cut(text, "\n")
	return text
}

// match returns the device that an expression finds in a text, or "".
func match(about *regexp.Regexp, text string) string {
	if m := about.FindStringSubmatch(text); m != nil {
		return cmp.Or(m[1:]...)
	}
	return ""
}
