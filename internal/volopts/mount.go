package volopts

import (
	"errors"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/spelling"
)

// A Mount has the parsed mount options.
type Mount struct {
	ReadOnly bool
	Attrs    []string // per-mount attributes such as noatime, sorted, without ro (ReadOnly)
	Super    []string // superblock options, sorted, without duplicates
}

// A word is an allowed mount option, or an allowed word in the value of an mkfs option.
type word struct {
	group string // of a mount option: two words of one group contradict each other
	key   string
	value kind // nil = none
	bare  bool // the value is optional
}

// attrWords returns the attributes of a single mount, which may differ between the pods of a volume.
// suid, dev and exec are the default and missing.
func attrWords() []word {
	return []word{
		{group: "ro", key: "ro"}, {group: "ro", key: "rw"},
		{group: "atime", key: "noatime"}, {group: "atime", key: "relatime"}, {group: "atime", key: "strictatime"},
		{group: "nodiratime", key: "nodiratime"}, {group: "nosuid", key: "nosuid"}, {group: "nodev", key: "nodev"},
		{group: "noexec", key: "noexec"}, {group: "nosymfollow", key: "nosymfollow"},
	}
}

// superWords returns the options of the superblock, which all mounts of a volume share. It has no
// options that name a file or another device (journal_path, logdev, device), skip
// recovery or checks (noload, norecovery, nouuid), select a part (subvol), stop the node
// (errors=panic), show former data of the disk in files after a power cut
// (data=writeback, nobarrier), or belong to mount(8) (loop, remount, bind, x-*, X-mount.*).
func superWords(fs string) []word {
	all := []word{
		{group: "sync", key: "sync"}, {group: "dirsync", key: "dirsync"},
		{group: "lazytime", key: "lazytime"}, {group: "lazytime", key: "nolazytime"},
	}
	switch fs {
	case "xfs":
		return append(all, []word{
			{group: "discard", key: "discard"}, {group: "discard", key: "nodiscard"},
			{group: "allocsize", key: "allocsize", value: size("kmgKMG")},
			{group: "inode", key: "inode32"}, {group: "inode", key: "inode64"},
			{group: "largeio", key: "largeio"}, {group: "largeio", key: "nolargeio"},
			{group: "logbufs", key: "logbufs", value: number(2, 8)},
			{group: "logbsize", key: "logbsize", value: oneOf("16k", "32k", "64k", "128k", "256k", "16384", "32768", "65536", "131072", "262144")},
			{group: "noalign", key: "noalign"}, {group: "swalloc", key: "swalloc"}, {group: "wsync", key: "wsync"},
			{group: "filestreams", key: "filestreams"},
			{group: "sunit", key: "sunit", value: number(0, 1<<30)}, {group: "swidth", key: "swidth", value: number(0, 1<<30)},
			{group: "grpid", key: "grpid"}, {group: "grpid", key: "nogrpid"},
			{group: "uquota", key: "uquota"}, {group: "uquota", key: "usrquota"}, {group: "uquota", key: "uqnoenforce"},
			{group: "gquota", key: "gquota"}, {group: "gquota", key: "grpquota"}, {group: "gquota", key: "gqnoenforce"},
			{group: "pquota", key: "pquota"}, {group: "pquota", key: "prjquota"}, {group: "pquota", key: "pqnoenforce"},
			{group: "noquota", key: "noquota"},
		}...)
	case "btrfs":
		return append(all, []word{
			{group: "discard", key: "discard", value: oneOf("async", "sync"), bare: true}, {group: "discard", key: "nodiscard"},
			{group: "compress", key: "compress", value: compression, bare: true},
			{group: "compress", key: "compress-force", value: compression, bare: true},
			{group: "ssd", key: "ssd"}, {group: "ssd", key: "nossd"},
			{group: "autodefrag", key: "autodefrag"}, {group: "autodefrag", key: "noautodefrag"},
			{group: "space_cache", key: "space_cache", value: oneOf("v2")},
			{group: "commit", key: "commit", value: number(1, 300)},
			{group: "flushoncommit", key: "flushoncommit"}, {group: "flushoncommit", key: "noflushoncommit"},
			{group: "datacow", key: "datacow"}, {group: "datacow", key: "nodatacow"},
			{group: "datasum", key: "datasum"}, {group: "datasum", key: "nodatasum"},
			{group: "barrier", key: "barrier"},
			{group: "treelog", key: "treelog"}, {group: "treelog", key: "notreelog"},
			{group: "acl", key: "acl"}, {group: "acl", key: "noacl"},
			{group: "thread_pool", key: "thread_pool", value: number(1, 1024)},
		}...)
	default: // ext4
		return append(all, []word{
			{group: "discard", key: "discard"}, {group: "discard", key: "nodiscard"},
			{group: "data", key: "data", value: oneOf("ordered", "journal")},
			{group: "data_err", key: "data_err", value: oneOf("abort", "ignore")},
			{group: "commit", key: "commit", value: number(0, 300)},
			{group: "errors", key: "errors", value: oneOf("remount-ro", "continue")},
			{group: "barrier", key: "barrier", value: oneOf("1"), bare: true},
			{group: "auto_da_alloc", key: "auto_da_alloc", value: zeroOrOne, bare: true}, {group: "auto_da_alloc", key: "noauto_da_alloc"},
			{group: "delalloc", key: "delalloc"}, {group: "delalloc", key: "nodelalloc"},
			{group: "dioread", key: "dioread_lock"}, {group: "dioread", key: "dioread_nolock"},
			{group: "block_validity", key: "block_validity"}, {group: "block_validity", key: "noblock_validity"},
			{group: "init_itable", key: "init_itable", value: number(0, 1000), bare: true}, {group: "init_itable", key: "noinit_itable"},
			{group: "inode_readahead_blks", key: "inode_readahead_blks", value: powerOfTwo(1, 1<<20)},
			{group: "journal_checksum", key: "journal_checksum"}, {group: "journal_checksum", key: "nojournal_checksum"},
			{group: "journal_ioprio", key: "journal_ioprio", value: number(0, 7)},
			{group: "max_batch_time", key: "max_batch_time", value: number(0, 1<<30)},
			{group: "min_batch_time", key: "min_batch_time", value: number(0, 1<<30)},
			{group: "stripe", key: "stripe", value: number(0, 1<<30)},
			{group: "acl", key: "acl"}, {group: "user_xattr", key: "user_xattr"},
			{group: "grpid", key: "grpid"}, {group: "grpid", key: "nogrpid"},
			{group: "usrquota", key: "usrquota"}, {group: "grpquota", key: "grpquota"}, {group: "prjquota", key: "prjquota"},
			{group: "noquota", key: "noquota"},
		}...)
	}
}

