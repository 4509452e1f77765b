package dsw

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// namesIn are the names "VG/LV" in a file that says "seen".
type namesIn struct {
	file  fileState
	names []string
}

// A fileState identifies the content of a file that is only replaced.
type fileState struct {
	ino            uint64
	size           int64
	changed, wrote unix.Timespec
}

func stateOf(path string) fileState {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return fileState{}
	}
	return fileState{st.Ino, st.Size, st.Ctim, st.Mtim}
}

// names returns the names of a volume that was seen with a filesystem.
func (rec Record) names() []string {
	if rec.State != stateSeen {
		return nil
	}
	return append([]string{rec.VG + "/" + rec.LV}, rec.Also...)
}

// Named returns the volume that was seen with a filesystem under that name, and its record;
// "" if there is none. An error means that a record cannot be read. Named lists the
// directory, and reads the records of other names only once: a node may have had many volumes.
func (r *Records) Named(n volume.Name) (uuid volume.UUID, facts volume.RecordFacts, err error) {
	r.mu.Lock()
	for seen := range r.unwritten {
		if slices.Contains(r.known[seen].names(), n.String()) {
			uuid, facts = seen, r.facts(r.known[seen])
			r.startRetry()
		}
	}
	r.mu.Unlock()
	if uuid != "" {
		return uuid, facts, nil
	}
	other := func(path string) bool {
		r.mu.Lock()
		in, read := r.names[path]
		r.mu.Unlock()
		return read && !slices.Contains(in.names, n.String()) && stateOf(path) == in.file
	}
	err = r.each(other, func(path string, rec Record) {
		if slices.Contains(rec.names(), n.String()) {
			uuid, facts = rec.UUID, r.facts(rec)
		}
	})
	if uuid != "" {
		return uuid, facts, nil
	}
	return "", facts, err
}

// Holder returns a volume whose record has that name; "" = there is none. Unlike Named it does not list the
// directory, and knows the records that were there at the start or were written since.
func (r *Records) Holder(n volume.Name) volume.UUID {
	r.mu.Lock()
	uuid := r.holders[n.String()]
	r.mu.Unlock()
	if uuid == "" {
		return ""
	}
	facts, err := r.Get(uuid)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && (facts.State == volume.NoRecord || !slices.Contains(r.known[uuid].names(), n.String())) {
		return ""
	}
	return uuid
}

// hold notes the names of a record. The caller holds r.mu.
func (r *Records) hold(rec Record) {
	for _, name := range rec.names() {
		r.holders[name] = rec.UUID
	}
}

// Reserve gives a record of a filesystem that was seen another name of its volume: no new volume gets it.
func (r *Records) Reserve(uuid volume.UUID, n volume.Name) error {
	if facts, err := r.Get(uuid); err != nil || facts.State != volume.Seen || facts.File != r.File(uuid) {
		return err
	}
	defer r.begin(uuid)()
	r.mu.Lock()
	rec := r.known[uuid]
	r.mu.Unlock()
	if rec.State != stateSeen || slices.Contains(rec.names(), n.String()) { // changed or removed meanwhile, or not written yet
		return nil
	}
	rec.Also = append(slices.Clone(rec.Also), n.String())
	return r.write(rec)
}
