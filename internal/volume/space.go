package volume

// A Space is the space of a volume group.
type Space struct {
	Size     int64
	Free     int64 // that new volumes can get; without a thin pool's
	Largest  int64 // the largest volume that can be created
	Refused  error // why none can be, if Largest is 0
	Unusable bool  // that is not for lack of space
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

// NewNamespace is no namespace that a pod can have: it has no volumes.
const NewNamespace = "-"

// Largest returns the largest size up to limit that refuse accepts; larger sizes than one
// that is refused are refused as well. It is limit or a multiple of unit. If it is 0, the
// error is the refusal of the smallest size.
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

// A Filling is how full a mounted filesystem is.
type Filling struct {
	Size       int64  `json:"size"`
	Used       int64  `json:"used"`
	Free       int64  `json:"free"`   // without what is reserved for root
	Inodes     uint64 `json:"inodes"` // 0 = it makes them as needed
	InodesUsed uint64 `json:"inodesUsed"`

	Unknown string `json:"unknown,omitempty"` // why the other fields are not known
}

// Full returns why no file can be written; "" = files can be. A filesystem refuses writes while
// it still has a few blocks, which its own metadata may need.
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
