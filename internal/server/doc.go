// Package server serves flexd's unix sockets: the driver socket, for calls of flexdriver,
// and the status socket, for operators. It makes no decisions: a Handler answers calls, and
// a Source provides the documents.
package server
