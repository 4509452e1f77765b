package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A damage changes a file while flexd is down.
type damage struct {
	name string
	do   func(whole []byte) []byte
}

// damages returns all damages of files of at most that many bytes.
func damages(size int) []damage {
	all := []damage{
		{"zeroed", func(b []byte) []byte { return make([]byte, len(b)) }},
		{"garbage", func(b []byte) []byte { return []byte("\x7fELF\x02\x01\x00{\"version\":1,\xff") }},
		{"half of it zeros", func(b []byte) []byte { return append(bytes.Clone(b[:len(b)/2]), make([]byte, len(b)-len(b)/2)...) }},
		{"twice", func(b []byte) []byte { return append(bytes.Clone(b), b...) }},
		{"1 MiB", func(b []byte) []byte { return append(bytes.Clone(b), make([]byte, mib)...) }},
	}
	for n := range size {
		all = append(all, damage{fmt.Sprintf("torn after %d bytes", n), func(b []byte) []byte { return b[:min(n, len(b)-2)] }})
	}
	return all
}

// longest exceeds the size of any note or record here: each is truncated at every length.
const longest = 520

// Every note and record is damaged while flexd is down. It starts, reports each of them, and uses none:
// mounts stay, no new pod gets them because of an unreadable record, and each unmount works. After the owner
// has removed the files, everything works as before.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	all, hosts := damages(longest), 16
	if !soak || !exhaustive {
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all, hosts = append(all[:2*strikes], damages(0)[r.IntN(5)]), 1
	}
	t.Logf("%d kinds of damage", len(all))
	for some := range slices.Chunk(all, (len(all)+hosts-1)/hosts) { // each waits for leases most of the time
		t.Run("from "+some[0].name, func(t *testing.T) {
			t.Parallel()
			newHost(t, func(h *host) { h.settings.lease = 5 * time.Second }).damaged(some)
		})
	}
}

func (h *host) damaged(all []damage) {
	t := h.t
	v, w, p, q := h.vol("a", "ext4"), h.vol("b", "ext4"), podN(1), podN(2)
	h.ok(h.up(noAttach, w, p)) // has a record, and does not count as blank
	h.end(noAttach, w, p)
	for _, d := range all {
		h.ok(h.up(byKubelet, v, p))
		h.write(v, p, "f", d.name)
		h.ok(h.call("waitforattach", "", w.Blob(nil))) // a lease
		h.kill()
		lent := slices.Contains(h.Active(), "vg0/b") // unless this machine is so slow that its lease has ended
		notes, records := h.files(h.Run+"/notes/*"), h.files(h.State+"/formats/*")
		if len(notes) < 3 || len(records) != 2 { // two claims and a lease or two
			t.Fatalf("%s: %q %q", d.name, notes, records)
		}
		for _, file := range append(notes, records...) {
			b, err := os.ReadFile(file)
			h.must(err)
			if len(b) > longest {
				t.Errorf("%s has %d bytes: it is not torn everywhere", file, len(b))
			}
			h.must(os.WriteFile(file, d.do(b), 0o600))
		}
		h.start()
		problems := strings.Join(h.list().Problems, "\n")
		for _, file := range append(named(notes, ".damaged"), named(records, " is damaged")...) {
			if !strings.Contains(problems, file) {
				t.Errorf("%s: status does not name %s:\n%s", d.name, file, problems)
			}
		}
		if m := mounts(h.Root); !slices.Equal(sorted(m), sorted([]string{h.PodDir(p, v), h.GlobalDir(v)})) {
			t.Errorf("%s: mounted: %q", d.name, m)
		}
		h.reads(v, p, "f", d.name)
		h.refused(h.mount(w, q), "vg0/b: mount", "format record "+h.State+"/formats/")
		h.end(byKubelet, v, p)
		h.eventually("nothing of a is left, and b, whose lease is lost, is reported", func() string {
			l := h.list()
			if !lent && len(h.Active()) == 0 {
				return ""
			}
			if slices.Equal(h.Active(), []string{"vg0/b"}) && slices.ContainsFunc(l.Disagreements, func(d disagreement) bool { return d.Class == "active-unclaimed" && d.LV == "b" }) {
				return ""
			}
			return fmt.Sprintf("%q %+v", h.Active(), l.Disagreements)
		})
		for _, file := range append(h.files(h.Run+"/notes/*.damaged"), records...) {
			h.must(os.Remove(file)) // the owner has looked at it
		}
		h.ok(h.up(noAttach, v, q))
		h.reads(v, q, "f", d.name)
		h.ok(h.up(noAttach, w, q))
		h.end(noAttach, v, q)
		h.end(noAttach, w, q)
		if t.Failed() {
			t.Fatal(d.name)
		}
	}
	h.kill() // notes whose problem is remembered are looked for again
	h.start()
	h.eventually("status has no problem left", func() string { return strings.Join(h.list().Problems, "; ") })
}

// files are those of a pattern.
func (h *host) files(pattern string) []string {
	h.t.Helper()
	all, err := filepath.Glob(pattern)
	h.must(err)
	return all
}

// named returns messages about the files.
func named(files []string, what string) (all []string) {
	for _, f := range files {
		all = append(all, f+what)
	}
	return all
}

func sorted(all []string) []string { slices.Sort(all); return all }
