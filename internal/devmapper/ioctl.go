package devmapper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/sysfs"
)

// The read-only requests and flags of linux/dm-ioctl.h.
const (
	dmListDevices = 2
	dmDevStatus   = 7
	dmTableDeps   = 11
	dmTableStatus = 12

	dmReadOnly      = 1 << 0
	dmSuspended     = 1 << 1
	dmStatusTable   = 1 << 4 // the table, not the status
	dmActivePresent = 1 << 5
	dmLoadedPresent = 1 << 6 // DM_INACTIVE_PRESENT_FLAG
	dmBufferFull    = 1 << 8
	dmNoFlush       = 1 << 11 // reading the state of a thin pool must not commit its metadata
	dmUUIDFlag      = 1 << 14 // a list with uuids, since Linux 5.12

	dmNameListHasUUID    = 1
	dmNameListHasNoUUID  = 2
	dmHeader             = 312 // struct dm_ioctl
	dmSpec               = 40  // struct dm_target_spec
	dmNameLen, dmUUIDLen = 128, 129
)

// Kernel is this machine's device-mapper.
type Kernel struct {
	mu     sync.Mutex
	opened bool
	fd     int
}

// New returns this machine's device-mapper. It is opened on first use.
func New() *Kernel { return &Kernel{} }

// open opens the control device, which may appear after flexd's start, when dm_mod is loaded.
func (k *Kernel) open() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.opened {
		return nil
	}
	fd, err := unix.Open(controlFile, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("device-mapper: %w", &os.PathError{Op: "open", Path: controlFile, Err: err})
	}
	k.fd, k.opened = fd, true
	return nil
}

var controlFile = "/dev/mapper/control" // replaced in tests

// call makes one request with a buffer that grows until the answer fits.
func (k *Kernel) call(request uint32, flags uint32, key Key) (reply, error) {
	if err := k.open(); err != nil {
		return nil, err
	}
	for size := 2 << 10; ; size *= 4 { // most tables are short
		b := make(reply, size)
		if err := b.ask(flags, key); err != nil {
			return nil, err
		}
		// _IOWR(0xfd, request, struct dm_ioctl)
		code := uintptr(3)<<30 | uintptr(dmHeader)<<16 | 0xfd<<8 | uintptr(request)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(k.fd), code, uintptr(unsafe.Pointer(&b[0])))
		switch {
		case errno == unix.EINTR:
			size /= 4
		case errno == unix.ENXIO:
			return nil, ErrNoDevice
		case errno != 0:
			return nil, fmt.Errorf("device-mapper: request %d: %w", request, errno)
		case b.flags()&dmBufferFull == 0:
			return b, nil
		case size > 64<<20:
			return nil, errors.New("device-mapper: the answer is too long")
		}
	}
}

// List lists the devices.
func (k *Kernel) List() ([]Mapped, error) {
	b, err := k.call(dmListDevices, dmUUIDFlag, Key{})
	if err != nil {
		return nil, err
	}
	all, uuids, err := b.list()
	if err != nil || uuids {
		return all, err
	}
	for i, m := range all { // an older kernel
		s, err := k.call(dmDevStatus, 0, Key{Number: m.Number})
		if errors.Is(err, ErrNoDevice) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all[i].UUID = s.head().UUID
	}
	return all, nil
}

// Device returns one device with its table. If the pool of a thin device has failed, the table
// is only "Fail", and Device asks for the dependencies.
func (k *Kernel) Device(key Key) (Mapped, error) {
	m, err := k.table(key, dmStatusTable)
	if err != nil || !m.hidesPool() {
		return m, err
	}
	if m.UUID != "" { // another device may have its number now
		key = Key{UUID: m.UUID}
	}
	b, err := k.call(dmTableDeps, 0, key)
	if err != nil {
		return Mapped{}, err
	}
	m.Below, err = b.deps()
	return m, err
}

func (m Mapped) hidesPool() bool {
	return slices.ContainsFunc(m.Targets, func(t Target) bool { return t.Type == "thin" && !strings.Contains(t.Params, ":") })
}

// Status returns one device with the state of its targets.
func (k *Kernel) Status(key Key) (Mapped, error) { return k.table(key, 0) }

// Open returns how often a device is open, mounts and devices on it included.
func (k *Kernel) Open(number string) (int, error) {
	b, err := k.call(dmDevStatus, 0, Key{Number: number})
	if err != nil {
		return 0, err
	}
	return b.head().Open, nil
}

func (k *Kernel) table(key Key, flags uint32) (Mapped, error) {
	b, err := k.call(dmTableStatus, flags|dmNoFlush, key)
	if err != nil {
		return Mapped{}, err
	}
	m := b.head()
	m.Targets, err = b.targets()
	return m, err
}

// A reply is the buffer of a request and its answer.
type reply []byte

var ne = binary.NativeEndian

