package mount

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// The mkfs programs. Their options -F and -f only suppress checks of mkfs: format itself proves
// that the device is blank.
var makers = map[string]struct {
	argv  []string
	pkg   string // Debian's
	least int64  // bytes
}{
	"ext4":  {[]string{"mkfs.ext4", "-F", "-q", "-m0", "-e", "remount-ro"}, "e2fsprogs", 128 << 10},
	"xfs":   {[]string{"mkfs.xfs", "-f", "-q"}, "xfsprogs", 300 << 20},
	"btrfs": {[]string{"mkfs.btrfs", "-f", "-q"}, "btrfs-progs", 109 << 20},
}

// MinSize is the size of the smallest device for a filesystem with default options: mkfs.xfs needs
// 300 MiB, mkfs.btrfs 109 MiB, and the tail of the device is not used.
func MinSize(fsType string) int64 { return makers[fsType].least + volume.Tail }

// format is the child that makes a filesystem. The child itself proves that the device is blank,
// and holds it exclusively until mkfs starts, which opens it exclusively again. The two opens
// cannot overlap; a program that opens the device exclusively between them makes mkfs fail.
//
// The format record is written after the proof. A child that ends without a filesystem
// erases mkfs's writes, if there were any, and then removes the record. If it cannot erase
// them, because another program uses the device or the disk fails, it removes the record all
// the same: the device may contain that program's data then, and no mkfs may be repeated
// over it. A remaining record means that the child was killed, or the machine stopped: the
// next child erases the remains before it starts mkfs, and until this has succeeded the
// record remains.
func format(f Formatting) error {
	maker, ok := makers[f.Type]
	if !ok {
		return &Refusal{What: fmt.Sprintf("flexd does not make %q", f.Type), Hint: "it makes ext4, xfs and btrfs", Why: volume.Invalid}
	}
	if _, err := exec.LookPath(maker.argv[0]); err != nil {
		return notInstalled(maker.argv[0], maker.pkg)
	}
	table, err := mounttable.Own()
	if err != nil {
		return err
	}
	if err := mayLookUp(f.Type, table); err != nil {
		return err
	}
	dev, err := openDevice(f.Device, 0)
	if err != nil {
		return err
	}
	defer dev.Close() // the device keeps its identity until then
	if why := deviceProblem(f.Device); why != "" {
		return &Refusal{What: f.Device.Path + " " + why, Why: volume.Unusable}
	}
	if size, err := sizeOf(dev); err != nil {
		return err
	} else if size < makers["ext4"].least+volume.Tail {
		return &Refusal{What: fmt.Sprintf("%s has only %s", f.Device.Path, volume.Bytes(size)), Hint: fmt.Sprintf("%s needs %s", f.Type, volume.Bytes(MinSize(f.Type))), Why: volume.NoSpace}
	}
	if err := unused(dev, f.Device); err != nil {
		return err
	}
	alone, err := openDevice(f.Device, unix.O_EXCL)
	if err != nil {
		return err
	}
	defer alone.Close()
	blank, err := mayFormat(dev, f)
	if err != nil {
		return err
	}
	err = run.AwaitGo()
	if err == nil {
		alone.Close()
		err = unused(dev, f.Device)
	}
	switch {
	case err != nil && f.Repeat: // the record is that of the interrupted mkfs
		return err
	case err != nil:
		return withoutRecord(f, err)
	case f.Repeat:
		if err := eraseRemains(dev, f); err != nil {
			return fmt.Errorf("the remains of the interrupted mkfs could not be erased: %v", err)
		}
	}
	wrote, err := mkfs(dev, f)
	if err == nil {
		err = mountable(dev, f)
	}
	if err == nil {
		return nil
	}
	if !wrote {
		return withoutRecord(f, err)
	}
	if below := writableBelow(f.Device); below != nil && !errors.Is(err, unix.ENOSPC) { // not every mkfs prints this
		err = fmt.Errorf("%w; %w", err, below)
	}
	if left := clean(dev, f, blank); left != nil {
		err = fmt.Errorf("%v; its writes could not be erased: %v; %s", err, left, volume.EraseAdvice(handle(f.Device)))
	}
	return withoutRecord(f, err)
}

