package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The three ways in which kubelet drives a driver.
type mode string

const (
	byController mode = "controller attaches" // from a machine without a daemon
	byKubelet    mode = "kubelet attaches"
	noAttach     mode = "attach:false"
)

var modes = []mode{byController, byKubelet, noAttach}

// A vol is a flexVolume as a pod or a PV names it.
type vol struct {
	name string // kubelet's
	fs   string
	ro   bool
	opts map[string]string
}

// vol names a volume of vg0 that flexd makes.
func (h *host) vol(lv, fs string) vol {
	size := map[string]string{"": "16Mi", "ext4": "16Mi", "xfs": "300Mi", "btrfs": "128Mi"}[fs]
	return vol{name: "pv-" + lv, fs: fs, opts: map[string]string{"volumegroup": "vg0", "volumeID": lv, "size": size}}
}

// with returns the volume with other options: key, value, ... A value "-" takes
// the key away.
func (v vol) with(kv ...string) vol {
	v.opts = maps.Clone(v.opts)
	for i := 0; i < len(kv); i += 2 {
		if v.opts[kv[i]] = kv[i+1]; kv[i+1] == "-" {
			delete(v.opts, kv[i])
		}
	}
	return v
}

func (v vol) readOnly() vol { v.ro = true; return v }

// A pod is who mounts.
type pod struct{ ns, name, uid string }

func podN(n int) pod { return pod{"default", fmt.Sprint("web-", n), fmt.Sprintf("uid-%d", n)} }

// blob is the JSON kubelet passes; pod only with mount.
func (v vol) blob(p *pod) string {
	all := map[string]string{"kubernetes.io/fsType": v.fs, "kubernetes.io/pvOrVolumeName": v.name, "kubernetes.io/readwrite": "rw"}
	if v.ro {
		all["kubernetes.io/readwrite"] = "ro"
	}
	if p != nil {
		all["kubernetes.io/pod.name"], all["kubernetes.io/pod.namespace"], all["kubernetes.io/pod.uid"] = p.name, p.ns, p.uid
		all["kubernetes.io/serviceAccount.name"] = "default"
	}
	maps.Copy(all, v.opts)
	b, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (h *host) podDir(v vol, p pod) string {
	return h.root + "/pods/" + p.uid + "/volumes/flexd~lvm/" + v.name
}

func (h *host) globalDir(v vol) string {
	return h.root + "/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/" + v.name
}

// up is everything kubelet does until a pod can use a volume. It returns the
// first answer that is no Success, or the last.
func (h *host) up(m mode, v vol, p pod) answer {
	h.t.Helper()
	var a answer
	if m != noAttach {
		if a = h.attach(m, v); !a.ok() {
			return a
		}
		if a = h.stage(v, a.Device); !a.ok() {
			return a
		}
	}
	return h.mount(v, p)
}

// attach is the controller's, or kubelet's.
func (h *host) attach(m mode, v vol) answer {
	h.t.Helper()
	var env []string
	if m == byController {
		env = []string{"FLEXD_SOCKET=" + h.dir + "/no-daemon-here.sock"}
	}
	return h.callWith(env, "attach", v.blob(nil), node)
}

// stage is waitforattach and mountdevice.
func (h *host) stage(v vol, device string) answer {
	h.t.Helper()
	a := h.call("waitforattach", device, v.blob(nil))
	if !a.ok() {
		return a
	}
	if st, err := os.Stat(a.Device); err != nil || st.Mode()&os.ModeDevice == 0 {
		h.t.Errorf("waitforattach answers %q, which is no device (%v)", a.Device, err)
	}
	dir := h.globalDir(v)
	if mounted(dir) {
		return a // kubelet does not call the driver
	}
	h.must(os.MkdirAll(dir, 0o750))
	a = h.call("mountdevice", dir, a.Device, v.blob(nil))
	if a.ok() != mounted(dir) {
		h.t.Errorf("%s; mounted: %v", a, mounted(dir))
	}
	return a
}

func (h *host) mount(v vol, p pod) answer {
	h.t.Helper()
	dir := h.podDir(v, p)
	if mounted(dir) {
		return answer{Status: "Success", about: "mount, kubelet alone"}
	}
	h.must(os.MkdirAll(dir, 0o750))
	a := h.call("mount", dir, v.blob(&p))
	if a.ok() != mounted(dir) {
		h.t.Errorf("%s; mounted: %v", a, mounted(dir))
	}
	if !a.ok() {
		os.Remove(dir)
	}
	return a
}

// unmount is the end of a pod.
func (h *host) unmount(v vol, p pod) answer {
	h.t.Helper()
	dir := h.podDir(v, p)
	if _, err := os.Lstat(dir); os.IsNotExist(err) { // a corrupted mount exists
		return answer{Status: "Success", about: "unmount, kubelet alone"}
	}
	a := h.call("unmount", dir)
	if a.ok() {
		if err := os.Remove(dir); err != nil {
			h.t.Errorf("after %s: %v", a, err)
		}
	}
	return a
}

// down is everything kubelet does after the last pod's unmount.
func (h *host) down(m mode, v vol) answer {
	h.t.Helper()
	if m == noAttach {
		return answer{Status: "Success"}
	}
	dir := h.globalDir(v)
	if mounted(dir) {
		if a := h.call("unmountdevice", dir); !a.ok() {
			return a
		}
	}
	if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
		h.t.Errorf("after unmountdevice: %v", err)
	}
	var env []string
	if m == byController {
		env = []string{"FLEXD_SOCKET=" + h.dir + "/no-daemon-here.sock"}
	}
	return h.callWith(env, "detach", v.name, node)
}

// end takes pods away, and then the volume.
func (h *host) end(m mode, v vol, pods ...pod) {
	h.t.Helper()
	for _, p := range pods {
		h.ok(h.unmount(v, p))
	}
	h.ok(h.down(m, v))
}

// write is a pod that writes a file.
func (h *host) write(v vol, p pod, name, text string) {
	h.t.Helper()
	h.must(os.WriteFile(filepath.Join(h.podDir(v, p), name), []byte(text), 0o644))
}

// reads fails the test unless the pod reads that text.
func (h *host) reads(v vol, p pod, name, text string) {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.podDir(v, p), name))
	if err != nil || string(b) != text {
		h.t.Errorf("pod %s reads %s: %q, %v; want %q", p.name, name, b, err, text)
	}
}

// number reads a file with a number, such as of sysfs.
func number(path string) int64 {
	b, _ := os.ReadFile(path)
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}
