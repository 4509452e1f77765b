package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/server"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
)

// patience is how long tasks may take to end when flexd is told to. What they
// leave undone is found again at the next start, as after a kill.
const patience = 900 * time.Millisecond

// A node is the heart of the daemon: it answers kubelet, knows what there is to
// show, and does the work.
type node interface {
	server.Handler // called from the start on, before Ready
	server.Source  // likewise
	Run(ctx context.Context) error
	Ready() <-chan struct{} // closed when what was left by the last flexd is known
}

// A task runs for as long as the daemon does.
type task interface {
	String() string
	Serve(ctx context.Context) error
}

// serve is the daemon. It returns nil when it was told to stop.
func serve(ctx context.Context, configPath string, stderr io.Writer) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(30) // flexd is to be small on its node: that costs it some milliseconds for a hundred calls
	}
	cfg, err := loadConfig(configPath)
	if err != nil {
		return err
	}
	log, err := newLog(cfg, stderr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	if err := makeDirs(cfg); err != nil {
		return err
	}
	lockPath := filepath.Join(cfg.RunDir, "flexd.lock")
	lock, err := server.Lock(lockPath)
	if err != nil {
		return err
	}
	defer lock.Close()

	n, err := newNode(cfg, log)
	if err != nil {
		return err
	}
	driver, err := server.Listen(cfg.DriverSocket, 0o600, "")
	if err != nil {
		return err
	}
	defer driver.Close()
	shown, err := server.Listen(cfg.StatusSocket, 0o660, cfg.StatusGroup)
	if err != nil {
		return err
	}
	defer shown.Close()

	log.WithFields(logrus.Fields{"version": version, "node": cfg.NodeName, "config": configPath, "groups": len(cfg.VolumeGroups)}).Info("flexd starts")
	return runTasks(ctx, log, n,
		presence{[]string{cfg.DriverSocket, cfg.StatusSocket, lockPath}},
		&server.Driver{Listener: driver, Handler: n, Log: log},
		&server.Status{Listener: shown, Source: n, Version: version, Log: log})
}

// makeDirs makes the directories that are missing. They are root's alone, except
// that the group which may read the status socket has to get that far.
func makeDirs(cfg *config.Config) error {
	for _, dir := range []string{cfg.RunDir, cfg.StateDir, filepath.Dir(cfg.DriverSocket), filepath.Dir(cfg.StatusSocket)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if cfg.StatusGroup == "" || filepath.Dir(cfg.StatusSocket) != cfg.RunDir {
		return nil // another directory is not ours to open
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

// runTasks runs the node and the tasks until the context ends or one of them
// does.
func runTasks(ctx context.Context, log *logrus.Entry, n node, tasks ...task) error {
	told := ctx
	group, ctx := errgroup.WithContext(ctx)
	start := func(name string, run func(context.Context) error) {
		group.Go(func() error {
			switch err := run(ctx); {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return fmt.Errorf("%s: %w", name, err)
			}
			return fmt.Errorf("%s: ended by itself", name)
		})
	}
	start("reconciler", n.Run)
	for _, t := range tasks {
		start(t.String(), t.Serve)
	}
	group.Go(func() error {
		select {
		case <-n.Ready():
			log.Info("flexd is ready")
			notify(log, "READY=1")
		case <-ctx.Done():
		}
		return nil
	})

	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	<-ctx.Done()
	notify(log, "STOPPING=1")
	select {
	case err := <-ended:
		if told.Err() == nil {
			return err
		}
		log.Info("flexd stops; mounts stay as they are")
	case <-time.After(patience):
		log.Warn("flexd stops without waiting for all its tasks; mounts stay as they are")
		if told.Err() == nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// notify tells systemd how we are, if it wants to know.
func notify(log *logrus.Entry, state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	conn, err := net.Dial("unixgram", path)
	if err == nil {
		_, err = io.WriteString(conn, state)
		conn.Close()
	}
	if err != nil {
		log.WithError(err).Warn("cannot notify systemd")
	}
}

// newLog builds the one logger; everything else gets an entry of it.
func newLog(cfg *config.Config, w io.Writer) (*logrus.Entry, error) {
	level, err := logrus.ParseLevel(cfg.LogLevel)
	if err != nil {
		return nil, err
	}
	l := logrus.New()
	l.SetOutput(w)
	l.SetLevel(level)
	l.SetFormatter(&textFormatter{})
	if cfg.LogFormat == "json" {
		l.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	}
	return logrus.NewEntry(l), nil
}

// A textFormatter writes one line per entry for people: when, how grave, whose
// (volume, call, step), what, and the other fields behind it.
type textFormatter struct{}

var leading = []string{"volume", "call", "step"}

func (*textFormatter) Format(e *logrus.Entry) ([]byte, error) {
	var b bytes.Buffer
	value := func(key string) {
		b.WriteString(" " + key + "=" + logValue(e.Data[key]))
	}
	level := strings.ToUpper(strings.TrimSuffix(e.Level.String(), "ing"))
	fmt.Fprintf(&b, "%s %-5.5s", e.Time.Format("2006-01-02T15:04:05.000Z07:00"), level)
	for _, k := range leading {
		if _, ok := e.Data[k]; ok {
			value(k)
		}
	}
	b.WriteString("  " + strings.Map(printable, e.Message))
	var rest []string
	for k := range e.Data {
		if !slices.Contains(leading, k) {
			rest = append(rest, k)
		}
	}
	slices.Sort(rest)
	for i, k := range rest {
		if i == 0 {
			b.WriteByte(' ')
		}
		value(k)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// logValue quotes what would not be seen as one value.
func logValue(v any) string {
	s, text := v.(string)
	if !text {
		s = fmt.Sprint(v)
	}
	if s == "" || strings.ContainsFunc(s, func(c rune) bool { return c == ' ' || c == '"' || c == '=' || !unicode.IsPrint(c) }) {
		return strconv.Quote(s)
	}
	return s
}

// printable keeps an entry on one line, whoever wrote a part of its message.
func printable(c rune) rune {
	if unicode.IsPrint(c) {
		return c
	}
	return ' '
}
