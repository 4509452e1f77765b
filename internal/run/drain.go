package run

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The limits of a child's output, unless its Cmd sets another. The rest is read and
// discarded: a child must never wait for its reader.
const (
	maxStdout = 1 << 20
	maxStderr = 64 << 10
)

func (c Cmd) maxOut() int {
	if c.MaxOut > 0 {
		return c.MaxOut
	}
	return maxStdout
}

// A drain reads one output of a child to its end.
type drain struct {
	file *os.File
	done chan struct{} // closed when the reader has ended

	line   func(line []byte) // Cmd.Line
	passed int               // how much of buf was passed to line

	mu   sync.Mutex // guards the next 2 fields: a grandchild may still write when the result is taken
	buf  []byte
	over bool
}

// readyLine is the first line that a gated child prints.
const readyLine = "ready\n"

// newDrain starts to read f. If ready is set and readyLine comes first, ready is closed, and the
// line is not part of the output.
func newDrain(f *os.File, limit int, ready chan<- struct{}, line func([]byte)) *drain {
	d := &drain{file: f, done: make(chan struct{}), line: line}
	go func() {
		defer close(d.done)
		defer f.Close()
		r := io.Reader(f)
		if ready != nil {
			lines := bufio.NewReaderSize(f, 4<<10)
			r = lines
			line, err := lines.ReadSlice('\n')
			if err == nil && string(line) == readyLine {
				close(ready)
			} else {
				d.keep(line, limit)
			}
		}
		// Most children print little, and one that hangs prints nothing for long.
		chunk := make([]byte, 512)
		for {
			n, err := r.Read(chunk)
			d.keep(chunk[:n], limit)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				d.rest(chunk, limit)
			}
			if err != nil {
				return
			}
			if n == len(chunk) && n < 32<<10 {
				chunk = make([]byte, 2*n)
			}
		}
	}()
	return d
}

// rest reads the data that is already in the pipe: on a slow machine the grace may end
// before anything was read.
func (d *drain) rest(chunk []byte, limit int) {
	_ = d.file.SetReadDeadline(time.Time{})
	c, err := d.file.SyscallConn()
	if err != nil {
		return
	}
	_ = c.Read(func(fd uintptr) bool {
		for room := limit; room > 0; { // another holder of the pipe may write forever
			n, err := unix.Read(int(fd), chunk)
			if err == unix.EINTR {
				continue
			}
			if n <= 0 {
				break
			}
			d.keep(chunk[:n], limit)
			room -= n
		}
		return true
	})
}

func (d *drain) keep(b []byte, limit int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if room := limit - len(d.buf); len(b) > room {
		b, d.over = b[:room], true
	}
	d.buf = append(d.buf, b...)
	for d.line != nil {
		n := bytes.IndexByte(d.buf[d.passed:], '\n') + 1
		if n == 0 {
			break
		}
		d.line(d.buf[d.passed : d.passed+n])
		d.passed += n
	}
}

// finish is called when the child has ended: its output is in the pipe, and other holders
// of the pipe get at most grace.
func (d *drain) finish(grace time.Duration) {
	select {
	case <-d.done:
	case <-time.After(grace):
		_ = d.file.SetReadDeadline(time.Now())
		<-d.done
	}
}

func (d *drain) bytes() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return bytes.Clone(d.buf)
}

func (d *drain) overflowed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}
