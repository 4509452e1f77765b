// Package simulation plays a whole node in memory: the simulated host, kubelet
// as the contract describes it, an operator who meddles, and faults. A schedule
// decides from one seed which goroutine goes on at each moment, so that a life
// that breaks a promise can be played again, step by step, and cut down to a
// short story.
//
// Everything that runs stops at points: before, within and after each command,
// at each look at the mount table, at each turn of a lane, at each of kubelet's
// calls and answers. When all have stopped, the schedule takes one decision: it
// lets one of them go on, lets time pass, or does something to the node. After
// each decision the promises are checked; after the last one faults end, and
// everything must come to rest.
package simulation
