package dsw

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
)

// Problems returns the records that could not be read or written, sorted. It reads and writes
// nothing itself: it starts another attempt in the background, for the next call.
func (r *Records) Problems() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for path, err := range r.unread {
		switch {
		case path == r.dir:
			all = append(all, fmt.Sprintf("the format records in %s cannot be read: %v%s", path, err, directoryRemedy(err)))
		case errors.As(err, new(*damagedError)):
			all = append(all, fmt.Sprintf("format record %s is damaged: %v; if its volume is not mounted, it is not set up; remove the file after checking the volume's contents", path, err))
		default:
			all = append(all, fmt.Sprintf("format record %s cannot be read: %v", path, err))
		}
	}
	for uuid, err := range r.unwritten {
		all = append(all, fmt.Sprintf("format record %s cannot be written: %v; flexd remembers until it ends that the volume has a filesystem", r.File(uuid), err))
	}
	if len(all) > 0 {
		r.startRetry()
	}
	slices.Sort(all)
	return all
}

// directoryRemedy returns the remedy if the directory of the records is missing. An empty one in its place would
// count as the removal of all records, except at the start.
func directoryRemedy(err error) string {
	if !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return "; bring the filesystem of stateDir back; only if its records are lost, restart flexd"
}

// startRetry starts retry unless it runs. The caller holds r.mu.
func (r *Records) startRetry() {
	if !r.retrying {
		r.retrying = true
		go r.retry()
	}
}

// makeAgain creates the directory if that failed at the start. One that was removed later is not created.
func (r *Records) makeAgain() {
	r.mu.Lock()
	missing := r.unmade != nil
	r.mu.Unlock()
	if !missing {
		return
	}
	unmade, err := MakeStateDir(r.dir)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unmade = cmp.Or(unmade, err)
}

// retry reads the records that could not be read, and writes those that could not be written.
func (r *Records) retry() {
	r.mu.Lock()
	paths, uuids := slices.Collect(maps.Keys(r.unread)), slices.Collect(maps.Keys(r.unwritten))
	r.mu.Unlock()
	for _, uuid := range uuids {
		r.putAgain(uuid)
	}
	for _, path := range paths {
		if path == r.dir {
			r.makeAgain()
			_ = r.each(nil, func(_ string, rec Record) {
				r.mu.Lock()
				r.relate(rec.UUID)
				r.mu.Unlock()
			})
			continue
		}
		_, _ = r.read(path)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retrying = false
}
