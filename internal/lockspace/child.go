package lockspace

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/run"
)

// A leasesArg has the leases to read.
type leasesArg struct {
	Path       string     `json:"path"`
	Lockspace  string     `json:"lockspace"`
	SectorSize int        `json:"sectorSize"`
	MaxHost    int        `json:"maxHost"` // the largest host id that may hold a shared lease
	Leases     []leaseArg `json:"leases"`
}

type leaseArg struct {
	Name   string `json:"name"`
	Offset int64  `json:"offset"`
}

// An owner is a host that holds a lease.
type owner struct {
	ID         int    `json:"id"`
	Generation uint64 `json:"generation"`
	Shared     bool   `json:"shared,omitempty"`
	Taken      uint64 `json:"taken,omitempty"` // the time, on that host's clock; 0 = unknown
}

// A delta is the delta lease of a host.
type delta struct {
	Name       string `json:"name"`
	Generation uint64 `json:"generation"`
	Timestamp  uint64 `json:"timestamp"` // of the last renewal, on that host's clock; 0 = it has left
}

// A leasesAnswer has the owners by lease, and the delta leases of all owners.
type leasesAnswer struct {
	Owners map[string][]owner `json:"owners"`
	Last   map[string]int     `json:"last,omitempty"` // for leases without an owner, the last owner; 0 = there was none
	Hosts  map[int]delta      `json:"hosts"`
	Errors map[string]string  `json:"errors,omitempty"` // of leases that could not be read
}

// Child runs an operation of this package in a child process: it prints one JSON line, and returns
// the exit status. ok is false if op is not an operation of this package.
func Child(op string, arg []byte) (code int, ok bool) {
	if op != "lockspace-leases" {
		return 0, false
	}
	run.BeChild()
	var a leasesArg
	if err := json.Unmarshal(arg, &a); err != nil {
		return run.Answer(nil, fmt.Errorf("argument: %w", err)), true
	}
	return run.Answer(readLeases(a)), true
}

// readLeases reads the leases with O_DIRECT, because other hosts write them.
func readLeases(a leasesArg) (*leasesAnswer, error) {
	if a.SectorSize != 512 && a.SectorSize != 4096 || a.MaxHost < 0 || a.MaxHost > 2000 {
		return nil, fmt.Errorf("sectors of %d bytes, host ids to %d", a.SectorSize, a.MaxHost)
	}
	f, err := os.OpenFile(a.Path, os.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return leasesOn(f, a)
}

func leasesOn(f io.ReaderAt, a leasesArg) (*leasesAnswer, error) {
	got := &leasesAnswer{Owners: map[string][]owner{}, Last: map[string]int{}, Hosts: map[int]delta{}, Errors: map[string]string{}}
	area := aligned((a.MaxHost + 2) * a.SectorSize)
	for _, l := range a.Leases {
		if _, err := f.ReadAt(area, l.Offset); err != nil {
			return nil, err
		}
		owners, last, err := ownersOf(area, a.SectorSize, a.MaxHost, a.Lockspace, l.Name)
		if err != nil {
			got.Errors[l.Name] = err.Error()
			continue
		}
		got.Owners[l.Name] = owners
		if len(owners) == 0 {
			got.Last[l.Name] = last
		}
		for _, o := range owners {
			if _, known := got.Hosts[o.ID]; known {
				continue
			}
			sector := aligned(a.SectorSize)
			if _, err := f.ReadAt(sector, int64(o.ID-1)*int64(a.SectorSize)); err != nil {
				return nil, err
			}
			r, err := parseRecord(sector, deltaMagic, deltaVersion, a.SectorSize, a.Lockspace)
			if err != nil {
				return nil, fmt.Errorf("host id %d: %w", o.ID, err)
			}
			got.Hosts[o.ID] = delta{Name: r.name, Generation: r.generation, Timestamp: r.timestamp}
		}
	}
	return got, nil
}

// otherLease is the beginning of the error for a location with the lease of another volume.
const otherLease = "the lease belongs to"

// ownersOf returns the hosts that hold a lease according to its area, alive or dead, and the last
// owner; 0 = there was none.
func ownersOf(area []byte, sectorSize, maxHost int, lockspace, name string) (all []owner, last int, err error) {
	r, err := parseRecord(area, resourceMagic, resourceVersion, sectorSize, lockspace)
	switch {
	case err != nil:
		return nil, 0, err
	case r.name != name:
		return nil, 0, fmt.Errorf("%s %.48q", otherLease, r.name)
	case r.timestamp != 0 && (r.owner < 1 || r.owner > 2000):
		return nil, 0, fmt.Errorf("its owner has the host id %d", r.owner)
	case r.timestamp != 0 && (r.writer == r.owner || !hasReleased(hostSector(area, sectorSize, r.owner))):
		return []owner{{ID: r.owner, Generation: r.generation, Taken: r.timestamp}}, r.owner, nil
	}
	for id := 1; id <= maxHost; id++ {
		if generation, ok := sharedBy(hostSector(area, sectorSize, id)); ok {
			all = append(all, owner{ID: id, Generation: generation, Shared: true})
		}
	}
	return all, r.owner, nil
}

// aligned returns a buffer that O_DIRECT accepts.
func aligned(length int) []byte {
	const align = 4096
	b := make([]byte, length+align)
	at := -int(uintptr(unsafe.Pointer(&b[0]))) & (align - 1)
	return b[at : at+length]
}
