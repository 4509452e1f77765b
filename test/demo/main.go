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
	"strings"
	"syscall"

	"github.com/flexd/flexd/test/host"
)

func main() {
	columns := flag.Int("columns", 0, "the output ends at a terminal of that width, although it begins in a pipe")
	bin := flag.String("bin", "bin", "the directory with flexd and flexdriver")
	record := flag.String("record", "", "record the output in that `FILE`, in colors")
	recorded := flag.String("same", "", "fail unless the output is that of the recording in `FILE`, but for times, ids and sizes")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: demo [-bin DIR] [-columns N] [-record FILE | -same FILE] [DISK...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *record != "" {
		*columns = castWidth
	}
	if *record == "" && *recorded == "" {
		os.Exit(run(*bin, *columns, flag.Args()))
	}
	heard, err := listen()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	code := run(*bin, *columns, flag.Args())
	if all := heard(); code == 0 {
		if err := keep(all, *record, *recorded); err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// keep writes a recording of the output, or compares it with one.
func keep(all []line, record, recorded string) error {
	if record != "" {
		return writeCast(record, all)
	}
	cast, err := readCast(recorded)
	if err != nil {
		return err
	}
	if last := all[len(all)-1].text; strings.HasPrefix(last, "Left out") {
		return nil // this machine lacks what a part needs
	}
	if d := same(cast, all); d != "" {
		return fmt.Errorf("the recording %s is not of this: make demo DEMO='-record docs/demo.cast' && go test ./test/demo -run Picture -update\n%s", recorded, d)
	}
	return nil
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
	err = d.Perform(d.play)
	if err != nil && ctx.Err() == nil {
		d.Failed(err, d.LogTail(25))
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
