package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/driver"
	children "github.com/flexd/flexd/internal/run"
	"github.com/urfave/cli/v2"
)

// driverActions are the first arguments of `flexd driver`.
var driverActions = []string{"status", "install", "remove", "restore"}

func driverCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "driver",
		Usage:     "show, install or remove the driver that kubelet runs",
		ArgsUsage: "[status | install | remove | restore]",
		Description: "install: put it into kubelet's plugin directory, or upgrade it; also while pods run\n" +
			"remove:  take it out; not while volumes are mounted\n" +
			"restore: put back the driver that --replace-driver has replaced; also while volumes are mounted",
		Before: atMost(1),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "attach", Usage: "the driver's `MODE`: true or false; without it as before, else as kubelet attaches",
				Action: func(_ *cli.Context, mode string) error {
					if mode != "true" && mode != "false" {
						return usage("driver: --attach is true or false, not %q", mode)
					}
					return nil
				}},
			&cli.StringFlag{Name: "config", Value: config.DefaultPath, Usage: "read the configuration from `FILE`"},
			&cli.BoolFlag{Name: "controller-manager", Usage: "this is the controller manager's machine: install without a configuration"},
			&cli.StringFlag{Name: "driver", Usage: "`VENDOR/NAME`, as volumes name the driver; without it that of the configuration"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only print the steps"},
			&cli.StringFlag{Name: "from", Usage: "install the flexdriver at `PATH`, not the one installed with flexd"},
			&cli.StringFlag{Name: "plugin-dir", Usage: "kubelet's volumePluginDir is `DIR`; without it, from kubelet's settings"},
			&cli.BoolFlag{Name: "replace-driver", Usage: "replace another program of that name, and keep a copy"},
			&cli.StringFlag{Name: "root", Usage: "the node's files are below `DIR`: an image, or the host of a container"},
			&cli.BoolFlag{Name: "upgrade", Usage: "only where the driver is installed; otherwise do nothing"},
		},
		Action: func(c *cli.Context) error { return driverAction(c, stdout) },
	}
}

func driverAction(c *cli.Context, stdout io.Writer) error {
	n, err := driverNode(c, stdout)
	if err != nil {
		return err
	}
	syscall.Umask(0o022) // a program that kubelet runs must be writable for root only
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	switch action := c.Args().First(); action {
	case "", "status":
		return n.Status(c.String("plugin-dir"))
	case "install":
		o := driver.Options{
			PluginDir: c.String("plugin-dir"), Attach: c.String("attach"), From: c.String("from"),
			Replace: c.Bool("replace-driver"), Upgrade: c.Bool("upgrade"), NoDaemon: c.Bool("controller-manager"),
		}
		if o.From == "" {
			o.From = besideFlexd()
		}
		return n.Install(ctx, o)
	case "remove":
		return n.Remove(ctx, c.String("plugin-dir"))
	case "restore":
		return n.Restore(ctx, c.String("plugin-dir"))
	default:
		return usage("driver: %q is none of %s; see flexd driver --help", action, list(driverActions))
	}
}

// driverNode is the node of the flags. Only install needs a valid configuration.
func driverNode(c *cli.Context, stdout io.Writer) (*driver.Node, error) {
	root := c.String("root")
	if c.IsSet("root") { // "" is a mistake, and not this machine
		real, err := filepath.EvalSymlinks(root)
		if err == nil {
			real, err = filepath.Abs(real)
		}
		if st, err2 := os.Stat(real); root == "" || err != nil || err2 != nil || !st.IsDir() {
			return nil, usage("driver: --root %q is not a directory", root)
		}
		if root = real; root == "/" {
			root = ""
		}
	}
	path := c.String("config")
	if !c.IsSet("config") {
		path = root + path
	}
	cfg, err := loadConfig(path)
	loaded := err == nil
	if loaded && root == "" {
		err = onThisMachine(cfg)
	}
	if err != nil && c.Args().First() == "install" && !c.Bool("controller-manager") && !c.Bool("upgrade") {
		return nil, fmt.Errorf("%w\nwhat to do: correct it (flexd config --check %s), and run this again; on the controller manager's machine: --controller-manager", err, path)
	}
	if !loaded {
		if _, there := os.Lstat(path); there == nil && !c.IsSet("driver") && c.Args().Len() > 0 && c.Args().First() != "status" {
			return nil, fmt.Errorf("the name of the driver is unknown: %w\nwhat to do: correct it (flexd config --check %s), or give --driver", err, path)
		}
		cfg = config.Default()
	}
	name := cfg.Driver
	if c.IsSet("driver") {
		name = c.String("driver")
		if wrong := config.DriverProblem(name); wrong != "" {
			return nil, usage("driver: --driver %s", wrong)
		}
		if loaded && name != cfg.Driver && c.Args().First() == "install" {
			return nil, fmt.Errorf("the driver in %s is %s, so flexd would refuse what kubelet asks of %s\nwhat to do: set driver: %[3]s there, or leave out --driver", path, cfg.Driver, name)
		}
	}
	return &driver.Node{
		Root: root, Driver: name, Config: cfg, Path: path, Kept: filepath.Join(cfg.StateDir, "replaced"),
		Runner: children.NewExec(), Out: stdout, DryRun: c.Bool("dry-run"),
	}, nil
}

// besideFlexd returns the path of the flexdriver installed with this flexd: beside it after a build, or
// in ../lib/flexd.
func besideFlexd() string {
	exe, err := os.Executable()
	if err != nil {
		return "flexdriver"
	}
	dir := filepath.Dir(exe)
	if beside := filepath.Join(dir, "flexdriver"); isFile(beside) {
		return beside
	}
	return filepath.Join(filepath.Dir(dir), "lib/flexd/flexdriver")
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}
