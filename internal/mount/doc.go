// Package mount works on filesystems: it probes a device, proves that it is blank, formats,
// checks, mounts (detached, then in one instant), unmounts plainly and extends.
//
// Every operation that may wait for a volume runs in a child: Ops starts the child, and Child runs
// in it. The package makes no decisions, and never creates or removes a mount point.
package mount
