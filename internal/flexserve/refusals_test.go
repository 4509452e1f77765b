package flexserve

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/status"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestRefusals(t *testing.T) {
	var r Refusals
	start := time.Unix(1_800_000_000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	mount := flexvolume.Call{Verb: "mount", Dir: "/pods/1", Options: flexvolume.Options{Pod: flexvolume.Pod{Namespace: "default", Name: "web-0", UID: "1"}}}
	attach := flexvolume.Call{Verb: "waitforattach"}
	pod := &status.Pod{Namespace: "default", Name: "web-0", UID: "1", Dir: "/pods/1"}
	check := func(when int, want ...status.RefusedCall) {
		t.Helper()
		if d := cmp.Diff(want, r.Calls(at(when)), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}

	r.failed(attach, "vg0/data", status.RefusedCall{CallID: "c1", Code: "no-space", Message: "it is full"}, at(0))
	r.failed(mount, "vg0/data", status.RefusedCall{CallID: "c2", Code: "not-allowed", Message: "no"}, at(1))
	r.failed(mount, "vg0/data", status.RefusedCall{CallID: "c3", Code: "not-allowed", Message: "no"}, at(9))
	again := status.RefusedCall{VG: "vg0", LV: "data", Dir: "/pods/1", Pod: pod, Verb: "mount", Code: "not-allowed", Message: "no", First: at(1), Last: at(9), Count: 2, CallID: "c3"}
	check(9, again, status.RefusedCall{VG: "vg0", LV: "data", Verb: "waitforattach", Code: "no-space", Message: "it is full", First: at(0), Last: at(0), Count: 1, CallID: "c1"})

	r.succeeded(flexvolume.Call{Verb: "isattached"}, "vg0/data")
	r.succeeded(flexvolume.Call{Verb: "unmount", Dir: "/pods/2"}, "vg0/data")
	if got := r.Calls(at(9)); len(got) != 2 {
		t.Errorf("%+v", got)
	}
	r.succeeded(attach, "vg0/data")
	check(10, again)
	r.succeeded(mount, "vg1/other") // whatever is mounted there now
	check(10)

	r.failed(mount, "vg0/data", status.RefusedCall{CallID: "c4", Code: "x", Message: strings.Repeat("é", maxRefusalLen)}, at(20))
	if got := r.Calls(at(20))[0].Message; len(got) > maxRefusalLen || got != strings.Repeat("é", len(got)/2) {
		t.Errorf("a message of %d bytes", len(got))
	}
	check(20+int(refusalAge.Seconds())+1, []status.RefusedCall{}...)

	for i := range 2 * maxRefusals {
		r.failed(attach, fmt.Sprint("vg0/lv", i), status.RefusedCall{CallID: "c", Code: "x", Message: "no"}, at(30))
	}
	if got := r.Calls(at(30)); len(got) != maxRefusals || got[0].LV != fmt.Sprint("lv", 2*maxRefusals-1) {
		t.Errorf("%d refusals, the newest of %s", len(got), got[0].LV)
	}
}
