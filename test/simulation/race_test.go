//go:build race

package simulation

// The race detector makes the scheduler random: no run can be repeated there, and
// each takes longer.
const steps = 10_000
