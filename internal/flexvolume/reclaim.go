package flexvolume

import (
	"errors"
	"path"
)

// Reclaim is the one verb of the driver socket that is an operator's and not
// kubelet's: `flexd release` asks with it for the end of one orphan. flexdriver
// does not know it.
const Reclaim = "release"

// ParseReclaim understands its arguments: the volume's uuid, and the directory
// that is to be released or "" for the volume's device.
func ParseReclaim(args []string) (Call, error) {
	if len(args) != 2 || args[0] == "" {
		return Call{}, errors.New("release: wants a uuid and a directory")
	}
	c := Call{Verb: Reclaim, UUID: args[0], Dir: args[1]}
	if c.Dir != "" && (!path.IsAbs(c.Dir) || path.Clean(c.Dir) != c.Dir || len(c.Dir) > maxPath) {
		return Call{}, errors.New("release: the directory is not a clean absolute path")
	}
	return c, nil
}
