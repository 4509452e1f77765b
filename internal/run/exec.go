package run

import (
	"context"
	"errors"
)

// An Exec is the real Runner.
type Exec struct {
	Started func(c Cmd, pid int) // called after each start, or nil: lets tests and benches count processes
}

// NewExec returns the real Runner.
func NewExec() *Exec { return &Exec{} }

// Run starts c and waits for its end, its deadline, or the end of ctx.
func (e *Exec) Run(ctx context.Context, c Cmd) (Result, error) {
	return Result{}, errors.New("not built yet")
}
