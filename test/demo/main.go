// Command demo shows what flexd does for kubelet, in a temporary place of its
// own: on loop devices, or on the LVM volume group that it makes of the disks it
// is given, which are overwritten. Every line with a ✓ was checked; the exit
// status is 0 only if all of them held and nothing was left behind. A scene for
// which this machine lacks something is left out, and the last line says so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/flexd/flexd/test/host"
)

func main() {
	columns := flag.Int("columns", 0, "the output ends at a terminal of that width, although it begins in a pipe")
	bin := flag.String("bin", "bin", "the directory with flexd and flexdriver")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: demo [-bin DIR] [-columns N] [DISK...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	os.Exit(run(*bin, *columns, flag.Args()))
}

func run(bin string, columns int, disks []string) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "demo: flexd makes block devices and mounts: run this as root")
		return 1
	}
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	tools := []string{"mkfs.ext4", "blkid", "df"}
	if len(disks) > 0 {
		tools = append(tools, "lvs")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			fmt.Fprintf(os.Stderr, "demo: %s is needed (packages e2fsprogs, util-linux, coreutils, lvm2)\n", tool)
			return 1
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	ground := onLoops
	if len(disks) > 0 {
		ground = onLVM(disks)
	}
	n, err := host.New(bin, ground.lease, disks...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	d := newDemo(ctx, n, ground, chooseSharing(), columns)
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
