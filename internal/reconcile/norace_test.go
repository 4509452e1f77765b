//go:build !race

package reconcile_test

const stride, realStride = 1, 1
