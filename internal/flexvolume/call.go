package flexvolume

import (
	"errors"
	"path"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/volopts"
)

// The verbs of FlexVolume.
const (
	Init          = "init"
	GetVolumeName = "getvolumename"
	Attach        = "attach"
	Detach        = "detach"
	WaitForAttach = "waitforattach"
	IsAttached    = "isattached"
	MountDevice   = "mountdevice"
	UnmountDevice = "unmountdevice"
	Mount         = "mount"
	Unmount       = "unmount"
	ExpandVolume  = "expandvolume"
	ExpandFS      = "expandfs"
)

// PrintVersion is not a verb of FlexVolume: it prints flexdriver's version, for people and
// for flexd doctor.
const PrintVersion = "--version"

// ErrVerb is the error for a verb that FlexVolume does not have. Only such a verb may be answered
// NotSupported.
var ErrVerb = errors.New("flexd does not know this verb: if flexdriver and flexd are of different releases, restart flexd, or install both from one release")

// A Call is a FlexVolume call with parsed arguments. Fields that the verb does not have are
// zero.
type Call struct {
	Verb    string
	Dir     string // mountdevice, mount, unmount, unmountdevice, expandfs, expandvolume: absolute and clean
	Node    string // attach, detach, isattached
	Name    string // kubelet's name of the volume: from detach's argument, or the options
	Options Options
	NewSize int64 // expandfs, expandvolume: bytes

	UUID string // Reclaim: the volume
}

// maxPath is Linux's PATH_MAX, its NUL included.
const maxPath = 4096

// signature returns the arguments of a verb in order, one letter each: o options, d directory, v
// device, n node, k volume name, + new size, - old size. volume reports whether the options
// must name a volume.
func signature(verb string) (args string, volume, ok bool) {
	switch verb {
	case Init:
		return "", false, true
	case GetVolumeName:
		return "o", false, true
	case Attach, IsAttached:
		return "on", true, true
	case Detach:
		return "kn", false, true
	case WaitForAttach:
		return "vo", true, true
	case MountDevice:
		return "dvo", true, true
	case Mount:
		return "do", true, true
	case Unmount, UnmountDevice:
		return "d", false, true
	case ExpandVolume:
		return "od+-", false, true
	case ExpandFS:
		return "ovd+-", true, true
	}
	return "", false, false
}

// Parse parses the arguments that follow verb. Errors name the argument, or the option's
// key, and quote no secret. An unknown verb is ErrVerb. With an error, the call has only its
// directory and the names in its options, as far as they are valid.
func Parse(verb string, args []string) (Call, error) {
	want, volume, ok := signature(verb)
	if !ok {
		return Call{Verb: verb}, ErrVerb
	}
	if len(args) != len(want) {
		return Call{Verb: verb}, errors.New(verb + " takes " + strconv.Itoa(len(want)) + " arguments, got " + strconv.Itoa(len(args)))
	}
	if verb == IsAttached && strings.HasPrefix(args[1], "{") && !strings.HasPrefix(args[0], "{") {
		args = []string{args[1], args[0]} // very old kubelets
	}
	c := Call{Verb: verb}
	for i, arg := range args {
		var err error
		name := ""
		if want[i] != 'o' && strings.HasPrefix(arg, "{") { // not quoted: the options may have secrets
			return c, errors.New("argument " + strconv.Itoa(i+1) + " of " + verb + " is a JSON object: the arguments are in another order")
		}
		switch want[i] {
		case 'o':
			name = "options"
			if c.Options, err = ParseOptions(arg); err != nil {
				return c, err // names its key itself
			}
			c.Name = c.Options.Name
		case 'd':
			name = "directory"
			if err = checkDir(arg); err == nil {
				c.Dir = arg
			}
		case 'v':
			name = "device" // of an earlier answer, may be "" or stale: flexd looks up the device itself
			if len(arg) >= maxPath || !IsPrintable(arg) {
				err = errors.New("not a device path")
			}
		case 'n':
			name, c.Node = "node name", arg
			if len(arg) > 253 || !IsComponent(arg) {
				err = errors.New("not a node name")
			}
		case 'k':
			name, c.Name = "volume name", arg
			if !IsComponent(arg) {
				err = errors.New("not a volume name")
			}
		case '+':
			name = "new size"
			c.NewSize, err = parseBytes(arg)
		case '-':
			name = "old size"
			_, err = parseBytes(arg)
		}
		if err != nil {
			return c, errors.New("argument " + strconv.Itoa(i+1) + " of " + verb + " (" + name + "): " + err.Error())
		}
	}
	if volume {
		if err := c.Options.needVolume(); err != nil {
			return c, err
		}
	}
	return c, nil
}

// checkDir refuses directories that kubelet never sends.
func checkDir(dir string) error {
	switch {
	case dir == "":
		return errors.New("empty")
	case len(dir) >= maxPath:
		return errors.New("longer than " + strconv.Itoa(maxPath-1) + " bytes")
	case !IsPrintable(dir):
		return errors.New(quote(dir) + " holds control characters or invalid UTF-8")
	case dir[0] != '/':
		return errors.New(quote(dir) + " is not absolute")
	case dir == "/" || path.Clean(dir) != dir:
		return errors.New(quote(dir) + " is not a clean path below /")
	}
	return nil
}

// parseBytes reads kubelet's Quantity.Value(): decimal bytes.
func parseBytes(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || s[0] == '+' {
		return 0, errors.New(quote(s) + " is not a number of bytes")
	}
	if n > volopts.MaxSize {
		return 0, errors.New(quote(s) + " is too large")
	}
	return int64(n), nil
}
