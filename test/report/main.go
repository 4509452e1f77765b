// Command report reads the output of `go test -json`, from any number of runs one
// after the other, and prints a summary: a line per package as it ends, the output
// of each failed test, and at the end the skipped tests and the reasons.
//
// `report failed COMMAND` says that a run ended badly, which counts if no test of
// it failed. The lines `report step NAME` and `report end STATUS SECONDS NAME` on
// its input bracket a step that is no Go test. What a step prints is shown when it
// failed. `report complete` is the last line: without it the runs were cut short.
//
// It exits with 1 if anything failed, was cut short or, with CI=true, was skipped.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	r := newReport(os.Stdout)
	err := r.read(os.Stdin)
	if ok := r.close(os.Getenv("CI") == "true"); err != nil || !ok {
		if err != nil {
			fmt.Fprintln(os.Stderr, "report:", err)
		}
		os.Exit(1)
	}
}

// An event is a line of `go test -json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build output
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// A name is one test of one package.
type name struct{ pkg, test string }

func (n name) String() string {
	if n.test == "" {
		return n.pkg
	}
	return n.pkg + " " + n.test
}

// A report is what is known so far.
type report struct {
	out    io.Writer
	output map[name][]string // of tests that have not ended, and of packages
	parent map[name]bool     // has subtests: not counted itself
	build  map[string][]string

	passed, failed, skipped map[name]bool
	why                     map[name]string // of the skipped
	failedIn                map[string]bool // packages of which a test failed in this run

	broken   []string // failed runs, with any output
	step     string   // the step that is open
	complete bool     // every run is in the input
}

func newReport(out io.Writer) *report {
	return &report{
		out: out, output: map[name][]string{}, parent: map[name]bool{}, build: map[string][]string{},
		passed: map[name]bool{}, failed: map[name]bool{}, skipped: map[name]bool{}, why: map[name]string{},
		failedIn: map[string]bool{},
	}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			r.line(strings.TrimSuffix(line, "\n"))
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) line(line string) {
	var e event
	if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &e) == nil && e.Action != "" {
		r.event(e)
		return
	}
	word := strings.Fields(line)
	if len(word) > 2 && word[0] == "report" {
		switch word[1] {
		case "step":
			r.step = strings.Join(word[2:], " ")
			return
		case "end":
			if len(word) > 4 {
				r.end(strings.Join(word[4:], " "), word[2], word[3])
				return
			}
		case "failed":
			r.broken = append(r.broken, strings.Join(word[2:], " "))
			return
		}
	}
	if line == "report complete" {
		r.complete = true
		return
	}
	if r.step != "" {
		r.output[name{pkg: r.step}] = append(r.output[name{pkg: r.step}], line+"\n")
		return
	}
	fmt.Fprintln(r.out, line)
}

func (r *report) end(step, status, seconds string) {
	n := name{pkg: step}
	result := "ok"
	if status == "0" {
		r.passed[n] = true
	} else {
		result = "FAIL"
		r.failed[n] = true
		r.print(r.output[n])
	}
	delete(r.output, n)
	fmt.Fprintf(r.out, "%-4s %-52s %6ss\n", result, step, seconds)
	r.step = ""
}

func (r *report) event(e event) {
	n := name{e.Package, e.Test}
	switch e.Action {
	case "run":
		if i := strings.LastIndexByte(e.Test, '/'); i >= 0 {
			r.parent[name{e.Package, e.Test[:i]}] = true
		}
	case "output":
		r.output[n] = append(r.output[n], e.Output)
	case "build-output":
		r.build[e.ImportPath] = append(r.build[e.ImportPath], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.pkg(e)
		} else {
			r.test(n, e.Action)
		}
	}
}

func (r *report) test(n name, action string) {
	switch action {
	case "pass":
		if !r.parent[n] {
			r.passed[n] = true
		}
	case "skip":
		r.skipped[n] = true
		r.why[n] = reason(r.output[n])
	case "fail":
		if !r.parent[n] || !r.failedBelow(n) {
			r.failed[n] = true
		}
		r.failedIn[n.pkg] = true
		fmt.Fprintf(r.out, "\n--- FAIL: %s\n", n)
		r.print(r.output[n])
	}
	delete(r.output, n)
}

// failedBelow reports whether the failure of a test is that of a subtest.
func (r *report) failedBelow(n name) bool {
	for f := range r.failed {
		if f.pkg == n.pkg && strings.HasPrefix(f.test, n.test+"/") {
			return true
		}
	}
	return false
}

func (r *report) pkg(e event) {
	n := name{pkg: e.Package}
	switch e.Action {
	case "skip": // it has no tests
	case "pass":
		fmt.Fprintf(r.out, "ok   %-52s %6.1fs\n", short(e.Package), e.Elapsed)
	case "fail":
		r.print(r.build[e.FailedBuild])
		if !r.failedIn[e.Package] { // a panic, a timeout, no build: no test to blame
			r.failed[n] = true
		}
		for left, lines := range r.output { // tests that never ended
			if left.pkg == e.Package && left.test != "" {
				fmt.Fprintf(r.out, "\n--- not ended: %s\n", left)
				r.print(lines)
				delete(r.output, left)
			}
		}
		r.print(r.output[n])
		fmt.Fprintf(r.out, "FAIL %-52s %6.1fs\n", short(e.Package), e.Elapsed)
	}
	delete(r.output, n)
	delete(r.failedIn, e.Package)
}

func (r *report) print(lines []string) {
	for _, l := range lines {
		io.WriteString(r.out, l)
	}
}

// short leaves out what every package's path begins with.
func short(pkg string) string {
	if parts := strings.SplitN(pkg, "/", 4); len(parts) == 4 {
		return parts[3]
	}
	return pkg
}

// reason is what a skipped test said: its last line that is not the framework's.
func reason(output []string) string {
	for i := len(output) - 1; i >= 0; i-- {
		l := strings.TrimSpace(output[i])
		if l == "" || strings.HasPrefix(l, "===") || strings.HasPrefix(l, "---") {
			continue
		}
		// "file_test.go:12: why"
		if _, why, ok := strings.Cut(l, ": "); ok && strings.Contains(l, ".go:") {
			return why
		}
		return l
	}
	return "it does not say why"
}
