//go:build !vm

package mount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// Ensure that the places to read cover the required ones, in order, aligned, and without an overlap, for
// devices of all sizes.
func TestSpans(t *testing.T) {
	for _, size := range []int64{512, 4096, mib, wholeUpTo, wholeUpTo + 512, 1 << 30, 10<<30 + 512, 1 << 40, 5 << 40, 1 << 50} {
		list := spans(size)
		var read int64
		end := int64(-1)
		for _, s := range list {
			if s.from <= end || s.to <= s.from || s.from%align != 0 || s.to > size || (s.to%align != 0 && s.to != size) {
				t.Fatalf("size %d: bad span %+v after %d", size, s, end)
			}
			end = s.to
			read += s.to - s.from
		}
		covers := func(from, to int64) bool {
			for _, s := range list {
				if s.from <= from && to <= s.to {
					return true
				}
			}
			return false
		}
		if !covers(0, min(size, endSize)) || !covers(max(0, size-endSize), size) {
			t.Errorf("size %d: the ends are not read", size)
		}
		if size > wholeUpTo {
			if read > 24<<20 {
				t.Errorf("size %d: reads %d bytes", size, read)
			}
			for _, p := range []int64{8193 << 10, 32 << 20, 128 << 20, 64 << 20} { // ext4 of 1, 2 and 4 KiB blocks, btrfs
				if !covers(p, min(p+1024, size)) {
					t.Errorf("size %d: %d is not read", size, p)
				}
			}
		} else if read != size {
			t.Errorf("size %d: reads only %d", size, read)
		}
	}
}

// Data that is as long as two of the equal parts of a large device is found, and the rest of the device is
// sampled evenly, each piece once.
func TestSample(t *testing.T) {
	for _, size := range []int64{wholeUpTo + 512, 1 << 30, 10<<30 + 512, 3 << 40} {
		last, part := int64(0), size/samples
		for _, s := range spans(size) {
			if s.from-last > 2*part {
				t.Errorf("size %d: nothing is read from %d to %d", size, last, s.from)
			}
			last = s.to
		}
		var first []int64
		seen, n := map[int64]bool{}, (size+chunkSize-1)/chunkSize
		for s := range chunks(size) {
			if s.from%chunkSize != 0 || s.to > size || s.to != size && s.to-s.from != chunkSize || seen[s.from] {
				t.Fatalf("size %d: %+v", size, s)
			}
			if len(first) < proofChunks {
				first = append(first, s.from)
			} else if n > 1<<16 {
				break
			}
			seen[s.from] = true
		}
		if n <= 1<<16 && int64(len(seen)) != n {
			t.Errorf("size %d: %d pieces of %d", size, len(seen), n)
		}
		slices.Sort(first)
		last = 0
		for _, from := range append(first, size) {
			if from-last > size/16+chunkSize {
				t.Errorf("size %d: the first pieces leave out %d to %d", size, last, from)
			}
			last = from
		}
	}
}

// Data outside the sample is found on a device that flexd did not create: it is in the first part, which is
// always read.
func TestDataInTheMiddle(t *testing.T) {
	r := newRig(t, 400*mib)
	r.write([]byte("data"), 256*mib+700_000)
	if fs := r.probe(""); fs.Content != volume.Blank {
		t.Errorf("the sample has it: %+v", fs)
	}
	fs, err := r.Probe(t.Context(), r.lock, r.dev, "", "", "")
	if err != nil || fs.Content != volume.ForeignContent || !strings.Contains(fs.What, "offset 269135456") {
		t.Errorf("%+v, %v", fs, err)
	}
	var refusal *Refusal
	if err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4"}, yes); !errors.As(err, &refusal) {
		t.Errorf("got %v", err)
	}
}

// Ensure that the places to read include the superblocks of an xfs, on one disk, on stripes, and after it was
// grown.
func TestSpansOfXFS(t *testing.T) {
	need(t, "mkfs.xfs")
	const gib = 1 << 30
	for _, row := range []struct{ size, grown int64 }{
		{gib, 0}, {2*gib + 4*mib, 0}, {10 * gib, 0}, {101*gib + 12*mib, 0}, {1024 * gib, 0}, {3072 * gib, 0},
		{gib, 7 * gib}, {11 * gib, 17 * gib}, {11 * gib, 17*gib + 4*mib}, {44 * gib, 777 * gib}, {233 * gib, 777 * gib},
	} {
		for _, stripes := range []string{"", "su=64k,sw=1", "su=64k,sw=2", "su=64k,sw=3", "su=16k,sw=4", "su=256k,sw=4", "su=1m,sw=3"} {
			if row.grown > 0 && stripes != "" {
				continue
			}
			for _, tail := range []int64{0, volume.Tail} {
				count, ag := groupsOfXFS(t, row.size-tail, stripes)
				size, found := max(row.size, row.grown), 0
				for n := int64(1); n < count; n++ {
					if slices.ContainsFunc(spans(size), func(s span) bool { return s.from <= n*ag && n*ag+512 <= s.to }) {
						found++
					}
				}
				want := min(3, int(count-1))
				if row.grown > 0 {
					want = 1 // it may be large, and these are many places
				}
				if found < want {
					t.Errorf("size %d without %d, now %d, stripes %q: %d groups of %d bytes, and %d superblocks are read", row.size, tail, size, stripes, count, ag, found)
				}
			}
		}
	}
}

