package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/history"
	"github.com/flexd/flexd/internal/status"
)

// A reloader applies the configuration again after SIGHUP, and when its file changes. No
// call is dropped for that: each step reads the configuration that is in force then.
type reloader struct {
	path string
	last contents // of the file, as read last
	live *config.Live
	log  *logrus.Entry
	past *history.Log

	asked   <-chan os.Signal // receives when a reload is requested
	applied chan<- struct{}  // receives after a file was applied, if it has room

	mu      sync.Mutex
	problem string // why the file is not, or not fully, in force; "" = it is
}

// contents has the text of a file, or the error of its read.
type contents struct{ text, err string }

// read reads a configuration. It refuses other files, which could block or be endless.
func read(path string) contents {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return contents{err: err.Error()}
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return contents{err: path + " is not a regular file"}
	}
	text, err := io.ReadAll(io.LimitReader(f, 2<<20)) // more than a configuration may have
	if err != nil {
		return contents{err: err.Error()}
	}
	return contents{text: string(text)}
}

// load returns the configuration of a file with these contents.
func (c contents) load(path string) (*config.Config, error) {
	if c.err != "" {
		return nil, errors.New(c.err)
	}
	return config.Parse(path, []byte(c.text))
}

// Problem returns why the file is not, or not fully, in force; "" = it is.
func (r *reloader) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem
}

// settle is how long the file must be unchanged: an editor may write it in several steps.
var settle = time.Second

func (r *reloader) Serve(ctx context.Context) error {
	var (
		events <-chan fsnotify.Event
		errs   <-chan error
		later  = time.After(settle) // it may have changed before it was watched
		next   contents             // the changed file, as read last
	)
	// The directory, since the file itself may be replaced; in a ConfigMap the file is a link
	// to a link (..data), and the second one is replaced.
	w, err := newWatcher()
	if err == nil {
		defer w.Close()
		events, errs = w.Events, w.Errors
		err = w.Add(filepath.Dir(r.path))
	}
	if err != nil {
		r.log.WithError(err).Warn("changes of the configuration are not noticed: reload flexd after them")
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-errs: // lost events: look at the file
			later = cmp.Or(later, time.After(settle))
		case e := <-events:
			if name := filepath.Base(e.Name); name == filepath.Base(r.path) || strings.HasPrefix(name, "..") {
				later = cmp.Or(later, time.After(settle))
			}
		case <-r.asked:
			later = nil
			r.log.Info("reload: asked by SIGHUP")
			r.last = read(r.path)
			r.reload()
		case <-later:
			later = nil
			switch now := read(r.path); {
			case now == r.last:
			case now != next:
				next, later = now, time.After(settle)
			default:
				r.log.Info("reload: the configuration has changed")
				r.last = now
				r.reload()
			}
		}
	}
}

// reload applies the content that was read last, unless it has an error: the file may have changed
// since, and a later event compares it with the applied content.
func (r *reloader) reload() {
	problem := ""
	log := r.log.WithField("config", r.path)
	c, err := r.last.load(r.path)
	if err != nil {
		log.WithError(err).Error("reload: the configuration is not applied")
		problem = "the configuration is not applied, the former one stays in force: " + err.Error()
	} else {
		restart := r.live.Reload(c)
		select {
		case r.applied <- struct{}{}:
		default:
		}
		if level, err := logrus.ParseLevel(c.LogLevel); err == nil {
			r.log.Logger.SetLevel(level)
		}
		if len(restart) == 0 {
			log.Info("reload: the configuration is in force")
		} else {
			log.WithField("restart", strings.Join(restart, ", ")).Warn("reload: the configuration is in force, except for what needs a restart of flexd")
			problem = "the configuration has changes that need a restart of flexd: " + strings.Join(restart, ", ")
		}
	}
	e := status.Event{Type: status.FlexdEvent, Message: "has read its configuration again"}
	if problem != "" {
		e.Code, e.Message = "config", problem
	}
	r.past.Record(e)
	r.mu.Lock()
	r.problem = problem
	r.mu.Unlock()
}
