// Command flexd manages the volumes of one node: `serve` is the daemon, the other commands
// are for operators. It contains no logic: it only connects the packages.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/flexd/flexd/internal/status"
	"github.com/urfave/cli/v2"
)

func main() {
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}

// run is flexd: args are the process's own. It returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	// flexd starts itself for every step on a volume: these children need no
	// command line parser, and their argument may look like anything.
	if len(args) > 1 && args[1] == "child" {
		return childMain(args[2:])
	}
	a := app(stdout, stderr)
	if len(args) > 1 && args[1] == "complete" {
		complete(a.Commands, args[2:], stdout)
		return 0
	}
	err := a.Run(flagsFirst(a.Commands, args))
	if err == nil {
		return 0
	}
	if text := err.Error(); text != "" {
		for line := range strings.SplitSeq(text, "\n") {
			fmt.Fprintf(stderr, "flexd: %s\n", status.Plain(line))
		}
	}
	if exit, ok := errors.AsType[*exitError](err); ok {
		return exit.code
	}
	return exitFailed
}

func app(stdout, stderr io.Writer) *cli.App {
	a := &cli.App{
		Name:            "flexd",
		Usage:           "manages the volumes of this node",
		Version:         version,
		HideHelpCommand: true, // flagsFirst translates `help`
		Writer:          stdout,
		ErrWriter:       stderr,
		ExitErrHandler:  func(*cli.Context, error) {}, // run has the only exit
		Commands: []*cli.Command{
			serveCommand(stderr), statusCommand(stdout), eventsCommand(stdout, stderr), logsCommand(stdout), checkCommand(stdout), doctorCommand(stdout), driverCommand(stdout), explainCommand(stdout), releaseCommand(stdout), lockspaceLostCommand(),
			configCommand(stdout), udevCommand(stdout), uuidCommand(stdout), completionCommand(stdout), versionCommand(stdout),
		},
	}
	a.Action = func(c *cli.Context) error {
		if c.NArg() == 0 {
			return cli.ShowAppHelp(c)
		}
		return noCommand(a.Commands, c.Args().First())
	}
	cli.VersionPrinter = func(c *cli.Context) { fmt.Fprintln(stdout, version) }
	a.OnUsageError = badFlag
	for _, c := range a.Commands {
		c.OnUsageError = badFlag
		c.HideHelpCommand = true
	}
	return a
}
