package e2e

import (
	"strings"
	"testing"
	"time"
)

// A waitforattach that finds a lease starts it anew.
func TestLeaseRenewed(t *testing.T) {
	h := newHost(t, func(h *host) { h.settings.lease = 6 * time.Second })
	v := h.vol("a", "ext4")
	for range 2 {
		h.ok(h.call("waitforattach", "", v.Blob(nil)))
		time.Sleep(4 * time.Second)
	}
	if s := h.story("a"); s.Lease == nil || !s.Lease.Live || !strings.Contains(strings.Join(h.Active(), " "), "vg0/a") {
		t.Errorf("%s", h.show("vg0/a"))
	}
	h.ok(h.call("detach", v.Name, node))
}
