// Package hosttest is a simulated node for tests. A Host executes flexd's own
// commands on files, loop devices, filesystems and mounts that exist only in
// memory, refuses what the kernel would refuse, and watches over the promises
// that no end state shows: one command at a time for one volume, mkfs only on
// what is blank or half-made by us, nothing undone that is foreign, nothing set
// up before it is noted.
//
// An Env is a node with a flexd on it that can be crashed and started again. It
// has two machines, the simulated one and the real kernel, so that the same
// scenario judges both. A Kubelet plays kubelet's part against it.
package hosttest
