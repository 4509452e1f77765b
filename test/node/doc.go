// Package node tests flexd as a whole node uses it: kubelet, containerd and pods
// in a virtual machine, with volumes of LVM. Nothing is played but the API server,
// which a kubelet does not need for static pods, and the image, which holds the
// one program that these pods run (./pod): scripts/test-node.
package node
