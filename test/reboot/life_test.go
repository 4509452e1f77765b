//go:build vm

package reboot

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/node"
)

var (
	stays = node.Pod{Namespace: "default", Name: "stays", UID: "5a1e-stays"} // wanted after each reboot
	goes  = node.Pod{Namespace: "default", Name: "goes", UID: "90e5-goes"}   // deleted while the node was down
	late  = node.Pod{Namespace: "default", Name: "late", UID: "1a7e-late"}   // its call was cut
	next  = node.Pod{Namespace: "default", Name: "next", UID: "4e87-next"}   // of the second life, takes the volume of goes
)

var (
	kept     = []byte("written and synced\n")
	unsynced = bytes.Repeat([]byte("written, and not synced\n"), 50000)
)

// live is one life of the node.
func live(t *testing.T, life string, attach bool) {
	h := newHost(t, attach)
	if life == firstLife {
		h.makeDisks()
	}
	h.up()
	switch life {
	case firstLife:
		h.firstLife()
	case afterCut:
		h.afterCut()
		h.unchanged()
	case afterClean:
		h.afterClean()
		h.unchanged()
	}
}

func (h *host) firstLife() {
	h.start()
	h.setUp(stays, "wanted")
	h.setUp(goes, "unwanted")
	h.write(h.podDir(stays, "wanted")+"/kept", kept, true)
	h.write(h.podDir(goes, "unwanted")+"/kept", kept, true)
	h.write(h.podDir(stays, "wanted")+"/unsynced", unsynced, false)
	if h.attach {
		h.cutAt(late, "cut", func() bool { return h.record("cut") == volume.Formatting && h.stopMkfs() })
	} else {
		h.cutAt(late, "cut", func() bool { return h.isMountPoint(h.podDir(late, "cut")) })
	}
}

func (h *host) afterCut() {
	if h.fsType == "ext4" && !h.needsRecovery("wanted") {
		h.Error("the filesystem was unmounted: this was no power cut")
	}
	record, id := h.record("cut"), h.fsUUID("cut")
	if want := map[bool]volume.Record{true: volume.Formatting, false: volume.Seen}[h.attach]; record != want {
		h.Errorf("the record of the volume whose call was cut: %v, not %v", record, want)
	}
	h.startQuietly()

	h.discover()
	h.cleanUp(goes, "unwanted")

	h.setUp(stays, "wanted")
	dir := h.podDir(stays, "wanted")
	h.holds(dir+"/kept", kept)
	if text, err := os.ReadFile(dir + "/unsynced"); err == nil && !bytes.HasPrefix(unsynced, text) {
		h.Errorf("the file that was not synced has %d bytes, and not what was written", len(text))
	}
	if got := h.record("wanted"); got != volume.Seen {
		h.Errorf("the record of the wanted volume: %v", got)
	}

	// Kubelet may have given up the pod whose call was cut.
	h.call("Success", "unmount", h.podDir(late, "cut"))
	if h.attach {
		h.call("Success", "unmountdevice", h.GlobalDir(h.volume("cut")))
	}
	// Or it asks again for what was cut: during mkfs, which is repeated, or in
	// the instant of its first mount, from which on that filesystem stays.
	h.setUp(late, "cut")
	if got := h.record("cut"); got != volume.Seen {
		h.Errorf("the record of the volume whose call was repeated: %v", got)
	}
	if after := h.fsUUID("cut"); record == volume.Seen && after != id {
		h.Errorf("the filesystem %s was made anew: %s", id, after)
	}
	h.tearDown(late, "cut")

	h.setUp(next, "unwanted")
	h.holds(h.podDir(next, "unwanted")+"/kept", kept)
	h.write(dir+"/unsynced", unsynced, false)
	h.awaitInactive("cut")
	h.untouched("idle", "host")
}

