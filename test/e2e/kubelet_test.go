package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	testhost "github.com/flexd/flexd/test/host"
)

// The three ways in which kubelet drives a driver.
type mode string

const (
	byController mode = "controller attaches" // from a machine without a daemon
	byKubelet    mode = "kubelet attaches"
	noAttach     mode = "attach:false"
)

var modes = []mode{byController, byKubelet, noAttach}

type (
	vol = testhost.Volume
	pod = testhost.Pod
)

// vol names a volume of vg0 that flexd makes.
func (h *host) vol(lv, fs string) vol {
	size := map[string]string{"": "16Mi", "ext4": "16Mi", "xfs": "320Mi", "btrfs": "128Mi"}[fs]
	return vol{Name: "pv-" + lv, FSType: fs, Options: map[string]string{"volumegroup": "vg0", "volumeID": lv, "size": size}}
}

func readOnly(v vol) vol { v.ReadOnly = true; return v }

func podN(n int) pod {
	return pod{Namespace: "default", Name: fmt.Sprint("web-", n), UID: fmt.Sprintf("uid-%d", n)}
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
		env = []string{"FLEXD_SOCKET=" + h.Dir + "/no-daemon-here.sock"}
	}
	return h.callWith(env, "attach", v.Blob(nil), node)
}

// stage is waitforattach and mountdevice.
func (h *host) stage(v vol, device string) answer {
	h.t.Helper()
	a := h.call("waitforattach", device, v.Blob(nil))
	if !a.ok() {
		return a
	}
	if st, err := os.Stat(a.Device); err != nil || st.Mode()&os.ModeDevice == 0 {
		h.t.Errorf("waitforattach answers %q, which is no device (%v)", a.Device, err)
	}
	dir := h.GlobalDir(v)
	if mounted(dir) {
		return a // kubelet does not call the driver
	}
	h.must(os.MkdirAll(dir, 0o750))
	a = h.call("mountdevice", dir, a.Device, v.Blob(nil))
	if a.ok() != mounted(dir) {
		h.t.Errorf("%s; mounted: %v", a, mounted(dir))
	}
	return a
}

func (h *host) mount(v vol, p pod) answer {
	h.t.Helper()
	dir := h.PodDir(p, v)
	if mounted(dir) {
		return alone("mount")
	}
	h.must(os.MkdirAll(dir, 0o750))
	a := h.call("mount", dir, v.Blob(&p))
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
	dir := h.PodDir(p, v)
	if _, err := os.Lstat(dir); os.IsNotExist(err) { // a corrupted mount exists
		return alone("unmount")
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
		return alone("unmountdevice")
	}
	dir := h.GlobalDir(v)
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
		env = []string{"FLEXD_SOCKET=" + h.Dir + "/no-daemon-here.sock"}
	}
	return h.callWith(env, "detach", v.Name, node)
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
	h.must(os.WriteFile(filepath.Join(h.PodDir(p, v), name), []byte(text), 0o644))
}

// reads fails the test unless the pod reads that text.
func (h *host) reads(v vol, p pod, name, text string) {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.PodDir(p, v), name))
	if err != nil || string(b) != text {
		h.t.Errorf("pod %s reads %s: %q, %v; want %q", p.Name, name, b, err, text)
	}
}

// number reads a file with a number, such as of sysfs.
func number(path string) int64 {
	b, _ := os.ReadFile(path)
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}
