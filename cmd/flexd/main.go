// Command flexd looks after the volumes of one node: `serve` is the daemon, the
// rest is what an operator types. It is not for doing anything itself: main only
// wires.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/config"
	"github.com/urfave/cli/v2"
)

// version is set by the linker: -ldflags "-X main.version=...".
var version = "dev"

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

// A usageError is a command line that makes no sense.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func app(stdout, stderr io.Writer) *cli.App {
	a := &cli.App{
		Name:            "flexd",
		Usage:           "looks after the volumes of this node",
		Version:         version,
		HideVersion:     true, // `flexd version`
		HideHelpCommand: true, // --help
		Writer:          stdout,
		ErrWriter:       stderr,
		ExitErrHandler:  func(*cli.Context, error) {}, // run has the only exit
		Commands: []*cli.Command{
			{
				Name:      "serve",
				Usage:     "run the daemon",
				ArgsUsage: " ",
				Before:    atMost(0),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "config", Value: config.DefaultPath, Usage: "read the configuration from `FILE`"},
				},
				Action: func(c *cli.Context) error { return serve(c.Context, c.String("config"), stderr) },
			},
			{
				Name:      "status",
				Usage:     "show all volumes, or the whole story of one",
				ArgsUsage: "[VG/LV | UUID]",
				Before:    atMost(1),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "print a `FORMAT`: table or json"},
					&cli.StringFlag{Name: "socket", Value: config.Default().StatusSocket, Usage: "ask the daemon at `PATH`"},
				},
				Action: func(c *cli.Context) error {
					return showStatus(stdout, c.String("socket"), c.String("output"), c.Args().First())
				},
			},
			{
				Name:      "check",
				Usage:     "look whether metadata, devices, mounts and claims agree",
				ArgsUsage: " ",
				Description: "Exit status: 0 all agree; 1 something does not; 3 it could not be told, all or in part.\n" +
					"It changes nothing.",
				Before: atMost(0),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "print a `FORMAT`: text or json"},
					&cli.StringFlag{Name: "socket", Value: config.Default().StatusSocket, Usage: "ask the daemon at `PATH`"},
				},
				Action: func(c *cli.Context) error { return check(stdout, c.String("socket"), c.String("output")) },
			},
			{
				Name:      "release",
				Usage:     "let go of what no pod needs any more: says what it would do, and does it with --yes",
				ArgsUsage: "[DIRECTORY | VG/LV | UUID]...",
				Description: "Orphans are mounts of dead pods, global mounts without pods, claims without their mount, and\n" +
					"active volumes that nobody claims. What a pod may use is refused, and a busy mount stays.\n" +
					"Exit status: 0 all of it was, or would be, let go; 1 something is refused.",
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "yes", Usage: "do it (root only)"},
					&cli.StringFlag{Name: "socket", Value: config.Default().StatusSocket, Usage: "ask the daemon at `PATH`"},
					&cli.StringFlag{Name: "driver-socket", Value: config.Default().DriverSocket, Usage: "tell the daemon at `PATH`"},
				},
				Action: func(c *cli.Context) error {
					return release{c.Args().Slice(), c.Bool("yes"), c.String("socket"), c.String("driver-socket")}.run(stdout)
				},
			},
			{
				Name:      "config",
				Usage:     "print the default configuration with comments, or check one",
				ArgsUsage: " ",
				Before:    atMost(0),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "check", Usage: "check `FILE` and print nothing else"},
				},
				Action: func(c *cli.Context) error {
					if c.IsSet("check") {
						return checkConfig(stdout, c.String("check"))
					}
					_, err := io.WriteString(stdout, config.Commented())
					return err
				},
			},
			{
				Name:      "version",
				Usage:     "print the version",
				ArgsUsage: " ",
				Before:    atMost(0),
				Action: func(*cli.Context) error {
					_, err := fmt.Fprintln(stdout, version)
					return err
				},
			},
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

// flagsFirst moves the flags of a command before its arguments, where the
// parser looks for them: `flexd status vg0/data -o json` is what people type.
// Every flag of ours but help and yes takes a value, and -/UUID is no flag.
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
