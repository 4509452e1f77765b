package procfs

import (
	"strings"
	"testing"
)

func FuzzParse(f *testing.F) {
	f.Add([]byte("pos:\t0\nmnt_id:\t91\n"))
	f.Add([]byte("07:03"))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseMountID(b)
		hexNumber(string(b))
	})
}

// A process is of a pod if one of its cgroups is.
func FuzzOfPod(f *testing.F) {
	f.Add("0::/kubepods.slice/kubepods-burstable.slice", "12:cpu:/user.slice")
	f.Add("0::/system.slice/kubelet.service", "1:name=systemd:/a/kubepods/b")
	f.Fuzz(func(t *testing.T, a, b string) {
		if OfPod(a+"\n"+b) != (OfPod(a) || OfPod(b)) {
			t.Errorf("%q: %v, %q: %v", a, OfPod(a), b, OfPod(b))
		}
		if OfPod(a) && !OfPod(a+"/below") && !strings.HasSuffix(a, "\n") {
			t.Errorf("%q is a pod's, and not what is below", a)
		}
	})
}

// A search that may read nothing finds nothing, and says so.
func TestSearchCut(t *testing.T) {
	for _, row := range []struct {
		entries int
		cut     bool
	}{{1 << 30, false}, {0, true}} {
		s, seen := NewSearch(row.entries), 0
		s.Each(func(p Process) bool {
			seen++
			s.HoldsDevice(p, "999:999")
			return true
		})
		if s.Cut() != row.cut || (seen == 0) != row.cut {
			t.Errorf("%v: cut %v, %d processes", row.entries, s.Cut(), seen)
		}
	}
}
