package volopts

import (
	"reflect"
	"strings"
	"testing"
)

func TestMkfsOptions(t *testing.T) {
	for _, tt := range []struct {
		fs, text string
		want     []string
	}{
		{"", "-m 0", []string{"-m", "0"}},
		{"", "-m0", []string{"-m", "0"}},
		{"ext4", "  -b 4096   -O ^resize_inode,64bit ", []string{"-b", "4096", "-O", "^resize_inode,64bit"}},
		{"ext4", "-E lazy_itable_init=0,lazy_journal_init=0,discard,stride=16,stripe-width=32 -T largefile,news",
			[]string{"-E", "lazy_itable_init=0,lazy_journal_init=0,discard,stride=16,stripe-width=32", "-T", "largefile,news"}},
		{"ext4", "-m 0.05", []string{"-m", "0.05"}},
		{"ext4", "-m 1.00", []string{"-m", "1.00"}},
		{"ext4", "-J size=64 -I 256 -i 16384 -N 1000 -m 0.5 -E packed_meta_blocks=1", []string{"-J", "size=64", "-I", "256", "-i", "16384", "-N", "1000", "-m", "0.5", "-E", "packed_meta_blocks=1"}},
		{"xfs", "-m crc=1,reflink=0 -d agcount=4,su=64k,sw=2 -i size=512 -l size=64m -n size=8k -s size=4k -b size=4k",
			[]string{"-m", "crc=1,reflink=0", "-d", "agcount=4,su=64k,sw=2", "-i", "size=512", "-l", "size=64m", "-n", "size=8k", "-s", "size=4k", "-b", "size=4k"}},
		{"btrfs", "-n 16k -s 4096 -m dup -d single -O no-holes,^extref -R quota", []string{"-n", "16k", "-s", "4096", "-m", "dup", "-d", "single", "-O", "no-holes,^extref", "-R", "quota"}},
		{"xfs", " ", nil},
	} {
		got, err := ParseMkfs(tt.fs, tt.text)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s %q: got %q, %v", tt.fs, tt.text, got, err)
		}
	}
}

