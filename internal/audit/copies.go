package audit

import (
	"slices"

	"github.com/flexd/flexd/internal/join"
	"github.com/flexd/flexd/internal/volume"
)

// copies returns the files of other groups that have the uuid of a file of this group. If this group has
// lost a file that another group has, that group is audited again: the file was moved, not copied.
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
		if len(same) > 0 && s.sameDirectory(o) { // both paths are the same file: flexd check reports the groups
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

// sameDirectory reports whether two groups have the same directory, for example through a bind mount.
func (s *group) sameDirectory(o *group) bool {
	p, ok := s.a.Surveyors[s.vg].(interface{ SameDirectory(a, b string) bool })
	return ok && p.SameDirectory(s.vg, o.vg)
}
