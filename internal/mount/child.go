package mount

import (
	"encoding/json"
	"fmt"

	"github.com/flexd/flexd/internal/run"
)

// Child is the child's side of Ops: it does op, prints one JSON line, and
// returns the exit status. ok is false if op is none of this package's.
func Child(op string, arg []byte) (code int, ok bool) {
	run.BeChild()
	switch op {
	case "probe":
		return Do(arg, probe), true
	case "format":
		return Do(arg, format), true
	case "zero":
		return Do(arg, zero), true
	case "check":
		return Do(arg, check), true
	case "mount":
		return Do(arg, mountVolume), true
	case "umount":
		return Do(arg, unmount), true
	case "usage":
		return usages(arg), true
	case "grow":
		return Do(arg, grow), true
	}
	return 0, false
}

// Do is the child's side of Ask: it runs the operation of the argument, prints the result,
// and returns the exit status.
func Do[Arg, Value any](text []byte, do func(Arg) (Value, error)) int {
	var arg Arg
	if err := json.Unmarshal(text, &arg); err != nil {
		return answer(nil, fmt.Errorf("argument: %w", err))
	}
	return answer(do(arg))
}

// nothing is the value of a child that only succeeds or fails.
type nothing struct{}
