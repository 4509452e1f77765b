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

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// A Record is a format record. A record "seen" is kept forever: flexd never makes a filesystem on a
// volume on which it has seen one. A record "formatting" exists only while mkfs runs, and after a
// crash.
type Record struct {
	Version int           `json:"version"`
	UUID    volume.UUID   `json:"uuid"`
	VG      string        `json:"vg"` // the volume's present name
	LV      string        `json:"lv"`
	Also    []string      `json:"also,omitempty"` // earlier names "VG/LV" that it may still have: see Renamed and Seen
	State   string        `json:"state"`          // "formatting" or "seen"
	FSType  string        `json:"fsType"`
	Birth   int64         `json:"birth,omitempty"` // of the volume's file, see volume.File
	At      time.Time     `json:"at"`
	Boot    string        `json:"boot,omitempty"`   // formatting: the boot in which mkfs was started
	Uptime  time.Duration `json:"uptime,omitempty"` // formatting: the boot clock at that time
}

// The states of a record.
const (
	stateFormatting = "formatting"
	stateSeen       = "seen"
)

// Records has the format records of the state directory.
type Records struct {
	// Midway, if set, is for tests: it is called before a written record is renamed.
	Midway func(file string)

	dir  string
	boot string               // the boot's id
	up   func() time.Duration // the boot clock

	linkDir string // see LinkDevices; "" = no links
	device  func(volume.UUID) string

	mu        sync.Mutex                    // not held while a file is read or written
	known     map[volume.UUID]Record        // the contents that were read or written, while the file exists
	names     map[string]namesIn            // file → the names in it, as it was read
	holders   map[string]volume.UUID        // name → a volume that was read or written with it
	writing   map[volume.UUID]bool          // the records that are being written
	written   *sync.Cond                    // with mu: signalled when a record has been written
	unwritten map[volume.UUID]error         // records of known that could not be written, and are valid until flexd ends → why
	unmade    error                         // why the directory, which was missing at the start, cannot be created
	unread    map[string]error              // file, or the directory → why it cannot be read
	groups    map[volume.UUID][]volume.UUID // the identities of the records of one logical volume
	retrying  bool                          // retry runs
}

// OpenRecords returns the records below dir, and creates dir if it is missing. Problems has the
// records that cannot be read. boot names this boot, and up is the boot clock.
func OpenRecords(dir, boot string, up func() time.Duration) (*Records, error) {
	unmade, err := MakeStateDir(dir)
	if err != nil {
		return nil, fmt.Errorf("format records: %w", err)
	}
	r := &Records{dir: dir, unmade: unmade, boot: boot, up: up, known: map[volume.UUID]Record{}, names: map[string]namesIn{}, holders: map[string]volume.UUID{},
		writing: map[volume.UUID]bool{}, unwritten: map[volume.UUID]error{}, unread: map[string]error{}, groups: map[volume.UUID][]volume.UUID{}}
	r.written = sync.NewCond(&r.mu)
	_ = r.each(nil, func(_ string, rec Record) { r.relate(rec.UUID) })
	return r, nil
}

// MakeStateDir creates a directory of stateDir if it is missing. unmade is why its filesystem does not
// allow that: flexd starts without the directory, since unmounts need no records, and refuses what
// needs one.
func MakeStateDir(dir string) (unmade, err error) {
	err = os.MkdirAll(dir, 0o700)
	if _, serr := os.Stat(dir); errors.Is(serr, unix.EIO) { // MkdirAll says that a file exists
		err = serr
	}
	for _, e := range []error{unix.EIO, unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.EBADMSG, unix.EUCLEAN, unix.EEXIST} { // EEXIST: a link to a lost disk
		if errors.Is(err, e) {
			return err, nil
		}
	}
	return nil, err
}

// A damagedError is the error of a file that can be read, but is not a valid record or note.
type damagedError struct{ err error }

func (e *damagedError) Error() string { return e.err.Error() }
func (e *damagedError) Unwrap() error { return e.err }