// For an xfs with any small number of groups, which mkfsOptions may set, one superblock is read.
func TestSpansOfXFSGroups(t *testing.T) {
	need(t, "mkfs.xfs")
	for _, agcount := range []int64{3, 6, 7, 12, 31} {
		for _, size := range []int64{100 << 30, 101<<30 + 12*mib - volume.Tail} {
			count, ag := groupsOfXFS(t, size, fmt.Sprint("agcount=", agcount))
			if count != agcount || !slices.ContainsFunc(spans(size), func(s span) bool { return s.from <= ag && ag+512 <= s.to }) {
				t.Errorf("size %d, %d groups of %d bytes: the first superblock after the beginning is not read", size, count, ag)
			}
		}
	}
}

// groupsOfXFS returns the number and the size of the allocation groups that mkfs.xfs would make.
func groupsOfXFS(t *testing.T, size int64, stripes string) (count, ag int64) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	argv := []string{"-N", file}
	if stripes != "" {
		argv = []string{"-N", "-d", stripes, file}
	}
	out, err := exec.Command("mkfs.xfs", argv...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, text, _ := strings.Cut(string(out), "agcount=")
	if _, err := fmt.Sscanf(text, "%d, agsize=%d", &count, &ag); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return count, ag * 4096
}

// Ensure that the output of blkid and wipefs parses.
func TestSignatures(t *testing.T) {
	for _, row := range []struct {
		out  string
		want signature
		ours bool
	}{
		{"DEVNAME=/proc/self/fd/3\nUUID=x\nVERSION=1.0\nBLOCK_SIZE=1024\nTYPE=ext4\nUSAGE=filesystem\n", signature{Type: "ext4"}, true},
		{"TYPE=ext4\nPTTYPE=dos\n", signature{Type: "ext4", Partition: "dos"}, false},
		{"PTUUID=1\nPTTYPE=gpt\n", signature{Partition: "gpt"}, false},
		{"TYPE=LVM2_member\n", signature{Type: "LVM2_member"}, false},
		{"", signature{}, false},
	} {
		got := parseExport([]byte(row.out))
		if got != row.want || got.ours() != row.ours || got.none() != (row.out == "") {
			t.Errorf("%q: got %+v", row.out, got)
		}
	}
	got := parseWipefs([]byte(`{"signatures": [{"device":"loop0", "offset":"0x1fe", "type":"dos", "uuid":null, "label":null},{"device":"loop0","offset":"0x438","type":"ext4"}]}`))
	if text := fmt.Sprint(got); text != "[a dos signature at offset 510 (0x1fe) an ext4 signature at offset 1080 (0x438)]" {
		t.Errorf("got %s", text)
	}
	if got := parseWipefs([]byte("no json")); got != nil {
		t.Errorf("got %v", got)
	}
	var zfs []found
	for i := range int64(13) {
		zfs = append(zfs, found{i, "zfs_member"})
	}
	zfs = append(zfs, found{0x1fe, "dos"})
	if what := describeFound(signature{}, zfs); what != "found a zfs_member signature at offset 0 (0x0) and 12 more of it and a dos signature at offset 510 (0x1fe)" {
		t.Errorf("got %q", what)
	}
}

func ext4Block(blocks, shift, high uint32) []byte {
	b := make([]byte, 1024)
	le := binary.LittleEndian
	le.PutUint32(b[4:], blocks)
	le.PutUint32(b[24:], shift)
	le.PutUint16(b[56:], 0xef53)
	if high != 0 {
		le.PutUint32(b[0x60:], 0x80)
	}
	le.PutUint32(b[0x150:], high)
	return b
}

// Ensure that invalid superblocks are errors.
func TestParseSuperblock(t *testing.T) {
	if sb, err := parseSuperblock(ext4Block(100, 2, 1), "ext4"); err != nil || sb.Size != (1<<32+100)*4096 {
		t.Errorf("got %+v, %v", sb, err)
	}
	for name, b := range map[string][]byte{
		"empty":     nil,
		"zero":      make([]byte, 1024),
		"no blocks": ext4Block(0, 2, 0),
		"huge":      ext4Block(1<<31, 6, 1<<31),
		"block":     ext4Block(100, 7, 0),
	} {
		if sb, err := parseSuperblock(b, "ext4"); err == nil {
			t.Errorf("%s: got %+v", name, sb)
		}
	}
	if _, err := parseSuperblock(ext4Block(100, 2, 0), "xfs"); err == nil {
		t.Error("an ext4 superblock was taken for xfs")
	}
}

func FuzzParseSuperblock(f *testing.F) {
	f.Add(ext4Block(100, 2, 1))
	f.Add(append([]byte("XFSB\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x10\x00"), make([]byte, 1008)...))
	b := make([]byte, 1024)
	copy(b[64:], "_BHRfS_M")
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 1024 {
			for _, o := range ext4Options(b) {
				if len(o) > 64 {
					t.Errorf("an option of %d bytes", len(o))
				}
			}
		}
		for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
			if sb, err := parseSuperblock(b, fsType); err == nil && sb.Size <= 0 {
				t.Errorf("%s: size %d", fsType, sb.Size)
			}
		}
	})
}

func FuzzParseTools(f *testing.F) {
	f.Add([]byte("TYPE=ext4\nPTTYPE=dos\n"))
	f.Add([]byte(`{"signatures":[{"offset":"0x438","type":"ext4"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseExport(b)
		parseWipefs(b)
	})
}

// Ensure that the first byte that is not zero is found at any offset.
func TestFirstNonZero(t *testing.T) {
	for n := range 40 {
		b := make([]byte, n)
		if got := firstNonZero(b); got != -1 {
			t.Errorf("%d zeros: got %d", n, got)
		}
		for i := range n {
			b[i] = 0x80
			if got := firstNonZero(b); got != i {
				t.Errorf("%d of %d: got %d", i, n, got)
			}
			b[i] = 0
		}
	}
	if firstNonZero(bytes.Repeat([]byte{0xff}, 9)) != 0 {
		t.Error("all ones")
	}
}
