package dsw

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"

	"github.com/flexd/flexd/internal/volume"
)

// Ensure that notes are found by directory and by kubelet's name just as a look
// through all of them finds them, whatever was done before.
func TestNotesAreFound(t *testing.T) {
	seed, err := strconv.ParseUint(os.Getenv("FLEXD_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("FLEXD_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	place := t.TempDir()
	s := open(t, place)
	one := func(words ...string) string { return words[r.IntN(len(words))] }
	for range 1000 {
		uuid, dir, name := volume.UUID(one("a", "b", "c")), one("/x", "/y"), one("", "p", "q")
		lease := Lease{VG: "vg0", LV: "a", UUID: uuid, Name: name}
		err := error(nil)
		switch r.IntN(8) {
		case 0, 1:
			err = s.Put(Claim{Kind: volume.Published, Phase: volume.Held, Dir: dir, VG: "vg0", LV: "a", UUID: uuid, Name: name})
		case 2, 3:
			err = s.PutLease(lease)
		case 4:
			s.DropKeepingNote(dir, lease)
		case 5:
			err = s.Drop(uuid, dir)
		case 6:
			err = s.DropLease(uuid)
		case 7:
			if s = open(t, place); r.IntN(2) == 0 {
				err = s.Rename(uuid, volume.UUID(one("d", "e")))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{"/x", "/y"} {
			same(t, s.At(dir), s.All(), func(c Claim) bool { return c.Dir == dir })
		}
		for _, name := range []string{"", "p", "q"} {
			claims, leases := s.Named(name)
			same(t, claims, s.All(), func(c Claim) bool { return c.Name == name })
			same(t, leases, s.Leases(), func(l Lease) bool { return l.Name == name })
		}
	}
}

// same compares what was found with those of all that fit.
func same[Note any](t *testing.T, found, all []Note, fits func(Note) bool) {
	t.Helper()
	all = slices.DeleteFunc(all, func(n Note) bool { return !fits(n) })
	for _, some := range [][]Note{found, all} {
		slices.SortFunc(some, func(a, b Note) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	if d := diff.Diff(all, found); len(all)+len(found) > 0 && d != "" {
		t.Fatalf("(-all +found):\n%s", strings.TrimSpace(d))
	}
}
