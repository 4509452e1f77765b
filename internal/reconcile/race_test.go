//go:build race

package reconcile_test

// stride is the number of moments between two faults: the race detector is slow, and finds races in a sample.
const stride = 20

// realStride is the same on the real machine.
const realStride = 30
