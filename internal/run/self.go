package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Self returns the argv that runs flexd itself as a child: "flexd child OP JSON". It uses
// /proc/self/exe, so that a daemon whose file was replaced by an upgrade still starts
// children of its own version.
func Self(op string, arg any) []string {
	b, err := json.Marshal(arg)
	if err != nil {
		b = []byte(err.Error()) // flexd's own plain structs; the child would refuse it
	}
	return []string{selfPath, "child", op, string(b)}
}

const selfPath = "/proc/self/exe"

// A ChildError is the error in the answer of a child of flexd itself.
type ChildError struct {
	Step   string          `json:"-"`
	Kind   string          `json:"kind,omitempty"` // the type of error for the calling package; "" = plain
	Text   string          `json:"error"`
	Code   string          `json:"code,omitempty"`   // likewise, of the refusal
	Detail json.RawMessage `json:"detail,omitempty"` // depends on Kind
}

func (e *ChildError) Error() string { return e.Step + ": " + e.Text }

// A reply is the one line that a child of flexd itself prints.
type reply struct {
	*ChildError
	Value json.RawMessage `json:"value,omitempty"`
}

// Ask runs a child of flexd itself and decodes its answer into value. It returns a
// *ChildError if the answer is an error, and the errors of Runner if there is no answer.
func Ask(ctx context.Context, r Runner, c Cmd, value any) error {
	res, err := r.Run(ctx, c)
	if err != nil {
		return err
	}
	return Parse(c.Step, res.Stdout, value)
}

// Parse is Ask for a line that a child of flexd itself has printed.
func Parse(step string, line []byte, value any) error {
	var got reply
	if err := json.Unmarshal(line, &got); err != nil {
		return fmt.Errorf("%s: the child's answer does not parse: %w", step, err)
	}
	if got.ChildError != nil && got.Text != "" {
		got.Step = step
		return got.ChildError
	}
	if value == nil {
		return nil
	}
	if err := json.Unmarshal(got.Value, value); err != nil {
		return fmt.Errorf("%s: the child's answer does not parse: %w", step, err)
	}
	return nil
}

// BeChild ignores SIGPIPE: when flexd dies, the pipes of its children break, and a child
// must not die in the middle of its work. The programs that it starts inherit this.
func BeChild() { signal.Ignore(syscall.SIGPIPE) }

// Answer is the child's side of Ask: it prints the one line and returns the exit status.
// The exit status is 0 for every answer, also for an error.
func Answer(value any, err error) int {
	var out reply
	if err != nil {
		if !errors.As(err, &out.ChildError) {
			out.ChildError = &ChildError{Text: err.Error()}
		}
	} else if b, merr := json.Marshal(value); merr != nil {
		out.ChildError = &ChildError{Text: merr.Error()}
	} else {
		out.Value = b
	}
	b, err := json.Marshal(out)
	if err != nil {
		return 1
	}
	if _, err := os.Stdout.Write(append(b, '\n')); err != nil {
		return 1
	}
	return 0
}

// AwaitGo is the child's side of Cmd.Gate: it reports that the child is ready and waits for
// the permission. If it returns an error, the child must undo its preparations and end.
func AwaitGo() error {
	if _, err := os.Stdout.WriteString(readyLine); err != nil {
		return err
	}
	gate := os.NewFile(3, "gate")
	defer gate.Close()
	var word [1]byte
	if n, err := gate.Read(word[:]); n != 1 || word[0] != 'g' {
		return fmt.Errorf("flexd did not permit it (%v)", err)
	}
	return nil
}
