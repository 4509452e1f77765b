// Package kubelet is kubelet's layout of directories and control groups: which path below
// its root belongs to which volume and pod, and which pods have a process.
package kubelet
