package volume

import "time"

// A Space is the space of a volume group.
type Space struct {
	At       time.Time // when it was observed
	Size     int64
	Free     int64 // for new volumes, without the space of thin pools
	Largest  int64 // the largest volume that can be created
	Refused  error // why no volume can be created, if Largest is 0
	Unusable bool  // Refused is not about space
	Disks    []Disk
}

// A Disk is a part of a volume group: an LVM physical volume, or the filesystem of a
// directory.
type Disk struct {
	Device         string // or the directory; "" = missing
	Size           int64
	Free           int64
	Missing        bool
	NotAllocatable bool // pvchange -xn
}

// NewNamespace stands for a namespace without volumes. No namespace can have this name.
const NewNamespace = "-"

// Largest returns the largest size up to limit that refuse accepts: limit, a multiple of unit, or 0 with
// the refusal of the smallest size. If refuse refuses a size, it must refuse all larger sizes.
func Largest(unit, limit int64, refuse func(size int64) error) (int64, error) {
	if limit <= 0 || refuse(limit) == nil {
		return max(limit, 0), nil
	}
	if err := refuse(min(unit, limit)); err != nil {
		return 0, err
	}
	low, high := int64(1), (limit+unit-1)/unit // in units: low is accepted, high is not
	for high-low > 1 {
		if mid := low + (high-low)/2; refuse(mid*unit) == nil {
			low = mid
		} else {
			high = mid
		}
	}
	return low * unit, nil
}

// A Filling is the usage of a mounted filesystem.
type Filling struct {
	Size       int64  `json:"size"`
	Used       int64  `json:"used"`
	Free       int64  `json:"free"`   // without the blocks reserved for root
	Inodes     uint64 `json:"inodes"` // 0 = it creates inodes as needed
	InodesUsed uint64 `json:"inodesUsed"`
	Sector     int64  `json:"sector,omitempty"` // see SmallSectors; 0 = unknown

	Unknown string `json:"unknown,omitempty"` // why the other fields are not known
}

// Full returns why no file can be written; "" = files can be written. A filesystem keeps a few blocks for
// its own metadata.
func (f Filling) Full() string {
	switch {
	case f.Unknown != "" || f.Size <= 0:
		return ""
	case f.Free < min(f.Size/100, 1<<20):
		return "no space is free"
	case f.Inodes > 0 && f.InodesUsed >= f.Inodes:
		return "no inode is free"
	}
	return ""
}
