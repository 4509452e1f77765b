package asw

import "testing"

func TestComplaint(t *testing.T) {
	for record, want := range map[string]string{
		"2,871,99,-;EXT4-fs error (device loop3): trigger_test_error:127: comm sh: hello":                    "loop3",
		"4,871,99,-;EXT4-fs (dm-12): mounted filesystem 1b2c r/w with ordered data mode. Quota mode: none.":  "",
		"2,871,99,-;EXT4-fs (loop3): Remounting filesystem read-only":                                        "",
		"1,871,99,-;XFS (loop0): User initiated shutdown received.":                                          "loop0",
		"1,871,99,-;XFS (dm-3): Metadata I/O Error (0x4) detected at xfs_trans_read_buf_map. Shutting down.": "dm-3",
		"5,871,99,-;XFS (loop0): Mounting V5 Filesystem 0ea":                                                 "",
		"2,871,99,-;BTRFS error (device loop7): parent transid verify failed":                                "loop7",
		"2,871,99,-;BTRFS error (device loop7: state EA): forced readonly":                                   "loop7",
		"3,871,99,-;I/O error, dev loop4, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2":          "loop4",
		"6,871,99,-;loop3: detected capacity change from 0 to 131072":                                        "",
		"": "",
	} {
		if got := filesystemError(record); got != want {
			t.Errorf("%q: got %q, want %q", record, got, want)
		}
	}
}
