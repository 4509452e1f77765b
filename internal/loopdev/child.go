package loopdev

import (
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
)

// Child is the child's side of the provider: it does op, prints one JSON line,
// and returns the exit status. ok is false if op is not one of this package's.
func Child(op string, arg []byte) (code int, ok bool) {
	run.BeChild()
	switch op {
	case "loop-identify":
		return identify(arg), true
	case "loop-create":
		return mount.Act(arg, create), true
	case "loop-attach":
		return mount.Do(arg, attach), true
	case "loop-detach":
		return mount.Act(arg, detach), true
	case "loop-extend":
		return mount.Act(arg, extend), true
	}
	return 0, false
}
