package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/boottime"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/status"
	"github.com/urfave/cli/v2"
)

func releaseCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "release",
		Usage:     "release orphans: prints the steps, and takes them with --yes",
		ArgsUsage: "[DIRECTORY | VG/LV | UUID]...",
		Description: "Orphans are mounts of dead pods, global mounts without pods, claims without their mount, and\n" +
			"active volumes without a claim. A volume that a pod may use is refused, and a busy mount stays.\n" +
			"Exit status: 0 all were, or would be, released; 1 some were refused; 3 flexd does not answer.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "yes", Usage: "do it (root only)"},
			outputFlag("text", "json"),
			socketFlag(),
		},
		Action: func(c *cli.Context) error {
			return release{c.Args().Slice(), c.Bool("yes"), c.String("output"), c.String("socket")}.run(stdout)
		},
	}
}

// A release has the arguments of `flexd release`.
type release struct {
	targets []string // directories, VG/LV, uuids; none = all orphans
	yes     bool     // release, do not only print the steps
	output  string   // text or json
	socket  string   // the daemon's status socket
}

// run prints the steps for each orphan, and takes them with --yes. It returns an error if
// an orphan was not, or would not be, released.
func (r release) run(stdout io.Writer) error {
	if r.yes && len(r.targets) == 0 {
		return usage("release: name the orphans to release; without --yes it lists them")
	}
	query := url.Values{}
	for _, t := range r.targets {
		query.Add("target", resolve(strings.TrimPrefix(t, "-/")))
	}
	body, err := get(r.socket, "/v1/orphans?"+query.Encode(), checkTimeout)
	if err != nil {
		return err
	}
	var o status.Orphans
	if err := json.Unmarshal(body, &o); err != nil {
		return fmt.Errorf("flexd's answer is not understood: %w", err)
	}
	failed, now := len(o.Refused) > 0, time.Now()
	for i := range o.Orphans {
		one := &o.Orphans[i]
		if r.yes && one.Refused == "" {
			if err := r.release(*one); err != nil {
				one.Error, failed = strings.ReplaceAll(err.Error(), "\n", "; "), true
			} else {
				one.Released = true
			}
		}
		failed = failed || one.Refused != "" && len(r.targets) > 0
		if r.output == "json" {
			continue
		}
		if err := status.WriteOrphan(stdout, *one, now); err != nil {
			return err
		}
	}
	if r.output == "json" {
		err = status.WriteJSON(stdout, o)
	} else {
		err = status.WriteOrphansEnd(stdout, o, r.yes)
	}
	if err != nil {
		return err
	}
	if failed {
		return &exitError{code: exitFailed}
	}
	return nil
}

// resolve returns a directory as the mount table shows it: its parents without symlinks. It
// does not access the directory itself, which may be a mount that hangs. flexd resolves no
// path for others, since it could hang as well.
func resolve(target string) string {
	if !strings.HasPrefix(target, "/") {
		return target
	}
	dir, base := filepath.Split(filepath.Clean(target))
	if parent, err := filepath.EvalSymlinks(dir); err == nil {
		return filepath.Join(parent, base)
	}
	return filepath.Join(dir, base)
}

// release asks the daemon to release one orphan. Both sockets of a daemon are in its runDir.
func (r release) release(o status.Orphan) error {
	now, driver := int64(boottime.Now()), config.Files{RunDir: filepath.Dir(r.socket)}.DriverSocket()
	c := flexvolume.Client{Socket: driver, Timeout: flexvolume.DefaultTimeout, Connect: flexvolume.DefaultConnect, Once: true, Parent: os.Getppid()}
	a, err := c.Ask(flexvolume.Request{
		V: flexvolume.Version, ID: "release-" + strconv.FormatInt(now, 36), Verb: flexvolume.Reclaim,
		Args: []string{o.UUID, o.Dir}, Started: now, Parent: os.Getppid(),
	})
	down, isDown := errors.AsType[*flexvolume.DownError](err)
	switch {
	case isDown && errors.Is(down.Err, unix.EACCES):
		return errors.New("only root may release: flexd's socket " + driver + " is root's")
	case isDown:
		return absent(driver, down.Err)
	case err != nil:
		return err
	case a.Status != flexvolume.StatusSuccess:
		return errors.New(a.Message)
	}
	return nil
}
