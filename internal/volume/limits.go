package volume

// Limits restrict what flexd creates and extends in a volume group.
type Limits struct {
	Group     Limit
	Namespace Limit // the same for each namespace

	// For a filesystem with volumes, or a thin pool, which allocate blocks at writes:
	Reserve    int  // the percentage that remains free
	Overcommit bool // the total size of its volumes may exceed its size
}

// A Limit restricts the volumes that flexd has created; 0 = no limit.
type Limit struct {
	MaxVolumes   int
	MaxTotalSize int64 // bytes
}

// A Usage is the number and the total size of the volumes of a group that flexd has created.
type Usage struct {
	All         Amount
	ByNamespace map[string]Amount // by the namespace of the pod for which they were created, if it is known
}

// An Amount is the number and the total size of volumes.
type Amount struct {
	Volumes int
	Size    int64
}

// Add adds volumes of a namespace, or removes them if the amount is negative.
func (u *Usage) Add(namespace string, a Amount) {
	u.All = u.All.plus(a)
	if namespace == "" {
		return
	}
	if u.ByNamespace == nil {
		u.ByNamespace = map[string]Amount{}
	}
	u.ByNamespace[namespace] = u.ByNamespace[namespace].plus(a)
	if u.ByNamespace[namespace] == (Amount{}) {
		delete(u.ByNamespace, namespace)
	}
}

func (a Amount) plus(b Amount) Amount { return Amount{a.Volumes + b.Volumes, a.Size + b.Size} }

// Check refuses further volumes, or a further size, beyond the limits of a group.
func (l Limits) Check(vg string, u Usage, namespace string, more Amount) error {
	if err := l.Group.check("", "of volume group "+vg, "", u.All, more); err != nil || namespace == "" {
		return err
	}
	return l.Namespace.check("perNamespace.", "of volume group "+vg, " for namespace "+namespace, u.ByNamespace[namespace], more)
}

func (l Limit) check(section, of, whose string, used, more Amount) error {
	switch all := used.plus(more); {
	case l.MaxVolumes > 0 && more.Volumes > 0 && all.Volumes > l.MaxVolumes:
		return Errorf(NoSpace, "%smaxVolumes %s is %d, and flexd has created %d%s: use one of these, raise %[1]smaxVolumes in flexd's configuration, or remove volumes that are not needed",
			section, of, l.MaxVolumes, used.Volumes, whose)
	case l.MaxTotalSize > 0 && more.Size > 0 && all.Size > l.MaxTotalSize:
		return Errorf(NoSpace, "%smaxTotalSize %s is %s, and %s more are wanted beside the %s of %d volumes that flexd has created%s: ask for a smaller size, raise %[1]smaxTotalSize in flexd's configuration, or remove volumes that are not needed",
			section, of, Bytes(l.MaxTotalSize), Bytes(more.Size), Bytes(used.Size), used.Volumes, whose)
	}
	return nil
}
