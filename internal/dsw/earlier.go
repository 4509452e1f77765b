package dsw

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/flexd/flexd/internal/volume"
)

// Rename changes the identity in the notes of a volume. An error means that some notes could not be
// written and keep the old identity.
func (s *Store) Rename(old, now volume.UUID) (err error) {
	for _, c := range s.Claims(old) {
		moved := c
		moved.UUID = now
		if werr := s.Put(moved); werr != nil {
			err = errors.Join(err, werr)
			continue
		}
		err = errors.Join(err, s.Drop(old, c.Dir))
	}
	lease, ok := s.Lease(old)
	if !ok {
		return err
	}
	lease.UUID = now
	if werr := s.PutLease(lease); werr != nil {
		return errors.Join(err, werr)
	}
	return errors.Join(err, s.DropLease(old))
}

// related returns a record "seen" of the same logical volume in another group, or of an earlier
// version, which wrote no group: when a group is split, merged or copied, its uuid changes and its
// volumes keep theirs. A volume with a filesystem in one group is not blank in another. A record
// "formatting" does not apply to a copy.
func (r *Records) related(uuid volume.UUID) (Record, error) {
	lv := uuid.Earlier()
	if lv == "" {
		return Record{}, fs.ErrNotExist
	}
	r.mu.Lock()
	others := append([]volume.UUID{lv}, r.groups[lv]...)
	r.mu.Unlock()
	for _, other := range others {
		rec, err := r.read(r.File(other))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil || rec.State == stateSeen:
			return rec, err
		}
	}
	return Record{}, fs.ErrNotExist
}

// relate remembers the groups in which a logical volume has a record. The caller holds
// r.mu, or is the only user.
func (r *Records) relate(uuid volume.UUID) {
	if lv := uuid.Earlier(); lv != "" && !slices.Contains(r.groups[lv], uuid) {
		r.groups[lv] = append(r.groups[lv], uuid)
	}
}

// removeReplaced removes the record of an earlier version that a new one replaces.
func (r *Records) removeReplaced(rec Record) {
	old := rec.UUID.Earlier()
	if old == "" {
		return
	}
	if was, err := r.read(r.File(old)); err == nil && was.VG == rec.VG && was.LV == rec.LV {
		_ = os.Remove(r.File(old)) // the new record has the same content
	}
}
