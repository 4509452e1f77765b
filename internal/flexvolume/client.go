package flexvolume

import (
	"bytes"
	"errors"
	"syscall"
	"time"
)

// The default timeouts of a Client.
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
	Connect time.Duration // how long it retries a socket that is missing or refuses, since flexd was last seen alive
	Lock    string        // flexd's lock file: systemd may listen on the socket while no flexd runs
	Once    bool          // do not retry a socket that is missing or refuses at first
	Parent  int           // parent pid at the start; after a change no caller waits for the answer

	alive time.Time // when flexd was last seen alive
	files [2]uint64 // the inodes of Socket and Lock before it connected
}

// A DownError means that the socket could not be connected to, or that no flexd serves it.
type DownError struct {
	Socket string
	Err    error
}

func (e *DownError) Error() string { return e.Socket + ": " + e.Err.Error() }
func (e *DownError) Unwrap() error { return e.Err }

// A GarbageError means that flexd sent a line that is not a reply to the request.
type GarbageError struct{ Err error }

func (e *GarbageError) Error() string { return "flexd's answer is not understood: " + e.Err.Error() }
func (e *GarbageError) Unwrap() error { return e.Err }

// The other errors of a call without an answer.
var (
	ErrDeadline = errors.New("flexd did not answer in time")
	ErrOrphaned = errors.New("the parent of flexdriver has changed, no process waits for this answer")
)

// errLost: Ask connects again.
var errLost = errors.New("the connection ended without an answer")

// errNoFlexd: no flexd has accepted the connection.
var errNoFlexd = errors.New("systemd listens there, no flexd answers")

// Ask sends q and waits for its answer. If the connection ends without an answer, Ask
// connects and sends q again, until the deadline. It returns ErrTooLong (or
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
			case errLost: // flexd has served this connection and will restart
				c.alive, once = time.Now(), false
			case errNoFlexd:
				return a, &DownError{c.Socket, err}
			default:
				return a, err
			}
		case syscall.EAGAIN: // the backlog of the socket is full
			once = false
			if c.checkAlive() == errNoFlexd {
				return Answer{}, &DownError{c.Socket, errNoFlexd}
			}
		case syscall.EACCES: // permanent
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
			return decodeReply(buf, fresh+i, id)
		}
		if len(buf) >= MaxLine {
			return Answer{}, &GarbageError{ErrTooLong}
		}
	}
}

// decodeReply parses the line buf[:end] of flexd.
func decodeReply(buf []byte, end int, id string) (Answer, error) {
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

// wait returns when s may be ready, or with the reason to stop. It sleeps until an event: an answer may take
// minutes, and fifty calls may wait at once.
func (c *Client) wait(s sock, what int16, deadline time.Time) error {
	parent := none
	defer func() { parent.close() }()
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return ErrDeadline
		}
		if err := c.checkAlive(); err != nil {
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
			// If the parent ended before the pidfd was opened, its pid may have been reused: check it again.
			if parent = process(c.Parent); syscall.Getppid() != c.Parent {
				return ErrOrphaned
			}
		}
	}
}

// checkAlive returns an error if flexd was not seen alive for too long. A held lock counts, unless another
// flexd has replaced the files since the connection: a killed flexd with a thread that waits for a disk neither
// answers nor closes the connection.
func (c *Client) checkAlive() error {
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

// sleep sleeps for d, or returns the reason to stop.
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
