package flexvolume

import (
	"errors"
	"path"
)

// Verbs of the driver socket for flexd's commands; flexdriver does not accept them.
// `flexd release` releases one orphan; `flexd lockspace-lost` reports the loss of the
// locks of a volume group, its only argument.
const (
	Reclaim       = "release"
	LockspaceLost = "lockspace-lost"
)

// ParseReclaim parses the arguments of Reclaim: the volume's uuid, and the directory to release or ""
// for the volume's device.
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
