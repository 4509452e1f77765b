package lvm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/flexd/flexd/internal/mount"
)

const mib = 1 << 20

// The test binary is also the child that the provider starts.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "child" {
		code, ok := Child(os.Args[2], []byte(os.Args[3]))
		if !ok {
			code, ok = mount.Child(os.Args[2], []byte(os.Args[3]))
		}
		if !ok {
			code = 2
		}
		syscall.Exit(code) // not os.Exit: the race detector would sleep for a second
	}
	os.Exit(m.Run())
}

// is fails unless err is want and contains the words. Without want any error matches.
func is(t testing.TB, err, want error, words ...string) {
	t.Helper()
	if err == nil || want != nil && !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	for _, w := range words {
		if !strings.Contains(fmt.Sprint(err), w) {
			t.Errorf("%q does not say %q", fmt.Sprint(err), w)
		}
	}
}
