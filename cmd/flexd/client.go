package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"
)

// get asks the status socket. Its errors have an exit status; with that of another HTTP
// status it returns the answer, too.
func get(socket, path string, timeout time.Duration) ([]byte, error) {
	resp, err := client(socket, timeout).Get("http://flexd" + path)
	if err != nil {
		return nil, &exitError{exitUnknown, absent(socket, err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, &exitError{exitUnknown, fmt.Errorf("flexd hung up: %w", err)}
	}
	if resp.StatusCode != http.StatusOK {
		return body, refusal(resp, body)
	}
	return body, nil
}

// client returns a client of the status socket; timeout 0 = none.
func client(socket string, timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives:  true, // flexd limits the connections of a user
		DisableCompression: true, // it would only cost time
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
}

// refusal returns the error that flexd has answered with.
func refusal(resp *http.Response, body []byte) error {
	var f struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &f) != nil || f.Error == "" {
		f.Error = "flexd answers " + resp.Status
	}
	code := exitUnknown
	if resp.StatusCode < http.StatusInternalServerError {
		code = exitFailed
	}
	return &exitError{code, errors.New(f.Error)}
}

// absent returns why flexd does not answer, and the remedy.
func absent(socket string, err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("flexd is not running: there is no socket %s\nstart it (systemctl start flexd), or name the status.sock in its runDir with --socket", socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("flexd is not running: no process listens on %s\nstart it: systemctl start flexd; why it stopped: journalctl -u flexd", socket)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("you may not read %s\nask as root, or as a member of the group that `statusGroup` names in the configuration", socket)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("flexd does not answer on %s; its log may tell why: journalctl -u flexd", socket)
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = errno
	}
	return fmt.Errorf("cannot ask flexd on %s: %w", socket, err)
}
