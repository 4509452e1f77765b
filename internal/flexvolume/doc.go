// Package flexvolume is the FlexVolume frontend: verbs and their arguments, the options
// that kubelet passes, answers, the message of the driver socket, and the whole of
// flexdriver.
//
// It links the standard library only, because all of it that flexdriver reaches
// is paid for at every call kubelet makes. It is not for deciding anything about
// a volume: it turns what pod authors wrote into typed data, or refuses it.
package flexvolume
