package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/status"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

func statusCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "show all volumes, or one in detail",
		ArgsUsage: "[VG/LV | UUID]",
		Before:    atMost(1),
		Flags: []cli.Flag{
			outputFlag("table", "json"),
			socketFlag(),
		},
		Action: func(c *cli.Context) error {
			return showStatus(stdout, c.String("socket"), c.String("output"), c.Args().First())
		},
	}
}

// showStatus prints the status of one volume, or of all, from the daemon at socket.
func showStatus(stdout io.Writer, socket, output, volume string) error {
	path := "/v1/volumes"
	if volume != "" {
		vg, lv, named := strings.Cut(volume, "/")
		if !named {
			vg, lv = "-", volume // a uuid
		}
		if vg == "" || lv == "" || strings.Contains(lv, "/") {
			return usage("status: a volume is written VG/LV, or as its uuid, not %q", volume)
		}
		path += "/" + url.PathEscape(vg) + "/" + url.PathEscape(lv)
	}
	body, err := get(socket, path, 10*time.Second)
	if err != nil {
		return err
	}
	now := time.Now()
	switch {
	case output == "json": // unchanged: a newer daemon's fields are kept
		_, err = stdout.Write(body)
		return err
	case volume != "":
		var s status.VolumeDetail
		if err := json.Unmarshal(body, &s); err != nil {
			return fmt.Errorf("flexd's answer is not understood: %w", err)
		}
		return status.WriteVolumeDetail(stdout, s, now)
	}
	var l status.List
	if err := json.Unmarshal(body, &l); err != nil {
		return fmt.Errorf("flexd's answer is not understood: %w", err)
	}
	return status.WriteTable(stdout, l, now, terminalWidth(stdout))
}

// terminalWidth is 0 when w is no terminal: a pipe gets whole lines.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
