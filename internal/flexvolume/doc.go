// Package flexvolume is the FlexVolume frontend: verbs and their arguments, the options
// that kubelet passes, answers, the messages of the driver socket, and the main function of
// flexdriver.
//
// It links the standard library only, because its size adds to the time of every call. It
// parses the text of pod authors into typed data or refuses it; flexd decides about the volume.
package flexvolume
