// Package dsw holds the desired state of world: claims and leases, as readable
// notes in the run directory that live as long as the mount table does, the
// requests that wait, and the durable records of formats.
//
// The memory is authoritative and the notes follow it: only a note before a set-up (of a claim in
// the phase making, of a lease before an activation) must be written. The package decides nothing:
// where a note and the mount table differ, the mount table is authoritative.
package dsw

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// A Store has the notes of one run directory.
type Store struct {
	// Midway, if set, is for tests: it is called where a crash would interrupt a change,
	// with a note that is not renamed or removed yet.
	Midway func(file string)

	dir  string
	boot string

	mu             sync.Mutex                        // guards the following fields and the files; held across a write, never across a command
	claims         map[volume.UUID]map[string]*Claim // by directory
	leases         map[volume.UUID]*Lease
	claimsByDir    index[Claim]             // by directory
	claimsByName   index[Claim]             // by kubelet's name for the volume
	claimsByVolume index[Claim]             // by the volume's name when it was set up
	leasesByName   index[Lease]             // likewise
	notesWithLease map[volume.UUID][]string // notes of claims ended by DropKeepingNote, to be removed with the lease
	problems       map[string]string        // file → its problem
	missing        map[string]string        // file → why the note could not be written
	teardowns      teardowns
}

// Open reads the notes below dir. A note that cannot be used is renamed and reported by Problems
// until an operator removes it. Notes of an earlier boot are removed, because their mounts are
// gone.
func Open(dir, boot string) (*Store, error) {
	s := &Store{dir: dir, boot: boot, claims: map[volume.UUID]map[string]*Claim{}, leases: map[volume.UUID]*Lease{},
		claimsByDir: index[Claim]{}, claimsByName: index[Claim]{}, claimsByVolume: index[Claim]{}, leasesByName: index[Lease]{},
		notesWithLease: map[volume.UUID][]string{},
		problems:       map[string]string{}, missing: map[string]string{},
		teardowns: openTeardowns(filepath.Join(filepath.Dir(dir), "teardowns"), boot)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("notes: %w", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("notes: %w", err)
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		switch err := s.load(path, f); {
		case err == nil:
		case errors.Is(err, errOtherBoot):
			_ = os.Remove(path)
		default:
			if kept := path + damaged; !strings.HasSuffix(path, damaged) && os.Rename(path, kept) == nil {
				path = kept // a new note for the same claim must not replace it
			}
			s.problems[path] = fmt.Sprintf("note %s is ignored: %v; mounts are known from the mount table; remove the file after checking it", path, err)
		}
	}
	return s, nil
}

// damaged ends the name of a note that could not be used.
const damaged = ".damaged"

// maxNote limits the size of a file that is read as a note.
const maxNote = 64 << 10

func (s *Store) load(path string, f fs.DirEntry) error {
	if strings.HasSuffix(f.Name(), ".tmp") {
		return os.Remove(path) // an interrupted write; the previous note is complete
	}
	if strings.HasSuffix(f.Name(), damaged) {
		return errors.New("it was damaged when flexd found it")
	}
	if !f.Type().IsRegular() {
		return errors.New("it is not a regular file")
	}
	data, err := readFile(path, maxNote)
	if err != nil {
		return err
	}
	if strings.HasPrefix(f.Name(), "lease-") {
		l := new(Lease)
		if err := parse(data, l, l.check, s.boot); err != nil {
			return err
		}
		if f.Name() != leaseFile(l.UUID) {
			return errors.New("its name does not match its content")
		}
		s.keepLease(l)
		return nil
	}
	c := new(Claim)
	if err := parse(data, c, c.check, s.boot); err != nil {
		return err
	}
	if f.Name() != claimFile(c) {
		return errors.New("its name does not match its content")
	}
	s.keep(c)
	return nil
}

func (s *Store) keep(c *Claim) {
	s.removeClaim(c.UUID, c.Dir)
	if s.claims[c.UUID] == nil {
		s.claims[c.UUID] = map[string]*Claim{}
	}
	s.claims[c.UUID][c.Dir] = c
	s.claimsByDir.add(c.Dir, c)
	s.claimsByName.add(c.Name, c)
	s.claimsByVolume.add(c.volume().String(), c)
	if files := s.notesWithLease[c.UUID]; files != nil { // the note belongs to a claim again
		s.notesWithLease[c.UUID] = slices.DeleteFunc(files, func(f string) bool { return f == claimFile(c) })
	}
}

// removeClaim returns the claim that it has removed, nil = there was none.
func (s *Store) removeClaim(uuid volume.UUID, dir string) *Claim {
	c := s.claims[uuid][dir]
	if c == nil {
		return nil
	}
	if delete(s.claims[uuid], dir); len(s.claims[uuid]) == 0 {
		delete(s.claims, uuid)
	}
	s.claimsByDir.remove(c.Dir, c)
	s.claimsByName.remove(c.Name, c)
	s.claimsByVolume.remove(c.volume().String(), c)
	return c
}

func (s *Store) keepLease(l *Lease) {
	s.removeLease(l.UUID)
	s.leases[l.UUID] = l
	s.leasesByName.add(l.Name, l)
}

func (s *Store) removeLease(uuid volume.UUID) {
	if l := s.leases[uuid]; l != nil {
		s.leasesByName.remove(l.Name, l)
		delete(s.leases, uuid)
	}
}

func parse(data []byte, into any, check func(string) error, boot string) error {
	if err := decode(data, into, true); err != nil {
		return err
	}
	return check(boot)
}

func (c *Claim) volume() volume.Name { return volume.Name{VG: c.VG, LV: c.LV} }

// User describes the user of a claim.
func (c Claim) User() string {
	switch {
	case c.Kind == volume.Staged:
		return "kubelet's global mount"
	case c.Pod == nil:
		return "a pod"
	case c.Pod.Name == "":
		return "pod uid " + c.Pod.UID
	}
	return "pod " + c.Pod.String()
}

// Claims returns copies of a volume's claims, sorted by directory.
func (s *Store) Claims(uuid volume.UUID) []Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sorted(s.claims[uuid], nil)
}

