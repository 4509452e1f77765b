package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

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
			outputFlag("text", "json"),
			socketFlag(),
		},
		Action: func(c *cli.Context) error { return check(stdout, c.String("socket"), c.String("output")) },
	}
}

// checkTimeout is more than the daemon needs for volume groups that hang.
const checkTimeout = 30 * time.Second

// check has the daemon at socket look at every volume group, prints the disagreements, and returns the
// result as an *exitError.
func check(stdout io.Writer, socket, output string) error {
	body, err := get(socket, "/v1/check", checkTimeout)
	if err != nil {
		return err
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
	return outcome(err, c.Verdict == status.Disagree, c.Verdict != status.Agree)
}
