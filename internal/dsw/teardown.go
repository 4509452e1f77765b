package dsw

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"
)

// A teardown is a line in a file beside the notes: an unmount call for a directory
// succeeded. A mount call that started before it is refused, also after a restart.
type teardown struct {
	Boot    string        `json:"boot"`
	Dir     string        `json:"dir"`
	Started time.Duration `json:"startedBootNanoseconds"` // when its caller started
}

// teardowns are the newest teardown of each directory. Lines are appended, and the file is
// rewritten when most of them are obsolete.
type teardowns struct {
	path    string
	boot    string
	started map[string]time.Duration // by directory
	spare   int                      // the number of lines that may be appended; 0 = the last one may be torn
	err     error                    // why the file is incomplete, nil = it is not
}

// spareLines is the number of obsolete lines that are always allowed.
const spareLines = 64

// openTeardowns reads the file. It ignores lines that cannot be read: a line may be torn,
// and no mount depends on it.
func openTeardowns(path, boot string) teardowns {
	t := teardowns{path: path, boot: boot, started: map[string]time.Duration{}}
	data, err := readFile(path, 16<<20)
	if err != nil {
		return t
	}
	for line := range bytes.Lines(data) {
		var d teardown
		if json.Unmarshal(line, &d) == nil && d.Boot == boot && filepath.IsAbs(d.Dir) {
			t.started[d.Dir] = max(t.started[d.Dir], d.Started)
		}
	}
	return t
}

// add writes a teardown.
func (t *teardowns) add(dir string, started, now time.Duration) error {
	if t.started[dir] >= started {
		return t.retry()
	}
	t.started[dir] = started
	if t.spare > 0 && t.err == nil {
		if t.err = t.append(dir); !errors.Is(t.err, fs.ErrNotExist) {
			return t.err
		}
	}
	maps.DeleteFunc(t.started, func(_ string, started time.Duration) bool { return now-started > targetMemory })
	t.err = t.rewrite()
	return t.err
}

// retry writes the teardowns that could not be written.
func (t *teardowns) retry() error {
	if t.err != nil {
		t.err = t.rewrite()
	}
	return t.err
}

func (t *teardowns) append(dir string) error {
	line, err := json.Marshal(teardown{t.boot, dir, t.started[dir]})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(t.path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	t.spare--
	_, err = f.Write(append(line, '\n'))
	return err
}

func (t *teardowns) rewrite() error {
	var all bytes.Buffer
	for dir, started := range t.started {
		line, err := json.Marshal(teardown{t.boot, dir, started})
		if err != nil {
			return err
		}
		all.Write(append(line, '\n'))
	}
	tmp := t.path + ".tmp"
	if err := os.WriteFile(tmp, all.Bytes(), 0o600); err != nil {
		return err
	}
	if err := os.Rename(tmp, t.path); err != nil {
		return err
	}
	t.spare = len(t.started) + spareLines
	return nil
}

// TornDown notes the success of an unmount call for a directory, before it is answered.
func (s *Store) TornDown(dir string, started, now time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.teardowns.add(dir, started, now); err != nil {
		return fmt.Errorf("teardown: %w", err)
	}
	return nil
}

// Teardowns returns the start of the newest unmount call for each directory, if an older mount call
// may still follow.
func (s *Store) Teardowns(now time.Duration) map[string]time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.teardowns.started)
	maps.DeleteFunc(all, func(_ string, started time.Duration) bool { return now-started > targetMemory || started > now })
	return all
}
