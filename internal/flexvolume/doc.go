// Package flexvolume is the FlexVolume frontend: verbs and their arguments, the options
// that kubelet passes, answers, the message of the driver socket, and the whole of
// flexdriver.
//
// It links the standard library only, because its size adds to the time of every call. It
// makes no decisions about a volume: it parses the text of pod authors into typed data, or
// refuses it.
package flexvolume
