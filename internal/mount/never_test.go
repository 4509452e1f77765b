package mount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// Ensure that data on a device is never overwritten by mkfs: the refusal names the data, its offset and the
// remedy, and nothing is written.
func TestNeverFormat(t *testing.T) {
	const size, large = 96 * mib, 320 * mib // one that is read as a whole, one that is not
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rand.IntN(255) + 1)
		}
		return b
	}
	seen, types := map[string]bool{}, []string{"ext4", "xfs", "btrfs"}
	if everyKindOnce {
		types = types[:1]
	}
	for _, row := range []struct {
		kind string
		name string
		size int64 // 0 = size
		make func(r *rig)
		what string // in the refusal
		fs   string // a filesystem that may be mounted, but never formatted
	}{
		{"filesystem", "ext4", 0, tools("mkfs.ext4", "-q"), "ext4 signature at offset 1080 (0x438)", "ext4"},
		{"filesystem", "xfs", 320 * mib, tools("mkfs.xfs", "-q"), "xfs signature at offset 0", "xfs"},
		{"filesystem", "btrfs", 128 * mib, tools("mkfs.btrfs", "-q"), "btrfs signature at offset 65600", "btrfs"},
		{"another", "swap", 0, tools("mkswap"), "swap signature at offset 4086", ""},
		{"another", "ext3", 0, tools("mkfs.ext4", "-q", "-t", "ext3"), "ext3 signature", ""},
		{"encrypted", "LUKS1", 0, luks("luks1"), "crypto_LUKS signature at offset 0", ""},
		{"encrypted", "LUKS2", 0, luks("luks2"), "crypto_LUKS signature at offset 0", ""},
		{"encrypted", "LUKS2 without its first header", 0, func(r *rig) {
			luks("luks2")(r)
			r.write(make([]byte, 4096), 0)
		}, "offset", ""},
		{"PV", "LVM PV", 0, tools("pvcreate", "--config", "devices/scan_lvs=1", "-ff", "-y"), "LVM2_member signature at offset 536 (0x218)", ""},
		{"md", "md 1.2", 0, func(r *rig) { r.write(mdSuperblock(8), 8*512) }, "linux_raid_member signature at offset 4096", ""},
		{"md at the end", "md 1.0", large, func(r *rig) {
			sector := uint64(r.dev.Size/512-16) &^ 7
			r.write(mdSuperblock(sector), int64(sector)*512)
		}, "linux_raid_member signature at offset", ""},
		{"partitions", "DOS partition table", 0, func(r *rig) { r.write(dosTable(r.dev.Size), 0) }, "dos signature at offset 510", ""},
		{"partitions", "GPT", 0, func(r *rig) {
			head, tail := gpt(r.dev.Size)
			r.write(head, 0)
			r.write(tail, r.dev.Size-int64(len(tail)))
		}, "gpt signature at offset 512", ""},
		{"partitions at the end", "GPT without its head", large, func(r *rig) {
			_, tail := gpt(r.dev.Size)
			r.write(tail, r.dev.Size-int64(len(tail)))
		}, "offset", ""},
		{"several", "ext4 and LVM PV", 0, func(r *rig) {
			tools("mkfs.ext4", "-q")(r)
			pv := newRig(r.T, size)
			tools("pvcreate", "--config", "devices/scan_lvs=1", "-ff", "-y")(pv)
			r.write(pv.read(512, 512), 512)
		}, "LVM2_member", ""},
		{"headless", "ext4 with a zeroed head", 0, func(r *rig) {
			tools("mkfs.ext4", "-q", "-b", "4096")(r)
			r.write(make([]byte, mib), 0)
			r.write(noise(4096), 40*mib) // a file
		}, "not zero at offset", ""}, // one group, without a backup
		{"backup", "ext4 of 1 KiB blocks with a zeroed head", large, func(r *rig) {
			tools("mkfs.ext4", "-q", "-b", "1024")(r)
			r.write(make([]byte, 8*mib), 0)
		}, "backup superblock of ext4 at offset 8389632", ""},
		{"backup", "large ext4 with a zeroed head", 1024 * mib, func(r *rig) {
			tools("mkfs.ext4", "-q", "-b", "4096")(r)
			r.write(make([]byte, 16*mib), 0)
		}, "backup superblock of ext4 at offset 134217728", ""},
		{"backup", "xfs with a zeroed head", 320 * mib, func(r *rig) {
			tools("mkfs.xfs", "-q")(r)
			r.write(make([]byte, 16*mib), 0)
		}, "backup superblock of xfs at offset 83886080", ""},
		{"backup", "btrfs with a zeroed head", 128 * mib, func(r *rig) {
			tools("mkfs.btrfs", "-q")(r)
			r.write(make([]byte, 16*mib), 0)
		}, "backup superblock of btrfs at offset 67108864", ""},
		{"head", "noise at the head", large, func(r *rig) { r.write(noise(512), 0) }, "not zero at offset 0 (0x0)", ""},
		{"head", "one byte in the head", large, func(r *rig) { r.write([]byte{1}, 3*mib+17) }, "not zero at offset 3145745", ""},
		{"tail", "noise at the tail", large, func(r *rig) { r.write(noise(512), r.dev.Size-512) }, "not zero at offset 335543808", ""},
		{"between", "noise at a backup superblock", large, func(r *rig) { r.write(noise(512), 8*mib+1024) }, "not zero at offset 8389632", ""},
		{"small", "one byte in a small device", 16 * mib, func(r *rig) { r.write([]byte{1}, 9*mib+1) }, "not zero at offset 9437185", ""},
	} {
		if everyKindOnce && seen[row.kind] {
			continue
		}
		seen[row.kind] = true
		t.Run(row.name, func(t *testing.T) {
			if row.size == 0 {
				row.size = size
			}
			r := newRig(t, row.size)
			row.make(r)
			before := r.written()

			fs := r.probe("")
			if row.fs != "" {
				if fs.Content != volume.Filesystem || fs.Type != row.fs {
					t.Errorf("probe: got %+v", fs)
				}
			} else if fs.Content != volume.ForeignContent || !strings.Contains(fs.What, row.what) {
				t.Errorf("probe: got %+v, want %q", fs, row.what)
			}

			for _, fsType := range types {
				err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: fsType}, yes)
				var refusal *Refusal
				if !errors.As(err, &refusal) || !strings.Contains(refusal.What, row.what) {
					t.Fatalf("format %s: got %v, want %q", fsType, err, row.what)
				}
				if !strings.Contains(refusal.What, r.dev.Path) || !strings.Contains(refusal.Hint, "Look at it first: blkid -p ") {
					t.Errorf("format %s: got %+v", fsType, refusal)
				}
				// Nor while the record of a cut mkfs stands. A single byte may be its own.
				if strings.HasPrefix(row.name, "one byte") {
					continue
				}
				record := r.record()
				again := Formatting{Device: r.dev, Type: fsType, Repeat: true, Created: created, Record: record}
				if err := r.Format(t.Context(), r.lock, again, yes); !errors.As(err, &refusal) {
					t.Fatalf("repeat of %s: got %v", fsType, err)
				}
				if _, err := os.Stat(record); err != nil {
					t.Errorf("repeat of %s: %v", fsType, err)
				}
				if fs, err := r.Probe(t.Context(), r.lock, r.dev, "", created, ""); err != nil || fs.Leftover {
					t.Errorf("probe: %+v, %v", fs, err)
				}
			}
			if got := r.written(); got != before {
				t.Errorf("%s, before: %s", got, before)
			}
		})
	}
}

