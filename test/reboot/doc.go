// Package reboot tests that a node comes up again as it should, whether it was shut down or
// its power was cut: nothing happens before kubelet asks, what is still wanted has its
// data, others are cleaned up, and other volumes are touched. It boots virtual machines one
// after the other on the same disks: scripts/test-vm ./test/reboot.
package reboot
