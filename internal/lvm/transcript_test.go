package lvm

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/flexd/flexd/internal/run"
)

// The transcripts are what real commands said on a real kernel. They are
// recorded in the VM, and replayed anywhere:
//
//	go test -exec "$PWD/scripts/vm -q -d 4 -w $PWD/internal/lvm/testdata -e FLEXD_TEST_DISKS=/dev/vda,/dev/vdb,/dev/vdc,/dev/vdd --" ./internal/lvm -record
var record = flag.Bool("record", false, "write what LVM's commands say to testdata")

// An utterance is one command of a transcript, with its output.
type utterance struct {
	Argv           []string
	Code           int
	Stdout, Stderr string
}

func (u utterance) result() (run.Result, error) {
	res := run.Result{Stdout: []byte(u.Stdout), Stderr: []byte(u.Stderr)}
	if u.Code == 0 {
		return res, nil
	}
	return res, &run.ExitError{Step: "replay", Argv: u.Argv, Code: u.Code, Stderr: strings.Join(strings.Fields(u.Stderr), " ")}
}

// filtered fails unless an LVM command has flexd's device filter. Only the command that reads the host's own
// filter has none.
func filtered(t testing.TB, argv []string) {
	t.Helper()
	if argv[0] != "lvm" || argv[1] == "lvmconfig" {
		return
	}
	if len(argv) < 4 || argv[2] != "--config" || !strings.HasPrefix(argv[3], "devices{scan_lvs=0 filter=[") ||
		slices.ContainsFunc(DefaultFilter, func(s string) bool { return !strings.Contains(argv[3], `"`+s+`"`) }) {
		t.Errorf("without our filter: %q", argv)
	}
}

// A recorder records the output of LVM's commands.
type recorder struct {
	t testing.TB
	run.Runner
	mu   sync.Mutex
	said []utterance // guarded by mu
}

func (r *recorder) Run(ctx context.Context, c run.Cmd) (run.Result, error) {
	filtered(r.t, c.Argv)
	res, err := r.Runner.Run(ctx, c)
	if c.Argv[0] != "lvm" {
		return res, err
	}
	u := utterance{Argv: c.Argv, Stdout: string(res.Stdout), Stderr: string(res.Stderr)}
	if exit := new(run.ExitError); errors.As(err, &exit) {
		u.Code = exit.Code
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, u)
	return res, err
}

// count returns the number of commands with a word since its last call.
func (r *recorder) count(word string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range r.said {
		if word == "" || u.Argv[1] == word {
			n++
		}
	}
	r.said = nil
	return n
}

// save writes the last commands as a transcript, if -record is given.
func (r *recorder) save(t *testing.T, name string, last int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.said) < last {
		t.Errorf("transcript %s: only %d commands", name, len(r.said))
		return
	}
	if !*record {
		return
	}
	var b strings.Builder
	for _, u := range r.said[len(r.said)-last:] {
		fmt.Fprintf(&b, "$ %s\nstatus %d\n", strings.Join(u.Argv, "\x1f"), u.Code)
		for _, out := range []struct{ mark, text string }{{"1 ", u.Stdout}, {"2 ", u.Stderr}} {
			for line := range strings.Lines(out.text) {
				b.WriteString(out.mark + strings.TrimSuffix(line, "\n") + "\n")
			}
		}
	}
	text := strings.ReplaceAll(b.String(), "\x1f", " ␣ ")
	if err := os.WriteFile(filepath.Join("testdata", name+".transcript"), []byte(text), 0o644); err != nil {
		t.Error(err)
	}
}

// transcript reads a transcript.
func transcript(t *testing.T, name string) []utterance {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".transcript"))
	if err != nil {
		t.Fatal(err)
	}
	var all []utterance
	for line := range strings.Lines(string(b)) {
		mark, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if mark == "$" {
			all = append(all, utterance{Argv: strings.Split(rest, " ␣ ")})
			continue
		}
		if len(all) == 0 {
			t.Fatalf("%s: does not begin with a command", name)
		}
		u := &all[len(all)-1]
		switch mark {
		case "status":
			if _, err := fmt.Sscan(rest, &u.Code); err != nil {
				t.Fatal(err)
			}
		case "1":
			u.Stdout += rest + "\n"
		case "2":
			u.Stderr += rest + "\n"
		default:
			t.Fatalf("%s: %q", name, line)
		}
	}
	return all
}
