package dsw

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

	mu    sync.Mutex             // guards known; not held while anything is written
	known map[volume.UUID]Record // what was read or written; the directory is ours alone
}

// OpenRecords returns the records below dir, which is made if it is missing.
func OpenRecords(dir string) (*Records, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("format records: %w", err)
	}
	return &Records{dir: dir, known: map[volume.UUID]Record{}}, nil
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
		data, err := os.ReadFile(r.path(uuid))
		if errors.Is(err, fs.ErrNotExist) {
			return volume.NoRecord, "", nil
		}
		if err == nil {
			err = parseRecord(data, uuid, &rec)
		}
		if err != nil {
			return volume.RecordUnknown, "", fmt.Errorf("format record %s: %w", r.path(uuid), err)
		}
		r.known[uuid] = rec
	}
	if rec.State == stateFormatting {
		return volume.Formatting, rec.FSType, nil
	}
	return volume.Seen, "", nil
}

func parseRecord(data []byte, uuid volume.UUID, rec *Record) error {
	if err := decode(data, rec); err != nil {
		return err
	}
	switch {
	case rec.Version != noteVersion:
		return fmt.Errorf("its version is %d, this flexd knows %d", rec.Version, noteVersion)
	case rec.UUID != uuid:
		return fmt.Errorf("it is about %s", rec.UUID)
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
	files, err := os.ReadDir(r.dir)
	if err != nil {
		return "", "", fmt.Errorf("format records: %w", err)
	}
	var unread error
	for _, f := range files {
		if filepath.Ext(f.Name()) != ".json" {
			continue // a temporary file
		}
		var rec Record
		path := filepath.Join(r.dir, f.Name())
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = decode(data, &rec)
		}
		if err != nil {
			unread = fmt.Errorf("format record %s: %w", path, err)
			continue
		}
		if rec.VG == n.VG && rec.LV == n.LV && rec.State == stateSeen {
			return rec.UUID, path, nil
		}
	}
	return "", "", unread
}
