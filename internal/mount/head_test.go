package mount

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// A pod fills files with copies of a label that LUKS 2 has at several places. The volume stays usable with
// each layout of mkfs, and a ZFS pool that keeps the superblock is not a filesystem.
func TestLabelsInFiles(t *testing.T) {
	label := append([]byte("SKUL\xba\xbe\x00\x02"), make([]byte, 1016)...)
	for _, row := range []struct {
		name, fs string
		size     int64
		args     []string
		found    bool // by blkid
	}{
		{"xfs", "xfs", 320 * mib, nil, true},
		{"ext4", "ext4", 64 * mib, nil, false},
		{"ext4 with few inodes", "ext4", 64 * mib, []string{"-i", "1048576", "-O", "^resize_inode"}, true},
		{"btrfs", "btrfs", 128 * mib, nil, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			need(t, "mkfs."+row.fs)
			r := newRig(t, row.size)
			r.sh(slices.Concat([]string{"mkfs." + row.fs, "-q"}, row.args, []string{r.dev.Path})...)
			dir := r.mkdir("mnt")
			r.mount(MountSpec{Device: r.dev, FSType: row.fs, Dir: dir, Root: r.dir, First: true})
			if row.fs == "ext4" { // which gives out its first blocks late
				fill(t, dir, label)
			} else if err := os.WriteFile(dir+"/f", bytes.Repeat(label, 16<<10), 0o600); err != nil {
				t.Fatal(err)
			}
			r.unmount(dir)
			dev, err := os.Open(r.dev.Path)
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			if s, err := identify(dev); err != nil || s.ours() == row.found {
				t.Fatalf("blkid: %+v, %v", s, err)
			}
			got, err := r.Probe(t.Context(), r.lock, r.dev, "", created, row.fs)
			if err != nil || got.Content != volume.Filesystem || got.Type != row.fs {
				t.Errorf("with the label in files: %+v, %v", got, err)
			}

			if row.fs == "xfs" {
				// Where a file's block may be later.
				iso := make([]byte, 4096)
				copy(iso, "\x01CD001\x01")
				copy(iso[2048:], "\xffCD001\x01")
				was := r.read(len(iso), 32<<10)
				r.write(iso, 32<<10)
				if got, err := r.Probe(t.Context(), r.lock, r.dev, "", created, row.fs); err != nil || got.Content != volume.Filesystem {
					t.Errorf("with a label in block 8: %+v, %v", got, err)
				}
				r.write(was, 32<<10)
			}

			r.write(zfsLabel(), 8<<10)
			got, err = r.Probe(t.Context(), r.lock, r.dev, "", created, row.fs)
			if err != nil || got.Content != volume.ForeignContent || !strings.Contains(got.What, "zfs_member") {
				t.Errorf("a ZFS pool: %+v, %v", got, err)
			}
			if strings.Contains(got.What, "4194304") { // which no remedy needs
				t.Errorf("it names a label in a file: %s", got.What)
			}
		})
	}
}

// zfsLabel returns the label of a ZFS pool at the start of a device, from 8 KiB on: a name, and 128
// uberblocks.
func zfsLabel() []byte {
	b := make([]byte, 248<<10)
	copy(b[8<<10:], "\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01name")
	for i := range 128 {
		binary.LittleEndian.PutUint64(b[120<<10+i<<10:], 0x00bab10c)
		binary.LittleEndian.PutUint64(b[120<<10+i<<10+8:], 5000)
	}
	return b
}
