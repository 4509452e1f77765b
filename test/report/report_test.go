package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const pkg = `"Package":"example.org/a/b/internal/x"`
	ev := func(rest string) string { return "{" + pkg + "," + rest + "}" }
	for _, row := range []struct {
		about string
		in    []string
		ci    bool
		ok    bool
		want  []string // in this order
		not   string
	}{
		{"passed", []string{
			ev(`"Action":"run","Test":"TestA"`), ev(`"Action":"output","Test":"TestA","Output":"chatter\n"`),
			ev(`"Action":"run","Test":"TestA/b"`), ev(`"Action":"pass","Test":"TestA/b"`), ev(`"Action":"pass","Test":"TestA"`),
			ev(`"Action":"pass","Elapsed":1.25`),
		}, true, true, []string{"ok   internal/x", "1.2s\n", "\n1 passed, 0 failed, 0 skipped\n"}, "chatter"},
		{"passed, and logs its seed", []string{
			ev(`"Action":"run","Test":"TestA"`), ev(`"Action":"output","Test":"TestA","Output":"    a_test.go:12: FLEXD_SEED=7\n"`),
			ev(`"Action":"pass","Test":"TestA"`), ev(`"Action":"pass"`),
		}, true, true, []string{"ok   internal/x"}, "SEED"},
		{"failed, and logs its seed", []string{
			ev(`"Action":"run","Test":"TestA"`), ev(`"Action":"output","Test":"TestA","Output":"    a_test.go:12: FLEXD_SEED=7\n"`),
			ev(`"Action":"fail","Test":"TestA"`), ev(`"Action":"fail"`),
		}, false, false, []string{"FLEXD_SEED=7\n", "FAIL internal/x"}, ""},
		{"failed", []string{
			ev(`"Action":"output","Test":"TestA","Output":"    a_test.go:1: want 2\n"`),
			ev(`"Action":"fail","Test":"TestA"`), ev(`"Action":"fail","Elapsed":2`),
		}, false, false, []string{"--- FAIL: example.org/a/b/internal/x TestA\n    a_test.go:1: want 2\n", "FAIL internal/x", "0 passed, 1 failed, 0 skipped\n"}, ""},
		{"no build", []string{
			`{"ImportPath":"example.org/a/b/internal/x","Action":"build-output","Output":"x.go:1: undefined: y\n"}`,
			ev(`"Action":"fail","FailedBuild":"example.org/a/b/internal/x"`),
		}, false, false, []string{"undefined: y", "FAIL internal/x", "0 passed, 1 failed, 0 skipped\n"}, ""},
		{"a panic blames the test that ran", []string{
			ev(`"Action":"run","Test":"TestA"`), ev(`"Action":"output","Test":"TestA","Output":"panic: oh\n"`), ev(`"Action":"fail"`),
		}, false, false, []string{"--- not ended: example.org/a/b/internal/x TestA\npanic: oh\n", "0 passed, 1 failed, 0 skipped\n"}, ""},
		{"skipped", []string{
			ev(`"Action":"pass","Test":"TestB"`),
			ev(`"Action":"output","Test":"TestA","Output":"    a_test.go:7: needs root\n"`), ev(`"Action":"skip","Test":"TestA"`), ev(`"Action":"pass"`),
		}, false, true, []string{"Skipped:\n  internal/x TestA: needs root\n", "1 passed, 0 failed, 1 skipped\n"}, "CI=true"},
		{"skipped where nothing may be", []string{
			ev(`"Action":"pass","Test":"TestB"`), ev(`"Action":"skip","Test":"TestA"`), ev(`"Action":"pass"`),
		}, true, false, []string{"it does not say why", "CI=true: nothing may be skipped", "1 passed, 0 failed, 1 skipped\n"}, ""},
		{"skipped here, run there", []string{
			ev(`"Action":"skip","Test":"TestA"`), ev(`"Action":"pass","Test":"TestA"`),
		}, true, true, []string{"1 passed, 0 failed, 0 skipped\n"}, ""},
		{"steps", []string{
			"report step go vet", "noise", "report end 0 2.5 go vet",
			"report step gofmt", "a.go", "report end 1 0.1 gofmt",
		}, true, false, []string{"ok   go vet", " 2.5s\n", "a.go\nFAIL gofmt", "Failed:\n  gofmt", "1 passed, 1 failed, 0 skipped\n"}, "noise"},
		{"a failed run without a failed test", []string{ev(`"Action":"pass","Test":"TestA"`), "report failed go test ./..."}, false, false,
			[]string{"Failed:\n  go test ./...", "1 passed, 1 failed, 0 skipped\n"}, ""},
		{"nothing was run", nil, false, false, []string{"0 passed, 0 failed, 0 skipped\n"}, ""},
	} {
		t.Run(row.about, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out)
			if err := r.read(strings.NewReader(strings.Join(append(row.in, "report complete"), "\n"))); err != nil {
				t.Fatal(err)
			}
			if ok := r.close(row.ci); ok != row.ok {
				t.Errorf("ok %v, want %v", ok, row.ok)
			}
			rest := out.String()
			for _, w := range row.want {
				i := strings.Index(rest, w)
				if i < 0 {
					t.Fatalf("no %q (in this order) in:\n%s", w, out.String())
				}
				rest = rest[i+len(w):]
			}
			if row.not != "" && strings.Contains(out.String(), row.not) {
				t.Errorf("%q in:\n%s", row.not, out.String())
			}
		})
	}
}

func TestCutShort(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(`{"Package":"a","Action":"pass","Test":"TestA"}`)); err != nil {
		t.Fatal(err)
	}
	if r.close(false) || !strings.Contains(out.String(), "Cut short: not everything was run.\n1 passed, 0 failed, 0 skipped\n") {
		t.Error(out.String())
	}
}