// mkfs runs the program, and checks that there is a superblock afterwards. It reports
// whether the program wrote anything.
func mkfs(dev *os.File, f Formatting) (wrote bool, err error) {
	size, err := sizeOf(dev)
	if err != nil {
		return false, err
	}
	argv := mkfsArgs(f, volume.Room(size))
	p, err := tool(limits{mkfsDeadline, f.Memory}, makers[f.Type].pkg, nil, argv...)
	if err != nil {
		return p.wrote, err
	}
	if p.code != 0 {
		return p.wrote, fmt.Errorf("%s: exit status %d: %s", argv[0], p.code, mkfsReason(p.errs, p.out))
	}
	if sb, err := readSuperblock(dev, f.Type); err != nil {
		return p.wrote, fmt.Errorf("%s succeeded, but %w", argv[0], err)
	} else if sb.Unfinished {
		return p.wrote, fmt.Errorf("%s succeeded, but its superblock is marked as in progress", argv[0])
	}
	return p.wrote, nil
}

// mkfsArgs returns the command that makes a filesystem of a size, which it rounds down to
// the largest block of a filesystem.
func mkfsArgs(f Formatting, size int64) []string {
	const block = 64 << 10
	size = size / block * block
	argv := slices.Concat(makers[f.Type].argv, f.Opts)
	switch f.Type {
	case "ext4":
		if f.Created != "" {
			argv = slices.Insert(argv, len(makers["ext4"].argv), "-U", ext4UUID(f.Created))
		}
		// The default journal is too small to grow these while they are mounted (ext4Credits).
		// They get the journal size of the next larger ones.
		if 30<<20 <= size && size < 32<<20 && !slices.ContainsFunc(f.Opts, func(o string) bool { return o == "-J" || o == "-b" || o == "-T" }) {
			argv = append(argv, "-J", "size=4")
		}
	case "xfs":
		argv = append(argv, "-d", fmt.Sprintf("size=%d", size))
	case "btrfs":
		argv = append(argv, "--byte-count", strconv.FormatInt(size, 10))
	}
	argv = append(argv, "--", f.Device.Path)
	if f.Type == "ext4" {
		argv = append(argv, strconv.FormatInt(size>>10, 10)+"k")
	}
	return argv
}

// ext4UUID returns the UUID of the filesystem that flexd makes on a volume. It identifies the backup
// superblocks of an interrupted mkfs.
func ext4UUID(created volume.UUID) string {
	id := sha256.Sum256([]byte("ext4 of flexd on " + created))
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8: the rest is free
	return uuidText(id[:16])
}

// mountable checks that blkid recognizes a new filesystem as its type, and that the kernel mounts
// it. With some options, with a local mke2fs.conf, or in a release newer than the kernel, mkfs
// makes filesystems that blkid recognizes as ext3, or that the kernel does not mount.
func mountable(dev *os.File, f Formatting) error {
	options, remedy := "its defaults", "give options that this kernel supports (for ext4 look at /etc/mke2fs.conf)"
	if len(f.Opts) > 0 {
		options, remedy = "the options "+strings.Join(f.Opts, " "), "use other options"
	}
	if s, err := identify(dev); err != nil {
		return err
	} else if s.Type != f.Type {
		return fmt.Errorf("with %s mkfs makes %s, not %s; %s", options, s.name(), f.Type, remedy)
	}
	mnt, err := build(dev, MountSpec{Device: f.Device, FSType: f.Type, First: true})
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("this kernel cannot mount a filesystem that mkfs makes with %s: %w; %s", options, err, remedy)
	case err != nil:
		return fmt.Errorf("the new filesystem cannot be mounted: %w", err)
	}
	return unix.Close(mnt)
}

// deviceProblem returns why a device is unfit for mkfs with any contents; "" = it is fit.
func deviceProblem(d volume.Device) string {
	switch {
	case d.ReadOnly:
		return "is read-only"
	case d.Suspended:
		return "is suspended"
	case d.Unusable:
		return "must not be used: " + d.Reason
	case d.Unsound != "":
		return "cannot be formatted: " + d.Unsound
	}
	return ""
}

