package main

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/server"
	"github.com/flexd/flexd/internal/status"
	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
)

// flexd runs a command line.
func flexd(args ...string) (stdout, stderr string, exit int) {
	var out, err strings.Builder
	exit = run(append([]string{"flexd"}, args...), &out, &err)
	return out.String(), err.String(), exit
}

func TestCommandLine(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	os.WriteFile(bad, []byte("lease: soon\nrunDir: run\n"), 0o600)
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	os.WriteFile(empty, nil, 0o600)
	write := func(text string) string {
		name := filepath.Join(t.TempDir(), "flexd.yaml")
		os.WriteFile(name, []byte(text), 0o600)
		return name
	}
	group, elsewhere := write("statusGroup: no-such-group\n"), write("runDir: /run/other\n")
	dir := write("volumeGroups: [{name: a, provider: loopdev, directory: /no/such/dir, namespaces: []}]\n")
	stale := filepath.Join(t.TempDir(), "s")
	if l, err := net.Listen("unix", stale); err == nil {
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
	}
	for _, row := range []struct {
		args   string
		exit   int
		stdout string // begins with
		stderr string // exactly
	}{
		{"", 0, "NAME:\n   flexd - manages the volumes of this node", ""},
		{"--help", 0, "NAME:\n   flexd -", ""},
		{"status --help", 0, "NAME:\n   flexd status -", ""},
		{"help", 0, "NAME:\n   flexd -", ""},
		{"help status", 0, "NAME:\n   flexd status -", ""},
		{"help stauts", 2, "", "flexd: there is no command \"stauts\"; did you mean \"status\"?; see flexd --help\n"},
		{"--version", 0, "dev\n", ""},
		{"completion", 2, "", "flexd: completion: name a shell: bash, zsh or fish\n"},
		{"completion fish", 0, "# fish completion", ""},
		{"version", 0, "dev\n", ""},
		{"config", 0, "# flexd's configuration.", ""},
		{"udev --config " + empty, 0, "# Written by flexd", ""},
		{"uuid", 2, "", "flexd: uuid: name a file of a loopdev group\n"},
		{"config --check " + empty, 0, empty + ": good; volume groups: none", ""},
		{"config --check ../../examples/flexd.yaml", 0, "../../examples/flexd.yaml: good; volume groups: vg0 (lvm), archive (lvm)\n", ""},
		{"config --check " + bad, 1, "", "flexd: " + bad + ":1: lease: must be a duration with its unit, such as 30s or 4m30s, not \"soon\"\n" +
			"flexd: " + bad + ":2: runDir: must be an absolute path, not \"run\"\n"},
		{"config --check " + group, 1, "", "flexd: " + group + ": statusGroup: there is no group \"no-such-group\" on this machine\n"},
		{"config --check " + dir, 1, "", "flexd: " + dir + ": volumeGroups[0].directory: there is no directory /no/such/dir on this machine\n"},
		{"config --check " + elsewhere, 0, elsewhere + ": good; volume groups: none, so flexd would set nothing up\n" + elsewhere + ": runDir is not /run/flexd: set FLEXD_SOCKET=/run/other/driver.sock in kubelet's environment", ""},
		{"config --check /no/such/file", 1, "", "flexd: there is no configuration /no/such/file; `flexd config` prints one to begin with\n"},
		{"serve --config /no/such/file", 1, "", "flexd: there is no configuration /no/such/file; `flexd config` prints one to begin with\n"},
		{"status --socket /no/such/socket", 3, "", "flexd: flexd is not running: there is no socket /no/such/socket\n" +
			"flexd: start it (systemctl start flexd), or name the status.sock in its runDir with --socket\n"},
		{"status vg0/a -ojson --socket=" + stale, 3, "", "flexd: flexd is not running: no process listens on " + stale + "\n" +
			"flexd: start it: systemctl start flexd; why it stopped: journalctl -u flexd\n"},
		{"check --socket /no/such/socket", 3, "", "flexd: flexd is not running: there is no socket /no/such/socket\n" +
			"flexd: start it (systemctl start flexd), or name the status.sock in its runDir with --socket\n"},
		{"check -o yaml", 2, "", "flexd: check: -o is text or json, not \"yaml\"\n"},
		{"check vg0", 2, "", "flexd: check: unexpected argument \"vg0\"; see flexd check --help\n"},
		{"status vg0/", 2, "", "flexd: status: a volume is written VG/LV, or as its uuid, not \"vg0/\"\n"},
		{"status -g -n default", 2, "", "flexd: status: a volume group has no namespace\n"},
		{"release --yes", 2, "", "flexd: release: name the orphans to release; without --yes it lists them\n"},
		{"status a/b c/d", 2, "", "flexd: status: unexpected argument \"c/d\"; see flexd status --help\n"},
		{"status -o xml", 2, "", "flexd: status: -o is table, wide, name, json or yaml, not \"xml\"\n"},
		{"status --colour x", 2, "", "flexd: there is no flag --colour; see flexd status --help\n"},
		{"status -o", 2, "", "flexd: flag needs an argument: -o; see flexd status --help\n"},
		{"version now", 2, "", "flexd: version: unexpected argument \"now\"; see flexd version --help\n"},
		{"status --ouptut json", 2, "", "flexd: there is no flag --ouptut; did you mean \"output\"?; see flexd status --help\n"},
		{"release -oyaml", 2, "", "flexd: release: -o is text or json, not \"yaml\"\n"},
		{"sevre", 2, "", "flexd: there is no command \"sevre\"; did you mean \"serve\"?; see flexd --help\n"},
		{"--verbose", 2, "", "flexd: there is no flag --verbose; see flexd --help\n"},
	} {
		t.Run(row.args, func(t *testing.T) {
			stdout, stderr, exit := flexd(strings.Fields(row.args)...)
			if exit != row.exit || !strings.HasPrefix(stdout, row.stdout) || row.stdout == "" && stdout != "" {
				t.Errorf("exit %d, want %d; stdout: %s", exit, row.exit, stdout)
			}
			if d := cmp.Diff(row.stderr, stderr); d != "" {
				t.Errorf("stderr (-want +got):\n%s", d)
			}
		})
	}
}

