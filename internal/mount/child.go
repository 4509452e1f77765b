package mount

import (
	"encoding/json"
	"fmt"

	"github.com/flexd/flexd/internal/run"
)

// Child is the child's side of Ops: it does op, prints one JSON line, and
// returns the exit status. ok is false if op is none of this room's.
func Child(op string, arg []byte) (code int, ok bool) {
	run.BeChild()
	switch op {
	case "probe":
		return child(arg, probe), true
	case "format":
		return child(arg, format), true
	case "zero":
		return child(arg, zero), true
	case "check":
		return child(arg, check), true
	case "mount":
		return child(arg, land), true
	case "umount":
		return child(arg, unmount), true
	case "grow":
		return child(arg, grow), true
	}
	return 0, false
}

func child[Arg, Value any](text []byte, do func(Arg) (Value, error)) int {
	var arg Arg
	if err := json.Unmarshal(text, &arg); err != nil {
		return Answer(nil, fmt.Errorf("argument: %w", err))
	}
	return Answer(do(arg))
}

// nothing is the value of a child that only succeeds or fails.
type nothing struct{}
