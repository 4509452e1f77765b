package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/flex"
	"github.com/flexd/flexd/test/host"
)

// burst asks flexd for the same of each volume at once, each over a connection
// of its own, as many flexdrivers do that kubelet starts at once. It returns when
// the last answer is there.
func burst(ctx context.Context, n *host.Node, verb string, blobs []string) (time.Duration, error) {
	errs := make([]error, len(blobs))
	var all sync.WaitGroup
	started := time.Now()
	for i, blob := range blobs {
		all.Go(func() { errs[i] = ask(ctx, n, fmt.Sprintf("burst-%d", i), verb, "", blob) })
	}
	all.Wait()
	took := time.Since(started)
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	return took, errors.Join(errs[:min(3, len(errs))]...)
}

// ask is a call without a flexdriver.
func ask(ctx context.Context, n *host.Node, id, verb string, args ...string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", n.DriverSocket())
	if err != nil {
		return err
	}
	defer conn.Close()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return err
	}
	err = flex.WriteRequest(conn, flex.Request{V: flex.Version, ID: id, Verb: verb, Args: args, Started: now.Nano(), Parent: os.Getppid()})
	if err != nil {
		return err
	}
	r, err := flex.ReadReply(conn)
	if err == nil && r.Answer.Status != flex.StatusSuccess {
		err = fmt.Errorf("%s: %s", r.Answer.Status, r.Answer.Message)
	}
	return err
}
