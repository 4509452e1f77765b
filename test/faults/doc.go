// Package faults does to real volumes, in the virtual machine of `make test-vm`,
// what disks do when they fail: they hang, give errors, are slow, or full. The
// real flexd and flexdriver are judged by what kubelet and pods see.
//
// A sample is taken by seed; with FLEXD_SOAK=1 nothing is left out.
package faults
