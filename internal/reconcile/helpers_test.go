package reconcile_test

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/loopdev"
)

var errSimulated = errors.New("simulated failure")

// info is a volume's file that an administrator made.
func info(size int64) loopdev.FileInfo {
	return loopdev.FileInfo{UUID: "aaaaaaaa-0000-4000-8000-000000000001", Size: size}
}

// smear writes what nobody recognises over the head of a volume's file.
func smear(t *testing.T, file string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xa5}, 1<<16), 4096); err != nil {
		t.Fatal(err)
	}
}

// forgetRecords starts flexd anew without its format records.
func forgetRecords(t *testing.T, e *hosttest.Env) {
	t.Helper()
	e.Patient = true
	e.Crash()
	if err := os.RemoveAll(e.Records()); err != nil {
		t.Fatal(err)
	}
	e.Start()
}

// loseNotes takes the run directory's notes away while flexd is down.
func loseNotes(t *testing.T, e *hosttest.Env) {
	t.Helper()
	if err := os.RemoveAll(e.Notes()); err != nil {
		t.Fatal(err)
	}
}
