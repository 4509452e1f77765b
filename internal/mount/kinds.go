package mount

import (
	"context"
	"encoding/json"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// The errors of this package whose type is kept between a child and flexd. The kinds are the names
// of the errors in the children's answers.
var kinds = map[string]error{
	"changed":   ErrChanged,
	"nodir":     ErrNoDir,
	"foreign":   ErrForeign,
	"none":      ErrNone,
	"failed":    ErrFailed,
	"unwritten": ErrUnwritten,
	"notool":    ErrNoTool,
}

// A kindError is the error text of a child with the error that its kind names.
type kindError struct {
	text string
	kind error
}

func (e *kindError) Error() string { return e.text }
func (e *kindError) Unwrap() error { return e.kind }

// Ask runs a child and restores the types of its errors.
func Ask(ctx context.Context, r run.Runner, c run.Cmd, value any) error {
	err := run.Ask(ctx, r, c, value)
	ce, ok := errors.AsType[*run.ChildError](err)
	if !ok {
		return err
	}
	switch ce.Kind {
	case "refused":
		var refusal Refusal
		if json.Unmarshal(ce.Detail, &refusal) == nil {
			return &refusal
		}
	case "busy":
		var busy BusyError
		if json.Unmarshal(ce.Detail, &busy) == nil {
			return &busy
		}
	}
	if kind, ok := kinds[ce.Kind]; ok {
		return &kindError{text: ce.Error(), kind: kind}
	}
	if ce.Code != "" {
		return volume.WithCode(volume.Code(ce.Code), err)
	}
	return err
}

// answer prints the result of a child for Ask.
func answer(value any, err error) int {
	if err != nil {
		err = ChildError(err)
	}
	return run.Answer(value, err)
}

// ChildError returns an error as Ask understands it.
func ChildError(err error) *run.ChildError {
	ce := &run.ChildError{Text: err.Error()}
	var refusal *Refusal
	var busy *BusyError
	switch {
	case errors.As(err, &refusal):
		ce.Kind = "refused"
		ce.Detail, _ = json.Marshal(refusal)
	case errors.As(err, &busy):
		ce.Kind = "busy"
		ce.Detail, _ = json.Marshal(busy)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		ce.Code = string(volume.NoSpace)
	default:
		ce.Code = string(volume.CodeOr(err, ""))
		for kind, sentinel := range kinds {
			if errors.Is(err, sentinel) {
				ce.Kind = kind
			}
		}
	}
	return ce
}
