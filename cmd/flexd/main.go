// Command flexd manages the volumes of one node: `serve` is the daemon, the other commands
// are for operators. It contains no logic: it only connects the packages.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

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
	err := app(stdout, stderr).Run(flagsFirst(args))
	if err == nil {
		return 0
	}
	if text := err.Error(); text != "" {
		for line := range strings.SplitSeq(text, "\n") {
			fmt.Fprintf(stderr, "flexd: %s\n", line)
		}
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	var usage *usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// A usageError is an invalid command line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func app(stdout, stderr io.Writer) *cli.App {
	a := &cli.App{
		Name:            "flexd",
		Usage:           "manages the volumes of this node",
		Version:         version,
		HideVersion:     true, // `flexd version`
		HideHelpCommand: true, // --help
		Writer:          stdout,
		ErrWriter:       stderr,
		ExitErrHandler:  func(*cli.Context, error) {}, // run has the only exit
		Commands: []*cli.Command{
			serveCommand(stderr), statusCommand(stdout), checkCommand(stdout), releaseCommand(stdout), configCommand(stdout), versionCommand(stdout),
		},
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return cli.ShowAppHelp(c)
			}
			return &usageError{fmt.Sprintf("there is no command %q; see flexd --help", c.Args().First())}
		},
	}
	a.OnUsageError = badFlag
	for _, c := range a.Commands {
		c.OnUsageError = badFlag
		c.HideHelpCommand = true
	}
	return a
}

func badFlag(c *cli.Context, err error, _ bool) error {
	help := "flexd --help"
	if name := c.Command.Name; name != "flexd" {
		help = "flexd " + name + " --help"
	}
	return &usageError{err.Error() + "; see " + help}
}

// atMost refuses arguments that a command would silently ignore.
func atMost(n int) cli.BeforeFunc {
	return func(c *cli.Context) error {
		if c.NArg() > n {
			return &usageError{fmt.Sprintf("%s: unexpected argument %q; see flexd %[1]s --help", c.Command.Name, c.Args().Get(n))}
		}
		return nil
	}
}

// flagsFirst moves the flags of a command before its arguments, where the parser expects
// them: people type `flexd status vg0/data -o json`. Every flag except help and yes takes a
// value, and -/UUID is no flag.
func flagsFirst(args []string) []string {
	if len(args) < 2 || strings.HasPrefix(args[1], "-") {
		return args
	}
	flags, rest := slices.Clone(args[:2]), []string{}
	for i := 2; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			rest = append(rest, args[i:]...)
			break
		}
		if !strings.HasPrefix(a, "-") || a == "-" || strings.HasPrefix(a, "-/") {
			rest = append(rest, a)
			continue
		}
		flags = append(flags, a)
		if name := strings.TrimLeft(a, "-"); name != "h" && name != "help" && name != "yes" && !strings.Contains(name, "=") && i+1 < len(args) {
			i++
			flags = append(flags, args[i])
		}
	}
	if slices.ContainsFunc(rest, func(a string) bool { return strings.HasPrefix(a, "-/") }) && !slices.Contains(rest, "--") {
		flags = append(flags, "--")
	}
	return append(flags, rest...)
}
