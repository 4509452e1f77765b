package mount

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/host"
)

// tailOfMember returns the superblock of an md member of version 1.0 as a block of a file, and its offset on
// a device of that size.
func tailOfMember(size int64) (block []byte, place int64) {
	sector := (size/512 - 16) &^ 7
	return append(mdSuperblock(uint64(sector)), make([]byte, 512)...), sector * 512
}

// fill fills a filesystem with copies of a block.
func fill(t *testing.T, dir string, block []byte) {
	t.Helper()
	unit := bytes.Repeat(block, 4)
	for i, n := 0, 1024; n > 0; i++ {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		for b := bytes.Repeat(unit, n); err == nil; {
			_, err = f.Write(b)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if f != nil {
			_ = f.Sync()
			f.Close()
		}
		n /= 4
	}
}

// isMember reports whether blkid, like udev, reports a RAID member.
func (r *rig) isMember() bool {
	r.Helper()
	dev, err := os.Open(r.dev.Path)
	if err != nil {
		r.Fatal(err)
	}
	defer dev.Close()
	s, err := identify(dev)
	if err != nil {
		r.Fatal(err)
	}
	return s.Type == "linux_raid_member" || s.Ambiguous
}

// A pod that fills its volume with md superblocks gets none to the end of a device that flexd formatted or
// extended. If the filesystem covers the whole device, the volume stays usable while its record exists, and
// no operator's RAID member is used as a filesystem.
func TestSuperblocksInFiles(t *testing.T) {
	for _, fs := range types {
		for _, way := range []string{"formatted", "extended", "whole"} {
			if fs.name == "ext4" && way == "extended" && !host.GrowsExt4() { // the VM may
				continue
			}
			t.Run(fs.name+"/"+way, func(t *testing.T) {
				need(t, "mkfs."+fs.name)
				size := fs.size
				if fs.name == "btrfs" && way == "extended" {
					size = btrfsLeast + volume.Tail
				}
				r := newRig(t, size)
				md, place := tailOfMember(r.dev.Size)
				switch way {
				case "formatted":
					r.format(fs.name)
				case "whole":
					r.sh("mkfs."+fs.name, "-q", r.dev.Path)
				case "extended":
					r.format(fs.name)
				}
				dir := r.mkdir("mnt")
				r.mount(MountSpec{Device: r.dev, FSType: fs.name, Dir: dir, Root: r.dir, First: true})
				if way == "extended" {
					r.resize(r.dev.Size + 64*mib)
					md, place = tailOfMember(r.dev.Size)
					r.write(md, place) // of a volume that had this space before
					for range 2 {
						if err := r.Grow(t.Context(), r.lock, r.dev, fs.name, dir); err != nil {
							t.Fatal(err)
						}
					}
				}
				if got := r.probe(dir); way == "whole" {
					if err := r.Grow(t.Context(), r.lock, r.dev, fs.name, dir); err != nil || volume.Growable(got.Size, r.dev.Size) || r.probe(dir).Size != got.Size {
						t.Errorf("grow: %v, %+v, then %+v", err, got, r.probe(dir))
					}
				} else if room := volume.Room(r.dev.Size); got.Size > room || volume.Growable(got.Size, r.dev.Size) {
					t.Errorf("%+v on a device of %d bytes", got, r.dev.Size)
				}
				fill(t, dir, md)
				r.unmount(dir)
				if way == "whole" && fs.name == "xfs" { // it seldom gives its last blocks to a file
					r.write(md, place)
				}
				member := r.isMember()
				if member != (way == "whole") {
					t.Fatalf("a RAID member: %v", member)
				}
				if member && r.probe("").Content != volume.ForeignContent {
					t.Errorf("without a record: %+v", r.probe(""))
				}
				got, err := r.Probe(t.Context(), r.lock, r.dev, "", created, fs.name)
				if err != nil || got.Content != volume.Filesystem || got.Type != fs.name {
					t.Fatalf("with its record: %+v, %v", got, err)
				}
				if err := r.Check(t.Context(), r.lock, r.dev, fs.name); err != nil {
					t.Fatal(err)
				}
				r.mount(MountSpec{Device: r.dev, FSType: fs.name, Dir: dir, Root: r.dir, First: true})
				r.unmount(dir)
			})
		}
	}
}

// An operator's change of a volume is never taken for the content of a file.
func TestMemberIsNoFilesystem(t *testing.T) {
	md := func(r *rig) {
		block, place := tailOfMember(r.dev.Size)
		r.write(block, place)
	}
	keeping := func(write func(r *rig)) func(r *rig) { // the ext4 that is there
		return func(r *rig) {
			sb := r.read(1024, 1024)
			write(r)
			r.write(sb, 1024)
		}
	}
	for name, row := range map[string]struct {
		whole bool // the filesystem covers the device
		seen  string
		write func(r *rig)
	}{
		"no record":                   {true, "", md},
		"another filesystem's record": {true, "xfs", md},
		"behind the filesystem":       {false, "ext4", md},
		"without the filesystem":      {true, "ext4", func(r *rig) { md(r); r.write(make([]byte, 2), 1024+56) }},
		"md 1.1":                      {true, "ext4", keeping(func(r *rig) { r.write(mdSuperblock(0), 0) })},
		"md 1.2":                      {true, "ext4", keeping(func(r *rig) { r.write(mdSuperblock(8), 4096) })},
		"LVM":                         {true, "ext4", keeping(tools("pvcreate", "--config", "devices/scan_lvs=1", "-ff", "-y"))},
		"LUKS 1":                      {true, "ext4", keeping(luks("luks1"))},
		"LUKS 2":                      {true, "ext4", keeping(luks("luks2"))},
		"a partition table and md": {true, "ext4", keeping(func(r *rig) {
			md(r)
			r.write(dosTable(r.dev.Size), 0)
		})},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 32*mib)
			if row.whole {
				r.sh("mkfs.ext4", "-q", r.dev.Path)
			} else {
				r.format("ext4")
			}
			row.write(r)
			fs, err := r.Probe(t.Context(), r.lock, r.dev, "", created, row.seen)
			if err != nil || fs.Content != volume.ForeignContent {
				t.Errorf("%+v, %v", fs, err)
			}
		})
	}
}
