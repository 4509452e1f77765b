package hosttest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/volume"
)

// The notes and records that must be on the disk before a command has its effect. The files are read as the
// next flexd would read them.

func readNotes(dir string) (claims []dsw.Claim, leases []dsw.Lease) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if strings.HasPrefix(filepath.Base(f), "lease-") {
			var l dsw.Lease
			if json.Unmarshal(b, &l) == nil {
				leases = append(leases, l)
			}
			continue
		}
		var c dsw.Claim
		if json.Unmarshal(b, &c) == nil {
			claims = append(claims, c)
		}
	}
	return claims, leases
}

// noted reads the notes of the running flexd. Each flexd has its own directory.
func (h *Host) noted() (claims []dsw.Claim, leases []dsw.Lease) {
	for {
		notes, _ := h.dirs()
		claims, leases = readNotes(notes)
		if again, _ := h.dirs(); again == notes {
			return claims, leases
		}
	}
}

// mustBeNoted requires a claim or a lease of the volume, or the lease of a name, whose volume is
// being created.
func (h *Host) mustBeNoted(uuid string, names ...string) {
	claims, leases := h.noted()
	for _, c := range claims {
		if string(c.UUID) == uuid {
			return
		}
	}
	for _, l := range leases {
		if string(l.UUID) == uuid || slices.Contains(names, string(l.UUID)) {
			return
		}
	}
	h.broke("%s is activated and nothing is noted", uuid)
}

func (h *Host) mustClaim(uuid, dir string) {
	claims, _ := h.noted()
	for _, c := range claims {
		if string(c.UUID) == uuid && c.Dir == dir {
			return
		}
	}
	h.broke("%s lands at %s without a note", uuid, dir)
}

func (h *Host) mustBeReleasing(uuid, dir string) {
	claims, _ := h.noted()
	for _, c := range claims {
		if string(c.UUID) == uuid && c.Dir == dir && c.Phase == volume.Releasing {
			return
		}
	}
	h.broke("%s is unmounted at %s and no release is noted", uuid, dir)
}

func (h *Host) record(uuid string) (r dsw.Record) {
	for {
		_, records := h.dirs()
		b, err := os.ReadFile(filepath.Join(records, uuid+".json"))
		if err == nil {
			_ = json.Unmarshal(b, &r)
		}
		if _, again := h.dirs(); again == records {
			return r
		}
	}
}

// forget removes a format record, as a child of flexd does.
func (h *Host) forget(uuid string) {
	for {
		_, records := h.dirs()
		_ = os.Remove(filepath.Join(records, uuid+".json"))
		if _, again := h.dirs(); again == records {
			return
		}
	}
}

func (h *Host) mustRecord(uuid, state, fsType string) {
	if r := h.record(uuid); r.State != state || r.FSType != fsType {
		h.broke("mkfs.%s on %s while its record says %q %q", fsType, uuid, r.State, r.FSType)
	}
}

func (h *Host) mustNotRecord(uuid, state string) {
	if r := h.record(uuid); r.State == state {
		h.broke("%s is published while its record says %q", uuid, state)
	}
}
