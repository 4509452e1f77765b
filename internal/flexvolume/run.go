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

// Environment variables of flexdriver, for tests and for hosts with other paths. Kubelet sets none
// of them. A duration is Go's ("90s"), at most its default.
const (
	EnvSocket  = "FLEXD_SOCKET"          // default DefaultSocket
	EnvTimeout = "FLEXD_TIMEOUT"         // for the whole call, default DefaultTimeout
	EnvConnect = "FLEXD_CONNECT_TIMEOUT" // for a socket that is missing or refuses, default DefaultConnect
)

// build is flexdriver's release, set by the linker.
var build = "devel"

// Run is the main function of flexdriver; args are the process's arguments, the executable's path first.
// It writes exactly one JSON object and a newline to stdout, in one write, and nothing to stderr. It
// returns the exit status 0 even after a panic: for another status kubelet logs the
// arguments, including secrets.
//
// It handles no signals: SIGTERM kills it at once, and so does SIGPIPE when kubelet has
// closed its end of stdout.
func Run(args []string, stdout io.Writer, env func(string) string) int {
	stdout.Write(respond(args, env).Encode())
	return 0
}

// respond returns the answer, even after a panic.
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
	case GetVolumeName: // another answer can make volumes unusable
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

// AnswerInit answers init from a dotfile beside the executable, which kubelet
// ignores: for .../flexd~lvm/lvm it is .../flexd~lvm/.lvm.init.json, a
// JSON object of Capabilities.
//
// Without the file the defaults apply. A file that cannot be read or parsed is a Failure:
// kubelet's names of volumes depend on the attach mode, so a wrong mode orphans every
// volume in use, while a driver with a failing init is only missing until the file is
// repaired. Kubelet calls init again only when a file other than a dotfile changes in the
// directory, so the remedy includes a touch.
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

// initFile returns the path of init's file for an executable. It follows no link: the file is
// in kubelet's plugin directory.
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

// ask gets the answer from flexd. A hint (attach, detach, isattached) gets a constant answer if no flexd runs,
// such as on the controller manager's machine, or during a restart. The call is as old as the process, which may have been
// stopped before it got here.
func ask(verb string, args []string, env func(string) string, hint bool) Answer {
	q := Request{ID: newID(), Verb: verb, Args: args, Started: int64(boottime.Started()), Parent: syscall.Getppid()}
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

// offlineAnswer returns the answer to a hint without a daemon. isattached must not be false, or the
// controller attaches again every minute.
func offlineAnswer(verb string) Answer {
	a := Success()
	if verb == IsAttached {
		a.Attached = new(true)
	}
	return a
}

// newID returns a call's id: short, and random enough to be unique.
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
