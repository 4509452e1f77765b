package install

import (
	"context"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// A prober watches a plugin directory by kubelet's rules (its probe.go), and asks
// a driver `init` as kubelet's next look-up would.
type prober struct {
	t       *testing.T
	dir     string
	watcher *fsnotify.Watcher

	mu      sync.Mutex
	events  map[string]bool // by driver directory: true = it was removed
	inits   []string        // the answers of the executables that were started
	drivers map[string]bool // those that kubelet knows now
	failed  int             // look-ups that found something to ask and could not
}

// startProber is kubelet's start. Look-ups follow each other without a pause
// until the test ends.
func startProber(t *testing.T, dir string) *prober {
	t.Helper()
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	p := &prober{t: t, dir: dir, watcher: w, events: map[string]bool{}, drivers: map[string]bool{}}
	p.watch(dir)
	found, err := filepath.Glob(dir + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range found {
		if filepath.Base(d)[0] != '.' {
			p.events[d] = false
		}
	}
	p.lookUp()
	p.inits = nil // earlier calls do not count

	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for e := range w.Events {
			p.event(e)
		}
	})
	all.Go(func() {
		for ctx.Err() == nil {
			p.lookUp()
			time.Sleep(200 * time.Microsecond)
		}
	})
	t.Cleanup(func() { stop(); w.Close(); all.Wait() })
	return p
}

// watch adds a directory and all below it, hidden ones too.
func (p *prober) watch(root string) {
	filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			p.watcher.Add(path)
		}
		return nil
	})
}

func (p *prober) event(e fsnotify.Event) {
	if strings.HasPrefix(filepath.Base(e.Name), ".") || e.Name == p.dir {
		return
	}
	if e.Has(fsnotify.Create) {
		p.watch(e.Name)
	}
	below, err := filepath.Rel(p.dir, e.Name)
	if err != nil {
		p.t.Error(err)
		return
	}
	driver, _, inside := strings.Cut(below, "/")
	removed := e.Has(fsnotify.Remove) && (!inside || below == driver+"/"+executable(driver))
	p.mu.Lock()
	p.events[p.dir+"/"+driver] = removed
	p.mu.Unlock()
}

func executable(driver string) string {
	_, name, _ := strings.Cut(driver, "~")
	return name
}

// lookUp looks up the names of the events. A look-up that fails is repeated the next time.
func (p *prober) lookUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d, removed := range p.events {
		if removed {
			delete(p.drivers, filepath.Base(d))
			delete(p.events, d)
			continue
		}
		c := exec.Command(d+"/"+executable(filepath.Base(d)), "init")
		out, err := c.CombinedOutput()
		if c.Process != nil {
			p.inits = append(p.inits, string(out))
		}
		if err != nil || !strings.HasPrefix(string(out), `{"status":"Success"`) {
			p.failed++
			continue
		}
		p.drivers[filepath.Base(d)] = true
		delete(p.events, d)
	}
}

// settled returns the answers to init since it was last called: it waits long for
// as many as there should be, and a moment for one too many.
func (p *prober) settled(want int) []string {
	for range 1000 {
		p.mu.Lock()
		n := len(p.inits)
		p.mu.Unlock()
		if n >= want {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	time.Sleep(60 * time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	got := p.inits
	p.inits = nil
	return got
}

func (p *prober) knows(driver string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drivers[driver]
}

func (p *prober) failures() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}
