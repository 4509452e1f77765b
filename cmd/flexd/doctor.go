package main

import (
	"cmp"
	"context"
	"io"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/doctor"
	children "github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/urfave/cli/v2"
)

func doctorCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "doctor",
		Usage:     "examine this node: kubelet, the driver, flexd, LVM, tools, the kernel",
		ArgsUsage: " ",
		Description: "It works with and without a daemon; run it as root. Exit status: 0 no error, maybe warnings;\n" +
			"1 an error; 3 no error, but something is unknown. It changes nothing.",
		Before: atMost(0),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"v"}, Usage: "show results without a problem, too"},
			&cli.StringFlag{Name: "config", Value: config.DefaultPath, Usage: "read the configuration from `FILE`"},
			outputFlag("text", "json"),
			&cli.StringFlag{Name: "socket", Usage: "ask the daemon at `PATH`, not at that of the configuration"},
		},
		Action: func(c *cli.Context) error {
			d := examine(c.Context, c.String("config"), c.String("socket"))
			var err error
			if c.String("output") == "json" {
				err = status.WriteJSON(stdout, d)
			} else {
				err = status.WriteDiagnosis(stdout, d, c.Bool("all"), status.Layout{Width: terminalWidth(stdout), Color: colors(stdout)})
			}
			return outcome(err, d.Result == status.ResultError, d.Result == status.ResultUnknown)
		},
	}
}

// examine examines this machine.
func examine(ctx context.Context, path, socket string) status.Diagnosis {
	cfg, err := loadConfig(path)
	if err != nil {
		cfg = config.Default()
	}
	socket = cmp.Or(socket, cfg.StatusSocket())
	h := doctor.Host{
		ConfigPath: path, Config: cfg, ConfigErr: err,
		Socket: socket, Ask: func(path string) ([]byte, error) { return get(socket, path, 5*time.Second) },
		Runner: children.NewExec(), Version: version, Limit: 20 * time.Second,
		Rule: func() (string, error) { return ruleOf(cfg) }, Machine: func() error { return onThisMachine(cfg) },
	}
	return h.Examine(ctx)
}
