package asw

import (
	"context"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// KernelLog reports errors of filesystems from the kernel's log. They only cause a check,
// and are not facts.
type KernelLog struct{ f *os.File }

// OpenKernelLog reads /dev/kmsg from now on.
func OpenKernelLog() (*KernelLog, error) {
	f, err := os.Open("/dev/kmsg")
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		f.Close()
		return nil, err
	}
	return &KernelLog{f}, nil
}

// Each calls notify with the kernel's name of a device ("loop3", "dm-7") whenever the kernel
// logs an error of the filesystem on it, until ctx is done.
func (c *KernelLog) Each(ctx context.Context, notify func(device string)) error {
	stop := context.AfterFunc(ctx, func() { c.f.Close() })
	defer stop()
	record := make([]byte, 8<<10) // the kernel's own limit for one
	for {
		n, err := c.f.Read(record)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, unix.EPIPE): // records were overwritten before they were read
		case err != nil:
			return err
		default:
			if device := filesystemError(string(record[:n])); device != "" {
				notify(device)
			}
		}
	}
}

// The error messages of filesystems. Messages about mounts and unmounts have the same form,
// so the words matter.
var (
	aboutDevice = lazily(`(?:EXT4-fs (?:error|warning|abort)?.*\(device ([\w!-]+)|XFS \(([\w!-]+)\)|BTRFS (?:error|critical|warning) \(device ([\w!-]+)|I/O error, dev ([\w!-]+))`)
	bad         = lazily(`(?i)error|abort|corrupt|shut ?down|shutting|forced|remounting|I/O`)
)

// lazily compiles an expression on first use: children of flexd start often and never need
// it.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// filesystemError returns the device in an error record, or "".
func filesystemError(record string) string {
	_, text, _ := strings.Cut(record, ";")
	m := aboutDevice().FindStringSubmatch(text)
	if m == nil || !bad().MatchString(text) {
		return ""
	}
	for _, device := range m[1:] {
		if device != "" {
			return device
		}
	}
	return ""
}
