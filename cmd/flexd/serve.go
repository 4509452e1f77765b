package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/history"
	"github.com/flexd/flexd/internal/server"
	"github.com/flexd/flexd/internal/status"
)

func serveCommand(stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "serve",
		Usage:     "run the daemon",
		ArgsUsage: " ",
		Before:    atMost(0),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Value: config.DefaultPath, Usage: "read the configuration from `FILE`"},
		},
		Action: func(c *cli.Context) error { return serve(c.Context, c.String("config"), stderr) },
	}
}

// serve is the daemon. It returns nil after a request to stop.
func serve(ctx context.Context, configPath string, stderr io.Writer) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(30) // flexd must use little memory: this costs some milliseconds for a hundred calls
	}
	inherited, err := activation.Listeners()
	if err != nil {
		return err
	}
	text := read(configPath)
	cfg, err := text.load(configPath)
	if text.err != "" { // it is not a regular file, or loadConfig returns the error
		cfg, err = loadConfig(configPath)
	}
	if err != nil {
		return err
	}
	log, err := newLog(cfg, stderr)
	if err != nil {
		return err
	}
	log.Logger.SetOutput(newLogWriter(log.Logger))
	signal.Ignore(syscall.SIGPIPE) // the program that reads the log may end
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	reloads := make(chan os.Signal, 1)
	signal.Notify(reloads, syscall.SIGHUP) // from here on it does not end flexd
	defer signal.Stop(reloads)

	if err := makeDirs(cfg); err != nil {
		return err
	}
	lockPath := filepath.Join(cfg.RunDir, "flexd.lock")
	lock, err := server.Lock(lockPath)
	if err != nil {
		return err
	}
	defer lock.Close()

	past := history.Open(cfg.StateDir, cfg.HistorySize, log)
	defer func() { closeHistory(past, err) }()
	live := config.NewLive(cfg)
	applied := make(chan struct{}, 1)
	reload := &reloader{path: configPath, last: text, live: live, log: log, asked: reloads, applied: applied, past: past}
	metrics := &server.Metrics{Address: func() string { return live.Get().MetricsAddress }, Changed: applied, Log: log}
	// Before the state is read, so that calls wait for flexd instead of failing.
	driver, err := server.Listen(cfg.DriverSocket(), 0o600, "", inherited...)
	if err != nil {
		return err
	}
	defer driver.Close()
	shown, err := server.Listen(cfg.StatusSocket(), 0o660, cfg.StatusGroup, inherited...)
	if err != nil {
		return err
	}
	defer shown.Close()
	n, tasks, err := newNode(live, log, past, reload.Problem, metrics.Problem, past.Problem)
	if err != nil {
		return err
	}
	metrics.Write = n.WriteMetrics

	log.WithFields(logrus.Fields{"version": version, "node": cfg.NodeName, "config": configPath, "groups": len(cfg.VolumeGroups)}).Info("flexd starts")
	if hint := unusualRunDir(cfg); hint != "" {
		log.Warn(hint)
	}
	for _, l := range inherited {
		if l != nil && l != driver && l != shown {
			log.Warnf("systemd listens on %s, which flexd does not use: see runDir in %s, and ListenStream= of flexd's socket units", l.Addr(), configPath)
			l.Close()
		}
	}
	if every, err := daemon.SdWatchdogEnabled(false); err != nil {
		log.WithError(err).Warn("no watchdog of systemd")
	} else if every > 0 {
		tasks = append(tasks, task{"watchdog", watchdog{every / 3, n.Known, log}.Serve})
	}
	calls := server.Driver{Listener: driver, Handler: n, Log: log}
	documents := server.Status{Listener: shown, Source: n, History: n, Metrics: n.WriteMetrics, Version: version, Log: log}
	tasks = append(tasks, task{"reload of the configuration", reload.Serve}, task{"metrics address", metrics.Serve},
		task{"presence", presence{[]string{cfg.DriverSocket(), cfg.StatusSocket(), lockPath}, log}.Serve},
		task{"driver socket", calls.Serve}, task{"status socket", documents.Serve})
	past.Started(version)
	return runTasks(ctx, log, n.Ready(), func() string { return found(n.Known(), n.Mounted()) }, tasks)
}

// closeHistory records why flexd ends.
func closeHistory(past *history.Log, err error) {
	// The disk may hang, and systemd waits.
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Millisecond)
	defer cancel()
	past.Close(ctx, err)
}

// found summarizes the state that flexd has found. The volumes have not been observed yet.
func found(l status.List, mounts int) string {
	s := fmt.Sprintf("mounts in kubelet's directories: %d", mounts)
	if len(l.Problems) > 0 {
		s += "; problems: " + strings.Join(l.Problems, "; ")
	}
	return s
}

// makeDirs creates the missing directories. Only root may enter them, except that the group
// of the status socket needs access to its directory.
func makeDirs(cfg *config.Config) error {
	if err := os.MkdirAll(cfg.RunDir, 0o700); err != nil {
		return err
	}
	if _, err := dsw.MakeStateDir(cfg.StateDir); err != nil { // the records report one that is not made
		return err
	}
	if cfg.StatusGroup == "" {
		return nil
	}
	gid, err := server.GroupID(cfg.StatusGroup)
	if err != nil {
		return fmt.Errorf("statusGroup: %w", err)
	}
	st, err := os.Stat(cfg.RunDir)
	if err == nil {
		err = os.Chown(cfg.RunDir, -1, gid)
	}
	if err == nil {
		err = os.Chmod(cfg.RunDir, st.Mode().Perm()|0o010)
	}
	return err
}
