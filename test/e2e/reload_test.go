package e2e

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A change of the configuration applies without a restart, and no call fails meanwhile.
func TestReload(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(h *host) { h.settings.vg = `create: true, maxSize: 1GiB, namespaces: [default]` })
	v, other := h.vol("a", "ext4"), pod{Namespace: "team-a", Name: "x", UID: "uid-x"}
	h.refused(h.up(noAttach, v, other), `namespace "team-a"`)

	var calls sync.WaitGroup
	done := make(chan struct{})
	for i := range 3 {
		v, p := h.vol(fmt.Sprint("b", i), "ext4"), podN(10+i)
		calls.Go(func() {
			for range 5 {
				h.ok(h.up(noAttach, v, p))
				h.ok(h.unmount(v, p))
			}
		})
	}
	go func() { calls.Wait(); close(done) }()
	for round := 0; ; round++ {
		h.settings.lease = time.Duration(1+round%2) * time.Second
		h.configure()
		h.must(syscall.Kill(h.Pid(), syscall.SIGHUP))
		select {
		case <-done:
		case <-time.After(pace * 10 * time.Millisecond):
			continue
		}
		break
	}

	h.settings.vg = `create: true, maxSize: 1GiB, namespaces: [default, "team-*"]`
	h.configure()
	h.eventually("the namespace may use it", func() string {
		if a := h.up(noAttach, v, other); a.Status != "Success" {
			return a.Message
		}
		return ""
	})
	h.settings.groups = "  - {name: vg1, " + h.group("vg1") + "}\n"
	h.configure()
	h.eventually("status has what waits for a restart", func() string {
		if all := strings.Join(h.list().Problems, "; "); !strings.Contains(all, "restart of flexd: volumeGroups: vg1 is new") {
			return all
		}
		return ""
	})
	h.ok(h.unmount(v, other))
}
