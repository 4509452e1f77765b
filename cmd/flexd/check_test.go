package main

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/server"
	"github.com/flexd/flexd/internal/status"
	"github.com/sirupsen/logrus"
)

// checked answers checks with one document.
type checked struct {
	shown
	c status.Check
}

func (c checked) Check(context.Context) status.Check {
	c.c.Verdict = c.c.Judge()
	return c.c
}

func TestCheckExitStatus(t *testing.T) {
	known := status.Finding{Class: "active-unclaimed", VG: "vg0", LV: "a", Informational: true}
	wrong := status.Finding{Class: "dm-only", VG: "vg0", LV: "b"}
	well, hangs := status.Checked{VG: "vg0", Volumes: 3, Active: 1}, status.Checked{VG: "vg1", Unknown: "it hangs"}
	for _, row := range []struct {
		about  string
		c      status.Check
		exit   int
		stdout string // ends with
	}{
		{"well", status.Check{Groups: []status.Checked{well}}, 0, "All agree on n: metadata, devices, mounts and claims (3 volumes in 1 group, 1 active).\n"},
		{"nothing configured", status.Check{}, 0, "no volume group is configured.\n"},
		{"only worth knowing", status.Check{Groups: []status.Checked{well}, Findings: []status.Finding{known}}, 0, "1 active, 1 of them unclaimed).\n"},
		{"wrong", status.Check{Groups: []status.Checked{well}, Findings: []status.Finding{known, wrong}}, 1, "1 disagreement on n (3 volumes in 1 group, 1 active, 1 of them unclaimed).\n"},
		{"unknown", status.Check{Groups: []status.Checked{well, hangs}}, 3, "as far as it is known (3 volumes in 1 group, 1 active). Unknown: vg1.\n"},
		{"all is unknown", status.Check{Groups: []status.Checked{hangs}}, 3, "No disagreement on n as far as it is known. Unknown: vg1.\n"},
		{"a damaged note", status.Check{Groups: []status.Checked{well}, Problems: []string{"format record"}}, 3, "Problem: format record\n\nNo disagreement on n as far as it is known (3 volumes in 1 group, 1 active).\n"},
		{"unknown, and a finding", status.Check{Groups: []status.Checked{well, hangs}, Findings: []status.Finding{wrong}}, 1, "1 disagreement on n (3 volumes in 1 group, 1 active). Unknown: vg1.\n"},
	} {
		t.Run(row.about, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			l, err := server.Listen(socket, 0o600, "")
			if err != nil {
				t.Fatal(err)
			}
			log := logrus.New()
			log.SetOutput(io.Discard)
			row.c.Node = "n"
			go (&server.Status{Listener: l, Source: checked{c: row.c}, Log: logrus.NewEntry(log)}).Serve(t.Context())
			stdout, stderr, exit := flexd("check", "--socket", socket)
			if exit != row.exit || stderr != "" || !strings.HasSuffix(stdout, row.stdout) {
				t.Errorf("exit %d, want %d\n%s%s", exit, row.exit, stdout, stderr)
			}
			stdout, stderr, exit = flexd("check", "-o", "json", "--socket", socket)
			if exit != row.exit || stderr != "" || !strings.HasPrefix(stdout, "{\n  \"node\": \"n\"") {
				t.Errorf("json: exit %d, want %d\n%s%s", exit, row.exit, stdout, stderr)
			}
		})
	}
}

// If another program answers on the socket, the result is unknown.
func TestCheckOfSomethingElse(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := server.Listen(socket, 0o600, "")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })}
	go srv.Serve(l)
	defer srv.Close()
	if stdout, stderr, exit := flexd("check", "--socket", socket); exit != 3 || stdout != "" || !strings.Contains(stderr, "not understood") {
		t.Errorf("exit %d\n%s%s", exit, stdout, stderr)
	}
}
