package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/flexd/flexd/internal/config"
	"github.com/urfave/cli/v2"
)

func configCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
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
	}
}

func checkConfig(stdout io.Writer, path string) error {
	c, err := loadConfig(path)
	if err != nil {
		return err
	}
	what := "no volume group, so flexd would set nothing up"
	if n := len(c.VolumeGroups); n == 1 {
		what = "1 volume group"
	} else if n > 1 {
		what = fmt.Sprintf("%d volume groups", n)
	}
	_, err = fmt.Fprintf(stdout, "%s: good; %s\n", path, what)
	return err
}

// loadConfig is config.Load whose error says what to do without a file.
func loadConfig(path string) (*config.Config, error) {
	c, err := config.Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no configuration %s; `flexd config` prints one to begin with", path)
	}
	return c, err
}
