// Package deb tests the life of the Debian package on a machine without Go and make, whose
// process 1 is systemd: scripts/test-vm ./test/deb.
package deb