// The refusal of each option names the wrong word.
func TestMkfsOptionsAsAttacks(t *testing.T) {
	for _, tt := range []struct{ fs, text, word string }{
		{"ext4", "-d /etc", `"/etc"`},
		{"ext4", "-d etc", `"-d"`},
		{"ext4", "-detc", `"-detc"`},
		{"ext4", "-m 0 -d .", `"-d"`},
		{"ext4", "-J device=/dev/sda", `"device=/dev/sda"`},
		{"ext4", "-J device=LABEL=x", `"-J device=LABEL=x"`},
		{"ext4", "-J size=64,device=sda", `"-J size=64,device=sda"`},
		{"ext4", "-J location=1", `"-J location=1"`},
		{"ext4", "-c", `"-c"`},
		{"ext4", "-l badblocks", `"-l"`},
		{"ext4", "-U clear", `"-U"`},
		{"ext4", "-F", `"-F"`},
		{"ext4", "-n", `"-n"`},
		{"ext4", "-q", `"-q"`},
		{"ext4", "-S", `"-S"`},
		{"ext4", "-V", `"-V"`},
		{"ext4", "-z undo", `"-z"`},
		{"ext4", "-t ext3", `"-t"`},
		{"ext4", "-M mnt", `"-M"`},
		{"ext4", "-e panic", `"-e"`},
		{"ext4", "-E offset=1", `"-E offset=1"`},
		{"ext4", "-E root_owner=0:0", `"-E root_owner=0:0"`},
		{"ext4", "-E stride=1,offset=1", `"-E stride=1,offset=1"`},
		{"ext4", "-E stride=1,stride=2", `"-E stride=1,stride=2"`},
		{"ext4", "-E discard=1", `"-E discard=1"`},
		{"ext4", "-E", `"-E"`},
		{"ext4", "-E -F", `"-E -F"`},
		{"ext4", "-O journal_dev", `"-O journal_dev"`},
		{"ext4", "-O none", `"-O none"`},
		{"ext4", "-O ^^quota", `"-O ^^quota"`},
		{"ext4", "-O encrypt,", `"-O encrypt,"`},
		{"ext4", "-O ^has_journal", `"-O ^has_journal"`},
		{"ext4", "-E nodiscard", `"-E nodiscard"`},
		{"ext4", "-E lazy_journal_init=1", `"-E lazy_journal_init=1"`},
		{"ext4", "-E lazy_journal_init", `"-E lazy_journal_init"`},
		{"xfs", "-K", `"-K"`},
		{"btrfs", "-K", `"-K"`},
		{"btrfs", "--byte-count 1g", `"--byte-count"`},
		{"ext4", "-b 4096 -b 1024", `"-b"`},
		{"ext4", "-b -F", `"-b -F"`},
		{"ext4", "-b 4095", `"-b 4095"`},
		{"ext4", "-b 99999999999999999999", `"-b 99999999999999999999"`},
		{"ext4", "-m 51", `"-m 51"`},
		{"ext4", "-m 50.01", `"-m 50.01"`},
		{"ext4", "-m 1.", `"-m 1."`},
		{"ext4", "-m 0.005", `"-m 0.005"`},
		{"ext4", "-m 0.5e", `"-m 0.5e"`},
		{"ext4", "-m -1", `"-m -1"`},
		{"ext4", "-L cloudimg-rootfs", `"-L"`},
		{"ext4", "-Lx", `"-Lx"`},
		{"ext4", "-m 0 -qL x", `"-qL"`},
		{"ext4", "-KL x", `"-KL"`},
		{"ext4", "--label=x", `"--label=x"`},
		{"ext4", "-U random", `"-U"`},
		{"ext4", "-E hash_seed=x", `"-E hash_seed=x"`},
		{"ext4", "-T news,-F", `"-T news,-F"`},
		{"ext4", "-T /etc", `"/etc"`},
		{"ext4", "--help", `"--help"`},
		{"ext4", "--", `"--"`},
		{"ext4", "-", `"-"`},
		{"ext4", "sda 100", `"sda"`},
		{"ext4", "1000", `"1000"`},
		{"ext4", "-m 0; reboot", `"0;"`},
		{"ext4", "-m 0|x", `"0|x"`},
		{"ext4", "-m 0&", `"0&"`},
		{"ext4", "-m $HOME", `"$HOME"`},
		{"ext4", "-T `id`", "\"`id`\""},
		{"ext4", "-m 0\n-F", `"0\n-F"`},
		{"ext4", "-m\t0", `"-m\t0"`},
		{"ext4", "-L 'a", `"'a"`},
		{"ext4", `-L "a`, `"\"a"`},
		{"ext4", `-L a\b`, `"a\\b"`},
		{"ext4", "-L a\x00b", `"a\x00b"`},
		{"ext4", "-L ä", `"\u00e4"`},
		{"ext4", "-L a\u2003-F", `"a\u2003-F"`},
		{"ext4", strings.Repeat("-m ", 2000), "longer than 4096 bytes"},
		{"", "-K", `"-K"`}, // no type named: ext4's words
		{"xfs", "-l logdev=/dev/sda", `"logdev=/dev/sda"`},
		{"xfs", "-l logdev=sda", `"-l logdev=sda"`},
		{"xfs", "-llogdev=sda", `"-l logdev=sda"`},
		{"xfs", "-r rtdev=sda", `"-r"`},
		{"xfs", "-d file", `"-d file"`},
		{"xfs", "-d file=1,name=x", `"-d file=1,name=x"`},
		{"xfs", "-d name=x", `"-d name=x"`},
		{"xfs", "-d size=100m", `"-d size=100m"`},
		{"xfs", "-d agcount=4,name=x", `"-d agcount=4,name=x"`},
		{"xfs", "-m uuid=x", `"-m uuid=x"`},
		{"xfs", "-c options=x", `"-c"`},
		{"xfs", "-p proto", `"-p"`},
		{"xfs", "-f", `"-f"`},
		{"xfs", "-N", `"-N"`},
		{"xfs", "-q", `"-q"`},
		{"xfs", "-Kf", `"-Kf"`},
		{"xfs", "-K -K", `"-K"`},
		{"xfs", "-L x", `"-L"`},
		{"xfs", "-Lx", `"-Lx"`},
		{"xfs", "-KL x", `"-KL"`},
		{"xfs", "-m crc=1,uuid=x", `"-m crc=1,uuid=x"`},
		{"xfs", "-muuid=x", `"-m uuid=x"`},
		{"btrfs", "-f", `"-f"`},
		{"btrfs", "-r rootdir", `"-r"`},
		{"btrfs", "--rootdir=/etc", `"--rootdir=/etc"`},
		{"btrfs", "--rootdir", `"--rootdir"`},
		{"btrfs", "-U x", `"-U"`},
		{"btrfs", "-b 1g", `"-b"`},
		{"btrfs", "-d raid1", `"-d raid1"`},
		{"btrfs", "-m raid0", `"-m raid0"`},
		{"btrfs", "-O list-all", `"-O list-all"`},
		{"btrfs", "-O zoned", `"-O zoned"`},
		{"btrfs", "-L x", `"-L"`},
		{"btrfs", "-KL x", `"-KL"`},
		{"btrfs", "--label x", `"--label"`},
		{"btrfs", "--label=x", `"--label=x"`},
		{"btrfs", "--uuid=x", `"--uuid=x"`},
		{"btrfs", "--device-uuid=x", `"--device-uuid=x"`},
	} {
		_, err := ParseMkfs(tt.fs, tt.text)
		refused(t, tt.fs+" "+tt.text, tt.word, err)
	}
}

