package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/exec"
)

// A call is a finished execution of the driver.
type call struct {
	Who    string // "kubelet", "controller"
	At     time.Time
	Took   time.Duration
	Argv   []string // without the executable
	Answer string
}

func (c call) verb() string { return c.Argv[0] }

func (c call) String() string {
	return fmt.Sprintf("%s %s %s: %s -> %s", c.At.Format("05.000"), c.Took.Round(time.Millisecond), c.Who, strings.Join(c.Argv, " "), c.Answer)
}

// A counter is the exec of kubelet or the controller manager. It runs commands and records them when they
// have ended.
type counter struct {
	exec.Interface
	who  string
	file *os.File
}

func newCounter(who, file string) (*counter, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return &counter{exec.New(), who, f}, err
}

func (c *counter) Command(name string, args ...string) exec.Cmd {
	return &counted{c.Interface.Command(name, args...), c, args}
}

type counted struct {
	exec.Cmd
	c    *counter
	argv []string
}

func (c *counted) CombinedOutput() ([]byte, error) {
	begin := time.Now()
	out, err := c.Cmd.CombinedOutput()
	answer := string(bytes.TrimSpace(out))
	if err != nil {
		answer = err.Error() + ": " + answer
	}
	line, _ := json.Marshal(call{c.c.who, begin, time.Since(begin), c.argv, answer})
	if _, err := c.c.file.Write(append(line, '\n')); err != nil {
		panic(err)
	}
	return out, err
}

// readCalls returns the calls in a file by their begin.
func readCalls(file string) []call {
	text, _ := os.ReadFile(file)
	return parseCalls(text)
}

func parseCalls(text []byte) []call {
	var all []call
	for line := range bytes.Lines(text) {
		var c call
		if json.Unmarshal(line, &c) == nil {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b call) int { return a.At.Compare(b.At) })
	return all
}

// failed reports whether kubelet treats the call as failed.
func (c call) failed() bool {
	var a struct{ Status string }
	err := json.Unmarshal([]byte(c.Answer), &a)
	return err != nil || a.Status != "Success" && !(c.verb() == "getvolumename" && a.Status == "Not supported")
}