func TestFlagsFirst(t *testing.T) {
	for in, want := range map[string]string{
		"flexd":                                "flexd",
		"flexd --help":                         "flexd --help",
		"flexd status a/b -o json":             "flexd status -o json a/b",
		"flexd status a/b --output=json c":     "flexd status --output=json a/b c",
		"flexd status a/b -h":                  "flexd status -h a/b",
		"flexd status a/b -o":                  "flexd status -o a/b",
		"flexd status --socket /s a/b -- -o x": "flexd status --socket /s a/b -- -o x",
		"flexd status -/u -o json":             "flexd status -o json -- -/u",
		"flexd release /a --yes -/u":           "flexd release --yes -- /a -/u",
		"flexd status a/b -ojson":              "flexd status -o json a/b",
		"flexd status a/b -o=json":             "flexd status -o=json a/b",
		"flexd release -yes /a":                "flexd release -yes /a",
		"flexd help status":                    "flexd status --help",
		"flexd help":                           "flexd --help",
		"flexd none -x a":                      "flexd none -x a",
	} {
		if got := strings.Join(flagsFirst(app(io.Discard, io.Discard).Commands, strings.Fields(in)), " "); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

type shown struct{}

func (shown) List() status.List {
	return status.List{Node: "node-1", Groups: []status.Group{{Name: "vg0", State: status.GroupOK}, {Name: "vg1", State: status.GroupFull}}, Volumes: []status.Volume{{VG: "vg0", LV: "a", State: status.Mounted, Pods: []status.Pod{{Namespace: "default", Name: "web-0", UID: "1", Dir: "/pods/1"}}}}}
}
func (shown) VolumeDetail(vg, lv string) (status.VolumeDetail, bool) {
	return status.VolumeDetail{Volume: status.Volume{VG: vg, LV: lv, State: status.Idle}}, lv == "a"
}
func (shown) Health() (_, _ []string) { return nil, nil }
func (shown) Orphans(_ context.Context, targets []string) status.Orphans {
	o := status.Orphans{Node: "node-1"}
	for _, t := range targets {
		if t == "vg0/left" {
			o.Orphans = append(o.Orphans, status.Orphan{Finding: status.Finding{VG: "vg0", LV: "left"}, Plan: []string{"deactivate the volume"}})
			continue
		}
		o.Refused = append(o.Refused, status.Refusal{Target: t, Message: "it is in use"})
	}
	return o
}
func (shown) Check(context.Context) status.Check {
	return status.Check{Node: "node-1", Verdict: status.Agree, Groups: []status.Checked{{VG: "vg0", Provider: "lvm", Volumes: 2, Active: 1}}}
}

// serveStatus serves a status socket for the duration of a test.
func serveStatus(t *testing.T) (socket string) {
	socket = filepath.Join(t.TempDir(), "s")
	l, err := server.Listen(socket, 0o600, "")
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	go (&server.Status{Listener: l, Source: shown{}, Log: logrus.NewEntry(log)}).Serve(t.Context())
	return socket
}

func TestStatusOfDaemon(t *testing.T) {
	socket := serveStatus(t)
	for _, row := range []struct{ args, stdout, stderr string }{
		{"status", "VOLUME  SIZE  STATE", ""},
		{"status vg0/a", "vg0/a  idle\n", ""},
		{"status --groups", "GROUP  STATE  SIZE  FREE  USED  LARGEST VOLUME  PROVIDER  OBSERVED\nvg0    ok     -", ""},
		{"status -g vg1", "GROUP  STATE  SIZE  FREE  USED  LARGEST VOLUME  PROVIDER  OBSERVED\nvg1    full", ""},
		{"status -g --state full -o name", "vg1\n", ""},
		{"status -g --vg vg0 -o json", "{\n  \"node\": \"node-1\",\n  \"version\": \"\",\n  \"groups\": [\n    {\n      \"name\": \"vg0\"", ""},
		{"status -g -o yaml none", "node: node-1\nversion: \"\"\ngroups: []\n", ""},
		{"status -g none", "None of the 2 configured volume groups on node-1 fits.\n", ""},
		{"status -o json", "{\n  \"node\": \"node-1\"", ""},
		{"status vg0/a -o json", "{\n  \"vg\": \"vg0\"", ""},
		{"status a", "vg0/a  idle\n", ""},
		{"status -/a", "vg0/a  idle\n", ""},
		{"status vg0", "VOLUME  SIZE  STATE", ""},
		{"status default/web-0", "vg0/a  idle\n", ""},
		{"status /pods/1/x", "vg0/a  idle\n", ""},
		{"status --state failed", "None of the 1 volumes on node-1 fits.\n", ""},
		{"status --vg vg0 --state mounted --state failed -n default -o name", "vg0/a\n", ""},
		{"status -oyaml", "node: node-1\nversion: \"\"\nvolumes:\n  - vg: vg0\n", ""},
		{"status -owide", "VOLUME  SIZE  STATE    USED  DEVICE  FS  PODS           LAST ERROR  UUID\n", ""},
		{"status /no/such", "None of the 1 volumes on node-1 fits.\n", ""},
		{"status none", "", "flexd: flexd knows no volume with the uuid none: nothing has asked for it here; a name is written VG/LV\n"},
		{"status vg0/none", "", "flexd: flexd knows no volume vg0/none: nothing has asked for it here\n"},
	} {
		stdout, stderr, exit := flexd(append(strings.Fields(row.args), "--socket", socket)...)
		if !strings.HasPrefix(stdout, row.stdout) || stderr != row.stderr || (exit == 0) != (row.stderr == "") {
			t.Errorf("%s: exit %d\n%s%s", row.args, exit, stdout, stderr)
		}
	}
}

func TestReleaseOfDaemon(t *testing.T) {
	socket := serveStatus(t)
	for args, want := range map[string]string{
		"release vg0/a":        "vg0/a  nothing to release\n  it is in use\n",
		"release vg0/a -ojson": "{\n  \"node\": \"node-1\"",
	} {
		stdout, stderr, exit := flexd(append(strings.Fields(args), "--socket", socket)...)
		if !strings.HasPrefix(stdout, want) || stderr != "" || exit != exitFailed {
			t.Errorf("%s: exit %d\n%s%s", args, exit, stdout, stderr)
		}
	}
}

type releasing struct{}

func (releasing) Serve(context.Context, flexvolume.Request, server.Peer) flexvolume.Answer {
	return flexvolume.Answer{Status: flexvolume.StatusSuccess}
}

// A release goes to the flexd whose status socket was asked, not to the one at the default place.
func TestReleaseSocket(t *testing.T) {
	socket := serveStatus(t)
	driver := filepath.Join(filepath.Dir(socket), "driver.sock")
	release := func(exit int, want string) {
		t.Helper()
		if out, stderr, got := flexd("release", "--yes", "vg0/left", "--socket", socket); got != exit || !strings.Contains(out, want) {
			t.Errorf("exit %d\n%s%s", got, out, stderr)
		}
	}
	release(exitFailed, "there is no socket "+driver+"; start it (systemctl start flexd), or name the status.sock in its runDir with --socket\n")
	l, err := server.Listen(driver, 0o600, "")
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	go (&server.Driver{Listener: l, Handler: releasing{}, Log: logrus.NewEntry(log)}).Serve(t.Context())
	release(0, "  released\n")
}

func TestDefaultPaths(t *testing.T) {
	if c := config.Default(); c.DriverSocket() != "/run/flexd/driver.sock" || c.StatusSocket() != "/run/flexd/status.sock" {
		t.Errorf("%+v", c) // the defaults of flexdriver and `flexd status`
	}
}
