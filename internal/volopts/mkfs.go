package volopts

import (
	"cmp"
	"errors"
	"slices"
	"strings"
)

// A flag is an allowed option of mkfs.
type flag struct {
	name  string // "-b"
	value kind   // nil = the flag takes no value
}

// mkfsFlags returns the allow-list of a filesystem. It has no flags that name a file,
// another device, a part of the device, or a label or UUID (which become names in the host's /dev/disk),
// or that make mkfs do anything else. It has no flags with which former data of the device may appear in files
// after a power cut: no journal, an old journal (lazy_journal_init), no discard.
func mkfsFlags(fs string) []flag {
	switch fs {
	case "xfs":
		return []flag{
			{"-b", subOptions(word{key: "size", value: size("kK")})},
			{"-d", subOptions(
				word{key: "agcount", value: number(1, 1<<20)}, word{key: "agsize", value: size("bskmgtBSKMGT")},
				word{key: "su", value: size("bskmgBSKMG")}, word{key: "sw", value: number(1, 1<<16)},
				word{key: "sunit", value: number(0, 1<<30)}, word{key: "swidth", value: number(0, 1<<30)},
				word{key: "extszinherit", value: number(0, 1<<30)}, word{key: "noalign"},
			)},
			{"-i", subOptions(
				word{key: "size", value: powerOfTwo(256, 2048)}, word{key: "maxpct", value: number(0, 100)},
				word{key: "sparse", value: zeroOrOne}, word{key: "nrext64", value: zeroOrOne}, word{key: "exchange", value: zeroOrOne},
			)},
			{"-l", subOptions(
				word{key: "size", value: size("bskmgBSKMG")}, word{key: "su", value: size("bskmBSKM")},
				word{key: "sunit", value: number(0, 1<<20)}, word{key: "lazy-count", value: zeroOrOne},
			)},
			{"-m", subOptions(
				word{key: "crc", value: zeroOrOne}, word{key: "finobt", value: zeroOrOne}, word{key: "reflink", value: zeroOrOne},
				word{key: "rmapbt", value: zeroOrOne}, word{key: "bigtime", value: zeroOrOne}, word{key: "inobtcount", value: zeroOrOne},
			)},
			{"-n", subOptions(word{key: "size", value: size("kK")}, word{key: "ftype", value: zeroOrOne})},
			{"-s", subOptions(word{key: "size", value: size("kK")})},
		}
	case "btrfs":
		const on = "mixed-bg extref skinny-metadata no-holes quota squota free-space-tree block-group-tree"
		return []flag{
			{"-n", size("kK")},
			{"-s", size("kK")},
			{"-m", oneOf("single", "dup")},
			{"-d", oneOf("single", "dup")},
			{"-O", features(on)},
			{"-R", features(on)},
		}
	default: // ext4
		return []flag{
			{"-b", powerOfTwo(1024, 65536)},
			{"-C", powerOfTwo(1024, 1<<28)},
			{"-G", powerOfTwo(1, 1<<20)},
			{"-I", powerOfTwo(128, 65536)},
			{"-i", number(1024, 1<<30)},
			{"-m", percent},
			{"-N", number(1, 1<<32-1)},
			{"-J", subOptions(word{key: "size", value: number(1, 1<<20)})},
			{"-O", features("64bit bigalloc dir_index dir_nlink ea_inode ext_attr extent extents extra_isize " +
				"fast_commit filetype flex_bg huge_file inline_data large_dir large_file meta_bg " +
				"metadata_csum metadata_csum_seed orphan_file project quota resize_inode sparse_super " +
				"sparse_super2 uninit_bg verity")},
			{"-E", subOptions(
				word{key: "lazy_itable_init", value: zeroOrOne, bare: true}, word{key: "lazy_journal_init", value: oneOf("0")},
				word{key: "packed_meta_blocks", value: zeroOrOne, bare: true}, word{key: "discard"},
				word{key: "stride", value: number(1, 1<<30)}, word{key: "stripe_width", value: number(1, 1<<30)},
				word{key: "stripe-width", value: number(1, 1<<30)}, word{key: "num_backup_sb", value: oneOf("0", "1", "2")},
				word{key: "resize", value: number(1, 1<<48)},
			)},
			{"-T", list(label(32))},
		}
	}
}

// ParseMkfs parses mkfsOptions into arguments: flags of the filesystem's
// allow-list and their checked values. It accepts "-m 0" and "-m0", and returns flag and value
// as two arguments.
func ParseMkfs(fs, text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	if err := checkWords(text, " "); err != nil {
		return nil, err
	}
	flags := mkfsFlags(fs)
	var argv, seen []string
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' })
	for i := 0; i < len(words); i++ {
		word := words[i]
		f, ok := findFlag(flags, word)
		switch {
		case !ok:
			return nil, errors.New(quote(word) + " is not allowed for " + fsName(fs))
		case slices.Contains(seen, f.name):
			return nil, errors.New(quote(f.name) + " is given twice")
		case f.value == nil && word != f.name:
			return nil, errors.New(quote(word) + " is not allowed: " + f.name + " takes no value")
		}
		seen = append(seen, f.name)
		argv = append(argv, f.name)
		if f.value == nil {
			continue
		}
		value := word[len(f.name):]
		if value == "" {
			if i++; i == len(words) {
				return nil, errors.New(quote(word) + " needs a value")
			}
			value = words[i]
		}
		if !f.value(value) {
			return nil, errors.New(quote(f.name+" "+value) + " is not allowed for " + fsName(fs))
		}
		argv = append(argv, value)
	}
	return argv, nil
}

func findFlag(flags []flag, word string) (flag, bool) {
	for _, f := range flags {
		if strings.HasPrefix(word, f.name) {
			return f, true
		}
	}
	return flag{}, false
}

// checkWords refuses characters that no allowed option has, such as slashes. Its error names the word;
// sep separates words.
func checkWords(text, sep string) error {
	if len(text) > 4096 {
		return errors.New("longer than 4096 bytes")
	}
	for _, word := range strings.Split(text, sep) {
		if !consistsOf(word, "_.,=^+:-") {
			return errors.New(quote(word) + " contains a character that no allowed option has")
		}
	}
	return nil
}

func fsName(fs string) string { return cmp.Or(fs, FSTypes()[0]) }
