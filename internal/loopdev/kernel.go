package loopdev

// A Kernel is what the provider reads without a child: names, attributes and
// sysfs, never a device.
type Kernel interface {
	// File looks at a volume's file, without following a symlink.
	File(path string) (FileInfo, error)
	// Loops lists the loop devices that have a backing file.
	Loops() ([]Loop, error)
	// Loop looks at one loop device, given as "loop3" or "7:3". A device
	// without a backing file has an empty BackingFile; one that does not
	// exist is an error for which errors.Is(err, fs.ErrNotExist) holds.
	Loop(name string) (Loop, error)
}

// A FileInfo is what is known of a volume's file.
type FileInfo struct {
	Exists   bool
	Regular  bool
	UUID     string // of the extended attribute, "" = none
	Size     int64
	ReadOnly bool // nobody may write it (no write permission bit is set)
}

// A Loop is a loop device as sysfs shows it.
type Loop struct {
	Name        string // "loop3"
	Number      string // "7:3"
	Seq         uint64
	BackingFile string // without " (deleted)"
	Deleted     bool   // the backing file has no name any more
	Size        int64
	ReadOnly    bool
}

// NewKernel returns the real Kernel.
func NewKernel() Kernel { return sysfs{} }

type sysfs struct{}

func (sysfs) File(path string) (FileInfo, error) { return FileInfo{}, errTodo }
func (sysfs) Loops() ([]Loop, error)             { return nil, errTodo }
func (sysfs) Loop(name string) (Loop, error)     { return Loop{}, errTodo }