func (h *host) afterClean() {
	if h.fsType == "ext4" && h.needsRecovery("wanted") {
		h.Error("the filesystem was not unmounted: this was no clean end")
	}
	h.startQuietly()

	h.discover()
	h.cleanUp(next, "unwanted")

	h.setUp(stays, "wanted")
	h.holds(h.podDir(stays, "wanted")+"/kept", kept)
	h.holds(h.podDir(stays, "wanted")+"/unsynced", unsynced)

	// What was active from the boot on goes with its last claim, and only then.
	h.tearDown(stays, "wanted")
	h.awaitInactive("wanted")
	h.untouched("idle", "host", "unwanted")

	// A record outlives the boots: what had a filesystem is never formatted,
	// however blank it is.
	h.zero("unwanted")
	dir := h.podDir(next, "unwanted")
	h.must(node.Prepare(dir))
	a := h.call("Failure", "mount", dir, h.volume("unwanted").Blob(&next))
	if !strings.Contains(a.Message, "has seen a filesystem on it before") {
		h.Errorf("a volume that was wiped: %s", a.Message)
	}
	if h.isMountPoint(dir) {
		h.Error("mount refused, and it is mounted")
	}
	h.untouched("idle", "host")
}

// setUp is what kubelet calls for a pod, after a reboot as before it: attach
// does not come again.
func (h *host) setUp(p node.Pod, lv string) {
	h.Helper()
	v := h.volume(lv)
	if h.attach {
		a := h.call("Success", "waitforattach", "", v.Blob(nil))
		if want := "/dev/" + node.VG + "/" + lv; a.Device != want {
			h.Errorf("waitforattach: device %q, not %q", a.Device, want)
		}
		dir := h.GlobalDir(v)
		h.must(node.Prepare(dir))
		h.call("Success", "mountdevice", dir, a.Device, v.Blob(nil))
	}
	dir := h.podDir(p, lv)
	h.must(node.Prepare(dir))
	h.call("Success", "mount", dir, v.Blob(&p))
	if !h.isMountPoint(dir) {
		h.Fatalf("mount answers Success, and nothing is mounted at %s", dir)
	}
}

// tearDown is what kubelet calls at a pod's end.
func (h *host) tearDown(p node.Pod, lv string) {
	h.Helper()
	h.release("unmount", h.podDir(p, lv))
	if h.attach {
		h.release("unmountdevice", h.GlobalDir(h.volume(lv)))
		h.call("Success", "detach", h.volume(lv).Name, "node-1")
	}
}

// cleanUp is tearDown for a pod that was deleted while the node was down. Nothing
// is mounted by then, and the volume is not ours to deactivate.
func (h *host) cleanUp(p node.Pod, lv string) {
	h.Helper()
	h.tearDown(p, lv)
	if !h.isActive(lv) {
		h.Errorf("%s was active from the boot on and had no claim: deactivated", lv)
	}
}

// release is one of kubelet's two calls to unmount. It removes the directory then.
func (h *host) release(verb, dir string) {
	h.Helper()
	h.call("Success", verb, dir)
	if err := os.Remove(dir); err != nil {
		h.Errorf("after %s: %v", verb, err)
	}
}

// discover is kubelet's start, with directories of pods left behind.
func (h *host) discover() {
	h.Helper()
	if a := h.call("Success", "init"); a.Capabilities["attach"] != h.attach {
		h.Errorf("init: attach %v", a.Capabilities["attach"])
	}
	if h.attach {
		v := node.Volume{Name: h.volume("wanted").Name} // all that a directory tells
		h.call("Not supported", "getvolumename", v.Blob(nil))
	}
}

// awaitInactive waits for the end of a lease.
func (h *host) awaitInactive(lv string) {
	h.Helper()
	for deadline := time.Now().Add(lease + 30*time.Second); h.isActive(lv); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.Fatalf("%s is still active, without a claim and after its lease", lv)
		}
	}
}

func (h *host) holds(path string, want []byte) {
	h.Helper()
	if text, err := os.ReadFile(path); err != nil || !bytes.Equal(text, want) {
		h.Errorf("%s: %d bytes, %v; not the %d that were written", path, len(text), err, len(want))
	}
}

func (h *host) volume(lv string) node.Volume {
	v := node.Volume{Name: lv, FSType: "ext4", Options: map[string]string{"volumegroup": node.VG, "volumeID": lv}}
	switch lv {
	case "wanted":
		v.FSType = h.fsType
	case "cut":
		v.Options["mkfsOptions"] = "-E lazy_itable_init=0,lazy_journal_init=0" // it takes its time
	}
	return v
}

func (h *host) podDir(p node.Pod, lv string) string { return h.PodDir(p, h.volume(lv)) }
