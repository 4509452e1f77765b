package lvm

import "strconv"

// A Layout is the layout of the volumes that flexd creates in a group. It comes from the
// configuration, which is checked there, never from a pod.
type Layout struct {
	Type       string // "" or "linear", "striped", "raid0", "raid1", "raid5", "raid6", "raid10"
	Stripes    int    // 0 = LVM's default
	StripeSize int64  // bytes, 0 = LVM's default
	Mirrors    int    // further copies, for raid1 and raid10
	PVTag      string // only on disks with this tag, without the @
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
