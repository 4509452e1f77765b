package flexvolume

import (
	"bytes"
	"errors"
	"syscall"
	"time"
)

// How long flexdriver waits: see Client.
const (
	DefaultTimeout = 5 * time.Minute
	DefaultConnect = 20 * time.Second
)

const (
	slice    = 100 * time.Millisecond // between two checks of the parent, where a pidfd is not available
	minPause = 5 * time.Millisecond   // before connecting again, doubled each time
	maxPause = 250 * time.Millisecond
)

// A Client sends one request to flexd. It has no goroutines: it waits in poll(2) for the
// answer and for its parent's end.
type Client struct {
	Socket  string        // path of the driver socket
	Timeout time.Duration // for the whole call
	Connect time.Duration // how long it retries a socket that is missing or refuses, since the last sign of flexd
	Lock    string        // flexd's lock file: systemd may listen on the socket while no flexd runs
	Once    bool          // a socket that is missing or refuses at first is not tried again
	Parent  int           // parent pid at the start; when it has changed no caller waits for the answer

	alive time.Time // the last sign of flexd
	files [2]uint64 // the inodes of Socket and Lock before it connected
}

// A DownError is a socket that could not be connected to, or has no flexd behind it.
type DownError struct {
	Socket string
	Err    error
}

func (e *DownError) Error() string { return e.Socket + ": " + e.Err.Error() }
func (e *DownError) Unwrap() error { return e.Err }

// A GarbageError is a line from flexd that is no reply to our request.
type GarbageError struct{ Err error }

func (e *GarbageError) Error() string { return "flexd's answer is not understood: " + e.Err.Error() }
func (e *GarbageError) Unwrap() error { return e.Err }

// The other errors of a call without an answer.
var (
	ErrDeadline = errors.New("flexd did not answer in time")
	ErrOrphaned = errors.New("the parent of flexdriver has changed, no process waits for this answer")
)

// errLost is a connection that ended without an answer; Ask makes it again.
var errLost = errors.New("the connection ended without an answer")

// errNoFlexd is a connection that no flexd has accepted.
var errNoFlexd = errors.New("systemd listens there, no flexd answers")

// Ask sends q and waits for its answer. A connection that ends without one is
// made again and q is sent again, until the deadline. It returns ErrTooLong (or
// another error of encoding), a *DownError, a *GarbageError, ErrDeadline or
// ErrOrphaned.
func (c *Client) Ask(q Request) (Answer, error) {
	line, err := q.encode()
	if err != nil {
		return Answer{}, err
	}
	c.alive = time.Now()
	deadline := c.alive.Add(c.Timeout)
	once := c.Once
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		c.files = c.inodes()
		s, err := dial(c.Socket)
		switch err {
		case nil:
			var a Answer
			a, err = c.exchange(s, line, q.ID, deadline)
			s.close()
			switch err {
			case errLost: // flexd runs here and will restart
				c.alive, once = time.Now(), false
			case errNoFlexd:
				return a, &DownError{c.Socket, err}
			default:
				return a, err
			}
		case syscall.EAGAIN: // flexd is there, but its queue of connections is full
			once = false
			if c.silent() == errNoFlexd {
				return Answer{}, &DownError{c.Socket, errNoFlexd}
			}
		case syscall.EACCES: // waiting changes nothing
			return Answer{}, &DownError{c.Socket, err}
		default:
			if once || time.Since(c.alive) >= c.Connect {
				return Answer{}, &DownError{c.Socket, err}
			}
		}
		if err := c.sleep(min(pause, time.Until(c.alive.Add(c.Connect))), deadline); err != nil {
			return Answer{}, err
		}
	}
}

// exchange makes one attempt on a new connection.
func (c *Client) exchange(s sock, line []byte, id string, deadline time.Time) (Answer, error) {
	for len(line) > 0 {
		n, err := s.write(line)
		if err == syscall.EAGAIN {
			if err := c.wait(s, forWriting, deadline); err != nil {
				return Answer{}, err
			}
			continue
		}
		if err != nil { // the connection was closed, perhaps after an answer with the reason
			break
		}
		line = line[n:]
	}
	buf := make([]byte, 0, 4096)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := s.read(buf[len(buf):cap(buf)])
		switch {
		case err == syscall.EAGAIN:
			if err := c.wait(s, forReading, deadline); err != nil {
				return Answer{}, err
			}
			continue
		case err != nil || n == 0:
			return Answer{}, errLost
		}
		fresh := len(buf)
		buf = buf[:fresh+n]
		if i := bytes.IndexByte(buf[fresh:], '\n'); i >= 0 {
			return understand(buf, fresh+i, id)
		}
		if len(buf) >= MaxLine {
			return Answer{}, &GarbageError{ErrTooLong}
		}
	}
}

// understand parses a whole line of flexd, buf[:end].
func understand(buf []byte, end int, id string) (Answer, error) {
	r, err := parseReply(string(buf[:end]))
	switch {
	case err != nil:
	case end != len(buf)-1:
		err = errors.New("text after the end of the message")
	case r.ID != id:
		err = errors.New("it answers another call")
	case r.Answer.Status == StatusNotSupported:
		err = errors.New(`"Not supported", which kubelet would remember forever`)
	default:
		return r.Answer, nil
	}
	return Answer{}, &GarbageError{err}
}

// wait returns when s may be ready, or with the reason to stop. An answer may take minutes,
// and fifty calls may wait at once, so each sleeps until an event.
func (c *Client) wait(s sock, what int16, deadline time.Time) error {
	parent := none
	defer func() { parent.close() }()
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return ErrDeadline
		}
		if err := c.silent(); err != nil {
			return err
		}
		left = min(left, time.Until(c.alive.Add(c.Connect)))
		if parent == none {
			left = min(left, slice)
		}
		ready, gone := s.poll(what, parent, left)
		switch {
		case ready:
			return nil
		case gone || syscall.Getppid() != c.Parent:
			return ErrOrphaned
		case parent == none:
			// If the parent ended before this, its pid may belong to another process: check
			// the parent once more.
			if parent = process(c.Parent); syscall.Getppid() != c.Parent {
				return ErrOrphaned
			}
		}
	}
}

// silent returns an error if flexd has given no sign of itself for too long. Its lock is one, but
// not of the flexd that has the connection if another one has replaced the files since: a killed
// flexd whose thread waits for a disk answers nothing, and closes nothing.
func (c *Client) silent() error {
	if time.Since(c.alive) < c.Connect {
		return nil
	}
	if c.Lock != "" && !locked(c.Lock) {
		return errNoFlexd
	}
	c.alive = time.Now()
	if c.inodes() != c.files {
		return errLost
	}
	return nil
}

// inodes returns the inodes of the socket and of the lock, 0 = there is none.
func (c *Client) inodes() (found [2]uint64) {
	for i, file := range [...]string{c.Socket, c.Lock} {
		var st syscall.Stat_t
		if syscall.Lstat(file, &st) == nil {
			found[i] = st.Ino
		}
	}
	return found
}

// sleep pauses for d, or returns the reason to stop.
func (c *Client) sleep(d time.Duration, deadline time.Time) error {
	time.Sleep(max(0, min(d, time.Until(deadline))))
	if syscall.Getppid() != c.Parent {
		return ErrOrphaned
	}
	if time.Until(deadline) <= 0 {
		return ErrDeadline
	}
	return nil
}
