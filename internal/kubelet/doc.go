// Package kubelet is kubelet's layout of directories: which directory below its root
// belongs to which volume and pod.
//
// flexdriver links it: it imports the standard library only, and not fmt.
package kubelet