func TestMountOptions(t *testing.T) {
	for _, tt := range []struct {
		fs, text     string
		attrs, super []string
		ro           bool
	}{
		{"ext4", "nosuid,noatime,nodev", []string{"noatime", "nodev", "nosuid"}, nil, false},
		{"ext4", "ro,data=ordered,commit=30,errors=remount-ro", nil, []string{"commit=30", "data=ordered", "errors=remount-ro"}, true},
		{"", "discard,discard,lazytime,nodiratime,noatime", []string{"noatime", "nodiratime"}, []string{"discard", "lazytime"}, false},
		{"ext4", "barrier=1,noauto_da_alloc,sync,dirsync,rw", nil, []string{"barrier=1", "dirsync", "noauto_da_alloc", "sync"}, false},
		{"xfs", "allocsize=64k,inode64,largeio,logbufs=8,logbsize=256k,noalign,swalloc,wsync,pquota,uquota,gquota,nosymfollow", []string{"nosymfollow"},
			[]string{"allocsize=64k", "gquota", "inode64", "largeio", "logbsize=256k", "logbufs=8", "noalign", "pquota", "swalloc", "uquota", "wsync"}, false},
		{"btrfs", "compress=zstd:3,ssd,autodefrag,discard=async,space_cache=v2,noexec,strictatime", []string{"noexec", "strictatime"},
			[]string{"autodefrag", "compress=zstd:3", "discard=async", "space_cache=v2", "ssd"}, false},
		{"btrfs", "compress-force=lzo,relatime", []string{"relatime"}, []string{"compress-force=lzo"}, false},
	} {
		m, err := ParseMount(tt.fs, tt.text)
		if err != nil || !reflect.DeepEqual(m, Mount{ReadOnly: tt.ro, Attrs: tt.attrs, Super: tt.super}) {
			t.Errorf("%s %q: got %+v, %v", tt.fs, tt.text, m, err)
		}
	}
}

