//go:build vm

package e2e

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	testhost "github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/umount"
)

// flexd adopts volumes that a shell driver has activated, formatted and mounted, and that driver unmounts
// flexd's mounts.
func TestShellDriver(t *testing.T) {
	need(t, "jq")
	h := newHost(t, func(h *host) {
		h.Driver = h.Dir + "/plugins/kubernetes.io~lvm/lvm"
		h.must(testhost.Install(built+"/flexdriver", h.Driver))
		h.settings.extra = "driver: kubernetes.io/lvm\n"
	})
	h.stop()
	p, q := podN(1), podN(2)
	shell := func(m mode, args ...string) {
		t.Helper()
		text, err := os.ReadFile("../host/shell-driver")
		h.must(err)
		if m == noAttach {
			text = bytes.Replace(text, []byte("\nmode=attach "), []byte("\nmode=mount "), 1)
		}
		h.must(os.WriteFile(h.Dir+"/shell-driver", text, 0o755))
		if out := h.sh(append([]string{h.Dir + "/shell-driver"}, args...)...); !strings.Contains(out, `"Success"`) {
			t.Fatalf("%q: %s", args, out)
		}
	}
	bind := func(v vol, p pod) { // kubelet's own, where the driver has no mount
		t.Helper()
		h.must(unix.Mount(h.GlobalDir(v), h.PodDir(p, v), "", unix.MS_BIND, ""))
	}
	up := func(m mode, v vol, p pod) {
		t.Helper()
		h.must(os.MkdirAll(h.PodDir(p, v), 0o750))
		if m == noAttach {
			shell(m, "mount", h.PodDir(p, v), v.Blob(&p))
			return
		}
		shell(m, "attach", v.Blob(nil), node)
		shell(m, "mountdevice", h.GlobalDir(v), "/dev/mapper/vg0-"+strings.ReplaceAll(v.Options["volumeID"], "-", "--"), v.Blob(nil))
		bind(v, p)
	}
	both := []mode{noAttach, byKubelet}
	volumes := []vol{h.vol("by-mount", "ext4"), h.vol("by-attach", "ext4")}

	for i, m := range both {
		v := volumes[i]
		h.volume("vg0/"+v.Options["volumeID"], 16*mib, nil)
		up(m, v, p)
		h.write(v, p, "f", "the script's")
	}
	h.start()
	for i, m := range both {
		v := volumes[i]
		lv := v.Options["volumeID"]
		h.eventually(lv+" is adopted", func() string {
			text, err := h.Get("/v1/volumes/vg0/" + lv)
			if err == nil && strings.Contains(text, `"state": "mounted"`) && strings.Contains(text, `"phase": "held"`) && strings.Contains(text, `"disagreements": []`) {
				return ""
			}
			return text
		})
		h.ok(h.up(m, v, q))
		h.reads(v, q, "f", "the script's")
		h.write(v, q, "f", "flexd's")
		h.ok(h.unmount(v, p))
	}
	h.stop()
	for i, m := range both {
		v := volumes[i]
		if m == noAttach {
			shell(m, "unmount", h.PodDir(q, v))
		} else {
			h.must(umount.Plain(h.PodDir(q, v)))
			shell(m, "unmountdevice", h.GlobalDir(v))
		}
		h.lvm("lvchange", "-an", "vg0/"+v.Options["volumeID"])
		up(m, v, q)
		h.reads(v, q, "f", "flexd's")
	}
	// The volumes that the script has activated are deactivated with those of flexd.
	h.start()
	for i, m := range both {
		h.end(m, volumes[i], q)
	}
}
