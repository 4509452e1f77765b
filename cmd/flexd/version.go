package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"
)

// version is set by the linker: -ldflags "-X main.version=...".
var version = "dev"

func versionCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "version",
		Usage:     "print the version",
		ArgsUsage: " ",
		Before:    atMost(0),
		Action: func(*cli.Context) error {
			_, err := fmt.Fprintln(stdout, version)
			return err
		},
	}
}
