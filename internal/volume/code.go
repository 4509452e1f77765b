package volume

import (
	"errors"
	"fmt"
)

// A Code is the reason for a refusal or a failure, for programs; the text of the error is for people.
// The codes are a stable interface: docs/status.md lists them.
type Code string

// The codes.
const (
	Invalid     Code = "invalid"      // the request itself is wrong
	NotAllowed  Code = "not-allowed"  // the configuration forbids it
	NotFound    Code = "not-found"    // the volume, its group or the directory does not exist
	Unusable    Code = "unusable"     // the volume exists, and flexd cannot use it
	Busy        Code = "busy"         // something else uses the volume or the directory
	Conflict    Code = "conflict"     // the volume is in use with other options, or has another content, than requested
	NotBlank    Code = "not-blank"    // it has data other than a filesystem, and flexd never formats over data
	DataMissing Code = "data-missing" // flexd has seen a filesystem that does not exist any more
	Damaged     Code = "damaged"      // its filesystem is in error, or larger than its device
	NoSpace     Code = "no-space"     // there is too little space, or the request exceeds maxSize
	NotVisible  Code = "not-visible"  // the caller would not see the mount
	Superseded  Code = "superseded"   // there is a newer request for the directory
	InProgress  Code = "in-progress"  // the call has timed out, and the work continues or waits
	Unknown     Code = "unknown"      // a required fact could not be read
	Canceled    Code = "canceled"     // the caller does not wait for the answer any more
	Failed      Code = "failed"       // a step failed
)

// WithCode returns an error with a code and the same text.
func WithCode(code Code, err error) error { return &codedError{code, err} }

type codedError struct {
	code Code
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }
func (e *codedError) Code() Code    { return e.code }

// Errorf is fmt.Errorf with a code.
func Errorf(code Code, format string, a ...any) error {
	return WithCode(code, fmt.Errorf(format, a...))
}

// CodeOf returns the code of the outermost error that has one; Failed if none has.
func CodeOf(err error) Code { return CodeOr(err, Failed) }

// CodeOr is CodeOf with another default.
func CodeOr(err error, code Code) Code {
	var coded interface{ Code() Code }
	if errors.As(err, &coded) {
		return coded.Code()
	}
	return code
}