// At returns copies of the claims at a directory.
func (s *Store) At(dir string) []Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claimsByDir.copies(dir)
}

// Named returns copies of the claims and leases with kubelet's name of a volume.
func (s *Store) Named(name string) ([]Claim, []Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claimsByName.copies(name), s.leasesByName.copies(name)
}

// Of returns copies of the claims of the volumes that had that name when they were set up.
func (s *Store) Of(name volume.Name) []Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claimsByVolume.copies(name.String())
}

// All returns copies of all claims.
func (s *Store) All() []Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Claim
	for _, claims := range s.claims {
		found = sorted(claims, found)
	}
	return found
}

func sorted(claims map[string]*Claim, onto []Claim) []Claim {
	for _, dir := range slices.Sorted(maps.Keys(claims)) {
		onto = append(onto, *claims[dir])
	}
	return onto
}

// Put notes a claim. In the phase making an error means that nothing was noted; in any
// other phase the claim is valid in memory and only its note is missing.
func (s *Store) Put(c Claim) error {
	c.Version, c.Boot = noteVersion, s.boot
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.write(claimFile(&c), &c)
	if err == nil || c.Phase != volume.Making {
		s.keep(&c)
	}
	return err
}

// Drop removes a claim. An error means that its note remains: a restarted flexd finds that
// its mount is gone.
func (s *Store) Drop(uuid volume.UUID, dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.removeClaim(uuid, dir)
	if c == nil {
		return nil
	}
	return s.remove(claimFile(c))
}

// Lease returns a volume's lease.
func (s *Store) Lease(uuid volume.UUID) (Lease, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[uuid]; l != nil {
		return *l, true
	}
	return Lease{}, false
}

