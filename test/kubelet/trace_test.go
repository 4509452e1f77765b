package kubelet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/exec"

	"github.com/flexd/flexd/test/host"
)

// A call is one execution of the driver. The trace has a line for its begin and one for its end, which is
// missing if kubelet was killed in between.
type call struct {
	Who    string // "kubelet 1", "controller"
	Number int64  // counted by who
	At     time.Time
	Argv   []string `json:",omitempty"` // without the executable; not in the second line
	Answer string   `json:",omitempty"` // stdout and stderr together
	Exit   string   `json:",omitempty"` // what exec said, if anything
	Ended  bool
	took   time.Duration
}

func (c call) verb() string {
	if len(c.Argv) == 0 {
		return ""
	}
	return c.Argv[0]
}

func (c call) status() string {
	var a struct{ Status string }
	json.Unmarshal([]byte(c.Answer), &a)
	return a.Status
}

func (c call) String() string {
	s := c.Who + ": " + strings.Join(quoted(c.Argv), " ")
	switch {
	case !c.Ended:
		return s + " -> no answer"
	case c.Exit != "":
		return s + " -> " + c.Exit + ": " + c.Answer
	}
	return s + " -> " + c.Answer
}

// quoted shows an empty argument.
func quoted(argv []string) []string {
	all := make([]string, len(argv))
	for i, a := range argv {
		if all[i] = a; a == "" {
			all[i] = `""`
		}
	}
	return all
}

// A tracer is kubelet's exec. It records the commands of kubelet and their output, and
// passes them to the real one.
type tracer struct {
	exec.Interface
	who   string
	file  *os.File // appended to, by several processes
	count atomic.Int64

	mu   sync.Mutex
	stop map[string]int // verb: whom to stop just before it
}

func newTracer(who, file string) (*tracer, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return &tracer{Interface: exec.New(), who: who, file: f, stop: map[string]int{}}, err
}

// stopAt stops a process by SIGSTOP, once, before the next call of the verb.
func (t *tracer) stopAt(verb string, pid int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop[verb] = pid
}

func (t *tracer) write(c call) {
	line, err := json.Marshal(c)
	if err == nil {
		_, err = t.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err)
	}
}

func (t *tracer) Command(name string, args ...string) exec.Cmd {
	return &tracedCmd{Cmd: t.Interface.Command(name, args...), t: t, argv: args}
}

type tracedCmd struct {
	exec.Cmd
	t    *tracer
	argv []string
}

func (c *tracedCmd) CombinedOutput() ([]byte, error) {
	n := c.t.count.Add(1)
	c.t.mu.Lock()
	if pid := c.t.stop[c.argv[0]]; pid != 0 {
		delete(c.t.stop, c.argv[0])
		host.Stop(pid)
	}
	c.t.mu.Unlock()
	c.t.write(call{Who: c.t.who, Number: n, At: time.Now(), Argv: c.argv})
	out, err := c.Cmd.CombinedOutput()
	end := call{Who: c.t.who, Number: n, At: time.Now(), Answer: string(bytes.TrimSpace(out)), Ended: true}
	if err != nil {
		end.Exit = err.Error()
	}
	c.t.write(end)
	return out, err
}

// A trace has the calls in the order of their begin.
type trace []call

func readTrace(file string) (trace, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all trace
	at := map[string]int{}
	for line := range bytes.Lines(text) {
		var c call
		if json.Unmarshal(line, &c) != nil {
			continue // its writer was killed
		}
		key := fmt.Sprint(c.Who, c.Number)
		if !c.Ended {
			at[key] = len(all)
			all = append(all, c)
		} else if i, ok := at[key]; ok {
			b := &all[i]
			b.Answer, b.Exit, b.Ended, b.took = c.Answer, c.Exit, true, c.At.Sub(b.At)
		}
	}
	return all, nil
}

// of returns the calls of these verbs.
func (t trace) of(verbs ...string) trace {
	var some trace
	for _, c := range t {
		for _, v := range verbs {
			if c.verb() == v {
				some = append(some, c)
			}
		}
	}
	return some
}

// by returns the calls of who.
func (t trace) by(who string) trace {
	var some trace
	for _, c := range t {
		if c.Who == who {
			some = append(some, c)
		}
	}
	return some
}

// failed returns the calls that kubelet treats as failures.
func (t trace) failed() trace {
	var some trace
	for _, c := range t {
		if c.Ended && (c.Exit != "" || c.status() != "Success") && !(c.verb() == "getvolumename" && c.status() == "Not supported") {
			some = append(some, c)
		}
	}
	return some
}

func (t trace) String() string {
	var b strings.Builder
	for _, c := range t {
		fmt.Fprintf(&b, "  %s %6s %s\n", c.At.Format("05.000"), c.took.Round(time.Millisecond), c)
	}
	return b.String()
}

// golden compares the calls of a successful run, at the end of which no pod is left, with a recorded file (go
// test -update). Concurrent callers are marked, so that their order does not matter.
func (n *node) golden(name string) {
	n.t.Helper()
	n.eventually("the controller detaches", func() string {
		by := n.trace().by("controller")
		for _, c := range by {
			if !c.Ended {
				return c.String()
			}
		}
		if a, d := len(by.of("attach")), len(by.of("detach")); a != d {
			return fmt.Sprint(a, " attached, ", d, " detached")
		}
		return ""
	})
	lines := map[string][]string{}
	named := map[string]bool{}
	for _, c := range n.trace() {
		if c.verb() == "getvolumename" {
			if named[c.Who] { // two of its threads asked before the first was answered
				continue
			}
			named[c.Who] = true
		}
		lines[c.Who] = append(lines[c.Who], strings.ReplaceAll(c.String(), n.Dir, "DIR"))
	}
	var b strings.Builder
	for _, who := range slices.Sorted(maps.Keys(lines)) {
		for _, l := range lines[who] {
			b.WriteString(l + "\n")
		}
	}
	file := filepath.Join("testdata", name+"-"+strings.ReplaceAll(string(n.mode), " ", "-")+".golden")
	if *update {
		n.must(os.WriteFile(file, []byte(b.String()), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	n.must(err)
	if b.String() != string(want) {
		n.t.Errorf("kubelet and flexdriver said\n%s\nwhere %s has\n%s", b.String(), file, want)
	}
}
