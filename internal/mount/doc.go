// Package mount is filesystems: a look at what is on a device, the proof that a
// device is blank, format, check, the detached mount that appears in one instant, the
// plain unmount, growth.
//
// Everything that may wait for a volume runs in a child (Ops builds its
// command, Child is the child's side). The package is not for deciding what
// to do, and it never removes or creates a mount point.
package mount
