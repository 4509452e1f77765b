package volume

import (
	"errors"
	"fmt"
)

// A Code is why a request was refused or failed, for programs. The text beside it is for
// people. Codes are promised: docs/status.md lists them.
type Code string

// The codes.
const (
	Invalid     Code = "invalid"      // the request itself makes no sense
	NotAllowed  Code = "not-allowed"  // the configuration forbids it
	NotFound    Code = "not-found"    // the volume, its group or the directory does not exist
	Unusable    Code = "unusable"     // the volume exists, and flexd cannot use it
	Busy        Code = "busy"         // something else uses the volume or the directory
	Conflict    Code = "conflict"     // the volume is in use, or has a content, with other options than are wanted
	NotBlank    Code = "not-blank"    // it holds data that is no filesystem, and flexd never formats over data
	DataMissing Code = "data-missing" // flexd has seen a filesystem that is not there any more
	Damaged     Code = "damaged"      // its filesystem is in error, or larger than its device
	NoSpace     Code = "no-space"     // there is too little space, or more is wanted than maxSize
	NotVisible  Code = "not-visible"  // the caller would not see the mount
	Superseded  Code = "superseded"   // a newer request wants something else at the directory
	InProgress  Code = "in-progress"  // the time was up: the work goes on, or waits for something
	Unknown     Code = "unknown"      // a fact that it depends on could not be read
	Canceled    Code = "canceled"     // nothing waits for the answer
	Failed      Code = "failed"       // a step failed
)

// WithCode gives an error a code. Its text stays.
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

// CodeOr is CodeOf for an error that has another code by default.
func CodeOr(err error, code Code) Code {
	var coded interface{ Code() Code }
	if errors.As(err, &coded) {
		return coded.Code()
	}
	return code
}
