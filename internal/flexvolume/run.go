package flexvolume

import (
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/flexd/flexd/internal/boottime"
)

// DefaultSocket is the path of flexd's driver socket.
const DefaultSocket = "/run/flexd/driver.sock"

// The environment of flexdriver. Kubelet sets none of these; they are for tests
// and for hosts with other paths. A duration is Go's ("90s") and may only be
// shorter than its default.
const (
	EnvSocket  = "FLEXD_SOCKET"          // default DefaultSocket
	EnvTimeout = "FLEXD_TIMEOUT"         // for the whole call, default DefaultTimeout
	EnvConnect = "FLEXD_CONNECT_TIMEOUT" // for a socket that is missing or refuses, default DefaultConnect
)

// build is flexdriver's release, set by the linker.
var build = "devel"

// Run is flexdriver: args are the process's own, the executable's path first.
// It writes exactly one JSON object and a newline to stdout, in one write, and
// returns the exit status, which is always 0: any other makes kubelet log the
// arguments, secrets included. Nothing is ever written to stderr, and a panic
// becomes a Failure.
//
// It handles no signal: SIGTERM kills it at once, and so does SIGPIPE when kubelet has
// closed its end of stdout.
func Run(args []string, stdout io.Writer, env func(string) string) int {
	stdout.Write(respond(args, env).Encode())
	return 0
}

// respond returns the answer, also after a panic.
func respond(args []string, env func(string) string) (a Answer) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case error: // a runtime error quotes no argument
			a = Failure("flexdriver " + build + " panicked, which is a bug: " + r.Error())
		default:
			a = Failure("flexdriver " + build + " panicked, which is a bug")
		}
	}()
	if len(args) < 2 {
		return Failure("no verb: this is the FlexVolume driver that kubelet runs; for people there is `flexd status`")
	}
	verb := args[1]
	switch verb {
	case Init:
		return AnswerInit(args[0])
	case PrintVersion:
		return Answer{Status: StatusSuccess, Message: build}
	case GetVolumeName: // anything but a permanent "Not supported" can make volumes unusable
		return NotSupported()
	case ExpandVolume: // kubelet never calls it; expandfs does everything
		return Success()
	case Attach, Detach, IsAttached:
		return ask(verb, args[2:], env, true)
	case WaitForAttach, MountDevice, UnmountDevice, Mount, Unmount, ExpandFS:
		return ask(verb, args[2:], env, false)
	}
	return NotSupported()
}

// AnswerInit answers init from a file beside the executable, where kubelet
// ignores dotfiles: for .../flexd~lvm/lvm it is .../flexd~lvm/.lvm.init.json, a
// JSON object of Capabilities.
//
// Without the file the defaults apply. A file that cannot be read or parsed is a Failure:
// kubelet's names of volumes depend on the attach mode, and a wrong mode orphans every
// volume in use, while a driver whose init fails is only missing until the file is
// repaired. Kubelet looks again when something other than a dotfile changes in the
// directory, hence the touch.
func AnswerInit(exe string) Answer {
	name := initFile(exe)
	text, err := readFile(name)
	if err == syscall.ENOENT {
		c := DefaultCapabilities()
		return Answer{Status: StatusSuccess, Capabilities: &c}
	}
	var c Capabilities
	if err == nil {
		c, err = ParseCapabilities(text)
	}
	if err != nil {
		return Failure(name + ": " + err.Error() + "; write it again, then touch " + exe)
	}
	return Answer{Status: StatusSuccess, Capabilities: &c}
}

// initFile is the path of init's file for an executable, as kubelet names it.
// A link is not followed: the directory is kubelet's plugin directory.
func initFile(exe string) string {
	dir, base := "", exe
	if i := strings.LastIndexByte(exe, '/'); i >= 0 {
		dir, base = exe[:i+1], exe[i+1:]
	}
	return dir + "." + base + ".init.json"
}

// readFile reads a file of at most 64 KiB. Its errors are bare errnos.
func readFile(name string) (string, error) {
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	s := sock(fd)
	defer s.close()
	buf := make([]byte, 64<<10)
	n := 0
	for n < len(buf) {
		m, err := s.read(buf[n:])
		if err != nil {
			return "", err
		}
		if m == 0 {
			return string(buf[:n]), nil
		}
		n += m
	}
	return "", errors.New("longer than 64 KiB")
}

// ask gets the answer from flexd. Without a daemon, the answer to a hint is a constant: the
// controller's machine, or a node whose flexd is restarting.
func ask(verb string, args []string, env func(string) string, hint bool) Answer {
	q := Request{ID: newID(), Verb: verb, Args: args, Started: int64(boottime.Now()), Parent: syscall.Getppid()}
	c := Client{Socket: DefaultSocket, Timeout: DefaultTimeout, Connect: DefaultConnect, Once: hint, Parent: q.Parent}
	if s := env(EnvSocket); s != "" {
		c.Socket = s
	}
	c.Lock = c.Socket[:strings.LastIndexByte(c.Socket, '/')+1] + "flexd.lock"
	for _, v := range [...]struct {
		name string
		d    *time.Duration
	}{{EnvTimeout, &c.Timeout}, {EnvConnect, &c.Connect}} {
		if s := env(v.name); s != "" {
			d, err := time.ParseDuration(s)
			if err != nil || d <= 0 || d > *v.d {
				return Failure(v.name + "=" + quote(s) + " is not a duration of at most " + v.d.String())
			}
			*v.d = d
		}
	}
	a, err := c.Ask(q)
	if err == nil {
		return a
	}
	switch e := err.(type) {
	case *DownError:
		if hint {
			return offlineAnswer(verb)
		}
		if e.Err == syscall.EACCES {
			return Failure("not permitted to use flexd's socket (" + e.Error() + "): only kubelet, which runs as root, and root itself may call flexd; " +
				"if this is root, a security module denies it: dmesg, ausearch -m avc")
		}
		return Failure("flexd is not running (" + e.Error() + ", tried for " + c.Connect.String() +
			"); start it: systemctl start flexd; why it stopped: journalctl -u flexd")
	case *GarbageError:
		return Failure(e.Error() + " (flexdriver is " + build + "; see `flexd version` and restart flexd)")
	}
	switch err {
	case ErrDeadline:
		return Failure("flexd did not answer within " + c.Timeout.String() + "; what it is doing: flexd status")
	case ErrTooLong:
		return Failure("the arguments of " + verb + " are too long: flexd takes a message of at most " + strconv.Itoa(MaxLine) + " bytes")
	}
	return Failure(err.Error())
}

// offlineAnswer is the answer to a hint without a daemon. It claims as little as kubelet's
// protocol allows: isattached must not say false, or the controller attaches again every
// minute.
func offlineAnswer(verb string) Answer {
	a := Success()
	if verb == IsAttached {
		attached := true
		a.Attached = &attached
	}
	return a
}

// newID makes a call's id: short enough to be read aloud, random enough that
// the calls of one boot never share one.
func newID() string {
	const hex = "0123456789abcdef"
	var b [12]byte
	n := rand.Uint64() // #nosec G404 -- unique, not secret
	for i := range b {
		b[i] = hex[n&15]
		n >>= 4
	}
	return string(b[:])
}
