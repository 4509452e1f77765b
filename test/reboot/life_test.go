//go:build vm

package reboot

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/host"
)

var (
	stays = host.Pod{Namespace: "default", Name: "stays", UID: "5a1e-stays"} // wanted after each reboot
	goes  = host.Pod{Namespace: "default", Name: "goes", UID: "90e5-goes"}   // deleted while the node was down
	late  = host.Pod{Namespace: "default", Name: "late", UID: "1a7e-late"}   // its call was cut
	next  = host.Pod{Namespace: "default", Name: "next", UID: "4e87-next"}   // of the second life, takes the volume of goes
)

var (
	kept     = []byte("written and synced\n")
	unsynced = bytes.Repeat([]byte("written, and not synced\n"), 50000)
)

// live is one life of the node.
func live(t *testing.T, life string, attach bool) {
	l := newLife(t, attach)
	if life == firstLife {
		l.makeDisks()
	}
	l.up()
	switch life {
	case firstLife:
		l.firstLife()
	case afterCut:
		l.afterCut()
		l.unchanged()
		l.shutDown()
	case afterClean:
		l.afterClean()
		l.unchanged()
	}
}

func (l *life) firstLife() {
	l.start()
	l.setUp(stays, "wanted")
	l.setUp(goes, "unwanted")
	l.write(l.podDir(stays, "wanted")+"/kept", kept, true)
	l.write(l.podDir(goes, "unwanted")+"/kept", kept, true)
	l.write(l.podDir(stays, "wanted")+"/unsynced", unsynced, false)
	if l.attach {
		backups := host.Random(l.T).IntN(2) == 0
		l.cutAt(late, "cut", func() bool { return l.record("cut") == volume.Formatting && l.stopMkfs("cut", backups) })
	} else {
		l.cutAt(late, "cut", func() bool { return host.Mounted(l.podDir(late, "cut")) })
	}
}

func (l *life) afterCut() {
	if l.fsType == "ext4" && !l.needsRecovery("wanted") {
		l.Error("the filesystem was unmounted: this was no power cut")
	}
	record, id := l.record("cut"), l.fsUUID("cut")
	if want := map[bool]volume.Record{true: volume.Formatting, false: volume.Seen}[l.attach]; record != want {
		l.Errorf("the record of the volume whose call was cut: %v, not %v", record, want)
	}
	l.startQuietly(l.boot)

	l.discover()
	l.cleanUp(goes, "unwanted")

	l.setUp(stays, "wanted")
	dir := l.podDir(stays, "wanted")
	l.holds(dir+"/kept", kept)
	if text, err := os.ReadFile(dir + "/unsynced"); err == nil && !bytes.HasPrefix(unsynced, text) {
		l.Errorf("the file that was not synced has %d bytes, and not what was written", len(text))
	}
	if got := l.record("wanted"); got != volume.Seen {
		l.Errorf("the record of the wanted volume: %v", got)
	}

	// Kubelet may have given up the pod whose call was cut.
	l.call("Success", "unmount", l.podDir(late, "cut"))
	if l.attach {
		l.call("Success", "unmountdevice", l.GlobalDir(l.volume("cut")))
	}
	// Or it asks again for what was cut: during mkfs, which is repeated, or in
	// the instant of its first mount, from which on that filesystem stays.
	l.setUp(late, "cut")
	if got := l.record("cut"); got != volume.Seen {
		l.Errorf("the record of the volume whose call was repeated: %v", got)
	}
	if after := l.fsUUID("cut"); record == volume.Seen && after != id {
		l.Errorf("the filesystem %s was made anew: %s", id, after)
	}
	l.tearDown(late, "cut")

	l.setUp(next, "unwanted")
	l.holds(l.podDir(next, "unwanted")+"/kept", kept)
	l.write(dir+"/unsynced", unsynced, false)
	l.awaitInactive("cut")
	l.untouched("idle", "host")
}

// shutDown ends the life while pods run. With attach:true kubelet ends one of them; others
// keep their volumes until all processes are killed.
func (l *life) shutDown() {
	dir := l.podDir(stays, "wanted")
	if l.attach {
		l.contain(l.podDir(next, "unwanted"))
		l.reboot(dir, l.GlobalDir(l.volume("wanted")))
	} else {
		l.contain(dir)
		l.reboot()
	}
}

