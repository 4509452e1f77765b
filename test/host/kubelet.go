package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"
)

// A Volume is a flexVolume as a pod or a PV names it.
type Volume struct {
	Name     string // the PV's, or the pod's own for it
	FSType   string
	ReadOnly bool
	Options  map[string]string
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

// GlobalDir is where kubelet wants a volume with attach:true, once per node.
func (n *Node) GlobalDir(v Volume) string {
	return n.Root + "/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/" + v.Name
}

// PodDir is where kubelet wants a pod's mount.
func (n *Node) PodDir(p Pod, v Volume) string {
	return n.Root + "/pods/" + p.UID + "/volumes/flexd~lvm/" + v.Name
}

// An Answer is what the driver said.
type Answer struct {
	Text         string          `json:"-"`
	Status       string          `json:"status"`
	Message      string          `json:"message"`
	Device       string          `json:"device"`
	Attached     *bool           `json:"attached"`
	Capabilities map[string]bool `json:"capabilities"`
}

// Command is a call of the driver as kubelet starts it.
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, n.Driver, args...)
	c.Env = append(os.Environ(), "FLEXD_SOCKET="+n.DriverSocket())
	c.Dir = "/"
	return c
}

// Call runs the driver and reads its answer as strictly as kubelet does: stdout
// and stderr together must be one JSON object, and the exit status 0.
func (n *Node) Call(ctx context.Context, args ...string) (Answer, error) {
	return Read(n.Command(ctx, args...))
}

// Read runs a command and reads its answer.
func Read(c *exec.Cmd) (Answer, error) {
	out, err := c.CombinedOutput()
	a := Answer{Text: string(bytes.TrimSpace(out))}
	if err != nil {
		return a, fmt.Errorf("flexdriver: %w: %s", err, out)
	}
	if err := json.Unmarshal(out, &a); err != nil {
		return a, fmt.Errorf("flexdriver's output is not one JSON object: %w: %q", err, out)
	}
	switch a.Status {
	case "Success", "Failure", "Not supported":
		return a, nil
	}
	return a, fmt.Errorf("flexdriver answers the status %q", a.Status)
}

// Prepare is what kubelet does before mountdevice and mount: it looks whether
// the directory is a mount point, where it would not call the driver at all,
// and makes it if it is missing.
func Prepare(dir string) error {
	mounted, err := IsMountPoint(dir)
	switch {
	case errors.Is(err, unix.ENOENT):
		return os.MkdirAll(dir, 0o750)
	case mounted:
		return fmt.Errorf("%s is a mount point already", dir)
	}
	return err
}

// IsMountPoint asks the kernel, as kubelet does.
func IsMountPoint(dir string) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st); err != nil {
		return false, err
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// Exclusive is kubelet's last proof that nobody uses a device after
// unmountdevice: opening it alone works, or it is not there any more.
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

// Bytes writes a size as kubelet passes it to expandfs.
func Bytes(n int64) string { return strconv.FormatInt(n, 10) }
