package mount

import (
	"encoding/json"
	"fmt"

	"github.com/flexd/flexd/internal/run"
)

// Child is the child's side of Ops: it does op, prints one JSON line, and
// returns the exit status. ok is false if op is not one of this package's.
func Child(op string, arg []byte) (code int, ok bool) {
	run.BeChild()
	switch op {
	case "probe":
		return Do(arg, probe), true
	case "format":
		return Act(arg, format), true
	case "zero":
		return Do(arg, zero), true
	case "check":
		return Act(arg, check), true
	case "mount":
		return Act(arg, mountVolume), true
	case "umount":
		return Act(arg, unmount), true
	case "usage":
		return usages(arg), true
	case "grow":
		return Act(arg, grow), true
	case "can-grow":
		return Act(arg, canGrow), true
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

// Act is Do for an operation that only succeeds or fails.
func Act[Arg any](text []byte, do func(Arg) error) int {
	return Do(text, func(a Arg) (struct{}, error) { return struct{}{}, do(a) })
}
