package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
)

// maxSocketPath is the size of sockaddr_un's path, without its final zero.
const maxSocketPath = 107

// Listen opens the unix socket at path for a group ("" = the default), or takes it from
// inherited, the listeners that systemd has passed. It removes an existing file only if that is
// a socket on which no process listens, or only a dying one. It does not exclude a second daemon
// that starts at the same instant: Lock does.
func Listen(path string, mode os.FileMode, group string, inherited ...net.Listener) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket %s: its path has %d bytes, at most %d are possible", path, len(path), maxSocketPath)
	}
	gid, err := GroupID(group)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l, err := taken(path, inherited)
	if l == nil && err == nil {
		l, err = bind(path)
	}
	if err != nil {
		return nil, err
	}
	if gid >= 0 {
		err = os.Chown(path, -1, gid)
	}
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("socket %s: %w", path, cause(err))
	}
	return l, nil
}

// taken returns the inherited listener on path, nil if there is none, or no client reaches it any
// more: its file was removed, or replaced by a daemon's own. It then removes an old socket, or
// returns why that cannot be removed.
func taken(path string, inherited []net.Listener) (net.Listener, error) {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("socket %s: %w", path, cause(err))
	}
	i := slices.IndexFunc(inherited, func(l net.Listener) bool {
		u, ok := l.(*net.UnixListener)
		if !ok {
			return false
		}
		theirs, err := os.Lstat(u.Addr().String()) // a directory of the path may be a link, as /var/run is
		return err == nil && os.SameFile(st, theirs)
	})
	if i < 0 && st.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("socket %s: something else is there (%s); flexd does not remove it", path, st.Mode())
	}
	// Only a refused connection proves that no process listens: with a full queue, a
	// timeout or another kind of socket there may be one.
	c, err := net.DialTimeout("unix", path, time.Second)
	dying := false
	if err == nil {
		cred, cerr := credentials(c.(*net.UnixConn))
		dying = cerr == nil && procfs.Process(cred.Pid).Dying() // see Lock: nothing will accept a connection
		c.Close()
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), dying:
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("dead socket %s: %w", path, cause(err))
		}
		return nil, nil
	case i >= 0:
		return inherited[i], nil
	case err == nil:
		return nil, fmt.Errorf("another flexd is running, or systemd listens for it (socket %s): systemctl start flexd", path)
	case errors.Is(err, syscall.ENOENT):
		return nil, nil
	}
	return nil, fmt.Errorf("another flexd seems to be running (socket %s: %w)", path, cause(err))
}

// bind creates a socket that only root may use at first.
func bind(path string) (net.Listener, error) {
	// The socket appears in the file system when it is bound, with the mode its
	// inode has then. Changing that first leaves no instant in which it is open
	// to others, and no need to touch the umask of the whole process.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := private.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, cause(err))
	}
	return l, nil
}

// GroupID finds a group by name or number; "" is -1, which chown leaves as it is.
func GroupID(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	if g, err := user.LookupGroup(group); err == nil {
		return strconv.Atoi(g.Gid)
	}
	if gid, err := strconv.ParseUint(group, 10, 31); err == nil {
		return int(gid), nil
	}
	return 0, fmt.Errorf("there is no group %q on this machine", group)
}

// cause removes the prefix that net and os add to the reason: the message has the path
// already.
func cause(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}
