package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/spelling"
	"github.com/flexd/flexd/internal/status"
	"github.com/urfave/cli/v2"
)

// The scripts ask `flexd complete WORD...`, where the last word is the one to complete.
var (
	//go:embed completion/flexd.bash
	bashCompletion string
	//go:embed completion/flexd.zsh
	zshCompletion string
	//go:embed completion/flexd.fish
	fishCompletion string
)

func completionCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a completion script for a shell",
		ArgsUsage: "bash | zsh | fish",
		Description: "bash: flexd completion bash >/etc/bash_completion.d/flexd\n" +
			"zsh:  flexd completion zsh >/usr/local/share/zsh/site-functions/_flexd\n" +
			"fish: flexd completion fish >/etc/fish/completions/flexd.fish",
		Before: atMost(1),
		Action: func(c *cli.Context) error {
			shells := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
			script, ok := shells[c.Args().First()]
			if !ok {
				return usage("completion: name a shell: bash, zsh or fish")
			}
			_, err := io.WriteString(stdout, script)
			return err
		},
	}
}

// complete prints the completions of the last word, one per line. No output means a file name, or
// no completion.
func complete(commands []*cli.Command, words []string, stdout io.Writer) {
	if len(words) == 0 {
		return
	}
	last := words[len(words)-1]
	for _, w := range candidates(commands, words) {
		if strings.HasPrefix(w, last) {
			fmt.Fprintln(stdout, w)
		}
	}
}

func candidates(commands []*cli.Command, words []string) []string {
	if len(words) == 1 {
		return append(commandNames(commands), "--help", "--version")
	}
	name := words[0]
	if name == "help" {
		return commandNames(commands)
	}
	i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(name) })
	if i < 0 {
		return nil
	}
	flags := commands[i].Flags
	last, before := words[len(words)-1], strings.TrimLeft(words[len(words)-2], "-")
	switch {
	case before != words[len(words)-2] && takesValue(flags, before):
		return values(flags, before)
	case strings.HasPrefix(last, "-"):
		names := flagNames(flags)
		for i := range names {
			names[i] = "--" + names[i]
		}
		return names
	case name == "completion":
		return []string{"bash", "zsh", "fish"}
	case name == "driver":
		return driverActions
	case name == "status" || name == "events" || name == "release":
		return volumes(words)
	}
	return nil
}

// commandNames returns the names of all commands, and help.
func commandNames(commands []*cli.Command) []string {
	names := []string{"help"}
	for _, c := range commands {
		names = append(names, c.Name)
	}
	return names
}

// values returns the values of a flag that has a list of them.
func values(flags []cli.Flag, name string) []string {
	for _, f := range flags {
		if s, ok := f.(*cli.StringFlag); ok && slices.Contains(s.Names(), name) && s.Name == "output" {
			_, formats, _ := strings.Cut(s.Usage, ": ")
			return strings.FieldsFunc(strings.ReplaceAll(formats, " or ", ", "), func(c rune) bool { return c == ',' || c == ' ' })
		}
	}
	return nil
}

// volumes returns the volumes that flexd knows.
func volumes(words []string) (names []string) {
	socket := config.Default().StatusSocket()
	if i := slices.Index(words, "--socket"); i >= 0 && i+1 < len(words) {
		socket = words[i+1]
	}
	body, err := get(socket, "/v1/volumes", time.Second)
	var l status.List
	if err != nil || json.Unmarshal(body, &l) != nil {
		return nil
	}
	for _, v := range l.Volumes {
		names = append(names, v.VG+"/"+v.LV)
	}
	return names
}

// noCommand is the error for an unknown command.
func noCommand(commands []*cli.Command, name string) error {
	return usage("there is no command %q%s; see flexd --help", name, spelling.Suggest(name, commandNames(commands)))
}
