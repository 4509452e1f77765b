package dsw

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Problems describes the records that could not be read, sorted. It reads nothing itself: it starts
// another attempt in the background, whose result the next call returns.
func (r *Records) Problems() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for path, err := range r.unread {
		var damaged *damagedError
		switch {
		case path == r.dir:
			all = append(all, fmt.Sprintf("the format records in %s cannot be read: %v", path, err))
		case errors.As(err, &damaged):
			all = append(all, fmt.Sprintf("format record %s is damaged: %v; its volume is not set up; remove the file after checking the volume's contents", path, err))
		default:
			all = append(all, fmt.Sprintf("format record %s cannot be read: %v", path, err))
		}
	}
	if len(all) > 0 && !r.looking {
		r.looking = true
		go r.retryUnread()
	}
	slices.Sort(all)
	return all
}

// retryUnread reads the records that could not be read.
func (r *Records) retryUnread() {
	r.mu.Lock()
	paths := slices.Collect(maps.Keys(r.unread))
	r.mu.Unlock()
	for _, path := range paths {
		if path == r.dir {
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
	r.looking = false
}
