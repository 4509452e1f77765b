package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain makes the test binary flexd if a script of TestCompletion starts it.
func TestMain(m *testing.M) {
	if os.Getenv("FLEXD_COMMAND") != "" {
		os.Exit(run(os.Args, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestCandidates(t *testing.T) {
	socket := serveStatus(t)
	for words, want := range map[string]string{
		"st":                               "status",
		"--":                               "--help --version",
		"help rel":                         "release",
		"status --o":                       "--output",
		"status -o ":                       "table wide name json yaml",
		"check --output j":                 "json",
		"release --":                       "--yes --output --socket --help",
		"completion f":                     "fish",
		"status --socket " + socket + " v": "vg0/a",
		"status --socket /none v":          "",
		"status --socket ":                 "", // a file
		"config --check ":                  "",
		"none x":                           "",
	} {
		var out strings.Builder
		complete(app(io.Discard, io.Discard).Commands, strings.Split(words, " "), &out)
		if got := strings.Join(strings.Fields(out.String()), " "); got != want {
			t.Errorf("%q: %q, want %q", words, got, want)
		}
	}
}

// Each shell completes with the script that flexd prints for it.
func TestCompletion(t *testing.T) {
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	flexd := filepath.Join(dir, "flexd")
	if err := os.WriteFile(flexd, []byte("#!/bin/sh\nFLEXD_COMMAND=1 exec "+exe+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for shell, script := range map[string]string{
		"bash": `source <(flexd completion bash)
			try() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _flexd; echo "${COMPREPLY[@]}"; }
			try flexd sta; try flexd check -o ''; try flexd config --check /no; complete -p flexd`,
		"zsh": `autoload -U compinit && compinit -u -D; source <(flexd completion zsh)
			compadd() { shift; echo "$@" }; _files() { echo files }
			try() { words=("$@") CURRENT=$#; _flexd }
			try flexd sta; try flexd check -o ''; try flexd config --check /no; echo $_comps[flexd]`,
		"fish": `flexd completion fish | source
			for line in 'flexd sta' 'flexd check -o ' 'flexd config --check /no'
				complete -C $line | cut -f1 | string join ' '
			end
			true`,
	} {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				t.Skip(err)
			}
			cmd := exec.Command(shell, "-c", script)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir)
			out, err := cmd.CombinedOutput()
			if got := string(out); err != nil || !strings.HasPrefix(got, "status\ntext json\n") && !strings.HasPrefix(got, "status\njson text\n") {
				t.Errorf("%v\n%s", err, got)
			}
		})
	}
}
