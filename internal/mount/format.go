package mount

import (
	"cmp"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// The programs that make a filesystem. Their -F and -f only take away their own
// questions: the answer is the proof that format makes itself.
var makers = map[string]struct {
	argv []string
	pkg  string // Debian's
}{
	"ext4":  {[]string{"mkfs.ext4", "-F", "-q", "-m0"}, "e2fsprogs"},
	"xfs":   {[]string{"mkfs.xfs", "-f", "-q"}, "xfsprogs"},
	"btrfs": {[]string{"mkfs.btrfs", "-f", "-q"}, "btrfs-progs"},
}

// format is the child that makes a filesystem. It trusts nobody's earlier look:
// it makes the proof again, while nobody else can have the device.
func format(a formatArg) (nothing, error) {
	maker, ok := makers[a.Type]
	if !ok {
		return nothing{}, &Refusal{What: fmt.Sprintf("flexd does not make %q", a.Type), Hint: "it makes ext4, xfs and btrfs"}
	}
	dev, err := openDevice(a.Device, 0)
	if err != nil {
		return nothing{}, err
	}
	defer dev.Close() // it keeps its identity to the end
	if why := unfit(a.Device); why != "" {
		return nothing{}, &Refusal{What: a.Device.Path + " " + why}
	}
	alone, err := openDevice(a.Device, unix.O_EXCL)
	if err != nil {
		return nothing{}, err
	}
	err = mayFormat(dev, a)
	alone.Close() // mkfs wants it for itself
	if err != nil {
		return nothing{}, err
	}

	argv := append(append([]string{}, maker.argv...), a.Opts...)
	argv = append(argv, "--", a.Device.Path)
	out, errs, code, err := tool(maker.pkg, nil, argv...)
	if err != nil {
		return nothing{}, err
	}
	if code != 0 {
		return nothing{}, fmt.Errorf("%s: exit status %d: %s", argv[0], code, oneLine(errs, out))
	}
	if _, err := readSuperblock(dev, a.Type); err != nil {
		return nothing{}, fmt.Errorf("%s ended well, but %w", argv[0], err)
	}
	return nothing{}, nil
}

// unfit says what is known against a device, whatever it reads as, or "".
func unfit(d volume.Device) string {
	switch {
	case d.ReadOnly:
		return "is read-only"
	case d.Suspended:
		return "is suspended"
	case d.Unusable:
		return "must not be used: " + d.Reason
	case d.Unsound != "":
		return "is no device to format: " + d.Unsound
	}
	return ""
}

// mayFormat is the only door to mkfs.
func mayFormat(dev *os.File, a formatArg) error {
	no := func(what string) error {
		return &Refusal{What: what + " on " + a.Device.Path, Hint: wayOut(cmp.Or(a.Device.Link, a.Device.Path))}
	}
	s, err := identify(dev)
	if err != nil {
		return err
	}
	// mkfs writes the superblock last: one that was cut left none.
	if !s.none() {
		return no(describe(dev, s))
	}
	// Also for a repeat: blkid finds nothing where it can't read.
	found, err := proveBlank(a.Device)
	if err != nil {
		return err
	}
	if found != nil && !a.Repeat { // a mkfs that was cut leaves data anywhere
		return no(found.String())
	}
	return nil
}
