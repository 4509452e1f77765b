package e2e

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	testhost "github.com/flexd/flexd/test/host"
)

// An answer is what kubelet reads.
type answer struct {
	testhost.Answer
	killed bool   // flexdriver died by a signal
	about  string // which call
}

func (a answer) ok() bool { return a.Status == "Success" }

func (a answer) String() string {
	s := a.about + ": " + a.Status
	if a.killed {
		s = a.about + ": killed"
	}
	if a.Message != "" {
		s += ": " + a.Message
	}
	return s
}

// alone returns the answer to a call that kubelet does not make.
func alone(about string) answer {
	return answer{Answer: testhost.Answer{Status: "Success"}, about: about + ", kubelet alone"}
}

// command returns flexdriver as kubelet runs it.
func (h *host) command(env []string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	out := &bytes.Buffer{}
	c := h.Command(context.Background(), args...)
	c.Stdout, c.Stderr = out, out // one pipe, as CombinedOutput
	c.Env = append(c.Env, env...)
	return c, out
}

// call runs flexdriver and checks kubelet's contract.
func (h *host) call(args ...string) answer {
	h.t.Helper()
	return h.callWith(nil, args...)
}

func (h *host) callWith(env []string, args ...string) answer {
	h.t.Helper()
	c, out := h.command(env, args...)
	if err := c.Start(); err != nil {
		h.t.Errorf("%s: %v", args[0], err)
		return answer{about: args[0]}
	}
	return h.read(c, out, args)
}

// read waits for flexdriver and parses its output.
func (h *host) read(c *exec.Cmd, out *bytes.Buffer, args []string) answer {
	h.t.Helper()
	err := c.Wait()
	if s, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return answer{about: args[0], killed: true}
	}
	if err != nil {
		h.t.Errorf("%s: %v, want exit status 0: %s", args[0], err, out)
	}
	a, err := testhost.Parse(out.Bytes())
	if err != nil {
		h.t.Errorf("%s: %v", args[0], err)
	}
	if a.Device != "" && args[0] != "attach" && args[0] != "waitforattach" {
		h.t.Errorf("%s: its answer names a device: %s", args[0], a.Text)
	}
	return answer{Answer: a, about: args[0]}
}

// A begun is a running call.
type begun struct {
	cmd  *exec.Cmd
	done chan answer
}

// begin starts a call and does not wait for it.
func (h *host) begin(args ...string) *begun {
	h.t.Helper()
	c, out := h.command(nil, args...)
	h.must(c.Start())
	b := &begun{cmd: c, done: make(chan answer, 1)}
	go func() { b.done <- h.read(c, out, args) }()
	return b
}

func (b *begun) wait(t *testing.T) answer {
	t.Helper()
	select {
	case a := <-b.done:
		return a
	case <-time.After(2 * soon):
		t.Fatalf("%v gets no answer", b.cmd.Args)
		return answer{}
	}
}

// ok fails the test unless the answer is Success.
func (h *host) ok(a answer) answer {
	h.t.Helper()
	if !a.ok() {
		h.t.Errorf("%s", a)
	}
	return a
}

// refused fails the test unless the answer is a Failure with all the words.
func (h *host) refused(a answer, words ...string) {
	h.t.Helper()
	if a.Status != "Failure" {
		h.t.Errorf("%s, want a Failure that says %q", a, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(a.Message, w) {
			h.t.Errorf("%s\n\tdoes not say %q", a, w)
		}
	}
}
