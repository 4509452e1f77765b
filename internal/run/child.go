package run

import (
	"context"
	"encoding/json"
	"fmt"
)

// Self is the argv that runs flexd itself as a child: "flexd child OP JSON".
// It names the executable as the kernel knows it, so that a daemon whose file
// was replaced by an upgrade still starts children of its own version.
func Self(op string, arg any) []string {
	b, err := json.Marshal(arg)
	if err != nil {
		panic(fmt.Sprintf("run: argument of child %s: %v", op, err)) // our own plain structs
	}
	return []string{"/proc/self/exe", "child", op, string(b)}
}

// A ChildError is what a child of flexd itself answered when it failed.
type ChildError struct {
	Step   string          `json:"-"`
	Kind   string          `json:"kind"` // "refused", "busy", "gone", "changed", "io", ...; "" = other
	Text   string          `json:"error"`
	Detail json.RawMessage `json:"detail,omitempty"` // depends on Kind
}

func (e *ChildError) Error() string { return e.Step + ": " + e.Text }

// Ask runs a child of flexd itself and decodes the one JSON line that it
// answered into value. A child that answered with an error gives a *ChildError.
func Ask(ctx context.Context, r Runner, c Cmd, value any) error {
	return fmt.Errorf("not built yet")
}
