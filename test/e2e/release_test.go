package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/test/umount"
)

// kubeletsCgroups lets the test decide which pods run: see populated.
func (h *host) kubeletsCgroups() {
	h.settings.extra = "cgroupDir: " + h.Dir + "/cgroup"
	h.must(os.MkdirAll(h.Dir+"/cgroup/kubepods", 0o755))
	h.must(os.WriteFile(h.Dir+"/cgroup/cgroup.procs", nil, 0o644))
}

// populated sets the kernel's state of a pod's control group.
func (h *host) populated(p pod, n string) {
	h.t.Helper()
	dir := h.Dir + "/cgroup/kubepods/besteffort/pod" + p.UID
	if n == "" {
		h.must(os.RemoveAll(dir))
		return
	}
	h.must(os.MkdirAll(dir, 0o755))
	h.must(os.WriteFile(dir+"/cpu.stat", []byte("usage_usec 1000\n"), 0o644)) // it has run
	h.must(os.WriteFile(dir+"/cgroup.events", []byte("populated "+n+"\nfrozen 0\n"), 0o644))
}

// Pods end while kubelet is down. Their mounts are found within a minute, reported, and released by an
// operator's command, except mounts in use and mounts that a running pod may need.
func TestOrphans(t *testing.T) {
	t.Parallel()
	h := newHost(t, (*host).kubeletsCgroups)
	v, w, x, dead, alive := h.vol("left", "ext4"), h.vol("used", "ext4"), h.vol("global", "ext4"), podN(1), podN(2)
	h.populated(dead, "1")
	h.populated(alive, "1")
	h.ok(h.up(byKubelet, v, dead))
	h.ok(h.up(byKubelet, w, alive))
	h.ok(h.up(byKubelet, x, alive))
	plain := h.vol("plain", "ext4")
	h.ok(h.up(noAttach, plain, dead))
	h.ok(h.unmount(x, alive))
	dir, global := h.PodDir(dead, v), h.GlobalDir(x)
	holder := h.holder(dir)
	has := func(text string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("no %q in:\n%s", w, text)
			}
		}
	}
	release := func(status int, args ...string) string {
		t.Helper()
		out, code := h.release(args...)
		if code != status {
			t.Errorf("flexd release %q: exit status %d, want %d:\n%s", args, code, status, out)
		}
		return out
	}
	found := func(class string, within time.Duration) {
		t.Helper()
		begun := time.Now()
		if s := h.within(within, func() string {
			for _, d := range h.list().Disagreements {
				if d.Class == class {
					return ""
				}
			}
			return h.show()
		}); s != "" {
			t.Fatalf("no %s after %v:\n%s", class, within, s)
		}
		t.Logf("%s: found after %v", class, time.Since(begun).Round(time.Second))
	}

	has(release(0), "No orphans on "+node)
	has(release(1, h.PodDir(alive, w)), "nothing to release", "vg0/used, for pod default/web-2: its pod still runs", "delete the pod")
	has(release(1, "--yes", h.GlobalDir(w)), "pods have the volume mounted: "+h.PodDir(alive, w))
	has(release(1, "--yes", h.Dir+"/elsewhere", "vg0/none"), "flexd has no claim to that directory", "flexd knows no such volume")

	h.stop() // with the pod's last process, as when the whole node is in trouble
	h.populated(dead, "0")
	h.start()
	found("orphaned-pod", time.Minute)
	found("orphaned-global", time.Minute)
	text := release(0)
	has(text, "vg0/left  orphaned-pod, first seen", "the mount at "+dir+", for pod default/web-1, is left: no process is in its pod's control group",
		"would umount "+dir, "Nothing was done. To do it: flexd release --yes")
	if strings.Contains(text, "vg0/used") {
		t.Errorf("a pod that lives is mentioned:\n%s", text)
	}
	showsAs(t, docBlocks(t), "docs/orphans.md", "vg0/data  orphaned-pod", strings.NewReplacer("vg0/plain", "vg0/data", "default/web-1", "default/web-0",
		h.Root, "/var/lib/kubelet", dead.UID+"/", "6b2f.../", plain.Name, "data").Replace(release(0, h.PodDir(dead, plain))))
	has(release(0, "--yes", h.PodDir(dead, plain)), "released")
	has(h.show(), "orphaned", "Disagreement: vg0/left orphaned-pod")
	has(h.show(h.story("left").UUID), "vg0/left  orphaned", "orphaned-pod, first seen", "what to do: restart kubelet", "flexd release "+dir)

	// A program that is no pod's uses it.
	has(release(1, dir, "--yes"), "not released", dir+" is busy", fmt.Sprintf("pid %d (sleep, working directory", holder.Process.Pid))
	if !mounted(dir) {
		t.Error("it was detached")
	}
	holder.Process.Kill()
	holder.Wait()
	has(release(0, dir, "--yes"), "vg0/left  orphaned-pod", "released")
	if mounted(dir) || !mounted(h.GlobalDir(v)) || !mounted(global) || !mounted(h.PodDir(alive, w)) {
		t.Errorf("mounted: %q", mounts(h.Root))
	}
	has(release(0, "vg0/global"), "orphaned-global", "kubelet's global mount at "+global+" is left: no pod has the volume mounted")
	has(release(0, "--yes", "-/"+h.story("global").UUID), "released")
	if mounted(global) {
		t.Errorf("mounted: %q", mounts(h.Root))
	}
	h.state("global", "idle")

	// An administrator unmounts under a pod, which runs first and then ends.
	h.must(umount.Plain(h.PodDir(alive, w)))
	found("claimed-missing", 20*time.Second)
	has(release(1, "--yes", "vg0/used"), "claimed-missing", "refused: its pod still runs")
	h.populated(alive, "")
	has(release(0, "--yes", h.PodDir(alive, w)), "released")
	h.ok(h.unmount(w, alive)) // kubelet comes back after all
	h.end(byKubelet, w)
	h.end(byKubelet, v)
	h.end(byKubelet, x)
}
