// Package hosttest is a simulated node for tests. A Host executes flexd's own
// commands on files, loop devices, filesystems and mounts that exist only in
// memory, refuses what the kernel would refuse, and watches over the promises
// that no end state shows: one command at a time for one volume, mkfs only on
// what is blank or half-made by us, nothing undone that is foreign, nothing set
// up before it is noted.
//
// An Env is a node with a flexd on it that can be crashed and started again. Its
// machine is the simulated one or the real kernel, and there its storage is loop
// devices or, in a virtual machine, LVM; so that the same scenario judges all
// three. A Kubelet plays kubelet's part against it.
package hosttest
