package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/history"
)

// reloading starts a reloader of a file with these contents.
func reloading(t *testing.T, path string) (*reloader, func(what string, is func(*config.Config, string) bool)) {
	was := settle
	settle = 20 * time.Millisecond
	t.Cleanup(func() { settle = was })
	text := read(path)
	c, err := loadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	log, lines := quiet(t)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGHUP)
	t.Cleanup(func() { signal.Stop(asked) })
	r := &reloader{path: path, last: text, live: config.NewLive(c), log: log, asked: asked, past: history.Open("", 0, log)}
	ended := make(chan struct{})
	t.Cleanup(func() { <-ended }) // after the context's end
	ctx := t.Context()
	go func() {
		r.Serve(ctx)
		close(ended)
	}()
	return r, func(what string, is func(*config.Config, string) bool) {
		t.Helper()
		for range 2000 {
			if is(r.live.Get(), r.Problem()) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("%s: not seen; problem %q\n%s", what, r.Problem(), lines)
	}
}

func put(t *testing.T, path, text string, a ...any) {
	t.Helper()
	if err := os.WriteFile(path, fmt.Appendf(nil, text, a...), 0o600); err != nil {
		t.Fatal(err)
	}
}

const lease = "lease: %s\n"

func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flexd.yaml")
	put(t, path, lease, "1m")
	_, sees := reloading(t, path)
	put(t, path, lease, "2m")
	sees("the change", func(c *config.Config, problem string) bool { return c.Lease == 2*time.Minute && problem == "" })

	put(t, path, "lease: soon\n")
	sees("the error", func(c *config.Config, problem string) bool {
		return c.Lease == 2*time.Minute && strings.Contains(problem, "not applied") && strings.Contains(problem, ":1: lease")
	})
	put(t, path+".new", lease+"log: {level: debug}\nrunDir: /run/other\n", "3m")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	sees("the rest", func(c *config.Config, problem string) bool {
		return c.Lease == 3*time.Minute && c.LogLevel == "debug" && c.RunDir == "/run/flexd" && strings.HasSuffix(problem, "restart of flexd: runDir")
	})
	os.Remove(path)
	put(t, path, lease, "4m")
	sees("a new file", func(c *config.Config, problem string) bool { return c.Lease == 4*time.Minute && problem == "" })
}

// A tool truncates the file and writes it anew with the same contents, while flexd applies what it
// has read: then no later event would show a difference.
func TestReloadOfWhatWasRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flexd.yaml")
	put(t, path, lease, "2m")
	log, _ := quiet(t)
	r := &reloader{path: path, last: read(path), live: config.NewLive(config.Default()), log: log, past: history.Open("", 0, log)}
	put(t, path, "")
	r.reload()
	if got := r.live.Get().Lease; got != 2*time.Minute || r.Problem() != "" {
		t.Errorf("lease %s is in force, problem %q", got, r.Problem())
	}
}

// A file that is gone is reported: flexd does not start again without it. Nothing else than a
// file is read, which could block.
func TestReloadOfNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flexd.yaml")
	put(t, path, lease, "1m")
	_, sees := reloading(t, path)
	for what, place := range map[string]func() error{
		"no such file":            func() error { return nil },
		"is not a regular file":   func() error { return os.Mkdir(path, 0o700) },
		"is not a  regular file":  func() error { return unix.Mkfifo(path, 0o600) },
		"is not a   regular file": func() error { return os.Symlink("/dev/zero", path) },
	} {
		if err := errors.Join(os.Remove(path), place()); err != nil {
			t.Fatal(err)
		}
		what = strings.Join(strings.Fields(what), " ")
		sees(what, func(c *config.Config, problem string) bool {
			return c.Lease == time.Minute && strings.Contains(problem, "the former one stays in force") && strings.Contains(problem, what)
		})
		os.Remove(path)
		put(t, path, lease, "1m")
		sees("the file", func(_ *config.Config, problem string) bool { return problem == "" })
	}
}

// A signal applies the file also if it has not changed: statusGroup may exist now.
func TestReloadAtSignal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flexd.yaml")
	put(t, path, lease, "1m")
	r, sees := reloading(t, path)
	time.Sleep(5 * settle)
	r.live.Reload(config.Default())
	sees("the file", func(c *config.Config, _ string) bool {
		if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		return c.Lease == time.Minute
	})
}

// Kubelet replaces the link ..data of a ConfigMap.
func TestReloadOfConfigMap(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"1m", "2m"} {
		os.Mkdir(filepath.Join(dir, d), 0o700)
		put(t, filepath.Join(dir, d, "flexd.yaml"), lease, d)
	}
	os.Symlink("1m", dir+"/..data")
	os.Symlink("..data/flexd.yaml", dir+"/flexd.yaml")
	_, sees := reloading(t, dir+"/flexd.yaml")
	swap := func(to string) {
		os.Symlink(to, dir+"/..data_tmp")
		if err := os.Rename(dir+"/..data_tmp", dir+"/..data"); err != nil {
			t.Fatal(err)
		}
	}
	swap("2m")
	sees("the new one", func(c *config.Config, _ string) bool { return c.Lease == 2*time.Minute })
	swap("1m")
	sees("the old one", func(c *config.Config, _ string) bool { return c.Lease == time.Minute })
}
