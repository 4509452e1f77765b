package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/server"
	"github.com/urfave/cli/v2"
)

func configCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "config",
		Usage:     "print the default configuration with comments, or check one",
		ArgsUsage: " ",
		Before:    atMost(0),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "check", Usage: "check `FILE`, or - for the standard input, and print nothing else"},
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
	if err := onThisMachine(c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var groups []string
	for _, g := range c.VolumeGroups {
		groups = append(groups, fmt.Sprintf("%s (%s)", g.Name, g.Provider))
	}
	what := cmp.Or(strings.Join(groups, ", "), "none, so flexd would set nothing up")
	fmt.Fprintf(stdout, "%s: good; volume groups: %s\n", path, what)
	if hint := unusualRunDir(c); hint != "" {
		fmt.Fprintf(stdout, "%s: %s\n", path, hint)
	}
	return nil
}

// onThisMachine checks the groups and directories of a configuration on this machine.
func onThisMachine(c *config.Config) error {
	if c.StatusGroup != "" {
		if _, err := server.GroupID(c.StatusGroup); err != nil {
			return fmt.Errorf("statusGroup: %w", err)
		}
	}
	for i, g := range c.VolumeGroups {
		if st, err := os.Stat(g.Directory); g.Directory != "" && (err != nil || !st.IsDir()) {
			return fmt.Errorf("volumeGroups[%d].directory: there is no directory %s on this machine", i, g.Directory)
		}
	}
	return nil
}

// unusualRunDir returns how flexdriver and the commands find flexd in a directory other than the
// default; "" = it is the default.
func unusualRunDir(c *config.Config) string {
	if c.RunDir == config.Default().RunDir {
		return ""
	}
	return fmt.Sprintf("runDir is not %s: set %s=%s in kubelet's environment, or kubelet's calls do not reach flexd, and give the commands --socket %s",
		config.Default().RunDir, flexvolume.EnvSocket, c.DriverSocket(), c.StatusSocket())
}

// loadConfig is config.Load with the remedy for a missing file.
func loadConfig(path string) (*config.Config, error) {
	if path == "-" {
		path = "/dev/stdin"
	}
	c, err := config.Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no configuration %s; `flexd config` prints one to begin with", path)
	}
	return c, err
}