func (l *life) afterClean() {
	l.stoppedWell()
	if l.fsType == "ext4" && l.needsRecovery("wanted") {
		l.Error("the filesystem was not unmounted: this was no clean end")
	}
	l.startQuietly(l.boot)

	l.discover()
	l.cleanUp(next, "unwanted")

	l.setUp(stays, "wanted")
	l.holds(l.podDir(stays, "wanted")+"/kept", kept)
	l.holds(l.podDir(stays, "wanted")+"/unsynced", unsynced)

	// What was active from the boot on goes with its last claim, and only then.
	l.tearDown(stays, "wanted")
	l.awaitInactive("wanted")
	l.untouched("idle", "host", "unwanted")

	// A record outlives the boots: what had a filesystem is never formatted,
	// however blank it is.
	l.zero("unwanted")
	dir := l.podDir(next, "unwanted")
	l.must(host.Prepare(dir))
	a := l.call("Failure", "mount", dir, l.volume("unwanted").Blob(&next))
	if !strings.Contains(a.Message, "has seen a filesystem on it before") {
		l.Errorf("a volume that was wiped: %s", a.Message)
	}
	if host.Mounted(dir) {
		l.Error("mount refused, and it is mounted")
	}
	l.untouched("idle", "host")
	if l.attach {
		l.hang()
	}
}

// setUp is what kubelet calls for a pod, after a reboot as before it: attach
// does not come again.
func (l *life) setUp(p host.Pod, lv string) {
	l.Helper()
	v := l.volume(lv)
	if l.attach {
		a := l.call("Success", "waitforattach", "", v.Blob(nil))
		if want := "/dev/" + host.VG + "/" + lv; a.Device != want {
			l.Errorf("waitforattach: device %q, not %q", a.Device, want)
		}
		dir := l.GlobalDir(v)
		l.must(host.Prepare(dir))
		l.call("Success", "mountdevice", dir, a.Device, v.Blob(nil))
	}
	dir := l.podDir(p, lv)
	l.must(host.Prepare(dir))
	l.call("Success", "mount", dir, v.Blob(&p))
	if !host.Mounted(dir) {
		l.Fatalf("mount answers Success, and nothing is mounted at %s", dir)
	}
}

// tearDown is what kubelet calls at a pod's end.
func (l *life) tearDown(p host.Pod, lv string) {
	l.Helper()
	l.release("unmount", l.podDir(p, lv))
	if l.attach {
		l.release("unmountdevice", l.GlobalDir(l.volume(lv)))
		l.call("Success", "detach", l.volume(lv).Name, "node-1")
	}
}

// cleanUp is tearDown for a pod that was deleted while the node was down. Nothing
// is mounted by then, and the volume is not ours to deactivate.
func (l *life) cleanUp(p host.Pod, lv string) {
	l.Helper()
	l.tearDown(p, lv)
	if !l.isActive(lv) {
		l.Errorf("%s was active from the boot on and had no claim: deactivated", lv)
	}
}

// release is one of kubelet's two calls to unmount. It removes the directory then.
func (l *life) release(verb, dir string) {
	l.Helper()
	l.call("Success", verb, dir)
	if err := os.Remove(dir); err != nil {
		l.Errorf("after %s: %v", verb, err)
	}
}

// discover is kubelet's start, with directories of pods left behind.
func (l *life) discover() {
	l.Helper()
	if a := l.call("Success", "init"); a.Capabilities["attach"] != l.attach {
		l.Errorf("init: attach %v", a.Capabilities["attach"])
	}
	if l.attach {
		v := host.Volume{Name: l.volume("wanted").Name} // all that a directory's name shows
		l.call("Not supported", "getvolumename", v.Blob(nil))
	}
}

// awaitInactive waits for the end of a lease.
func (l *life) awaitInactive(lv string) {
	l.Helper()
	for deadline := time.Now().Add(lease + 30*time.Second); l.isActive(lv); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.Fatalf("%s is still active, without a claim and after its lease", lv)
		}
	}
}

func (l *life) holds(path string, want []byte) {
	l.Helper()
	if text, err := os.ReadFile(path); err != nil || !bytes.Equal(text, want) {
		l.Errorf("%s: %d bytes, %v; not the %d that were written", path, len(text), err, len(want))
	}
}

func (l *life) volume(lv string) host.Volume {
	v := host.Volume{Name: lv, FSType: "ext4", Options: map[string]string{"volumegroup": host.VG, "volumeID": lv}}
	switch lv {
	case "wanted":
		v.FSType = l.fsType
	case "zeroed", "labels":
		v.Options["size"] = strconv.Itoa(zeroSize>>20) + "Mi"
	case "cut":
		v.Options["mkfsOptions"] = "-E lazy_itable_init=0,lazy_journal_init=0" // it takes its time
	}
	return v
}

func (l *life) podDir(p host.Pod, lv string) string { return l.PodDir(p, l.volume(lv)) }