func TestMountOptionsAsAttacks(t *testing.T) {
	for _, tt := range []struct{ fs, text, word string }{
		{"ext4", "loop", `"loop"`},
		{"ext4", "loop=loop0", `"loop=loop0"`},
		{"ext4", "remount", `"remount"`},
		{"ext4", "remount,rw", `"remount"`},
		{"ext4", "bind", `"bind"`},
		{"ext4", "rbind", `"rbind"`},
		{"ext4", "move", `"move"`},
		{"ext4", "shared", `"shared"`},
		{"ext4", "X-mount.mkdir", `"X-mount.mkdir"`},
		{"ext4", "X-mount.subdir=x", `"X-mount.subdir=x"`},
		{"ext4", "X-mount.owner=0", `"X-mount.owner=0"`},
		{"ext4", "x-systemd.automount", `"x-systemd.automount"`},
		{"ext4", "x-initrd.mount", `"x-initrd.mount"`},
		{"ext4", "context=system_u:object_r:x", `"context=system_u:object_r:x"`},
		{"ext4", "defcontext=x", `"defcontext=x"`},
		{"ext4", "journal_path=/dev/sda", `"journal_path=/dev/sda"`},
		{"ext4", "journal_path=sda", `"journal_path=sda"`},
		{"ext4", "journal_dev=8", `"journal_dev=8"`},
		{"ext4", "usrjquota=aquota", `"usrjquota=aquota"`},
		{"ext4", "noload", `"noload"`},
		{"ext4", "norecovery", `"norecovery"`},
		{"ext4", "errors=panic", `"errors=panic"`},
		{"ext4", "errors", `"errors"`},
		{"ext4", "abort", `"abort"`},
		{"ext4", "debug", `"debug"`},
		{"ext4", "sb=8193", `"sb=8193"`},
		{"ext4", "suid", `"suid"`},
		{"ext4", "dev", `"dev"`},
		{"ext4", "exec", `"exec"`},
		{"ext4", "user", `"user"`},
		{"ext4", "defaults", `"defaults"`},
		{"ext4", "async", `"async"`},
		{"ext4", "ro=1", `"ro=1"`},
		{"ext4", "ro,rw", `"rw"`},
		{"ext4", "noatime,relatime", `"relatime"`},
		{"ext4", "commit=5,commit=10", `"commit=10"`},
		{"ext4", "commit=-1", `"commit=-1"`},
		{"ext4", "commit=", `"commit="`},
		{"ext4", "commit=05", `"commit=05"`},
		{"ext4", "data=x", `"data=x"`},
		{"ext4", "barrier,barrier=1", `"barrier=1"`},
		{"ext4", "nobarrier", `"nobarrier"`},
		{"ext4", "barrier=0", `"barrier=0"`},
		{"ext4", "data=writeback", `"data=writeback"`},
		{"ext4", "journal_async_commit", `"journal_async_commit"`},
		{"btrfs", "nobarrier", `"nobarrier"`},
		{"ext4", "discard,nodiscard", `"nodiscard"`},
		{"ext4", "allocsize=64k", `"allocsize=64k"`},
		{"", "wsync", `"wsync"`},
		{"ext4", "noatime,", `""`},
		{"ext4", ",", `""`},
		{"ext4", "noatime, nodev", `" nodev"`},
		{"ext4", "noatime\nro", `"noatime\nro"`},
		{"ext4", "noatime\x00", `"noatime\x00"`},
		{"ext4", "noatime;ro", `"noatime;ro"`},
		{"ext4", "a'b", `"a'b"`},
		{"ext4", `commit=5\,loop`, `"commit=5\\"`},
		{"ext4", `commit="5`, `"commit=\"5"`},
		{"ext4", "-o", `"-o"`},
		{"ext4", "Ro", `"Ro"`},
		{"ext4", strings.Repeat("ro,", 2000), "longer than 4096 bytes"},
		{"xfs", "logdev=sda", `"logdev=sda"`},
		{"xfs", "rtdev=/dev/sda", `"rtdev=/dev/sda"`},
		{"xfs", "norecovery", `"norecovery"`},
		{"xfs", "nouuid", `"nouuid"`},
		{"xfs", "logbufs=9", `"logbufs=9"`},
		{"xfs", "inode32,inode64", `"inode64"`},
		{"btrfs", "device=sda", `"device=sda"`},
		{"btrfs", "subvol=x", `"subvol=x"`},
		{"btrfs", "subvolid=5", `"subvolid=5"`},
		{"btrfs", "degraded", `"degraded"`},
		{"btrfs", "rescue=all", `"rescue=all"`},
		{"btrfs", "user_subvol_rm_allowed", `"user_subvol_rm_allowed"`},
		{"btrfs", "compress=gzip", `"compress=gzip"`},
		{"btrfs", "compress=zstd:99", `"compress=zstd:99"`},
		{"btrfs", "space_cache=v1", `"space_cache=v1"`},
		{"btrfs", "discard=async,nodiscard", `"nodiscard"`},
		{"btrfs", "fatal_errors=panic", `"fatal_errors=panic"`},
	} {
		_, err := ParseMount(tt.fs, tt.text)
		refused(t, tt.fs+" "+tt.text, tt.word, err)
	}
}

func refused(t *testing.T, what, word string, err error) {
	t.Helper()
	unprintable := func(r rune) bool { return r < ' ' || r > '~' }
	if err == nil || !strings.HasPrefix(err.Error(), word) || strings.ContainsFunc(err.Error(), unprintable) {
		t.Errorf("%.60s: got %v, want %s ...", what, err, word)
	}
}
