package flexvolume

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"unicode/utf8"
)

// Version is the protocol of the driver socket: one line of JSON in, one out. Keys may be
// added without a new version; readers ignore unknown keys. A release with a new
// version must also answer requests of the previous version, in that version.
const Version = 1

// MaxLine is the maximal length of a line in bytes, its newline included.
const MaxLine = 1 << 20

// A Request is one FlexVolume call in the form of the driver socket.
type Request struct {
	V       int      `json:"v"`
	ID      string   `json:"id"` // the call's id, the same when it is sent again
	Verb    string   `json:"verb"`
	Args    []string `json:"args"`    // after the verb
	Started int64    `json:"started"` // flexdriver's start, ns on CLOCK_BOOTTIME
	Parent  int      `json:"parent"`  // flexdriver's parent pid at its start
}

// A Reply is flexd's answer to the request of the same ID.
type Reply struct {
	V      int    `json:"v"`
	ID     string `json:"id"`
	Answer Answer `json:"answer"`
}

// A VersionError is a message of an unknown protocol version.
type VersionError struct{ Got int64 }

func (e *VersionError) Error() string {
	return "protocol version " + strconv.FormatInt(e.Got, 10) + " where " + strconv.Itoa(Version) +
		" is spoken: flexdriver and flexd are of different releases"
}

// ErrTooLong is a line of more than MaxLine bytes.
var ErrTooLong = errors.New("the message is longer than 1 MiB")

// ReadRequest reads the line of a request. For an input that ends before the newline it returns
// io.EOF (if it is empty) or io.ErrUnexpectedEOF. With other errors the request may have
// its ID, for the answer.
func ReadRequest(r io.Reader) (Request, error) {
	line, err := readLine(r)
	if err != nil {
		return Request{}, err
	}
	return parseRequest(string(line))
}

func parseRequest(line string) (Request, error) {
	var q Request
	p := scanner{s: line}
	args := false
	v, err := p.message(func(key string) (err error) {
		var n int64
		switch key {
		case "id":
			q.ID, err = p.str()
			if err == nil && !validID(q.ID) {
				q.ID, err = "", p.fail("a malformed call id")
			}
		case "verb":
			q.Verb, err = p.str()
		case "args":
			args = true
			err = p.array(func() error {
				s, err := p.str()
				q.Args = append(q.Args, s)
				return err
			})
		case "started":
			q.Started, err = p.integer()
		case "parent":
			n, err = p.integer()
			q.Parent = int(n)
		default:
			err = p.skip(0)
		}
		return err
	})
	switch {
	case err != nil:
	case q.ID == "":
		err = errors.New("the request has no id")
	case q.Verb == "":
		err = errors.New("the request has no verb")
	case !args:
		err = errors.New("the request has no args")
	default:
		q.V = Version
		return q, nil
	}
	return Request{V: int(v), ID: q.ID}, err
}

// encode returns q as one line. It fails with ErrTooLong, or if an argument is not valid
// UTF-8.
func (q Request) encode() ([]byte, error) {
	n := 128 + len(q.Verb)
	for i, a := range q.Args {
		if !utf8.ValidString(a) {
			return nil, errors.New("argument " + strconv.Itoa(i+1) + " is not valid UTF-8")
		}
		n += len(a) + len(a)/8 + 3
	}
	if n > 2*MaxLine {
		return nil, ErrTooLong
	}
	b := append(make([]byte, 0, n), `{"v":`...)
	b = strconv.AppendInt(b, Version, 10)
	b = append(b, `,"id":`...)
	b = appendString(b, valid(q.ID))
	b = append(b, `,"verb":`...)
	b = appendString(b, valid(q.Verb))
	b = append(b, `,"args":[`...)
	for i, a := range q.Args {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, a)
	}
	b = append(b, `],"started":`...)
	b = strconv.AppendInt(b, q.Started, 10)
	b = append(b, `,"parent":`...)
	b = strconv.AppendInt(b, int64(q.Parent), 10)
	b = append(b, '}', '\n')
	if len(b) > MaxLine {
		return nil, ErrTooLong
	}
	return b, nil
}

// WriteReply writes r as one line.
func WriteReply(w io.Writer, r Reply) error {
	b := append(make([]byte, 0, 256), `{"v":`...)
	b = strconv.AppendInt(b, Version, 10)
	b = append(b, `,"id":`...)
	b = appendString(b, valid(r.ID))
	b = append(b, `,"answer":`...)
	b = r.Answer.append(b)
	b = append(b, '}', '\n')
	if len(b) > MaxLine {
		return ErrTooLong
	}
	_, err := w.Write(b)
	return err
}

// parseReply parses the line of a reply, without its newline. An error means that the daemon
// uses another protocol.
func parseReply(line string) (Reply, error) {
	var r Reply
	p := scanner{s: line}
	_, err := p.message(func(key string) (err error) {
		switch key {
		case "id":
			r.ID, err = p.str()
		case "answer":
			r.Answer, err = p.answer()
		default:
			err = p.skip(0)
		}
		return err
	})
	switch {
	case err != nil:
	case r.Answer.Status != StatusSuccess && r.Answer.Status != StatusFailure && r.Answer.Status != StatusNotSupported:
		err = errors.New("an answer without a known status")
	default:
		r.V = Version
		return r, nil
	}
	return Reply{}, err
}

// readLine reads up to the newline, which it removes. Nothing may follow it.
func readLine(r io.Reader) ([]byte, error) {
	b := make([]byte, 0, 4096)
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := r.Read(b[len(b):min(cap(b), MaxLine)])
		end := bytes.IndexByte(b[len(b):len(b)+n], '\n')
		if end >= 0 {
			if end != n-1 {
				return nil, errors.New("text after the end of the message")
			}
			return b[:len(b)+end], nil
		}
		b = b[:len(b)+n]
		switch {
		case len(b) >= MaxLine:
			return nil, ErrTooLong
		case err == io.EOF && len(b) > 0:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		}
	}
}

// validID limits the length and the characters of ids in logs and messages.
func validID(id string) bool { return isWord(id, "-_.") }

// message reads a message and its version; field reads the value of each other key.
func (p *scanner) message(field func(key string) error) (v int64, err error) {
	err = p.object(func(key string) (err error) {
		if key == "v" {
			v, err = p.integer()
		} else {
			err = field(key)
		}
		if err != nil {
			err = errors.New("key " + quote(key) + ": " + err.Error())
		}
		return err
	})
	if err == nil {
		err = p.end()
	}
	if err == nil && v != Version {
		err = &VersionError{Got: v}
	}
	return v, err
}
