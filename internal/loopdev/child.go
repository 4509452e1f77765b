package loopdev

import (
	"encoding/json"
	"fmt"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
)

// Child is the child's side of the provider: it does op, prints one JSON line,
// and returns the exit status. ok is false if op is none of this room's.
func Child(op string, arg []byte) (code int, ok bool) {
	run.BeChild()
	switch op {
	case "loop-identify":
		return child(arg, identify), true
	case "loop-create":
		return child(arg, create), true
	case "loop-attach":
		return child(arg, attach), true
	case "loop-detach":
		return child(arg, detach), true
	case "loop-extend":
		return child(arg, extend), true
	}
	return 0, false
}

func child[Arg, Value any](text []byte, do func(Arg) (Value, error)) int {
	var arg Arg
	if err := json.Unmarshal(text, &arg); err != nil {
		return mount.Answer(nil, fmt.Errorf("argument: %w", err))
	}
	return mount.Answer(do(arg))
}

// nothing is the value of a child that only succeeds or fails.
type nothing struct{}
