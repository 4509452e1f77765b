package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/flexd/flexd/internal/boottime"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/test/host"
)

// burst makes the same call for each volume at once, each over its own connection, as concurrent flexdrivers
// do. It returns the time from the first request to the last answer.
func burst(n *host.Node, verb string, blobs []string) (took time.Duration, err error) {
	conns := make([]net.Conn, len(blobs))
	for i := range conns {
		if conns[i], err = net.Dial("unix", n.DriverSocket()); err != nil {
			return 0, err
		}
		defer conns[i].Close()
	}
	now, started := boottime.Now(), time.Now()
	for i, blob := range blobs {
		r := flexvolume.Request{V: flexvolume.Version, ID: fmt.Sprintf("burst-%d", i), Verb: verb, Args: []string{"", blob}, Started: int64(now), Parent: os.Getppid()}
		if err := json.NewEncoder(conns[i]).Encode(r); err != nil {
			return 0, err
		}
	}
	var errs []error
	for i, conn := range conns {
		var r flexvolume.Reply
		err := json.NewDecoder(conn).Decode(&r)
		if err == nil && r.Answer.Status != flexvolume.StatusSuccess {
			err = fmt.Errorf("%s: %s: %s", blobs[i], r.Answer.Status, r.Answer.Message)
		}
		if err != nil && len(errs) < 3 {
			errs = append(errs, err)
		}
	}
	return time.Since(started), errors.Join(errs...)
}