// mayFormat returns nil if mkfs may run, with the coverage of its proof. No mkfs runs without this
// check.
func mayFormat(dev *os.File, f Formatting) (coverage, error) {
	var why string
	var err error
	blank := coverageOf(f.Created != "")
	if f.Repeat {
		var s signature
		if s, err = identify(dev); err == nil {
			why, err = notLeftoverReason(dev, f.Device, f.Created, s)
		}
		blank = coverage{} // data beyond the spans need not be blank
	} else {
		why, blank, err = notBlank(dev, f.Device, blank)
	}
	if why != "" {
		err = &Refusal{What: why + " on " + f.Device.Path, Hint: volume.EraseAdvice(handle(f.Device))}
	}
	return blank, err
}

// notBlank describes the contents of a device, "" if it is blank, and returns the coverage
// that it read.
func notBlank(dev *os.File, d volume.Device, e coverage) (string, coverage, error) {
	s, err := identifyWithin(dev, e.size)
	if err != nil {
		return "", e, err
	}
	if !s.none() {
		return describe(dev, s), e, nil
	}
	found, e, err := proveBlank(d, e)
	if err != nil || found == nil {
		return "", e, err
	}
	return found.String(), e, nil
}

// notLeftoverReason returns why the contents of a device cannot be the remains of an
// interrupted mkfs; "" = they can. mkfs.btrfs writes its superblocks last, mkfs.ext4 its primary
// superblock after the backups, which have the UUID of the volume's mkfs; mkfs.xfs marks its
// superblock first. None of them writes into the first kilobyte, or blocks full of data: their
// writes before the end are nearly all zeros.
func notLeftoverReason(dev *os.File, d volume.Device, created volume.UUID, s signature) (string, error) {
	unfinished := false
	if s.Type == "xfs" && s.ours() {
		sb, err := readSuperblock(dev, "xfs")
		if err != nil {
			return "", err
		}
		unfinished = sb.Unfinished
	}
	if !s.none() && !unfinished {
		return describe(dev, s), nil
	}
	own := func(superblock []byte) bool {
		return created != "" && superblockType(superblock) == "ext4" && uuidText(superblock[104:120]) == ext4UUID(created)
	}
	var found *finding
	_, err := walk(d, coverageOf(false), func(b []byte, off int64) error {
		for i := 0; i < len(b) && found == nil; i += align {
			block, at := b[i:min(i+align, len(b))], off+int64(i)
			first := firstNonZero(block)
			switch {
			case first < 0:
			case unfinished && !dense(block): // an unfinished xfs has copies of its own superblock
			case at == 0 && first < 1024, dense(block), bytes.Contains(block, []byte("EFI PART")):
				found = &finding{offset: at + int64(first)}
			default:
				for _, k := range []int{0, 1024} {
					if t := superblockType(block[min(k, len(block)):]); t != "" && !own(block[k:]) {
						found = &finding{offset: at + int64(k), what: "a backup superblock of " + t}
					}
				}
			}
		}
		if found != nil {
			return errFound
		}
		return nil
	})
	if found == nil {
		return "", err
	}
	if f := recognize(d, own); f != nil && !unfinished {
		found = f
	}
	return found.String(), nil
}

// dense reports whether a sector of a block is full of data. Until it ends, mkfs writes nearly only
// zeros and bitmaps.
func dense(block []byte) bool {
	for sector := range slices.Chunk(block, 512) {
		if n := len(sector) - bytes.Count(sector, []byte{0}) - bytes.Count(sector, []byte{0xff}); n > 384 {
			return true
		}
	}
	return false
}

// mkfsReason selects the reason from the output of mkfs: not its usage text, nor messages
// about its defaults.
func mkfsReason(outputs ...[]byte) string {
	var kept []string
	for line := range strings.Lines(string(bytes.Join(outputs, []byte("\n")))) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "Usage:") || strings.HasPrefix(line, "NOTE:") || strings.HasPrefix(line, "Extended options are separated") {
			break // help text follows
		}
		if line != "" {
			kept = append(kept, line)
		}
	}
	if len(kept) == 0 {
		return "it printed no reason"
	}
	return oneLine([]byte(strings.Join(kept, "; ")))
}