// Ensure that the remedy in the message is sufficient.
func TestWayOut(t *testing.T) {
	need(t, "wipefs", "blkdiscard")
	r := newRig(t, 96*mib)
	tools("mkfs.ext4", "-q", "-b", "1024")(r)
	r.sh("wipefs", "-q", "-a", r.dev.Path)
	if fs := r.probe(""); fs.Content != volume.ForeignContent {
		t.Errorf("after wipefs: got %+v", fs)
	}
	r.sh("blkdiscard", "-z", r.dev.Path)
	if fs := r.probe(""); fs.Content != volume.Blank {
		t.Errorf("after blkdiscard: got %+v", fs)
	}
	r.format("ext4")
}

// tools returns content made by a program whose last argument is the device.
func tools(argv ...string) func(*rig) {
	return func(r *rig) {
		r.Helper()
		need(r.T, argv[0])
		r.sh(append(argv, r.dev.Path)...)
	}
}

func luks(version string) func(*rig) {
	return func(r *rig) {
		r.Helper()
		need(r.T, "cryptsetup")
		c := exec.Command("cryptsetup", "luksFormat", "-q", "--type", version,
			"--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", r.dev.Path, "-")
		c.Stdin = strings.NewReader("not a secret")
		if out, err := c.CombinedOutput(); err != nil {
			r.Fatalf("cryptsetup: %v: %s", err, out)
		}
	}
}

