package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/status"
)

// A file is the history on disk: JSON, one event in a line, in two files. When the newer one
// has half of the size it replaces the older one. Nothing is synced: after a power cut the
// last events may be missing, or be garbage, which is ignored.
type file struct {
	dir  string
	size int64
	torn bool // the last line may lack its end
}

func newFile(dir string, size int64) *file { return &file{dir: dir, size: size, torn: true} }

func (f *file) newer() string { return filepath.Join(f.dir, "events.jsonl") }
func (f *file) older() string { return filepath.Join(f.dir, "events.old.jsonl") }

// maxLine and maxID exceed those of any event, and maxFile exceeds any file of the history. Of a larger
// file, which a repair of its filesystem may leave, only the end is read.
const (
	maxLine = 64 << 10
	maxID   = 1 << 62
	maxFile = 64 << 20
)

// last returns the last event, and the highest id of the last events; 0 = there is none.
func (f *file) last() (newest status.Event, last uint64, err error) {
	n := 0
	err = f.read(func(line []byte) bool {
		var e status.Event
		if json.Unmarshal(line, &e) == nil && e.ID < maxID {
			if last = max(last, e.ID); n == 0 {
				newest = e
			}
			n++
		}
		return n < 2*maxBatch
	})
	return newest, last, err
}

// append writes events.
func (f *file) append(events []*status.Event) error {
	var b bytes.Buffer
	if f.torn {
		b.WriteByte('\n')
	}
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, e := range events {
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	// The file is opened each time: its directory may be moved away and back while flexd runs.
	w, err := f.open()
	if err != nil {
		return err
	}
	defer w.Close()
	st, err := w.Stat()
	if err != nil {
		return err
	}
	if st.Size() > 0 && st.Size()+int64(b.Len()) > f.size/2 {
		if err := os.Rename(f.newer(), f.older()); err != nil {
			return err
		}
		w.Close()
		if w, err = f.open(); err != nil {
			return err
		}
		defer w.Close()
	}
	_, err = w.Write(b.Bytes())
	f.torn = err != nil
	return err
}

func (f *file) open() (*os.File, error) {
	w, err := os.OpenFile(f.newer(), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	return w, regular(w)
}

// regular refuses other files: a fifo could block.
func regular(f *os.File) error {
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.Name())
	}
	if err != nil {
		f.Close()
	}
	return err
}

// read calls each with the lines, the newest first, until it returns false.
func (f *file) read(each func(line []byte) bool) error {
	newer, err := openRead(f.newer())
	if err != nil {
		return err
	}
	defer newer.Close() // nil as well
	older, err := openRead(f.older())
	if err != nil {
		return err
	}
	defer older.Close()
	files := []*os.File{newer, older}
	if newer != nil && older != nil && sameFile(newer, older) { // it became the older one meanwhile
		newest, err := openRead(f.newer())
		if err != nil {
			return err
		}
		defer newest.Close()
		files = []*os.File{newest, newer}
	}
	for _, r := range files {
		if r == nil {
			continue
		}
		if more, err := backwards(r, each); err != nil || !more {
			return err
		}
	}
	return nil
}

// openRead returns nil if there is no such file.
func openRead(path string) (*os.File, error) {
	r, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return r, regular(r)
}

func sameFile(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// backwards calls each with the lines of a file, the last one first, and reports whether it
// has always returned true. It passes only a part of a line that is too long.
func backwards(r io.ReadSeeker, each func(line []byte) bool) (more bool, err error) {
	end, err := r.Seek(0, io.SeekEnd)
	if err != nil {
		return false, err
	}
	const chunk = 64 << 10
	var rest []byte // the end of a line whose beginning has not been read
	for first := max(end-maxFile, 0); end > first; {
		n := min(end, chunk)
		end -= n
		buf := make([]byte, n, n+int64(len(rest)))
		if _, err := r.Seek(end, io.SeekStart); err != nil {
			return false, err
		}
		if _, err := io.ReadFull(r, buf); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			rest = nil // it was truncated meanwhile
			continue
		} else if err != nil {
			return false, err
		}
		for buf = append(buf, rest...); ; {
			i := bytes.LastIndexByte(buf, '\n')
			if i < 0 {
				break
			}
			if line := buf[i+1:]; len(line) > 0 && !each(line) {
				return false, nil
			}
			buf = buf[:i]
		}
		rest = buf[:min(len(buf), maxLine)]
	}
	return len(rest) == 0 || each(rest), nil
}
