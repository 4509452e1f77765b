//go:build vm

package e2e

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// flexd is killed at each of its steps on LVM, while the step's command runs. The command ends after flexd;
// the next flexd continues, and kubelet's call succeeds.
func TestKilledAtEachStepOnLVM(t *testing.T) {
	// Long enough that the test is there when it ends.
	h := newHost(t, func(h *host) { h.settings.lease = 5 * time.Second })
	commands := map[string][]string{
		"create":     {"lvm", "lvcreate"},
		"mkfs":       {"mkfs.ext4"},
		"mount":      {"mount"},
		"extend":     {"lvm", "lvextend"},
		"grow":       {"grow"},
		"deactivate": {"lvm", "lvchange", "-an"},
		"activate":   {"lvm", "lvchange", "-ay"},
	}
	steps := []string{"create", "mkfs", "mount", "extend", "grow", "deactivate", "activate"}
	if r := seeded(t); !soak {
		r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
		steps = steps[:3]
	}
	var hit []string
	killedAt := func(all ...string) {
		t.Helper()
		for _, step := range all {
			if !slices.Contains(steps, step) {
				continue
			}
			child := h.freeze(commands[step]...)
			h.restart()
			thaw(child)
			hit = append(hit, step)
		}
	}
	// kubelet asks again until it is done.
	call := func(all []string, args ...string) {
		t.Helper()
		b := h.begin(args...)
		killedAt(all...)
		a := b.wait(t)
		for end := time.Now().Add(soon); !a.ok() && time.Now().Before(end); a = h.call(args...) {
			t.Logf("%s", a)
		}
		if h.ok(a); t.Failed() {
			t.FailNow()
		}
	}
	v, p := h.vol("struck", "ext4"), podN(1)
	dir := h.PodDir(p, v)
	h.must(os.MkdirAll(dir, 0o750))
	call([]string{"create", "mkfs", "mount"}, "mount", dir, v.Blob(&p))
	h.write(v, p, "f", "x")
	call([]string{"extend", "grow"}, "expandfs", v.Blob(nil), "", dir, fmt.Sprint(64*mib), fmt.Sprint(16*mib))
	if got := capacity(t, dir); got < 40*mib {
		t.Errorf("the filesystem has %d bytes", got)
	}
	h.reads(v, p, "f", "x")
	call(nil, "unmount", dir)
	killedAt("deactivate")
	h.quiet()
	call([]string{"activate"}, "mount", dir, v.Blob(&p))
	h.reads(v, p, "f", "x")
	h.end(noAttach, v, p)
	if t.Logf("killed at %q", hit); len(hit) != len(steps) {
		t.Errorf("want %q", steps)
	}
}

// flexd and the caller are killed while lvcreate runs, and no pod asks for the volume again: its device is
// deactivated, and the next pod gets it.
func TestCreationAbandoned(t *testing.T) {
	h := newHost(t)
	v, p := h.vol("left", "ext4"), podN(1)
	dir := h.PodDir(p, v)
	h.must(os.MkdirAll(dir, 0o750))
	b := h.begin("mount", dir, v.Blob(&p))
	child := h.freeze("lvm", "lvcreate")
	h.must(b.cmd.Process.Kill())
	h.kill()
	thaw(child)
	h.eventually("lvcreate activates it", func() string {
		if len(h.Active()) == 0 {
			return "inactive"
		}
		return ""
	})
	h.start()
	h.quiet()
	h.ok(h.mount(v, p))
	h.end(noAttach, v, p)
}
