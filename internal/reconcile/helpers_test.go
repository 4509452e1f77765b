package reconcile_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/loopdev"
)

var errSimulated = errors.New("simulated failure")

// info is a volume's file that an administrator made.
func info(size int64) loopdev.FileInfo {
	return loopdev.FileInfo{UUID: "aaaaaaaa-0000-4000-8000-000000000001", Size: size}
}

// smear writes bytes without a known signature over the start of a volume.
func smear(t *testing.T, e *hosttest.Env) {
	t.Helper()
	works(t, e.Storage.Shell("data", "tr '\\0' '\\245' </dev/zero | dd of=$L bs=4096 seek=1 count=16 iflag=fullblock conv=notrunc,fsync 2>&1"))
}

// loseNotes removes the notes of the run directory while flexd is down.
func loseNotes(t *testing.T, e *hosttest.Env) {
	t.Helper()
	if err := os.RemoveAll(e.Notes()); err != nil {
		t.Fatal(err)
	}
}

// loseIdentities removes the saved identities of loop devices.
func loseIdentities(t *testing.T, e *hosttest.Env) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(e.Config.RunDir, "dev", ".identity")); err != nil {
		t.Fatal(err)
	}
}
