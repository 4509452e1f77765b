package lvm

import (
	"fmt"
	"slices"
	"strconv"
)

// A Layout is the layout of the volumes that flexd creates in a group. It comes from the
// configuration, never from a pod.
type Layout struct {
	Type       string // "" or "linear", "striped", "raid0", "raid1", "raid5", "raid6", "raid10"
	Stripes    int    // 0 = LVM's default
	StripeSize int64  // bytes, 0 = LVM's default
	Mirrors    int    // further copies, for raid1 and raid10
	PVTag      string // only on disks with this tag, without the @
}

var layoutTypes = []string{"", "linear", "striped", "raid0", "raid1", "raid5", "raid6", "raid10"}

// Check returns an error in a layout, for the configuration.
func (l Layout) Check() error {
	mirrored := l.Type == "raid1" || l.Type == "raid10"
	switch {
	case !slices.Contains(layoutTypes, l.Type):
		return fmt.Errorf("no layout of the type %q: it is one of %q", l.Type, layoutTypes[1:])
	case l.Stripes < 0 || l.Stripes > 128:
		return fmt.Errorf("%d stripes are not possible", l.Stripes)
	case l.Stripes > 1 && (l.Type == "" || l.Type == "linear" || l.Type == "raid1"):
		return fmt.Errorf("stripes need a striped type, such as striped")
	case l.StripeSize != 0 && (l.StripeSize < 4096 || l.StripeSize&(l.StripeSize-1) != 0):
		return fmt.Errorf("a stripe size must be a power of two of at least 4 KiB")
	case l.Mirrors < 0 || l.Mirrors > 9 || l.Mirrors > 0 && !mirrored:
		return fmt.Errorf("mirrors (1 to 9) need the type raid1 or raid10")
	case l.PVTag != "" && !isWord(l.PVTag, 128):
		return fmt.Errorf("%q is no tag that LVM allows", l.PVTag)
	}
	return nil
}

// args returns the arguments of lvcreate, without the disks.
func (l Layout) args() []string {
	var args []string
	if l.Type != "" {
		args = append(args, "--type", l.Type)
	}
	if l.Stripes > 0 {
		args = append(args, "-i", strconv.Itoa(l.Stripes))
	}
	if l.StripeSize > 0 {
		args = append(args, "-I", strconv.FormatInt(l.StripeSize, 10)+"b")
	}
	if l.Mirrors > 0 {
		args = append(args, "-m", strconv.Itoa(l.Mirrors))
	}
	return args
}
