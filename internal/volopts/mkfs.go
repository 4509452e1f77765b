package volopts

import (
	"errors"
	"slices"
	"strings"
)

// A flag is an allowed option of mkfs.
type flag struct {
	name  string // "-b"
	value kind   // nil = the flag takes no value
}

// mkfsFlags returns the allow-list of a filesystem. It has no flag that names a file,
// another device, a part of the device or an identity, or that makes mkfs do anything else:
// a label or UUID becomes a name in the host's /dev/disk, where another disk may be expected.
// Nor has it a flag that lets the contents of the device before mkfs appear in files after a
// power cut: no journal, an old journal (lazy_journal_init), blocks that are not discarded.
func mkfsFlags(fs string) []flag {
	switch fs {
	case "xfs":
		return []flag{
			{"-b", subs(word{key: "size", value: size("kK")})},
			{"-d", subs(
				word{key: "agcount", value: number(1, 1<<20)}, word{key: "agsize", value: size("bskmgtBSKMGT")},
				word{key: "su", value: size("bskmgBSKMG")}, word{key: "sw", value: number(1, 1<<16)},
				word{key: "sunit", value: number(0, 1<<30)}, word{key: "swidth", value: number(0, 1<<30)},
				word{key: "extszinherit", value: number(0, 1<<30)}, word{key: "noalign"},
			)},
			{"-i", subs(
				word{key: "size", value: power(256, 2048)}, word{key: "maxpct", value: number(0, 100)},
				word{key: "sparse", value: bit}, word{key: "nrext64", value: bit}, word{key: "exchange", value: bit},
			)},
			{"-l", subs(
				word{key: "size", value: size("bskmgBSKMG")}, word{key: "su", value: size("bskmBSKM")},
				word{key: "sunit", value: number(0, 1<<20)}, word{key: "lazy-count", value: bit},
			)},
			{"-m", subs(
				word{key: "crc", value: bit}, word{key: "finobt", value: bit}, word{key: "reflink", value: bit},
				word{key: "rmapbt", value: bit}, word{key: "bigtime", value: bit}, word{key: "inobtcount", value: bit},
			)},
			{"-n", subs(word{key: "size", value: size("kK")}, word{key: "ftype", value: bit})},
			{"-s", subs(word{key: "size", value: size("kK")})},
		}
	case "btrfs":
		const on = "mixed-bg extref skinny-metadata no-holes quota squota free-space-tree block-group-tree"
		return []flag{
			{"-n", size("kK")},
			{"-s", size("kK")},
			{"-m", among("single", "dup")},
			{"-d", among("single", "dup")},
			{"-O", features(on)},
			{"-R", features(on)},
		}
	default: // ext4
		return []flag{
			{"-b", power(1024, 65536)},
			{"-C", power(1024, 1<<28)},
			{"-G", power(1, 1<<20)},
			{"-I", power(128, 65536)},
			{"-i", number(1024, 1<<30)},
			{"-m", percent},
			{"-N", number(1, 1<<32-1)},
			{"-J", subs(word{key: "size", value: number(1, 1<<20)})},
			{"-O", features("64bit bigalloc dir_index dir_nlink ea_inode ext_attr extent extents extra_isize " +
				"fast_commit filetype flex_bg huge_file inline_data large_dir large_file meta_bg " +
				"metadata_csum metadata_csum_seed orphan_file project quota resize_inode sparse_super " +
				"sparse_super2 uninit_bg verity")},
			{"-E", subs(
				word{key: "lazy_itable_init", value: bit, bare: true}, word{key: "lazy_journal_init", value: among("0")},
				word{key: "packed_meta_blocks", value: bit, bare: true}, word{key: "discard"},
				word{key: "stride", value: number(1, 1<<30)}, word{key: "stripe_width", value: number(1, 1<<30)},
				word{key: "stripe-width", value: number(1, 1<<30)}, word{key: "num_backup_sb", value: among("0", "1", "2")},
				word{key: "resize", value: number(1, 1<<48)},
			)},
			{"-T", list(label(32))},
		}
	}
}

// ParseMkfs parses mkfsOptions into arguments: each is a flag of the filesystem's
// allow-list or its checked value. A value may stand in a word of its own ("-m 0") or not
// ("-m0"); it is returned apart.
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

// checkWords refuses every byte that no allowed option has, such as separators and slashes.
// Its error has the word: words are separated by sep.
func checkWords(text, sep string) error {
	if len(text) > 4096 {
		return errors.New("longer than 4096 bytes")
	}
	for _, word := range strings.Split(text, sep) {
		if !madeOf(word, "_.,=^+:-") {
			return errors.New(quote(word) + " contains a character that no allowed option has")
		}
	}
	return nil
}

func fsName(fs string) string {
	if fs == "" {
		return FSTypes()[0]
	}
	return fs
}
