package mount

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/flexd/flexd/internal/volume"
)

// Errors of the children, for errors.Is.
var (
	ErrChanged   = volume.WithCode(volume.Conflict, errors.New("the device changed"))                         // the device is no longer the one that was observed
	ErrNoDir     = volume.WithCode(volume.NotFound, errors.New("the directory does not exist"))               // flexd never creates a mount point
	ErrForeign   = volume.WithCode(volume.Busy, errors.New("something else is mounted there"))                // Unmount found another device on top
	ErrNone      = errors.New("nothing is mounted there")                                                     // Unmount found nothing
	ErrFailed    = volume.WithCode(volume.Damaged, errors.New("the filesystem is in error"))                  // the filesystem itself reports errors, when mounted or probed
	ErrUnwritten = volume.WithCode(volume.Damaged, errors.New("it is unmounted, but data of it may be lost")) // Unmount has unmounted it
	ErrNoTool    = errors.New("a required program is not installed")                                          // the text names the Debian package
)

// A Refusal is flexd's refusal of a destructive step. It is final until the owner acts.
type Refusal struct {
	What string `json:"what"` // the finding, with its offset
	Hint string `json:"hint"` // the remedy for the owner

	Why volume.Code `json:"code,omitempty"` // "" = NotBlank
}

func (r *Refusal) Error() string {
	if r.Hint == "" {
		return r.What
	}
	return r.What + "; " + r.Hint
}

// Code implements volume.CodeOf.
func (r *Refusal) Code() volume.Code { return cmp.Or(r.Why, volume.NotBlank) }

// A Holder is a process, mount or device that keeps a mount or a device in use.
type Holder struct {
	Pid  int    `json:"pid,omitempty"` // 0 = held by the kernel itself
	Comm string `json:"comm"`
	How  string `json:"how"` // "open file /x", "working directory", "mount namespace", ...
	// Unmounted: the filesystem is active in the kernel without a mount.
	Unmounted bool `json:"unmounted,omitempty"`
	// Cut: this is not a holder; the search for holders took too long.
	Cut bool `json:"cut,omitempty"`
}

// A BusyError has the holders of a mount or a device.
type BusyError struct {
	What    string   `json:"what"` // the directory or device
	Holders []Holder `json:"holders,omitempty"`
}

func (e *BusyError) Error() string {
	if len(e.Holders) == 0 {
		return e.What + " is busy (no holder found: no open file of a process, no mount, swap space or device on it; the kernel itself may use it, as an iSCSI or NVMe target, or as the external journal of another filesystem; or a program listens on a socket in it: ss -xlp; or has registered a file with io_uring: ls -l /proc/*/fd | grep io_uring)"
	}
	var by []string
	for _, h := range e.Holders {
		by = append(by, h.String())
	}
	return e.What + " is busy: " + strings.Join(by, ", ")
}

// Code implements volume.CodeOf.
func (e *BusyError) Code() volume.Code { return volume.Busy }

func (h Holder) String() string {
	if h.Pid == 0 {
		return h.How
	}
	return fmt.Sprintf("pid %d (%s, %s)", h.Pid, h.Comm, h.How)
}
