package e2e

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// handOver makes a volume of a file, as an operator does: setfattr.
func (h *host) handOver(file, uuid string) {
	h.t.Helper()
	h.must(unix.Setxattr(file, "trusted.flexd.uuid", []byte(uuid), 0))
}

func hash(t *testing.T, file string) [32]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := sha256.New()
	if _, err := io.Copy(s, f); err != nil {
		t.Fatal(err)
	}
	return [32]byte(s.Sum(nil))
}

// What is not blank is never formatted: the refusal says what was found, where,
// and the way out, and every byte stays. It is so for each way to ask.
func TestNeverFormat(t *testing.T) {
	t.Parallel()
	need(t, "cryptsetup", "mkswap", "sfdisk")
	h := newHost(t)
	at := func(file string, offset int64, b []byte) {
		t.Helper()
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		h.must(err)
		defer f.Close()
		_, err = f.WriteAt(b, offset)
		h.must(err)
	}
	const size = 96 * mib // large enough that not all of it is read
	rows := []struct {
		name  string
		make  func(file string)
		words []string
	}{
		{"luks", func(f string) {
			c := h.dir + "/key"
			os.WriteFile(c, []byte("secret"), 0o600)
			h.sh("cryptsetup", "luksFormat", "-q", "--type", "luks2", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", f, c)
		}, []string{"crypto_LUKS", "offset 0 (0x0)"}},
		{"swap", func(f string) { h.sh("mkswap", f) }, []string{"swap", "offset 4086 (0xff6)"}},
		{"table", func(f string) {
			h.sh("sh", "-c", "echo ',' | sfdisk -q "+f)
		}, []string{"dos", "offset 510 (0x1fe)"}},
		{"beheaded", func(f string) {
			h.sh("mkfs.ext4", "-q", "-F", "-b", "1024", f)
			at(f, 0, make([]byte, 4*mib))
		}, []string{"a backup superblock of ext4", "offset 8389632 (0x800400)"}},
		{"head", func(f string) { at(f, 12345, []byte{1}) }, []string{"data that is not zero", "offset 12345 (0x3039)"}},
		{"tail", func(f string) { at(f, size-3, []byte{7, 7, 7}) }, []string{"data that is not zero", "offset 100663293 (0x5fffffd)"}},
	}
	p := podN(1)
	for i, row := range rows {
		file := h.vg + "/" + row.name
		h.must(os.WriteFile(file, nil, 0o600))
		h.must(os.Truncate(file, size))
		row.make(file)
		h.handOver(file, "00000000-0000-4000-8000-00000000000"+string(rune('0'+i)))
		before := hash(t, file)
		v := h.vol(row.name, "ext4")
		for _, a := range []answer{
			h.up(noAttach, v, p),
			h.up(noAttach, vol{name: v.name, opts: v.opts, fs: "xfs"}, p),
			h.up(noAttach, vol{name: v.name, opts: v.opts}, p),
			h.up(byKubelet, v, p),
		} {
			device := h.runDir + "/dev/vg0/" + row.name // it never means another volume's device
			words := append([]string{"vg0/" + row.name + ": mount", "never formats over data", "wipefs -a " + device, "blkdiscard -z " + device}, row.words...)
			h.refused(a, words...)
		}
		os.Remove(h.globalDir(v))
		if hash(t, file) != before {
			t.Errorf("%s: the volume was changed", row.name)
		}
		h.state(row.name, "failed")
		if s := h.story(row.name); s.Error == nil || !strings.Contains(s.Error.Message, row.words[0]) {
			t.Errorf("%s: status: %+v", row.name, s)
		}
	}
	h.quiet()
	// The owner's way out.
	f, err := os.OpenFile(h.vg+"/luks", os.O_RDWR, 0)
	h.must(err)
	h.must(f.Truncate(0))
	h.must(f.Truncate(size))
	f.Close()
	v := h.vol("luks", "ext4")
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "x")
	h.ok(h.unmount(v, p))
	// One that had a filesystem once is not made anew when it looks blank.
	h.quiet()
	h.must(os.Truncate(h.vg+"/luks", 0))
	h.must(os.Truncate(h.vg+"/luks", size))
	h.refused(h.up(noAttach, v, p), "vg0/luks", "blank", "seen a filesystem on it before", "record")
	b, _ := os.ReadFile(h.vg + "/luks")
	if !bytes.Equal(b, make([]byte, size)) {
		t.Error("it was formatted")
	}
	// Nor does another fsType than what is there make a new one.
	w := h.vol("kept", "ext4")
	h.ok(h.up(noAttach, w, p))
	h.ok(h.unmount(w, p))
	w.fs = "xfs"
	h.refused(h.up(noAttach, w, p), "vg0/kept", "ext4", "xfs", "fsType")
}
