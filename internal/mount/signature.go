package mount

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// A signature is the result of blkid for a device.
type signature struct {
	Type      string // "ext4", "LVM2_member", ...; "" = none
	Partition string // type of a partition table; "" = none
	Ambiguous bool   // several that contradict each other
}

func (s signature) none() bool { return s == signature{} }

// ours reports whether the signature is one of a filesystem that flexd mounts, and nothing else.
func (s signature) ours() bool {
	if s.Partition != "" || s.Ambiguous {
		return false
	}
	return s.Type == "ext4" || s.Type == "xfs" || s.Type == "btrfs"
}

// made reports whether mkfs of that type may have written it.
func (s signature) made(fsType string) bool {
	return s.Partition == "" && !s.Ambiguous &&
		(s.Type == fsType || fsType == "ext4" && (s.Type == "ext2" || s.Type == "ext3"))
}

// name returns the recognized type.
func (s signature) name() string { return cmp.Or(s.Type, s.Partition, "ambiguous") }

// identify runs blkid, with further options, on the device itself, without its cache.
func identify(dev *os.File, options ...string) (signature, error) {
	return identifyWithin(dev, 0, options...)
}

// identifyWithin is identify for the beginning of a device, as if the device had that size; 0 = all of
// it. blkid also finds nothing on a device that it cannot read: an empty result is an error if an end,
// where nearly all formats have their labels, cannot be read. Otherwise it proves nothing.
func identifyWithin(dev *os.File, size int64, options ...string) (signature, error) {
	argv := slices.Concat([]string{"blkid", "-p", "-o", "export"}, options)
	if size > 0 {
		argv = append(argv, "-S", strconv.FormatInt(size, 10))
	}
	argv = append(argv, "/proc/self/fd/3")
	p, err := tool(limits{}, "util-linux", []*os.File{dev}, argv...)
	if err != nil {
		return signature{}, err
	}
	switch p.code {
	case 0:
		s := parseExport(p.out)
		if s.none() {
			return signature{}, fmt.Errorf("blkid found an unnamed signature: %s", oneLine(p.out))
		}
		return s, nil
	case 2:
		return signature{}, readEnds(dev, size)
	case 8:
		return signature{Ambiguous: true}, nil
	}
	return signature{}, fmt.Errorf("blkid: exit status %d: %s", p.code, oneLine(p.errs))
}

// readEnds fails if an end of a device, or of its beginning of that size, cannot be read.
func readEnds(dev *os.File, size int64) (err error) {
	if size == 0 {
		if size, err = sizeOf(dev); err != nil {
			return err
		}
	}
	buf := make([]byte, min(endSize, size))
	for _, from := range []int64{0, size - int64(len(buf))} {
		if _, err := dev.ReadAt(buf, from); err != nil {
			return fmt.Errorf("read %d bytes at %s: %w", len(buf), at(from), err)
		}
	}
	return nil
}

func parseExport(out []byte) signature {
	var s signature
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "TYPE":
			s.Type = value
		case "PTTYPE":
			s.Partition = value
		}
	}
	return s
}

// identifySeen is identify for a device on which flexd has seen a filesystem before. It ignores other
// signatures if all of them are where the filesystem has its files: a file may contain them, such as
// the md superblock at the end that makes blkid find a RAID member. Otherwise it also returns the
// signatures that are elsewhere, and that of the filesystem.
func identifySeen(dev *os.File, seen string) (signature, []found, error) {
	s, err := identify(dev)
	if err != nil || seen == "" || s.none() || s.ours() || s.Partition != "" {
		return s, nil, err
	}
	own, err := identify(dev, "-n", seen)
	if err != nil || own != (signature{Type: seen}) {
		return s, nil, err
	}
	sb, err := readSuperblock(dev, seen)
	if err != nil {
		return s, nil, err
	}
	all, head := wipefs(dev), headOf(dev, seen)
	counted := slices.DeleteFunc(slices.Clone(all), func(f found) bool { return f.kind != seen && f.offset >= head && f.offset < sb.Size })
	if len(all) == 0 || slices.ContainsFunc(counted, func(f found) bool { return f.kind != seen }) {
		return s, counted, nil
	}
	return own, nil, nil
}

// identifyBefore returns the signature of a filesystem that flexd has seen on a device whose end cannot
// be read, if no other signature is before the end of the filesystem.
func identifyBefore(dev *os.File, seen string) (signature, bool) {
	sb, err := readSuperblock(dev, seen)
	if err != nil {
		return signature{}, false
	}
	s, err := identifyWithin(dev, sb.Size)
	return s, err == nil && s == signature{Type: seen}
}

// wipefs returns all signatures on a device; none if it fails.
func wipefs(dev *os.File) []found {
	p, err := tool(limits{}, "util-linux", []*os.File{dev}, "wipefs", "-J", "--no-act", "/proc/self/fd/3")
	if err != nil || p.code != 0 {
		return nil
	}
	return parseWipefs(p.out)
}

// describe describes the finding with its offset, as wipefs reports it: the owner would use
// wipefs to erase it.
func describe(dev *os.File, s signature) string { return describeFound(s, wipefs(dev)) }

func describeFound(s signature, all []found) string {
	count := map[string]int{}
	for _, f := range all {
		count[f.kind]++
	}
	var texts []string
	for _, f := range all {
		switch n := count[f.kind]; {
		case n > 2: // as of ZFS; the remedy, which lists them all, must fit in kubelet's event
			texts = append(texts, fmt.Sprintf("%s and %d more of it", f, n-1))
			delete(count, f.kind)
		case n > 0:
			texts = append(texts, f.String())
		}
	}
	if len(texts) == 0 {
		switch {
		case s.Type != "" && s.Partition != "":
			return fmt.Sprintf("found %s signature and %s partition table", article(s.Type), article(s.Partition))
		case s.Type != "":
			return fmt.Sprintf("found %s signature", article(s.Type))
		case s.Partition != "":
			return fmt.Sprintf("found %s partition table", article(s.Partition))
		}
		return "found several signatures"
	}
	what := "found " + strings.Join(texts, " and ")
	if s.Ambiguous {
		what += ", which contradict each other"
	}
	return what
}

// found is one signature.
type found struct {
	offset int64
	kind   string // "linux_raid_member"
}

func (f found) String() string {
	return fmt.Sprintf("%s signature at %s", article(f.kind), at(f.offset))
}

// article returns the name of a format with the article of its pronunciation.
func article(kind string) string {
	if strings.ContainsAny(kind[:min(len(kind), 1)], "aeioxL") { // ext2, iso9660, xfs, LVM2_member
		return "an " + kind
	}
	return "a " + kind
}

func parseWipefs(out []byte) []found {
	var list struct {
		Signatures []struct {
			Offset string `json:"offset"`
			Type   string `json:"type"`
		} `json:"signatures"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil
	}
	var all []found
	for _, s := range list.Signatures {
		offset, err := strconv.ParseUint(s.Offset, 0, 63)
		if err != nil {
			return nil
		}
		all = append(all, found{int64(offset), s.Type})
	}
	return all
}

func at(offset int64) string { return fmt.Sprintf("offset %d (0x%x)", offset, offset) }
