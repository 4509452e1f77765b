package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/flexd/flexd/internal/status"
	"golang.org/x/sys/unix"
)

// showStatus prints what the daemon at socket says of one volume, or of all.
func showStatus(stdout io.Writer, socket, output, volume string) error {
	if output != "table" && output != "json" {
		return &usageError{fmt.Sprintf("status: -o is table or json, not %q", output)}
	}
	path := "/v1/volumes"
	if volume != "" {
		vg, lv, named := strings.Cut(volume, "/")
		if !named {
			vg, lv = "-", volume // a uuid
		}
		if vg == "" || lv == "" || strings.Contains(lv, "/") {
			return &usageError{fmt.Sprintf("status: a volume is written VG/LV, or as its uuid, not %q", volume)}
		}
		path += "/" + url.PathEscape(vg) + "/" + url.PathEscape(lv)
	}
	body, err := get(socket, path, 10*time.Second)
	if err != nil {
		return err
	}
	now := time.Now()
	switch {
	case output == "json": // as it came: a newer daemon's fields are not lost
		_, err = stdout.Write(body)
		return err
	case volume != "":
		var s status.Story
		if err := json.Unmarshal(body, &s); err != nil {
			return fmt.Errorf("flexd's answer is not understood: %w", err)
		}
		return status.WriteStory(stdout, s, now)
	}
	var l status.List
	if err := json.Unmarshal(body, &l); err != nil {
		return fmt.Errorf("flexd's answer is not understood: %w", err)
	}
	return status.WriteTable(stdout, l, now, terminalWidth(stdout))
}

// get asks the status socket.
func get(socket, path string, patience time.Duration) ([]byte, error) {
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := client.Get("http://flexd" + path)
	if err != nil {
		return nil, absent(socket, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("flexd hung up: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		var f struct {
			Error string `json:"error"`
		}
		if json.Unmarshal(body, &f) != nil || f.Error == "" {
			f.Error = "flexd answers " + resp.Status
		}
		return nil, errors.New(f.Error)
	}
	return body, nil
}

// absent says why nobody answers, and what to do about it.
func absent(socket string, err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("flexd is not running: there is no socket %s\nstart it (systemctl start flexd), or name its socket with --socket", socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("flexd is not running: nobody listens on %s\nstart it: systemctl start flexd; why it stopped: journalctl -u flexd", socket)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("you may not read %s\nask as root, or as a member of the group that `statusGroup` names in the configuration", socket)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("flexd does not answer on %s; its log may tell why: journalctl -u flexd", socket)
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	return fmt.Errorf("cannot ask flexd on %s: %w", socket, err)
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
