package e2e

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

// Only blank volumes are formatted, by any call: a refusal names the data, its offset and the remedy, and
// every byte stays.
func TestNeverFormat(t *testing.T) {
	t.Parallel()
	need(t, "cryptsetup", "mkswap", "sfdisk")
	// The lease is long: what was looked at can be read without more ado.
	h := newHost(t, func(h *host) { h.settings.lease = time.Hour })
	r := seeded(t)
	at := func(file string, offset int64, b []byte) {
		t.Helper()
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		h.must(err)
		defer f.Close()
		_, err = f.WriteAt(b, offset)
		h.must(err)
	}
	const looks, erases = "Look at it first: ", "; only if nothing in it is needed: "
	const size = 20 * mib // large enough that not all of it is read
	rows := []struct {
		name  string
		make  func(file string)
		words []string
	}{
		{"luks", func(f string) {
			c := h.Dir + "/key"
			os.WriteFile(c, []byte("secret"), 0o600)
			h.sh("cryptsetup", "luksFormat", "-q", "--type", "luks2", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", f, c)
		}, []string{"crypto_LUKS", "offset 0 (0x0)"}},
		{"beheaded", func(f string) {
			h.sh("mkfs.ext4", "-q", "-F", "-b", "1024", f)
			at(f, 0, make([]byte, 4*mib))
		}, []string{"a backup superblock of ext4", "offset 8389632 (0x800400)"}},
		{"head", func(f string) { at(f, 12345, []byte{1}) }, []string{"data that is not zero", "offset 12345 (0x3039)"}},
		{"tail", func(f string) { at(f, size-3, []byte{7, 7, 7}) }, []string{"data that is not zero", "offset 20971517 (0x13ffffd)"}},
		{"swap", func(f string) { h.sh("mkswap", f) }, []string{"swap", "offset 4086 (0xff6)"}},
		{"table", func(f string) {
			h.sh("sh", "-c", "echo ',' | sfdisk -q --no-reread --no-tell-kernel "+f)
		}, []string{"dos", "offset 510 (0x1fe)"}},
	}
	p := podN(1)
	drawn := some(r, rows, 4)
	for _, row := range drawn {
		name := "vg0/" + row.name
		var before []byte
		h.volume(name, size, func(path string) {
			row.make(path)
			before = h.bytes(path)
		})
		v := h.vol(row.name, "ext4")
		ways := []func() answer{
			func() answer { return h.up(noAttach, v, p) },
			func() answer { return h.up(byKubelet, v, p) },
			func() answer { return h.up(noAttach, vol{Name: v.Name, Options: v.Options, FSType: "xfs"}, p) },
			func() answer { return h.up(noAttach, vol{Name: v.Name, Options: v.Options}, p) },
		}
		for _, ask := range some(r, ways, 2) {
			words := append([]string{name + ": mount", "never formats over data", looks, erases}, row.words...)
			h.refused(ask(), words...)
		}
		os.Remove(h.GlobalDir(v))
		if !bytes.Equal(h.content(name), before) {
			t.Errorf("%s: the volume was changed", row.name)
		}
		h.state(row.name, "failed")
		if s := h.story(row.name); s.Error == nil || !strings.Contains(s.Error.Message, row.words[0]) {
			t.Errorf("%s: status: %+v", row.name, s)
		}
	}
	// The owner's way out: the commands of the message.
	again := "vg0/" + drawn[0].name
	v := h.vol(drawn[0].name, "ext4")
	_, look, _ := strings.Cut(h.up(noAttach, v, p).Message, looks)
	look, erase, ok := strings.Cut(look, erases)
	if !ok {
		t.Fatal("no commands")
	}
	h.sh("sh", "-c", look+" || [ $? = 2 ]") // blkid knows no name for some data
	h.sh("sh", "-c", erase)
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "x")
	h.ok(h.unmount(v, p))
	// One that had a filesystem once is not made anew when it looks blank.
	h.zero(again)
	before := h.content(again)
	h.refused(h.up(noAttach, v, p), again, "blank", "seen a filesystem on it before", "record")
	if !bytes.Equal(h.content(again), before) {
		t.Error("it was formatted")
	}
	// Nor does another fsType than what is there make a new one.
	w := h.vol("kept", "ext4")
	h.ok(h.up(noAttach, w, p))
	h.ok(h.unmount(w, p))
	w.FSType = "xfs"
	h.refused(h.up(noAttach, w, p), "vg0/kept", "ext4", "xfs", "fsType")
	for _, name := range h.volumes() {
		h.ok(h.call("detach", "pv-"+strings.TrimPrefix(name, "vg0/"), node))
	}
}
