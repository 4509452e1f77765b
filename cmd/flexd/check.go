package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/status"
	"github.com/urfave/cli/v2"
)

func checkCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "look whether metadata, devices, mounts and claims agree",
		ArgsUsage: " ",
		Description: "Exit status: 0 all agree; 1 something does not; 3 all or part of it is unknown.\n" +
			"It changes nothing.",
		Before: atMost(0),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "print a `FORMAT`: text or json"},
			&cli.StringFlag{Name: "socket", Value: config.Default().StatusSocket, Usage: "ask the daemon at `PATH`"},
		},
		Action: func(c *cli.Context) error { return check(stdout, c.String("socket"), c.String("output")) },
	}
}

// The exit statuses of `flexd check`, for monitoring. A command line that makes
// no sense is 2, as everywhere.
const (
	exitDisagree = 1
	exitUnknown  = 3
)

// checkTimeout is more than the daemon needs for volume groups that hang.
const checkTimeout = 30 * time.Second

// An exitError is an exit status of its own. Without an err there is nothing to
// say beyond what was printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// check has the daemon at socket look at every volume group, prints what
// disagrees, and returns how it ended as an *exitError.
func check(stdout io.Writer, socket, output string) error {
	if output != "text" && output != "json" {
		return &usageError{fmt.Sprintf("check: -o is text or json, not %q", output)}
	}
	body, err := get(socket, "/v1/check", checkTimeout)
	if err != nil {
		return &exitError{exitUnknown, err}
	}
	var c status.Check
	if err := json.Unmarshal(body, &c); err != nil {
		return &exitError{exitUnknown, fmt.Errorf("flexd's answer is not understood: %w", err)}
	}
	if output == "json" { // unchanged: a newer daemon's fields are kept
		_, err = stdout.Write(body)
	} else {
		err = status.WriteCheck(stdout, c, time.Now())
	}
	switch {
	case err != nil:
		return &exitError{exitUnknown, err}
	case c.Verdict == status.Disagree:
		return &exitError{code: exitDisagree}
	case c.Verdict != status.Agree:
		return &exitError{code: exitUnknown}
	}
	return nil
}
