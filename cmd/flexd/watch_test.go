package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal opens a pseudo terminal and collects what is written to it.
func terminal(t *testing.T, columns, rows uint16) (tty *os.File, seen func(...string) bool) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	resize(t, tty, columns, rows)
	text := make(chan string, 1000)
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			text <- string(b[:n])
		}
	}()
	all := ""
	return tty, func(words ...string) bool {
		t.Helper()
		for end := time.After(20 * time.Second); ; {
			rest, found := all, true
			for _, w := range words {
				_, after, ok := strings.Cut(rest, w)
				rest, found = after, found && ok
			}
			if found {
				all = rest
				return true
			}
			select {
			case s := <-text:
				all += s
			case <-end:
				t.Errorf("not on the terminal: %q\n%q", words, all)
				return false
			}
		}
	}
}

func resize(t *testing.T, tty *os.File, columns, rows uint16) {
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		t.Fatal(err)
	}
}

func TestStatusOnTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	t.Setenv("COLUMNS", "")
	socket := serveStatus(t)
	tty, seen := terminal(t, 120, 24)
	flexd := func(args ...string) {
		run(append([]string{"flexd", "status", "--socket", socket}, args...), tty, os.Stderr)
	}
	flexd()
	seen("\x1b[32mmounted\x1b[m", "default/web-0  -\r\n")
	t.Setenv("COLUMNS", "25")
	flexd()
	seen("VOLUME  SIZE  STATE   ...\r\n")
	t.Setenv("COLUMNS", "")
	t.Setenv("NO_COLOR", "1")
	flexd()
	seen(" mounted ")

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- statusQuery{socket: socket, output: "table"}.watch(ctx, tty) }()
	seen("\x1b[?1049h\x1b[?25l\x1b[H", "VOLUME", "LAST ERROR\x1b[K\r\n", "\x1b[K\x1b[J", "\x1b[H")
	resize(t, tty, 25, 3)
	seen("\x1b[HVOLUME  SIZE  STATE   ...\x1b[K\r\n...\x1b[K\x1b[J")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	seen("\x1b[?25h\x1b[?1049l")
}

// Not on a terminal each change is printed once.
func TestWatchInPipe(t *testing.T) {
	socket := serveStatus(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, stop := context.WithTimeout(t.Context(), 3*refresh)
	defer stop()
	if err := (statusQuery{socket: socket, output: "name"}).watch(ctx, w); err != nil {
		t.Error(err)
	}
	w.Close()
	b := make([]byte, 100)
	n, _ := r.Read(b)
	if string(b[:n]) != "vg0/a\n\n" {
		t.Errorf("%q", b[:n])
	}
}
