package dsw

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/volume"
)

// A Record is the durable memory of a format, kept for ever: flexd never makes
// a filesystem on a volume on which it has seen one.
type Record struct {
	Version int         `json:"version"`
	UUID    volume.UUID `json:"uuid"`
	VG      string      `json:"vg"` // as it was called then, for people
	LV      string      `json:"lv"`
	State   string      `json:"state"` // "formatting" or "seen"
	FSType  string      `json:"fsType"`
	At      time.Time   `json:"at"`

	volatile bool // it could not be written, and holds for this life
}

// The states of a record.
const (
	stateFormatting = "formatting"
	stateSeen       = "seen"
)

// Records is the state directory.
type Records struct {
	// Midway, if set, is for tests: it is called before a record that is written
	// takes its place.
	Midway func(file string)

	dir string

	mu     sync.Mutex             // not held while anything is written
	known  map[volume.UUID]Record // what was read or written; the directory is ours alone
	unread map[string]error       // file → why it cannot be read
}

// OpenRecords returns the records below dir, which is made if it is missing. Those
// that cannot be read are among the problems.
func OpenRecords(dir string) (*Records, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("format records: %w", err)
	}
	r := &Records{dir: dir, known: map[volume.UUID]Record{}, unread: map[string]error{}}
	_ = r.each(func(string, Record) {})
	return r, nil
}

// Problems returns which records cannot be read, sorted, as long as they are there.
func (r *Records) Problems() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for path, err := range r.unread {
		if _, gone := os.Lstat(path); errors.Is(gone, fs.ErrNotExist) {
			delete(r.unread, path)
			continue
		}
		all = append(all, fmt.Sprintf("format record %s cannot be read: %v; its volume is not set up; remove the file when you have looked at what is on the volume", path, err))
	}
	slices.Sort(all)
	return all
}

// read reads one record. What it finds wrong with it is a problem from then on.
// r.mu is held.
func (r *Records) read(path string) (rec Record, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		delete(r.unread, path)
		return rec, err
	}
	if err == nil {
		err = parseRecord(data, &rec)
	}
	if err == nil && r.path(rec.UUID) != path {
		err = fmt.Errorf("it is about %s", rec.UUID)
	}
	if err != nil {
		r.unread[path] = err
		return rec, fmt.Errorf("format record %s: %w", path, err)
	}
	delete(r.unread, path)
	return rec, nil
}

// each calls f for each record that can be read. The error is that of another one,
// or of the directory.
func (r *Records) each(f func(path string, rec Record)) error {
	files, err := os.ReadDir(r.dir)
	r.mu.Lock()
	if delete(r.unread, r.dir); err != nil {
		r.unread[r.dir] = err
	}
	r.mu.Unlock()
	if err != nil {
		return fmt.Errorf("format records: %w", err)
	}
	var unread error
	for _, file := range files {
		if filepath.Ext(file.Name()) != ".json" {
			continue // a temporary file
		}
		path := filepath.Join(r.dir, file.Name())
		r.mu.Lock()
		rec, err := r.read(path)
		r.mu.Unlock()
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			unread = err
		default:
			f(path, rec)
		}
	}
	return unread
}

func (r *Records) path(uuid volume.UUID) string {
	return filepath.Join(r.dir, plain(string(uuid))+".json")
}

// Get returns a volume's record and, for Formatting, the filesystem that was
// being made. An error means that it is not known, which is not "none".
func (r *Records) Get(uuid volume.UUID) (volume.Record, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.known[uuid]
	if ok && rec.State == stateSeen && !rec.volatile {
		if _, err := os.Lstat(r.path(uuid)); errors.Is(err, fs.ErrNotExist) {
			delete(r.known, uuid) // its owner took it away
			return volume.NoRecord, "", nil
		}
	}
	if !ok {
		var err error
		rec, err = r.read(r.path(uuid))
		if errors.Is(err, fs.ErrNotExist) {
			return volume.NoRecord, "", nil
		}
		if err != nil {
			return volume.RecordUnknown, "", err
		}
		r.known[uuid] = rec
	}
	if rec.State == stateFormatting {
		return volume.Formatting, rec.FSType, nil
	}
	return volume.Seen, "", nil
}

func parseRecord(data []byte, rec *Record) error {
	if err := decode(data, rec); err != nil {
		return err
	}
	switch {
	case rec.Version != noteVersion:
		return fmt.Errorf("its version is %d, this flexd knows %d", rec.Version, noteVersion)
	case rec.State != stateFormatting && rec.State != stateSeen:
		return fmt.Errorf("state %q is not known", rec.State)
	}
	return nil
}

// Formatting makes durable that mkfs is about to run.
func (r *Records) Formatting(uuid volume.UUID, n volume.Name, fsType string) error {
	return r.put(Record{UUID: uuid, VG: n.VG, LV: n.LV, State: stateFormatting, FSType: fsType})
}

// Seen makes durable that the volume holds a filesystem. If that fails and no
// mkfs record stands, it holds for this life of flexd all the same.
func (r *Records) Seen(uuid volume.UUID, n volume.Name, fsType string) error {
	return r.put(Record{UUID: uuid, VG: n.VG, LV: n.LV, State: stateSeen, FSType: fsType})
}

// put is called by one at a time for one volume: its lane. Nobody else waits
// while the disk does.
func (r *Records) put(rec Record) error {
	rec.Version, rec.At = noteVersion, time.Now().UTC().Truncate(time.Second)
	err := write(r.path(rec.UUID), &rec, true, r.Midway)
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.known[rec.UUID]; err == nil || rec.State == stateSeen && old.State != stateFormatting {
		rec.volatile = err != nil
		r.known[rec.UUID] = rec
	}
	if err == nil {
		delete(r.unread, r.path(rec.UUID))
	}
	if err != nil {
		return fmt.Errorf("format record: %w", err)
	}
	return nil
}

// Named returns the volume that was seen with a filesystem under that name, and
// the file of its record; "" if there is none. With a record that cannot be read
// that is not known. It reads the whole directory: only for the moment in which
// a volume is to be created.
func (r *Records) Named(n volume.Name) (volume.UUID, string, error) {
	var uuid volume.UUID
	var file string
	err := r.each(func(path string, rec Record) {
		if rec.VG == n.VG && rec.LV == n.LV && rec.State == stateSeen {
			uuid, file = rec.UUID, path
		}
	})
	if uuid != "" {
		return uuid, file, nil
	}
	return "", "", err
}
