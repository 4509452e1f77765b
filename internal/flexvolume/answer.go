package flexvolume

import (
	"errors"
	"strconv"
	"strings"
)

// The statuses that kubelet knows. After StatusNotSupported kubelet never calls that
// verb again, so it must not be the answer to an error.
const (
	StatusSuccess      = "Success"
	StatusFailure      = "Failure"
	StatusNotSupported = "Not supported"
)

// MaxMessage is the most bytes an answer's message may have.
const MaxMessage = 900

// An Answer is the driver's answer to a call. The zero Answer means none: flexdriver asks the next
// flexd.
type Answer struct {
	Status       string        // one of the statuses above
	Message      string        // one line; the reason of a failure, shown in pod events
	Code         string        // the reason for programs, "" = none; kubelet ignores it
	Device       string        // attach, waitforattach: the device, "" = none
	Attached     *bool         // isattached only; nil is read as "not attached"
	Capabilities *Capabilities // init only
}

// Capabilities are the driver's capabilities in the answer to init. Attach decides how
// kubelet names volumes: it must not change while volumes are in use.
type Capabilities struct {
	Attach           bool
	SELinuxRelabel   bool
	SupportsMetrics  bool
	FSGroup          bool
	RequiresFSResize bool
}

// DefaultCapabilities apply if the installer wrote none.
func DefaultCapabilities() Capabilities {
	return Capabilities{Attach: true, SELinuxRelabel: true, SupportsMetrics: true, FSGroup: true, RequiresFSResize: true}
}

// Success returns a Success without further fields.
func Success() Answer { return Answer{Status: StatusSuccess} }

// Failure returns the answer to a failed call. It converts the message to one line
// of valid UTF-8 without control characters, of at most MaxMessage bytes.
func Failure(message string) Answer {
	return Answer{Status: StatusFailure, Message: oneLine(message)}
}

// Refusal is Failure with a code.
func Refusal(code, message string) Answer {
	a := Failure(message)
	a.Code = code
	return a
}

// NotSupported returns the answer to a verb that the driver will never support.
func NotSupported() Answer { return Answer{Status: StatusNotSupported} }

// Encode returns the answer as one JSON object and a newline.
func (a Answer) Encode() []byte { return append(a.append(nil), '\n') }

func (a Answer) append(b []byte) []byte {
	b = append(b, `{"status":`...)
	b = appendString(b, valid(a.Status))
	if a.Message != "" {
		b = append(b, `,"message":`...)
		b = appendString(b, oneLine(a.Message))
	}
	if a.Code != "" {
		b = append(b, `,"code":`...)
		b = appendString(b, valid(a.Code))
	}
	if a.Device != "" {
		b = append(b, `,"device":`...)
		b = appendString(b, valid(a.Device))
	}
	if a.Attached != nil {
		b = append(b, `,"attached":`...)
		b = strconv.AppendBool(b, *a.Attached)
	}
	if a.Capabilities != nil {
		b = append(b, `,"capabilities":`...)
		b = a.Capabilities.append(b)
	}
	return append(b, '}')
}

// Encode returns the capabilities as one JSON object and a newline, the content of
// init's file.
func (c Capabilities) Encode() []byte { return append(c.append(nil), '\n') }

func (c Capabilities) append(b []byte) []byte {
	b = append(b, `{"attach":`...)
	b = strconv.AppendBool(b, c.Attach)
	b = append(b, `,"selinuxRelabel":`...)
	b = strconv.AppendBool(b, c.SELinuxRelabel)
	b = append(b, `,"supportsMetrics":`...)
	b = strconv.AppendBool(b, c.SupportsMetrics)
	b = append(b, `,"fsGroup":`...)
	b = strconv.AppendBool(b, c.FSGroup)
	b = append(b, `,"requiresFSResize":`...)
	b = strconv.AppendBool(b, c.RequiresFSResize)
	return append(b, '}')
}

// ParseCapabilities reads a strict JSON object of booleans; a key that is
// missing keeps its default.
func ParseCapabilities(text string) (Capabilities, error) {
	p := scanner{s: text}
	c, err := p.capabilities()
	if err == nil {
		err = p.end()
	}
	return c, err
}

func (p *scanner) capabilities() (Capabilities, error) {
	c := DefaultCapabilities()
	err := p.object(func(key string) (err error) {
		switch key {
		case "attach":
			c.Attach, err = p.boolean()
		case "selinuxRelabel":
			c.SELinuxRelabel, err = p.boolean()
		case "supportsMetrics":
			c.SupportsMetrics, err = p.boolean()
		case "fsGroup":
			c.FSGroup, err = p.boolean()
		case "requiresFSResize":
			c.RequiresFSResize, err = p.boolean()
		default:
			err = errors.New("unknown capability " + quote(key))
		}
		return err
	})
	return c, err
}

func (p *scanner) answer() (Answer, error) {
	var a Answer
	err := p.object(func(key string) (err error) {
		switch key {
		case "status":
			a.Status, err = p.str()
		case "message":
			a.Message, err = p.str()
		case "code":
			a.Code, err = p.str()
		case "device":
			a.Device, err = p.str()
		case "attached":
			var attached bool
			attached, err = p.boolean()
			a.Attached = &attached
		case "capabilities":
			var c Capabilities
			c, err = p.capabilities()
			a.Capabilities = &c
		default:
			err = p.skip(0)
		}
		return err
	})
	return a, err
}

func valid(s string) string { return strings.ToValidUTF8(s, "?") }

// oneLine makes s fit for an event: see Failure. It is idempotent.
func oneLine(s string) string {
	if len(s) > 8*MaxMessage { // the rest would be truncated anyway
		s = s[:8*MaxMessage]
	}
	var b strings.Builder
	space := false
	for _, r := range valid(s) {
		if r <= ' ' || 0x7f <= r && r <= 0xa0 || r == 0x2028 || r == 0x2029 {
			space = b.Len() > 0
			continue
		}
		if space {
			b.WriteByte(' ')
			space = false
		}
		b.WriteRune(r)
	}
	if b.Len() == 0 {
		return "no reason given"
	}
	return cut(b.String(), MaxMessage)
}
