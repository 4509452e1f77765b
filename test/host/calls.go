package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Volume is a flexVolume as a pod or a PV names it.
type Volume struct {
	Name     string // the PV's, or the pod's own for it
	FSType   string
	ReadOnly bool
	Options  map[string]string
}

// With returns the volume with other options: key, value, ... A value "-" takes
// the key away.
func (v Volume) With(kv ...string) Volume {
	v.Options = maps.Clone(v.Options)
	for i := 0; i < len(kv); i += 2 {
		if v.Options[kv[i]] = kv[i+1]; kv[i+1] == "-" {
			delete(v.Options, kv[i])
		}
	}
	return v
}

// A Pod uses volumes.
type Pod struct{ Namespace, Name, UID string }

// Blob is the JSON that kubelet passes: sorted keys, no spaces, strings only.
// pod is nil in every call but mount.
func (v Volume) Blob(pod *Pod) string {
	all := map[string]string{
		"kubernetes.io/fsType":         v.FSType,
		"kubernetes.io/pvOrVolumeName": v.Name,
		"kubernetes.io/readwrite":      "rw",
	}
	if v.ReadOnly {
		all["kubernetes.io/readwrite"] = "ro"
	}
	if pod != nil {
		all["kubernetes.io/pod.name"] = pod.Name
		all["kubernetes.io/pod.namespace"] = pod.Namespace
		all["kubernetes.io/pod.uid"] = pod.UID
		all["kubernetes.io/serviceAccount.name"] = "default"
	}
	maps.Copy(all, v.Options)
	b, err := json.Marshal(all)
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(b)
}

// GlobalDir returns kubelet's directory for a volume with attach:true, one per node.
func (n *Node) GlobalDir(v Volume) string {
	return n.Root + "/plugins/kubernetes.io/flexvolume/" + strings.Replace(n.DriverDir(), "~", "/", 1) + "/mounts/" + v.Name
}

// PodDir returns kubelet's directory for a pod's mount.
func (n *Node) PodDir(p Pod, v Volume) string {
	return n.Root + "/pods/" + p.UID + "/volumes/" + n.DriverDir() + "/" + v.Name
}

// DriverDir returns the driver's directory in kubelet's paths: vendor~driver.
func (n *Node) DriverDir() string { return filepath.Base(filepath.Dir(n.Driver)) }

// An Answer is the driver's answer.
type Answer struct {
	Text         string          `json:"-"`
	Status       string          `json:"status"`
	Message      string          `json:"message"`
	Code         string          `json:"code"`
	Device       string          `json:"device"`
	Attached     *bool           `json:"attached"`
	Capabilities map[string]bool `json:"capabilities"`
}

// Command returns a call of the driver as kubelet starts it.
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, n.Driver, args...) // its standard input is /dev/null
	c.Env = []string{"PATH=/usr/bin:/bin", "FLEXD_SOCKET=" + n.DriverSocket()}
	c.Dir = "/"
	return c
}

// Call runs the driver and reads its answer: the exit status must be 0.
func (n *Node) Call(ctx context.Context, args ...string) (Answer, error) {
	return Read(n.Command(ctx, args...))
}

// Read runs a command and reads its answer.
func Read(c *exec.Cmd) (Answer, error) {
	out, err := c.CombinedOutput()
	if err != nil {
		return Answer{Text: string(out)}, fmt.Errorf("flexdriver: %w: %s", err, out)
	}
	return Parse(out)
}

// Parse reads an answer more strictly than kubelet does: stdout and stderr together
// are one JSON object without unknown fields, and a Failure has a short reason.
func Parse(out []byte) (Answer, error) {
	a := Answer{Text: string(bytes.TrimSpace(out))}
	d := json.NewDecoder(bytes.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return a, fmt.Errorf("flexdriver's output is no answer: %w: %q", err, out)
	}
	if _, err := d.Token(); err != io.EOF {
		return a, fmt.Errorf("flexdriver's output is more than one JSON value: %q", out)
	}
	switch {
	case a.Status != "Success" && a.Status != "Failure" && a.Status != "Not supported":
		return a, fmt.Errorf("flexdriver answers the status %q", a.Status)
	case a.Status == "Failure" && a.Message == "":
		return a, errors.New("flexdriver answers a Failure without a reason")
	case len(a.Message) > 900 || strings.ContainsAny(a.Message, "\n\r"):
		return a, fmt.Errorf("flexdriver answers a message of %d bytes, want one line of at most 900: %q", len(a.Message), a.Message)
	}
	return a, nil
}

// Prepare does kubelet's work before mountdevice and mount: it checks whether the directory is a mount point,
// where kubelet would not call the driver, and creates a missing one.
func Prepare(dir string) error {
	if Mounted(dir) {
		return fmt.Errorf("%s is a mount point already", dir)
	}
	return os.MkdirAll(dir, 0o750)
}

// Exclusive is kubelet's last check after unmountdevice that no process uses a device: it can be opened
// exclusively, or is gone.
func Exclusive(device string) error {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// GrowsExt4 reports whether this process may grow a mounted ext4: root in some sandboxes lacks the
// capability.
func GrowsExt4() bool {
	var caps [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	return err == nil && caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// Bytes writes a size as kubelet passes it to expandfs.
func Bytes(n int64) string { return strconv.FormatInt(n, 10) }