// Leases returns copies of all leases.
func (s *Store) Leases() []Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Lease
	for _, l := range s.leases {
		found = append(found, *l)
	}
	return found
}

// PutLease notes a lease. After an error nothing was noted, and nothing may be activated
// because of it; see also DropKeepingNote.
func (s *Store) PutLease(l Lease) error {
	l.Version, l.Boot = noteVersion, s.boot
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.write(leaseFile(l.UUID), &l); err != nil {
		return err
	}
	s.keepLease(&l)
	return nil
}

// MoveLease changes the end of a lease, and kubelet's name for it. An error means that its note still has the old
// ones.
func (s *Store) MoveLease(uuid volume.UUID, name string, until time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[uuid] == nil {
		return nil
	}
	l := *s.leases[uuid]
	l.Name, l.Until = name, until
	s.keepLease(&l)
	return s.write(leaseFile(uuid), &l)
}

// DropKeepingNote ends a claim whose lease cannot be noted: both are valid in memory, and
// the claim's note stays so that the next flexd recognizes the volume as its own. It is
// removed with the lease.
func (s *Store) DropKeepingNote(dir string, l Lease) {
	l.Version, l.Boot = noteVersion, s.boot
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepLease(&l)
	if c := s.removeClaim(l.UUID, dir); c != nil {
		s.notesWithLease[l.UUID] = append(s.notesWithLease[l.UUID], claimFile(c))
	}
}

// DropLease removes a lease.
func (s *Store) DropLease(uuid volume.UUID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLease(uuid)
	err := s.remove(leaseFile(uuid))
	for _, file := range s.notesWithLease[uuid] {
		err = errors.Join(err, s.remove(file))
	}
	delete(s.notesWithLease, uuid)
	return err
}

func (s *Store) write(name string, v any) error {
	path := filepath.Join(s.dir, name)
	if err := write(path, v, false, s.Midway); err != nil {
		s.missing[path] = fmt.Sprintf("note %s cannot be written: %v", path, err)
		return fmt.Errorf("note: %w", err)
	}
	delete(s.problems, path)
	delete(s.missing, path)
	s.retry(true)
	_ = s.teardowns.retry() // there is space again
	return nil
}

// retry writes the notes that could not be written, from memory. If a note can be written, it removes the problems
// of notes that are not needed any more: their claims were refused, or are gone.
func (s *Store) retry(written bool) {
	if len(s.missing) == 0 {
		return
	}
	needed := map[string]any{}
	for uuid, l := range s.leases {
		needed[filepath.Join(s.dir, leaseFile(uuid))] = l
	}
	for _, claims := range s.claims {
		for _, c := range claims {
			needed[filepath.Join(s.dir, claimFile(c))] = c
		}
	}
	for _, path := range slices.Sorted(maps.Keys(s.missing)) {
		if needed[path] == nil {
			continue
		}
		err := write(path, needed[path], false, s.Midway)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			break
		}
		if err == nil {
			written = true
			delete(s.problems, path)
			delete(s.missing, path)
		}
	}
	if written {
		maps.DeleteFunc(s.missing, func(path, _ string) bool { return needed[path] == nil })
	}
}

func (s *Store) remove(name string) error {
	path := filepath.Join(s.dir, name)
	if s.Midway != nil {
		s.Midway(path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.problems[path] = fmt.Sprintf("note %s cannot be removed: %v", path, err)
		return fmt.Errorf("note: %w", err)
	}
	delete(s.problems, path)
	delete(s.missing, path)
	return nil
}

// Problems returns the problems of the notes, sorted. It writes the notes and teardowns that could not be
// written.
func (s *Store) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retry(false)
	all := slices.AppendSeq(slices.Collect(maps.Values(s.problems)), maps.Values(s.missing))
	if err := s.teardowns.retry(); err != nil {
		all = append(all, fmt.Sprintf("note %s cannot be written: %v", s.teardowns.path, err))
	}
	slices.Sort(all)
	return all
}
