package volume

import (
	"strings"
	"testing"
)

// A limit is reached, not exceeded; what is not wanted is not refused; a refusal has its
// numbers.
func TestLimits(t *testing.T) {
	var u Usage
	u.Add("a", Amount{2, 20})
	u.Add("b", Amount{1, 30})
	u.Add("", Amount{1, 5})
	for _, row := range []struct {
		limits Limits
		ns     string
		more   Amount
		want   string // "" = allowed
	}{
		{Limits{}, "a", Amount{1, 1 << 60}, ""},
		{Limits{Group: Limit{MaxVolumes: 5}}, "a", Amount{1, 1}, ""},
		{Limits{Group: Limit{MaxVolumes: 4}}, "a", Amount{1, 1}, "maxVolumes of volume group vg0 is 4, and flexd has created 4: use"},
		{Limits{Group: Limit{MaxVolumes: 1}}, "a", Amount{0, 1}, ""},
		{Limits{Group: Limit{MaxTotalSize: 60}}, "a", Amount{1, 5}, ""},
		{Limits{Group: Limit{MaxTotalSize: 60}}, "a", Amount{0, 6}, "maxTotalSize of volume group vg0 is 60 bytes, and 6 bytes more are wanted beside the 55 bytes of 4 volumes that flexd has created: ask"},
		{Limits{Group: Limit{MaxTotalSize: 10}}, "a", Amount{0, 0}, ""},
		{Limits{Namespace: Limit{MaxVolumes: 2}}, "b", Amount{1, 1}, ""},
		{Limits{Namespace: Limit{MaxVolumes: 2}}, "a", Amount{1, 1}, "perNamespace.maxVolumes of volume group vg0 is 2, and flexd has created 2 for namespace a: use one of these, raise perNamespace.maxVolumes in"},
		{Limits{Namespace: Limit{MaxTotalSize: 30}}, "c", Amount{1, 30}, ""},
		{Limits{Namespace: Limit{MaxTotalSize: 30}}, "a", Amount{0, 11}, "perNamespace.maxTotalSize of volume group vg0 is 30 bytes, and 11 bytes more are wanted beside the 20 bytes of 2 volumes that flexd has created for namespace a: ask"},
		{Limits{Namespace: Limit{MaxVolumes: 1}}, "", Amount{1, 1}, ""},
	} {
		err := row.limits.Check("vg0", u, row.ns, row.more)
		if (err != nil) != (row.want != "") || err != nil && (!strings.HasPrefix(err.Error(), row.want) || CodeOf(err) != NoSpace) {
			t.Errorf("%+v: %v", row, err)
		}
	}
	u.Add("a", Amount{-2, -20})
	if len(u.ByNamespace) != 1 || u.All != (Amount{2, 35}) {
		t.Errorf("got %+v", u)
	}
}
