package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/status"
)

// Whatever this machine lacks: a daemon answers, and another configuration does not exist.
func TestDoctor(t *testing.T) {
	socket := serveStatus(t)
	config := filepath.Join(t.TempDir(), "flexd.yaml")
	if err := os.WriteFile(config, []byte("nodeName: node-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, exit := flexd("doctor", "--config", config, "--socket", socket, "-o", "json")
	var d status.Diagnosis
	if err := json.Unmarshal([]byte(stdout), &d); err != nil || stderr != "" || d.Node != "node-1" {
		t.Fatalf("%v %s\n%s", err, stderr, stdout)
	}
	if want := map[string]int{status.ResultError: exitFailed, status.ResultUnknown: exitUnknown}[d.Result]; exit != want || d.Result != d.Judge() {
		t.Errorf("%s: exit %d, want %d", d.Result, exit, want)
	}
	for _, e := range d.Examinations {
		if e.Name == "daemon" && e.Result != status.ResultOK {
			t.Errorf("%+v", e)
		}
	}

	stdout, stderr, exit = flexd("doctor", "--config", config+".not", "--socket", socket)
	if exit != exitFailed || stderr != "" || !strings.Contains(stdout, "error   flexd/configuration\n    there is no configuration "+config+".not") {
		t.Errorf("exit %d\n%s%s", exit, stdout, stderr)
	}
}
