//go:build !race

package reconcile_test

const stride = 1

// realStride is the same on the real machine, where a fault takes half a second: the first one is drawn, and
// FLEXD_SOAK runs all.
const realStride = 8
