//go:build race

package simulation

// The race detector shuffles what the scheduler does: no life can be had again
// there, and each takes longer.
const steps = 10_000
