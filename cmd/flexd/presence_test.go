package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

func TestPresence(t *testing.T) {
	for name, take := range map[string]func(dir, file string) error{
		"removed":               func(_, file string) error { return os.Remove(file) },
		"renamed":               func(_, file string) error { return os.Rename(file, file+".old") },
		"another is renamed":    func(_, file string) error { return os.Rename(file+".other", file+".x") },
		"removed with the rest": func(dir, _ string) error { return os.RemoveAll(dir) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			file := filepath.Join(dir, "driver.sock")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for _, f := range []string{file, file + ".other"} {
				if err := os.WriteFile(f, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			log, _ := quiet(t)
			ended := make(chan error, 1)
			go func() { ended <- presence{[]string{file}, log}.Serve(ctx) }()
			time.Sleep(50 * time.Millisecond) // until it watches; what is lost before that is found by the test's deadline
			if err := take(dir, file); err != nil {
				t.Fatal(err)
			}
			if name == "another is renamed" { // another file is no business of ours
				cancel()
				if err := <-ended; err != context.Canceled {
					t.Errorf("got %v", err)
				}
				return
			}
			if err := <-ended; err == nil || !strings.Contains(err.Error(), "was removed") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Without inotify flexd runs, and watches as soon as it can.
func TestPresenceWithoutInotify(t *testing.T) {
	defer func(d time.Duration) { newWatcher, watchPause = fsnotify.NewWatcher, d }(watchPause)
	file, tries := filepath.Join(t.TempDir(), "driver.sock"), 0
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	watchPause = time.Millisecond
	newWatcher = func() (*fsnotify.Watcher, error) {
		switch tries++; tries {
		case 1, 2:
			return nil, os.NewSyscallError("inotify_init1", unix.EMFILE)
		case 3: // meanwhile
			if err := os.Remove(file); err != nil {
				t.Error(err)
			}
		}
		return fsnotify.NewWatcher()
	}
	log, written := quiet(t)
	err := presence{[]string{file}, log}.Serve(t.Context())
	if err == nil || !strings.Contains(err.Error(), "was removed") || tries != 3 {
		t.Errorf("got %v after %d attempts", err, tries)
	}
	if n := strings.Count(written.String(), "fs.inotify.max_user_instances"); n != 1 {
		t.Errorf("logged %d times: %s", n, written)
	}
}
