package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// close prints what was skipped and the closing line, and says whether all is
// well.
func (r *report) close(nothingSkipped bool) bool {
	// What one run leaves out and another one runs was run.
	for n := range r.skipped {
		if r.passed[n] || r.failed[n] {
			delete(r.skipped, n)
		}
	}
	for n := range r.failed {
		delete(r.passed, n)
	}
	if len(r.failed) == 0 {
		for _, command := range r.broken {
			r.failed[name{pkg: command}] = true
		}
	}
	fmt.Fprintln(r.out)
	if len(r.skipped) > 0 {
		fmt.Fprintln(r.out, "Skipped:")
		for _, n := range sorted(r.skipped) {
			fmt.Fprintf(r.out, "  %s %s: %s\n", short(n.pkg), n.test, r.why[n])
		}
		if nothingSkipped {
			fmt.Fprintln(r.out, "CI=true: nothing may be skipped.")
		}
		fmt.Fprintln(r.out)
	}
	if len(r.failed) > 0 {
		fmt.Fprintln(r.out, "Failed:")
		for _, n := range sorted(r.failed) {
			fmt.Fprintf(r.out, "  %s %s\n", short(n.pkg), n.test)
		}
		fmt.Fprintln(r.out)
	}
	if !r.complete {
		fmt.Fprintln(r.out, "Cut short: not everything was run.")
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", len(r.passed), len(r.failed), len(r.skipped))
	return r.complete && len(r.failed) == 0 && len(r.passed) > 0 && (len(r.skipped) == 0 || !nothingSkipped)
}

func sorted(set map[name]bool) []name {
	return slices.SortedFunc(maps.Keys(set), func(a, b name) int { return strings.Compare(a.String(), b.String()) })
}
