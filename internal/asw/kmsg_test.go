package asw

import (
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestComplaint(t *testing.T) {
	for record, want := range map[string]string{
		"2,871,99,-;EXT4-fs error (device loop3): trigger_test_error:127: comm sh: hello":                    "loop3",
		"4,871,99,-;EXT4-fs (dm-12): mounted filesystem 1b2c r/w with ordered data mode. Quota mode: none.":  "",
		"2,871,99,-;EXT4-fs (loop3): Remounting filesystem read-only":                                        "",
		"1,871,99,-;XFS (loop0): User initiated shutdown received.":                                          "loop0",
		"1,871,99,-;EXT4-fs (loop4): shut down requested (2)":                                                "loop4",
		"1,871,99,-;XFS (dm-3): Metadata I/O Error (0x4) detected at xfs_trans_read_buf_map. Shutting down.": "dm-3",
		"5,871,99,-;XFS (loop0): Mounting V5 Filesystem 0ea":                                                 "",
		"2,871,99,-;BTRFS error (device loop7): parent transid verify failed":                                "loop7",
		"2,871,99,-;BTRFS error (device loop7: state EA): forced readonly":                                   "loop7",
		"3,871,99,-;I/O error, dev loop4, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2":          "loop4",
		"6,871,99,-;loop3: detected capacity change from 0 to 131072":                                        "",
		"": "",
	} {
		if got := NewKernelLog(nil).add(record); got != want {
			t.Errorf("%q: got %q, want %q", record, got, want)
		}
	}
}

// What the kernel said of a filesystem holds until the next one is mounted from that device.
// Messages of processes say nothing.
func TestKernelLogLost(t *testing.T) {
	const (
		mountExt4  = "6,1,9,-;EXT4-fs (loop3): mounted filesystem 1b2c r/w with ordered data mode. Quota mode: none."
		mountXFS   = "5,1,9,-;XFS (loop3): Mounting V5 Filesystem 0ea"
		mountBtrfs = "6,1,9,-;BTRFS info (device loop3): using crc32c (crc32c-lib) checksum algorithm"
		down       = "1,1,9,-;XFS (loop3): User initiated shutdown received."
		attach     = "6,1,9,-;loop3: detected capacity change from 0 to 131072"
		extend     = "6,1,9,-;loop3: detected capacity change from 131072 to 262144"
		page       = "3,1,9,-;Buffer I/O error on dev loop3, logical block 256, lost async page write\n SUBSYSTEM=block\n"
		inode      = "4,1,9,-;EXT4-fs warning (device loop3): ext4_end_bio:343: I/O error 10 writing to inode 12 starting block 9217)"
		delayed    = "2,1,9,-;EXT4-fs (loop3): This should not happen!! Data will be lost"
		journal    = "2,1,9,-;EXT4-fs error (device loop3): ext4_put_super:1306: comm umount: Couldn't clean up the journal"
		writeback  = "3,1,9,-;loop3: writeback error on inode 131, offset 0, sector 200"
		btrfs      = "3,1,9,-;BTRFS error (device loop3): bdev /dev/loop3 errs: wr 1, rd 0, flush 0, corrupt 0, gen 0"
		old        = "3,1,9,-;BTRFS error (device loop3): bdev /dev/loop3 errs: wr 1, rd 1, flush 0, corrupt 0, gen 0"
		other      = "3,1,9,-;loop4: writeback error on inode 131, offset 0, sector 200"
		process    = "12,1,9,-;loop3: writeback error on inode 131, offset 0, sector 200"
	)
	for _, c := range []struct {
		about string
		log   []string
		lost  string // a part of it
		bad   bool
	}{
		{"nothing", nil, "", false},
		{"of another device", []string{other}, "", false},
		{"of a process", []string{process}, "", false},
		{"shut down before flexd came", []string{mountXFS, down}, "", true},
		{"of an earlier xfs", []string{down, mountXFS}, "", false},
		{"of an earlier ext4", []string{inode, mountExt4}, "", false},
		{"of an earlier btrfs", []string{btrfs, mountBtrfs}, "", false},
		{"of an earlier file", []string{page, attach}, "", false},
		{"extended", []string{page, extend}, "logical block 256", true},
		{"a page", []string{mountExt4, page}, "logical block 256, lost async page write", true},
		{"a file of ext4", []string{mountExt4, down, inode, page}, "writing to inode 12", true},
		{"without space", []string{delayed}, "Data will be lost", true},
		{"the journal at an unmount", []string{journal}, "clean up the journal", true},
		{"a file of xfs", []string{writeback, down}, "writeback error on inode 131", true},
		{"btrfs", []string{mountBtrfs, btrfs}, "errs: wr 1", true},
		{"btrfs may have counted it before", []string{mountBtrfs, old}, "", true},
	} {
		l := NewKernelLog(io.NopCloser(nil))
		for _, r := range c.log {
			l.add(r)
		}
		lost, bad := l.Logged("/dev/loop3")
		if bad != c.bad || (lost == "") != (c.lost == "") || !strings.Contains(lost, c.lost) || strings.Contains(lost, "\n") {
			t.Errorf("%s: got %q %v", c.about, lost, bad)
		}
		l.Forget("/dev/loop3")
		if lost, bad := l.Logged("/dev/loop3"); lost != "" || bad {
			t.Errorf("%s: not forgotten", c.about)
		}
	}
	if lost, bad := (*KernelLog)(nil).Logged("/dev/loop3"); lost != "" || bad {
		t.Error("a log that cannot be read says something")
	}
}

// A device may have had another filesystem when a write was lost before flexd's start: it is only
// checked.
func TestKernelLogPast(t *testing.T) {
	records := []string{"3,1,9,-;loop3: writeback error on inode 131, offset 0, sector 200", "", "3,2,9,-;XFS (loop4): log I/O error"}
	k := NewKernelLog(io.NopCloser(nil))
	if err := k.readPast(func(record []byte) (int, error) {
		if len(records) == 0 {
			return 0, unix.EAGAIN
		}
		r := records[0]
		if records = records[1:]; r == "" {
			return 0, unix.EPIPE
		}
		return copy(record, r), nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, device := range []string{"/dev/loop3", "/dev/loop4"} {
		if lost, bad := k.Logged(device); lost != "" || !bad {
			t.Errorf("%s: got %q %v", device, lost, bad)
		}
	}
	k.add("3,3,9,-;loop3: writeback error on inode 132, offset 0, sector 200")
	if lost, _ := k.Logged("/dev/loop3"); !strings.Contains(lost, "inode 132") {
		t.Errorf("after the start: got %q", lost)
	}
}
