package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/spelling"
	"github.com/urfave/cli/v2"
)

// The exit statuses of all commands, for scripts and monitoring.
const (
	exitFailed  = 1
	exitUsage   = 2
	exitUnknown = 3
)

// An exitError has its own exit status. err may be nil if the output has the reason.
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

// outcome returns the error of a command that prints findings; err is the error of printing.
func outcome(err error, failed, unknown bool) error {
	switch {
	case err != nil:
		return &exitError{exitUnknown, err}
	case failed:
		return &exitError{code: exitFailed}
	case unknown:
		return &exitError{code: exitUnknown}
	}
	return nil
}

// usage returns the error for an invalid command line.
func usage(format string, a ...any) error { return &exitError{exitUsage, fmt.Errorf(format, a...)} }

func badFlag(c *cli.Context, err error, _ bool) error {
	help := "flexd --help"
	if c.Command != nil && c.Command.Name != "flexd" {
		help = "flexd " + c.Command.Name + " --help"
	}
	wrong, hint := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if hint {
		return usage("there is no flag --%s%s; see %s", wrong, spelling.Suggest(wrong, flagNames(c.Command.Flags)), help)
	}
	return usage("%w; see %s", err, help)
}

// atMost refuses arguments that a command would silently ignore.
func atMost(n int) cli.BeforeFunc {
	return func(c *cli.Context) error {
		if c.NArg() > n {
			return usage("%s: unexpected argument %q; see flexd %[1]s --help", c.Command.Name, c.Args().Get(n))
		}
		return nil
	}
}

// outputFlag is -o of a command; the first format is the default.
func outputFlag(formats ...string) *cli.StringFlag {
	return &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: formats[0], Usage: "print a `FORMAT`: " + list(formats),
		Action: func(c *cli.Context, format string) error {
			if !slices.Contains(formats, format) {
				return usage("%s: -o is %s, not %q", c.Command.Name, list(formats), format)
			}
			return nil
		}}
}

// list joins words: a, b or c.
func list(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func socketFlag() *cli.StringFlag {
	return &cli.StringFlag{Name: "socket", Value: config.Default().StatusSocket(), Usage: "ask the daemon at `PATH`"}
}

// flagNames returns the names that users type after two hyphens.
func flagNames(flags []cli.Flag) (names []string) {
	for _, f := range append(slices.Clone(flags), cli.HelpFlag) {
		names = append(names, f.Names()[0])
	}
	return names
}

// takesValue reports whether the next argument belongs to a flag.
func takesValue(flags []cli.Flag, name string) bool {
	i := slices.IndexFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	if i < 0 {
		return false
	}
	f, ok := flags[i].(cli.DocGenerationFlag)
	return ok && f.TakesValue()
}

// flagsFirst brings a command line into the form that the parser expects: `help COMMAND`
// becomes `COMMAND --help`, -ojson becomes -o json, and the flags of a command come before
// its arguments. People type `flexd status vg0/data -o json`. -/UUID is not a flag.
func flagsFirst(commands []*cli.Command, args []string) []string {
	if len(args) > 1 && args[1] == "help" {
		args = append(append(args[:1:1], args[2:]...), "--help")
	}
	if len(args) < 2 || strings.HasPrefix(args[1], "-") {
		return args
	}
	var known []cli.Flag
	if i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(args[1]) }); i >= 0 {
		known = commands[i].Flags
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
		if len(a) > 2 && a[1] != '-' && a[2] != '=' && takesValue(known, a[1:2]) {
			flags = append(flags, a[:2], a[2:])
			continue
		}
		flags = append(flags, a)
		if takesValue(known, strings.TrimLeft(a, "-")) && i+1 < len(args) {
			i++
			flags = append(flags, args[i])
		}
	}
	if slices.ContainsFunc(rest, func(a string) bool { return strings.HasPrefix(a, "-/") }) && !slices.Contains(rest, "--") {
		flags = append(flags, "--")
	}
	return append(flags, rest...)
}
