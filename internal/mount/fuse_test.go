//go:build !vm

package mount

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A fuse is a filesystem with one file, whose server can stop answering.
type fuse struct {
	dir, file string
	silent    atomic.Bool // it answers nothing
	cacheNext atomic.Bool // the next open uses the page cache
	noWrite   atomic.Bool // it answers no write
	waits     atomic.Bool // a write waits
	data      []byte
	abort     func() // all requests fail from now on
}

func newFuse(r *rig) *fuse {
	r.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		r.Skip("needs FUSE")
	}
	if err != nil {
		r.Fatal(err)
	}
	dir := r.mkdir("fuse")
	f := &fuse{dir: dir, file: filepath.Join(dir, "file"), data: make([]byte, 8*mib)}
	if err := unix.Mount("test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)); err != nil {
		unix.Close(fd)
		r.Fatal(err)
	}
	ended := make(chan struct{})
	f.abort = sync.OnceFunc(func() {
		unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH)
		<-ended
	})
	r.Cleanup(f.abort)
	go func() {
		defer close(ended)
		defer unix.Close(fd)
		buf := make([]byte, 1*mib)
		for {
			n, err := unix.Read(fd, buf)
			switch {
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT):
			case err != nil:
				return
			case !f.silent.Load():
				f.serve(fd, buf[:n])
			}
		}
	}()
	return f
}

// serve answers one request, see linux/fuse.h.
func (f *fuse) serve(fd int, req []byte) {
	const lookup, forget, getattr, open, read, write, release, fsync, flush, initialize, opendir, releasedir, batchForget = 1, 2, 3, 14, 15, 16, 18, 20, 25, 26, 27, 29, 42
	le := binary.LittleEndian
	op, node, arg := le.Uint32(req[4:]), le.Uint64(req[16:]), req[40:]
	attr := func(node uint64) []byte {
		b := make([]byte, 88)
		le.PutUint64(b, node)
		mode := uint32(unix.S_IFDIR | 0o755)
		if node != 1 {
			mode = unix.S_IFREG | 0o600
			le.PutUint64(b[8:], uint64(len(f.data)))
		}
		le.PutUint32(b[60:], mode)
		le.PutUint32(b[64:], 1)
		le.PutUint32(b[80:], 4096)
		return b
	}
	var out []byte
	errno := unix.Errno(0)
	switch op {
	case forget, batchForget:
		return
	case initialize:
		out = make([]byte, 64)
		le.PutUint32(out, 7)
		le.PutUint32(out[4:], 31)
		le.PutUint32(out[20:], 128<<10) // the largest write
	case lookup:
		out = make([]byte, 40)
		le.PutUint64(out, 2) // valid for no time: each look asks the server
		out = append(out, attr(2)...)
	case getattr:
		out = append(make([]byte, 16), attr(node)...)
	case opendir, open:
		out = make([]byte, 16)
		out[8] = 2 // FOPEN_KEEP_CACHE
		if op == open && !f.cacheNext.Swap(false) {
			out[8] |= 1 // FOPEN_DIRECT_IO
		}
	case read, write:
		at, n := le.Uint64(arg[8:]), le.Uint32(arg[16:])
		part := f.data[at:min(at+uint64(n), uint64(len(f.data)))]
		if out = part; op == write {
			if f.noWrite.Load() {
				f.waits.Store(true)
				return
			}
			copy(part, arg[40:])
			out = make([]byte, 8)
			le.PutUint32(out, n)
		}
	case release, fsync, flush, releasedir:
	default:
		errno = unix.ENOSYS
	}
	head := make([]byte, 16, 16+len(out))
	le.PutUint32(head, uint32(16+len(out)))
	le.PutUint32(head[4:], uint32(-int32(errno)))
	copy(head[8:], req[8:16])
	unix.Write(fd, append(head, out...))
}

// The test binary is also a process that maps a file, and then keeps its mappings locked with the
// file of a fuse: the second mmap(2) of that waits for a write of what the first has changed.
func init() {
	if len(os.Args) != 4 || os.Args[1] != "map" {
		return
	}
	for _, m := range []struct {
		file string
		flag int
	}{{os.Args[2], unix.MAP_SHARED}, {os.Args[3], unix.MAP_SHARED}, {os.Args[3], unix.MAP_PRIVATE}} {
		fd, err := unix.Open(m.file, unix.O_RDWR|unix.O_CLOEXEC, 0)
		var b []byte
		if err == nil {
			b, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, m.flag)
		}
		if err != nil {
			os.Exit(1)
		}
		b[0] = 1
	}
	os.Exit(0)
}