// mdSuperblock returns a version 1 superblock of a RAID 1 of two disks, like mdadm's (which needs the md
// driver in the kernel).
func mdSuperblock(sector uint64) []byte {
	b := make([]byte, 512)
	le := binary.LittleEndian
	le.PutUint32(b[0:], 0xa92b4efc)
	le.PutUint32(b[4:], 1)
	copy(b[16:], "0123456789abcdef")
	copy(b[32:], "host:9")
	le.PutUint32(b[72:], 1) // level
	le.PutUint64(b[80:], 100_000)
	le.PutUint32(b[92:], 2)   // disks
	le.PutUint64(b[128:], 16) // data offset
	le.PutUint64(b[136:], 100_000)
	le.PutUint64(b[144:], sector)
	le.PutUint32(b[220:], 2) // roles
	le.PutUint16(b[256:], 0)
	le.PutUint16(b[258:], 1)
	var sum uint64
	for i := 0; i < 256+2*2; i += 4 {
		sum += uint64(le.Uint32(b[i:]))
	}
	le.PutUint32(b[216:], uint32(sum)+uint32(sum>>32))
	return b
}

func dosTable(size int64) []byte {
	b := make([]byte, 512)
	e := b[446:]
	e[4] = 0x83
	binary.LittleEndian.PutUint32(e[8:], 2048)
	binary.LittleEndian.PutUint32(e[12:], uint32(size/512-2048))
	b[510], b[511] = 0x55, 0xaa
	return b
}

// gpt returns a partition table with one partition: the head with its protective MBR, and the backup at the
// end.
func gpt(size int64) (head, tail []byte) {
	le := binary.LittleEndian
	last := uint64(size/512 - 1)
	entries := make([]byte, 128*128)
	copy(entries[0:], []byte("\xaf\x3d\xc6\x0f\x83\x84\x72\x47\x8e\x79\x3d\x69\xd8\x47\x7d\xe4")) // Linux data
	copy(entries[16:], "fedcba9876543210")
	le.PutUint64(entries[32:], 2048)
	le.PutUint64(entries[40:], last-2048)
	header := func(my, other, at uint64) []byte {
		h := make([]byte, 512)
		copy(h, "EFI PART")
		le.PutUint32(h[8:], 0x10000)
		le.PutUint32(h[12:], 92)
		le.PutUint64(h[24:], my)
		le.PutUint64(h[32:], other)
		le.PutUint64(h[40:], 34)
		le.PutUint64(h[48:], last-33)
		copy(h[56:], "0123456789abcdef")
		le.PutUint64(h[72:], at)
		le.PutUint32(h[80:], 128)
		le.PutUint32(h[84:], 128)
		le.PutUint32(h[88:], crc32.ChecksumIEEE(entries))
		le.PutUint32(h[16:], crc32.ChecksumIEEE(h[:92]))
		return h
	}
	mbr := dosTable(size)
	mbr[446+4] = 0xee
	le.PutUint32(mbr[446+8:], 1)
	le.PutUint32(mbr[446+12:], uint32(last))
	head = bytes.Join([][]byte{mbr, header(1, last, 2), entries}, nil)
	tail = bytes.Join([][]byte{entries, header(last, 1, last-32)}, nil)
	return head, tail
}
