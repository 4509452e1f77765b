// Package kubelet knows kubelet's layout of directories and control groups: the volume and pod of
// a path below its root, and which pods have a process.
package kubelet
