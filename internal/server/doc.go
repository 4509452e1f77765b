// Package server is flexd's doors: the driver socket, on which flexdriver brings
// kubelet's calls, and the status socket, on which operators look. Both are unix
// sockets of one living daemon. It is not for deciding or doing anything: calls
// go to a Handler, and what is shown comes from a Source, as it is.
package server
