// Package simulation runs a whole node in memory: the simulated host, kubelet as
// the contract describes it, an operator who changes volumes and mounts, and
// faults. One seed decides which goroutine continues at each moment, so that a
// run that breaks a promise can be repeated, step by step, and reduced to a short
// sequence.
//
// Every goroutine stops at points: before, within and after each command, at each
// read of the mount table, at each turn of a lane, at each of kubelet's calls and
// answers. When all have stopped, one decision is taken: one of them continues,
// time passes, or the node is changed. The promises are checked after each
// decision; after the last one the faults end, and all lanes must come to rest.
//
// A cluster is two such nodes with one shared volume group, whose lock manager has the rules
// of lvmlockd and sanlock: nodes lose power, are paused, and lose the disk; their daemons are
// killed; and a watchdog resets them. No volume is ever mounted writable on both, formatted by
// one after the other has used it, or kept by one that does not use it. Two cases are known in
// which only an administrator releases a volume: an interrupted creation, and an lvchange that
// was killed after it had taken the lock.
package simulation
