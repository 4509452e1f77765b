package audit

import (
	"slices"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/volume"
)

// copies returns the files of other groups with the uuid of one of this group. A group that has
// lost a file is compared again by the others: it may have been moved, not copied.
func (s *group) copies(listed join.Survey) map[volume.UUID][]string {
	if listed.Directory == "" || listed.Metadata != "" {
		return nil
	}
	files, all := map[volume.UUID]string{}, map[volume.UUID][]string{}
	for _, v := range listed.Volumes {
		files[v.UUID] = listed.Directory + "/" + v.Name
	}
	s.mu.Lock()
	before := s.files
	s.files = files
	s.mu.Unlock()
	for _, o := range s.a.groups {
		if o == s {
			continue
		}
		o.mu.Lock()
		theirs, moved := o.files, false
		o.mu.Unlock()
		same := map[volume.UUID]string{}
		for uuid, file := range theirs {
			if files[uuid] != "" {
				same[uuid] = file
			}
			moved = moved || files[uuid] == "" && before[uuid] != ""
		}
		if len(same) > 0 && s.sameDirectory(o) { // each file is itself: flexd check reports the groups
			same = nil
		}
		for uuid, file := range same {
			all[uuid] = append(all[uuid], file)
		}
		if moved {
			o.schedule()
		}
	}
	for _, files := range all {
		slices.Sort(files)
	}
	return all
}

// sameDirectory reports whether the group and another have one directory, as through a bind mount.
func (s *group) sameDirectory(o *group) bool {
	p, ok := s.a.Surveyors[s.vg].(interface{ SameDirectory(a, b string) bool })
	return ok && p.SameDirectory(s.vg, o.vg)
}
