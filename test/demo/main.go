// Command demo shows what flexd does for kubelet, on loop devices, in a
// temporary place of its own. Every line with a ✓ was checked; the exit status
// is 0 only if all of them held and nothing was left behind.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/node"
)

// lease is how long flexd keeps a volume active after its last use. A real node
// has more; here somebody waits for the end of it.
const lease = 2 * time.Second

func main() { os.Exit(run()) }

func run() int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "demo: flexd makes block devices and mounts: run this as root")
		return 1
	}
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	for _, tool := range []string{"mkfs.ext4", "blkid", "df"} {
		if _, err := exec.LookPath(tool); err != nil {
			fmt.Fprintf(os.Stderr, "demo: %s is needed (packages e2fsprogs, util-linux, coreutils)\n", tool)
			return 1
		}
	}
	shared, err := chooseSharing()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	n, err := node.New("bin", lease)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	d := newDemo(ctx, n, shared)
	err = d.play()
	if err != nil && ctx.Err() == nil {
		d.failed(err)
	}
	if cerr := n.Close(); cerr != nil {
		err = errors.Join(err, cerr)
		fmt.Fprintln(os.Stderr, "demo:", cerr)
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "\ndemo: interrupted; everything was taken away")
		return 130
	case err != nil:
		return 1
	}
	d.end()
	return 0
}

// A sharing is what filesystem the shared volume has, and its first size.
type sharing struct {
	fsType string
	size   int64
	why    string // it is not ext4
}

// chooseSharing takes what this kernel lets this root grow while it is mounted.
func chooseSharing() (sharing, error) {
	var caps [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	if err == nil && caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		return sharing{fsType: "ext4", size: 64 * MiB}, nil
	}
	const why = "The kernel grows a mounted ext4 only for a process with CAP_SYS_RESOURCE, which this root does not have"
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		return sharing{}, errors.New(why + ": install xfsprogs, and the demo takes xfs")
	}
	return sharing{fsType: "xfs", size: 320 * MiB, why: "(" + why + ". So the shared volume is xfs.)"}, nil
}
