package lvm

import (
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/volume"
)

// dmName is the inverse of parseDMName for names without a layer.
func dmName(n volume.Name) string {
	return strings.ReplaceAll(n.VG, "-", "--") + "-" + strings.ReplaceAll(n.LV, "-", "--")
}

// Ensure that all names that LVM allows can be converted to device-mapper's and back.
func TestDMName(t *testing.T) {
	for _, c := range []struct{ vg, lv, want string }{
		{"vg0", "data", "vg0-data"},
		{"vg-0", "a-b.c", "vg--0-a--b.c"},
		{"vg-", "x", "vg---x"},
		{"a--b", "c--", "a----b-c----"},
		{"+_.", "_+.", "+_.-_+."},
	} {
		n := volume.Name{VG: c.vg, LV: c.lv}
		if got := dmName(n); got != c.want {
			t.Errorf("%s: got %q, want %q", n, got, c.want)
		}
		got, layer, ok := parseDMName(c.want)
		if got != n || layer != "" || !ok {
			t.Errorf("%q: got %v %q %v", c.want, got, layer, ok)
		}
		got, layer, ok = parseDMName(c.want + "-tpool")
		if got != n || layer != "tpool" || !ok {
			t.Errorf("%q: got %v %q %v", c.want, got, layer, ok)
		}
	}
	for _, s := range []string{"", "vg0", "-x", "vg0-", "a-b-c-d", "a-b-", "--"} {
		if n, l, ok := parseDMName(s); ok {
			t.Errorf("%q: got %v %q", s, n, l)
		}
	}
}

func FuzzDMName(f *testing.F) {
	f.Add("vg-0", "a--b")
	f.Fuzz(func(t *testing.T, vg, lv string) {
		n := volume.Name{VG: vg, LV: lv}
		if got, _, ok := parseDMName(dmName(n)); checkName(vg) == nil && checkName(lv) == nil && (!ok || got != n) {
			t.Errorf("%q: got %q", n, got)
		}
		_, _, _ = parseDMName(lv)
		if id, ok := parseDMUUID(lv); ok && !IsUUID(id) {
			t.Errorf("%q: got %q", lv, id)
		}
	})
}

func TestDMUUID(t *testing.T) {
	const vg, lv = "la3KrT-Xg7I-9fu6-0jwY-5CZS-Wkey-96hrb7", "tLRoe9-kj7z-fenz-s6k6-t6CI-nlAJ-oTgOdY"
	s := dmUUID(vg + "_" + lv)
	if want := "LVM-la3KrTXg7I9fu60jwY5CZSWkey96hrb7tLRoe9kj7zfenzs6k6t6CInlAJoTgOdY"; s != want {
		t.Errorf("got %q", s)
	}
	if got, ok := parseDMUUID(s); !ok || got != vg+"_"+lv {
		t.Errorf("got %q %v", got, ok)
	}
	for _, bad := range []string{"", s + "-tpool", s + "-real", s[1:], "CRYPT-" + s[4:], s[:67], s[:67] + "-"} {
		if got, ok := parseDMUUID(bad); ok {
			t.Errorf("%q: got %q", bad, got)
		}
	}
}

func TestCheckName(t *testing.T) {
	for s, want := range map[string]bool{
		"a": true, "a-b.c+d_e": true, "..a": true, ".a": true, strings.Repeat("x", 127): true,
		"": false, ".": false, "..": false, "-a": false, "a/b": false, "a b": false, "ä": false, "a\n": false, "@tag": false, strings.Repeat("x", 128): false,
	} {
		if got := checkName(s) == nil; got != want {
			t.Errorf("%q: got %v", s, got)
		}
	}
}
