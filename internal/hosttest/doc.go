// Package hosttest is a simulated node for tests. A Host executes flexd's own commands on
// files, loop devices, filesystems and mounts that exist only in memory, returns the kernel's errors,
// and checks the promises that an end state cannot show: one command at a time for each volume, mkfs
// only on a blank volume or on remains of flexd's own mkfs, no change of foreign mounts, a note before
// each set-up.
//
// An Env is a node with a flexd on it that can be crashed and started again. Its machine is
// the simulated one or the real kernel, with loop devices or, in a virtual machine, with
// LVM, so that the same scenario tests all three. A Kubelet simulates kubelet.
package hosttest