func (b reply) ask(flags uint32, key Key) error {
	ne.PutUint32(b[0:], 4) // the interface's version is 4.x since Linux 2.6
	ne.PutUint32(b[12:], uint32(len(b)))
	ne.PutUint32(b[16:], dmHeader)
	ne.PutUint32(b[28:], flags)
	switch {
	case len(key.UUID) >= dmUUIDLen:
		return ErrNoDevice
	case key.UUID != "":
		copy(b[176:], key.UUID)
	case key.Number != "":
		major, minor, ok := sysfs.SplitNumber(key.Number)
		if !ok {
			return fmt.Errorf("%q is no device number", key.Number)
		}
		ne.PutUint64(b[40:], unix.Mkdev(major, minor))
	}
	return nil
}

func (b reply) flags() uint32 { return ne.Uint32(b[28:]) }

func (b reply) head() Mapped {
	f := b.flags()
	return Mapped{
		Name:      cString(b[48 : 48+dmNameLen]),
		UUID:      cString(b[176 : 176+dmUUIDLen]),
		Number:    sysfs.Number(ne.Uint64(b[40:])),
		Open:      int(int32(ne.Uint32(b[24:]))),
		Suspended: f&dmSuspended != 0,
		ReadOnly:  f&dmReadOnly != 0,
		Live:      f&dmActivePresent != 0,
		Loaded:    f&dmLoadedPresent != 0,
	}
}

var errReply = errors.New("device-mapper: the answer does not parse")

// data returns the data after the header.
func (b reply) data() ([]byte, error) {
	if len(b) < dmHeader {
		return nil, errReply
	}
	start, size := ne.Uint32(b[16:]), ne.Uint32(b[12:])
	if start < dmHeader || uint64(start) > uint64(len(b)) || size < start || uint64(size) > uint64(len(b)) {
		return nil, errReply
	}
	return b[start:size], nil
}

// list parses the answer to dmListDevices; uuids reports whether it has uuids.
func (b reply) list() (all []Mapped, uuids bool, err error) {
	d, err := b.data()
	if err != nil {
		return nil, false, err
	}
	uuids = true
	for off := 0; ; {
		// struct dm_name_list: dev, next, name; then, aligned: event_nr, flags,
		// and, aligned, the uuid.
		if len(d)-off < 12 {
			if off == 0 {
				return nil, true, nil // no device at all
			}
			return nil, false, errReply
		}
		dev, next := ne.Uint64(d[off:]), int(ne.Uint32(d[off+8:]))
		if dev == 0 {
			return all, uuids, nil
		}
		end := len(d)
		if next != 0 {
			if next < 12 || next > len(d)-off {
				return nil, false, errReply
			}
			end = off + next
		}
		m := Mapped{Name: cString(d[off+12 : end]), Number: sysfs.Number(dev)}
		at := align8(off + 12 + len(m.Name) + 1)
		flags := uint32(0)
		if at+8 <= end {
			flags = ne.Uint32(d[at+4:])
		}
		switch {
		case flags&dmNameListHasUUID != 0 && align8(at+8) < end:
			m.UUID = cString(d[align8(at+8):end])
		case flags&dmNameListHasNoUUID == 0:
			uuids = false
		}
		all = append(all, m)
		if next == 0 {
			return all, uuids, nil
		}
		off = end
	}
}

// targets reads the answer to dmTableStatus. For a device without a live table
// the kernel returns the header alone, with a size that ends before the data.
func (b reply) targets() ([]Target, error) {
	n := ne.Uint32(b[20:])
	if n == 0 {
		return nil, nil
	}
	d, err := b.data()
	if err != nil {
		return nil, err
	}
	if uint64(n)*dmSpec > uint64(len(d)) {
		return nil, errReply
	}
	var all []Target
	off := 0
	for range n {
		if len(d)-off < dmSpec {
			return nil, errReply
		}
		// struct dm_target_spec: its next counts from the first.
		s := d[off : off+dmSpec]
		next := int(ne.Uint32(s[20:]))
		if next < off+dmSpec || next > align8(len(d)) { // the last is aligned beyond the end
			return nil, errReply
		}
		next = min(next, len(d))
		t := Target{Start: int64(ne.Uint64(s)) * 512, Length: int64(ne.Uint64(s[8:])) * 512, Type: cString(s[24:])}
		if t.Start < 0 || t.Length < 0 {
			return nil, errReply
		}
		t.Params = cString(d[off+dmSpec : next])
		all = append(all, t)
		off = next
	}
	return all, nil
}

// deps reads the answer to dmTableDeps, a struct dm_target_deps.
func (b reply) deps() ([]string, error) {
	d, err := b.data()
	if err != nil {
		return nil, err
	}
	if len(d) < 8 || uint64(ne.Uint32(d))*8 > uint64(len(d)-8) {
		return nil, errReply
	}
	var all []string
	for i := range int(ne.Uint32(d)) {
		all = append(all, sysfs.Number(ne.Uint64(d[8+8*i:])))
	}
	return all, nil
}

func align8(n int) int { return (n + 7) &^ 7 }

func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