// read reads one record. Problems reports its error from then on. Only the caller waits for the
// disk.
func (r *Records) read(path string) (rec Record, err error) {
	was := stateOf(path) // before the read: newer content must not count as this one
	data, err := readFile(path, maxNote)
	if err == nil {
		bad := parseRecord(data, &rec)
		if bad == nil && r.File(rec.UUID) != path {
			bad = fmt.Errorf("it is about %s", rec.UUID)
		}
		switch {
		case bad != nil && rec.Version > noteVersion:
			err = fmt.Errorf("a newer flexd wrote it (version %d, this one knows %d): install that flexd again. If that is impossible, check the volume's contents, then remove the file", rec.Version, noteVersion)
		case bad != nil:
			err = &damagedError{bad}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.names[path] = namesIn{was, rec.names()}
		r.hold(rec)
		delete(r.unread, path)
		return rec, nil
	case errors.Is(err, fs.ErrNotExist):
		delete(r.names, path)
		delete(r.unread, path)
		return rec, err
	}
	r.unread[path] = err
	return rec, fmt.Errorf("format record %s: %w", path, err)
}

// each reads the records whose files are not skipped, and calls f for each that can be read.
// The error is that of an unreadable record, or of the directory.
func (r *Records) each(skip func(path string) bool, f func(path string, rec Record)) error {
	files, err := os.ReadDir(r.dir)
	r.mu.Lock()
	if delete(r.unread, r.dir); err != nil {
		if r.unmade != nil && errors.Is(err, fs.ErrNotExist) {
			err = r.unmade
		}
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
		if skip != nil && skip(path) {
			continue
		}
		rec, err := r.read(path)
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

// notMade returns why the directory is missing since the start; then no record is known. It is tried again
// in the background.
func (r *Records) notMade() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unmade == nil {
		return nil
	}
	r.unread[r.dir] = r.unmade // retry reads it again, also after Named could
	r.startRetry()
	return fmt.Errorf("format records: %w", r.unmade)
}

// File returns the path of a volume's record.
func (r *Records) File(uuid volume.UUID) string {
	return filepath.Join(r.dir, plain(string(uuid), 128)+".json")
}

// Get returns a volume's record. An error means that the record is unknown, not that there is none.
// A record that an operator has removed does not exist any more, also while flexd runs; while the whole
// directory is missing, the known ones are valid: its disk may only be unmounted. A record that could not be
// written is written in the background.
func (r *Records) Get(uuid volume.UUID) (volume.RecordFacts, error) {
	r.mu.Lock()
	rec, ok := r.known[uuid]
	_, unwritten := r.unwritten[uuid]
	if unwritten {
		r.startRetry()
	}
	r.mu.Unlock()
	if ok && !unwritten && r.removed(r.File(rec.UUID)) {
		r.mu.Lock()
		delete(r.known, uuid)
		r.mu.Unlock()
		return volume.RecordFacts{State: volume.NoRecord}, nil
	}
	if !ok {
		var err error
		rec, err = r.read(r.File(uuid))
		if errors.Is(err, fs.ErrNotExist) {
			rec, err = r.related(uuid)
		}
		if errors.Is(err, fs.ErrNotExist) {
			if err := r.notMade(); err != nil {
				return volume.RecordFacts{}, err
			}
			return volume.RecordFacts{State: volume.NoRecord}, nil
		}
		if err != nil {
			return volume.RecordFacts{}, err
		}
		r.mu.Lock()
		if now, written := r.known[uuid]; written {
			rec = now // written meanwhile
		}
		r.known[uuid] = rec
		r.mu.Unlock()
	}
	return r.facts(rec), nil
}

// removed reports whether the file of a record was removed. It was not if the whole directory is missing, which
// Problems reports from then on. Both are asked of one directory, since another may replace it meanwhile.
func (r *Records) removed(path string) bool {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	dir, err := os.OpenRoot(r.dir)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.unread[r.dir] = err
		return false
	}
	defer dir.Close()
	_, err = dir.Lstat(filepath.Base(path))
	return errors.Is(err, fs.ErrNotExist)
}

func (r *Records) facts(rec Record) volume.RecordFacts {
	facts := volume.RecordFacts{State: volume.Seen, Type: rec.FSType, Name: volume.Name{VG: rec.VG, LV: rec.LV}, Birth: rec.Birth, File: r.File(rec.UUID)}
	if rec.State == stateFormatting {
		facts.State, facts.Late = volume.Formatting, r.notRepeatableReason(rec)
	}
	return facts
}

// notRepeatableReason returns why the mkfs of a record must not be repeated any more, or "". In the
// boot of the record its age is measured by the boot clock, in a later boot by the wall clock. The
// wall clock may be wrong; so the later boot must be recent as well.
func (r *Records) notRepeatableReason(rec Record) string {
	age := r.up() - rec.Uptime
	if rec.Boot != r.boot {
		age = time.Since(rec.At)
		if age > -time.Minute { // a clock may have been corrected a little
			age = max(age, r.up())
		}
	}
	return volume.TooLate(rec.At, age)
}

// parseRecord parses a record. Unknown keys are of a later release: without a new version they may be ignored.
func parseRecord(data []byte, rec *Record) error {
	if err := decode(data, rec, false); err != nil {
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

// Formatting makes durable that mkfs is about to run. It never replaces a record
// that says "seen".
func (r *Records) Formatting(uuid volume.UUID, n volume.Name, fsType string) error {
	switch old, err := r.Get(uuid); {
	case err != nil:
		return fmt.Errorf("format record: %w", err)
	case old.State == volume.Seen:
		return fmt.Errorf("format record %s says that a filesystem was seen", old.File)
	}
	return r.put(Record{UUID: uuid, VG: n.VG, LV: n.LV, State: stateFormatting, FSType: fsType, Boot: r.boot, Uptime: r.up()})
}

// Seen makes durable that the volume has a filesystem. If that fails and there is no mkfs record,
// it is still valid until flexd ends. If the volume is another file than the one in the record, no new volume gets
// the name of that one either.
func (r *Records) Seen(uuid volume.UUID, n volume.Name, fsType string, birth int64) error {
	rec := Record{UUID: uuid, VG: n.VG, LV: n.LV, State: stateSeen, FSType: fsType, Birth: birth}
	if old, err := r.Get(uuid); err == nil && old.State == volume.Seen && old.Name != n && old.File == r.File(uuid) && birth != 0 {
		rec.Also = []string{old.Name.String()}
	}
	return r.put(rec)
}

// Renamed makes the new name of a volume with a filesystem durable: no new volume gets that name
// while this one is missing. With keep, no new volume gets the former name either, because the
// volume may be a copy of the one with that name.
func (r *Records) Renamed(uuid volume.UUID, now volume.Name, keep bool) error {
	facts, err := r.Get(uuid)
	if err != nil || facts.State != volume.Seen || facts.Name == now {
		return err
	}
	rec := Record{UUID: uuid, VG: now.VG, LV: now.LV, State: stateSeen, FSType: facts.Type, Birth: facts.Birth}
	if keep {
		rec.Also = []string{facts.Name.String()}
	}
	return r.put(rec)
}

// put writes a record.
func (r *Records) put(rec Record) error {
	defer r.begin(rec.UUID)()
	rec.Version, rec.At = noteVersion, time.Now().UTC().Truncate(time.Second)
	return r.write(rec)
}

// putAgain writes the present content of a record that could not be written.
func (r *Records) putAgain(uuid volume.UUID) {
	defer r.begin(uuid)()
	r.mu.Lock()
	rec := r.known[uuid]
	_, unwritten := r.unwritten[uuid]
	r.mu.Unlock()
	if !unwritten {
		return
	}
	// If its directory was only away, the record there may have names that were not read.
	if old, err := r.read(r.File(uuid)); err == nil && old.State == stateSeen {
		keep := old.Also
		if rec.Birth != 0 && old.VG != rec.VG { // a file that was moved to another group
			keep = old.names()
		}
		for _, name := range keep {
			if !slices.Contains(rec.names(), name) {
				rec.Also = append(rec.Also, name)
			}
		}
	}
	_ = r.write(rec)
}

// begin waits until nothing else writes the record of a volume, and returns the function that
// ends this. Calls for one volume, by its lane, the audit and retry, wait for each other. Other
// lanes do not wait for the disk.
func (r *Records) begin(uuid volume.UUID) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.writing[uuid] {
		r.written.Wait()
	}
	r.writing[uuid] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.writing, uuid)
		r.written.Broadcast()
	}
}

// write writes a record between begin and its end.
func (r *Records) write(rec Record) error {
	r.mu.Lock()
	for _, name := range r.known[rec.UUID].Also {
		if rec.State == stateSeen && !slices.Contains(rec.names(), name) {
			rec.Also = append(rec.Also, name)
		}
	}
	r.mu.Unlock()
	made, err := r.linkDevice(rec.UUID) // first: udev's rule never misses a record
	if made {
		err = syncDir(r.linkDir)
	}
	if err == nil {
		err = write(r.File(rec.UUID), &rec, true, r.Midway)
	}
	if err == nil {
		defer r.removeReplaced(rec) // after known has the new record
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		if rec.State == stateSeen && r.known[rec.UUID].State != stateFormatting {
			r.known[rec.UUID], r.unwritten[rec.UUID] = rec, err
			r.hold(rec)
		}
		return fmt.Errorf("format record: %w%s", err, directoryRemedy(err))
	}
	r.known[rec.UUID] = rec
	r.hold(rec)
	delete(r.unwritten, rec.UUID)
	r.relate(rec.UUID)
	delete(r.unread, r.File(rec.UUID))
	return nil
}
