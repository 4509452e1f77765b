// Package mount works on filesystems: it probes a device, proves that it is blank, formats,
// checks, mounts (detached, then in one instant), unmounts plainly and extends.
//
// Every operation that may wait for a volume runs in a child (Ops builds its command, Child
// is the child's side). The package makes no decisions, and never creates or removes a
// mount point.
package mount