// compression takes zlib, lzo or zstd with a level, or none.
func compression(s string) bool {
	name, level, given := strings.Cut(s, ":")
	switch name {
	case "zlib":
		return !given || number(1, 9)(level)
	case "zstd":
		return !given || number(1, 15)(level)
	case "lzo", "no", "none":
		return !given
	}
	return false
}

// suggest returns a question with the allowed word that is similar.
func suggest(wrong string, lists ...[]word) string {
	var keys []string
	for _, w := range slices.Concat(lists...) {
		keys = append(keys, w.key)
	}
	key, _, _ := strings.Cut(wrong, "=")
	for _, fs := range FSTypes() {
		if slices.ContainsFunc(superWords(fs), func(w word) bool { return w.key == key }) {
			return "" // a word of another filesystem, or of this one with a wrong value
		}
	}
	return spelling.Suggest(key, keys)
}

// ParseMount parses mountOptions into attributes of the mount and options of the
// superblock. It ignores repeated words, and refuses contradictions.
func ParseMount(fs, text string) (Mount, error) {
	var m Mount
	if text == "" {
		return m, nil
	}
	if err := checkWords(text, ","); err != nil {
		return m, err
	}
	attrs, super := attrWords(), superWords(fs)
	groups := make(map[string]string)
	for _, w := range strings.Split(text, ",") {
		known, isAttr := findWord(attrs, w)
		if !isAttr {
			var ok bool
			if known, ok = findWord(super, w); !ok {
				return m, errors.New(quote(w) + " is not allowed for " + fsName(fs) + suggest(w, attrs, super))
			}
		}
		if before, twice := groups[known.group]; twice {
			if before == w {
				continue
			}
			return m, errors.New(quote(w) + " contradicts " + quote(before))
		}
		groups[known.group] = w
		switch {
		case w == "ro":
			m.ReadOnly = true
		case w == "rw": // the default, unless kubelet passes ro
		case isAttr:
			m.Attrs = append(m.Attrs, w)
		default:
			m.Super = append(m.Super, w)
		}
	}
	slices.Sort(m.Attrs)
	slices.Sort(m.Super)
	return m, nil
}

// CheckSuper refuses an option of the superblock that is not allowed.
func CheckSuper(fs, option string) error {
	if err := checkWords(option, ","); err != nil {
		return err
	}
	if _, ok := findWord(superWords(fs), option); !ok {
		return errors.New(quote(option) + " is not allowed for " + fsName(fs))
	}
	return nil
}

func findWord(words []word, text string) (word, bool) {
	key, value, given := strings.Cut(text, "=")
	for _, w := range words {
		if w.key == key {
			if !given {
				return w, w.value == nil || w.bare
			}
			return w, w.value != nil && w.value(value)
		}
	}
	return word{}, false
}
