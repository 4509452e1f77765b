//go:build race

package reconcile_test

// stride is how many occasions lie between two faults: the race detector makes
// everything slow, and finds its races in a sample.
const stride = 20

// realStride is the same on the real machine.
const realStride = 30
