package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
)

var update = flag.Bool("update", false, "write testdata/*.golden from what flexdriver says now")

// driver is the real executable, installed as kubelet finds it.
var driver string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "flexdriver")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		driver = filepath.Join(dir, "flexd~lvm", "lvm")
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-X github.com/flexd/flexd/internal/flexvolume.build=v0.0.0-test", "-o", driver, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s%v\n", out, err)
			return 1
		}
		return m.Run()
	}())
}

// A result is what kubelet sees of a call.
type result struct {
	stdout, stderr string
	exit           int // -1 = died by a signal
	took           time.Duration
}

// call runs flexdriver as kubelet does: stdin is /dev/null, the environment is
// kubelet's, stdout is a pipe.
func call(t *testing.T, exe string, env []string, args ...string) result {
	t.Helper()
	cmd := exec.Command(exe, args...)
	cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, env...)
	cmd.Dir = "/"
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode(), time.Since(began)}
}

const (
	globalDir = "/var/lib/kubelet/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/pv1"
	podDir    = "/var/lib/kubelet/pods/uid-a/volumes/flexd~lvm/pv1"
	blob      = `{"kubernetes.io/fsType":"","kubernetes.io/pvOrVolumeName":"pv1","kubernetes.io/readwrite":"rw","size":"100m","volumeID":"lv","volumegroup":"vg"}`
	podBlob   = `{"kubernetes.io/fsType":"","kubernetes.io/mounterArgs.FsGroup":"1234","kubernetes.io/pod.name":"a","kubernetes.io/pod.namespace":"ns",` +
		`"kubernetes.io/pod.uid":"uid-a","kubernetes.io/pvOrVolumeName":"pv1","kubernetes.io/readwrite":"rw","kubernetes.io/secret/key":"c2VjcmV0",` +
		`"kubernetes.io/serviceAccount.name":"sa","size":"100m","volumeID":"lv","volumegroup":"vg"}`
)

// calls is every verb with kubelet's arguments, and two that are none.
func calls() [][]string {
	return [][]string{
		{"init"},
		{"getvolumename", blob},
		{"attach", blob, "node1"},
		{"detach", "pv1", "node1"},
		{"waitforattach", "/dev/vg/lv", blob},
		{"isattached", blob, "node1"},
		{"mountdevice", globalDir, "/dev/vg/lv", blob},
		{"unmountdevice", globalDir},
		{"mount", podDir, podBlob},
		{"unmount", podDir},
		{"expandvolume", blob, globalDir, "2147483648", "1073741824"},
		{"expandfs", blob, "/dev/vg/lv", podDir, "2147483648", "1073741824"},
		{"--help"},
		{"version"},
	}
}

// asksDaemon says which verbs leave the process.
func asksDaemon(verb string) bool {
	switch verb {
	case "init", "getvolumename", "expandvolume", "--help", "version":
		return false
	}
	return true
}

// Every verb in every trouble against its golden file.
func TestContract(t *testing.T) {
	good := flexvolume.Answer{Status: flexvolume.StatusSuccess, Device: "/dev/vg/lv", Attached: new(true)}
	reply := func(answer string) func(string) string {
		return func(id string) string { return `{"v":1,"id":"` + id + `","answer":` + answer + "}\n" }
	}
	serve := func(behaviour func(*daemon, int, net.Conn)) func(*testing.T) (string, *daemon) {
		return func(t *testing.T) (string, *daemon) { d := start(t, behaviour); return d.socket, d }
	}
	for _, tt := range []struct {
		name  string // of the golden file
		setup func(*testing.T) (socket string, d *daemon)
		asked int // how often each call must have reached the daemon
	}{
		{"good", serve(answers(good)), 1},
		{"failure", serve(answers(flexvolume.Failure("vg/lv: no such volume <&>"))), 1},
		{"absent", func(t *testing.T) (string, *daemon) { return filepath.Join(t.TempDir(), "driver.sock"), nil }, 0},
		{"stale", func(t *testing.T) (string, *daemon) { return stale(t), nil }, 0},
		{"never-answers", serve(silent), 1},
		{"dies-mid-answer", serve(diesMidAnswer), 2},
		{"garbage", serve(says(func(string) string { return "panic: oops\n" })), 1},
		{"garbage-html", serve(says(func(string) string { return "HTTP/1.1 400 Bad Request\r\n\r\n" })), 1},
		{"garbage-long", serve(says(func(string) string { return strings.Repeat("x", 2<<20) })), 1},
		{"garbage-two-lines", serve(says(func(id string) string { l := reply(`{"status":"Success"}`)(id); return l + l })), 1},
		{"garbage-status", serve(says(reply(`{"status":"OK"}`))), 1},
		{"garbage-type", serve(says(reply(`{"status":"Success","attached":"true"}`))), 1},
		{"garbage-capabilities", serve(says(reply(`{"status":"Success","capabilities":null}`))), 1},
		{"another-call", serve(says(func(string) string { return reply(`{"status":"Success"}`)("cafe") })), 1},
		{"another-version", serve(says(func(id string) string { return `{"v":2,"id":"` + id + "\"}\n" })), 1},
		{"not-supported", serve(answers(flexvolume.NotSupported())), 1},
		{"long-message", serve(says(reply(`{"status":"Failure","message":"` + strings.Repeat(`a\u0000\n`, 900) + `"}`))), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got strings.Builder
			for _, args := range calls() {
				socket, d := tt.setup(t) // a fresh daemon for each call
				timeout := "FLEXD_TIMEOUT=5m"
				if tt.name == "never-answers" {
					timeout = "FLEXD_TIMEOUT=300ms"
				}
				env := []string{"FLEXD_SOCKET=" + socket, timeout}
				if d == nil { // otherwise no call may time out
					env = append(env, "FLEXD_CONNECT_TIMEOUT=200ms")
				}
				r := call(t, driver, env, args...)
				if r.exit != 0 || r.stderr != "" {
					t.Errorf("%s: exit %d, stderr %q", args[0], r.exit, r.stderr)
				}
				if strings.Contains(r.stdout, "c2VjcmV0") {
					t.Errorf("%s prints a secret: %s", args[0], r.stdout)
				}
				oneObject(t, r.stdout)
				if r.took > 4*time.Second {
					t.Errorf("%s took %v", args[0], r.took)
				}
				if d != nil {
					asked(t, d, args, tt.asked)
				}
				out := strings.ReplaceAll(r.stdout, socket, "<socket>")
				fmt.Fprintf(&got, "$ lvm %s\n%s", strings.Join(args, " "), out)
			}
			golden(t, tt.name, got.String())
		})
	}
}

// asked checks what reached the daemon: the arguments unchanged, the same id each time.
func asked(t *testing.T, d *daemon, args []string, times int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !asksDaemon(args[0]) {
		times = 0
	}
	if len(d.requests) != times || d.conns != times {
		t.Errorf("%s: %d connections with %d requests, want %d", args[0], d.conns, len(d.requests), times)
	}
	for _, q := range d.requests {
		if q.ID != d.requests[0].ID || q.Verb != args[0] || strings.Join(q.Args, "\x00") != strings.Join(args[1:], "\x00") {
			t.Errorf("%s arrived as %+v", args[0], q)
		}
		if q.Parent != os.Getpid() || q.Started <= 0 || q.Started != d.requests[0].Started {
			t.Errorf("%s: parent %d, started %d", args[0], q.Parent, q.Started)
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// oneObject checks that stdout is what kubelet can parse.
func oneObject(t *testing.T, stdout string) {
	t.Helper()
	var v struct{ Status, Message string }
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || v.Status == "" || strings.Count(stdout, "\n") != 1 || !strings.HasSuffix(stdout, "}\n") {
		t.Errorf("not one JSON object: %q, %v", stdout, err)
	}
	if len(v.Message) > flexvolume.MaxMessage {
		t.Errorf("%d bytes of message", len(v.Message))
	}
}

// Linux allows one argument of 128 KiB, NUL included.
func TestHugeArguments(t *testing.T) {
	huge := `{"kubernetes.io/secret/x":"` + strings.Repeat("A", 128<<10-1-len(`{"kubernetes.io/secret/x":""}`)) + `"}`
	for _, verb := range []string{"attach", "waitforattach", "mount", "unmount", "expandfs"} {
		d := start(t, answers(flexvolume.Success()))
		r := call(t, driver, []string{"FLEXD_SOCKET=" + d.socket}, verb, huge)
		if r.stdout != "{\"status\":\"Success\"}\n" || r.stderr != "" || r.exit != 0 {
			t.Errorf("%s: %+v", verb, r)
		}
		asked(t, d, []string{verb, huge}, 1)
	}
	for _, verb := range []string{"init", "getvolumename", "expandvolume", "nosuchverb"} {
		r := call(t, driver, []string{"FLEXD_SOCKET=/nonexistent/s"}, verb, huge)
		if oneObject(t, r.stdout); r.stderr != "" || r.exit != 0 {
			t.Errorf("%s: %+v", verb, r)
		}
	}
	many := []string{"mount"}
	for range 9 {
		many = append(many, huge)
	}
	d := start(t, answers(flexvolume.Success()))
	r := call(t, driver, []string{"FLEXD_SOCKET=" + d.socket}, many...)
	if out := r.stdout; out != `{"status":"Failure","message":"the arguments of mount are too long: flexd takes a message of at most 1048576 bytes"}`+"\n" || r.stderr != "" || r.exit != 0 {
		t.Errorf("9 of them: %.200s %+v", out, r.exit)
	}
	asked(t, d, many, 0)
	r = call(t, driver, []string{"FLEXD_SOCKET=" + d.socket}, "unmount", "/x\xff")
	if out := r.stdout; out != `{"status":"Failure","message":"argument 1 is not valid UTF-8"}`+"\n" {
		t.Errorf("invalid UTF-8: %s", out)
	}
}

// What init says stands in a dotfile beside the executable.
func TestInitFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "flexd~lvm")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	exe, file := filepath.Join(dir, "lvm"), filepath.Join(dir, ".lvm.init.json")
	if err := os.Symlink(driver, exe); err != nil { // kubelet accepts a link; its directory counts
		t.Fatal(err)
	}
	const rest = `"selinuxRelabel":true,"supportsMetrics":true,"fsGroup":true,"requiresFSResize":true}}` + "\n"
	for _, tt := range []struct{ name, text, want string }{
		{"attach:true", `{"attach":true}`, `{"status":"Success","capabilities":{"attach":true,` + rest},
		{"attach:false", "{\n  \"attach\": false\n}\n", `{"status":"Success","capabilities":{"attach":false,` + rest},
		{"torn", `{"attach":fal`, `{"status":"Failure","message":"` + file + `: neither true nor false at byte 10; write it again, then touch ` + exe + `"}` + "\n"},
		{"empty", ``, `{"status":"Failure","message":"` + file + `: not a JSON object at byte 0; write it again, then touch ` + exe + `"}` + "\n"},
		{"null", `null`, `{"status":"Failure","message":"` + file + `: not a JSON object at byte 0; write it again, then touch ` + exe + `"}` + "\n"},
		{"a typo", `{"atach":false}`, `{"status":"Failure","message":"` + file + `: unknown capability \"atach\"; write it again, then touch ` + exe + `"}` + "\n"},
		{"huge", strings.Repeat(" ", 1<<20), `{"status":"Failure","message":"` + file + `: longer than 64 KiB; write it again, then touch ` + exe + `"}` + "\n"},
	} {
		if err := os.WriteFile(file, []byte(tt.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if r := call(t, exe, nil, "init"); r.stdout != tt.want || r.stderr != "" || r.exit != 0 {
			t.Errorf("%s: %+v\nwant %s", tt.name, r, tt.want)
		}
	}
	os.Remove(file)
	if r := call(t, exe, nil, "init"); r.stdout != `{"status":"Success","capabilities":{"attach":true,`+rest {
		t.Errorf("missing: %+v", r)
	}
	os.Mkdir(file, 0o755)
	if r := call(t, exe, nil, "init"); !strings.Contains(r.stdout, file+": is a directory;") {
		t.Errorf("a directory: %+v", r)
	}
	os.Remove(file)
	if err := syscall.Mkfifo(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if r := call(t, exe, nil, "init"); !strings.Contains(r.stdout, `"Failure"`) || r.took > 2*time.Second {
		t.Errorf("a pipe: %+v", r)
	}
}

// Kubelet panics when a waitforattach outlives its SIGTERM by 10 s.
func TestSIGTERM(t *testing.T) {
	d := start(t, silent)
	for _, socket := range []string{d.socket, filepath.Join(t.TempDir(), "missing")} {
		cmd := exec.Command(driver, "waitforattach", "", blob)
		cmd.Env = []string{"FLEXD_SOCKET=" + socket}
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if socket == d.socket {
			<-d.came
		}
		time.Sleep(50 * time.Millisecond)
		sent := time.Now()
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if took := time.Since(sent); !status.Signaled() || status.Signal() != syscall.SIGTERM || took > time.Second || stdout.Len()+stderr.Len() > 0 {
			t.Errorf("%s: %v after %v, stdout %q, stderr %q", socket, cmd.ProcessState, took, stdout.String(), stderr.String())
		}
	}
}

// A caller without permission gets that as the reason at once, not that flexd does not run.
func TestNotPermitted(t *testing.T) {
	d := start(t, silent)
	if err := os.Chmod(filepath.Dir(d.socket), 0); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Open(driver) // its directory is root's
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	cmd := exec.Command("/proc/self/fd/3", "unmount", podDir)
	cmd.Env, cmd.ExtraFiles = []string{"FLEXD_SOCKET=" + d.socket}, []*os.File{exe}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, _ := cmd.Output()
	if !strings.Contains(string(out), "not permitted to use flexd's socket ("+d.socket) || strings.Contains(string(out), "not running") {
		t.Errorf("%s", out)
	}
}

// Every user can read a process's arguments. Kubelet's contain a pod's secrets.
func TestArgumentsAreHidden(t *testing.T) {
	d := start(t, silent)
	const secret = "c2VjcmV0"
	for _, args := range [][]string{
		{"mount", podDir, podBlob},
		{"mount", podDir, podBlob, secret},
		{"unmount", "", secret},
		{"mount", secret, strings.Repeat(secret, 12<<10)},
	} {
		for _, socket := range []string{d.socket, filepath.Join(t.TempDir(), "missing")} {
			cmd := exec.Command(driver, args...)
			cmd.Env = []string{"FLEXD_SOCKET=" + socket, "LAST=1"}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if socket == d.socket {
				<-d.came
			}
			proc := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
			read := func(name string) string {
				b, err := os.ReadFile(proc + name)
				if err != nil {
					t.Fatal(err)
				}
				return string(b)
			}
			// Without a connection no event shows when flexdriver has begun to wait.
			for end := time.Now().Add(10 * time.Second); (read("cmdline") == "" || strings.Contains(read("cmdline"), secret)) && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			for _, name := range []string{"cmdline", "environ", "comm", "task/" + strconv.Itoa(cmd.Process.Pid) + "/cmdline"} {
				if text := read(name); strings.Contains(text, secret) || strings.Contains(text, "volumegroup") {
					t.Errorf("%s: %.200q", name, text)
				}
			}
			if got, want := strings.TrimRight(read("cmdline"), "\x00"), driver+"\x00"+args[0]; got != want {
				t.Errorf("cmdline is %q, want %q and nothing more", got, want)
			}
			if text := read("environ"); text != "FLEXD_SOCKET="+socket+"\x00LAST=1\x00" {
				t.Errorf("the environment has changed: %q", text)
			}
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.requests {
		if len(q.Args) < 2 || !strings.Contains(strings.Join(q.Args, ""), secret) {
			t.Errorf("flexd received %.200q", q.Args)
		}
	}
}

// When kubelet dies, no caller waits: flexdriver closes the connection, so that flexd
// knows.
func TestParentDies(t *testing.T) {
	d := start(t, silent)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	kubelet := exec.Command("/bin/sh", "-c", `"$0" "$@" & wait`, driver, "mount", podDir, podBlob)
	kubelet.Env = []string{"FLEXD_SOCKET=" + d.socket}
	kubelet.Stdout, kubelet.Stderr = write, write
	if err := kubelet.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	<-d.came
	time.Sleep(150 * time.Millisecond)
	select {
	case <-d.hungUp:
		t.Fatal("hung up while its parent lived")
	default:
	}
	kubelet.Process.Kill()
	kubelet.Wait()
	select {
	case <-d.hungUp:
	case <-time.After(2 * time.Second):
		t.Error("did not hang up")
	}
	out, err := io.ReadAll(read) // ends with flexdriver
	if want := `{"status":"Failure","message":"the parent of flexdriver has changed, no process waits for this answer"}` + "\n"; err != nil || string(out) != want {
		t.Errorf("%s, %v", out, err)
	}
}

// Many calls may wait for minutes at once, on a node that is in trouble anyway:
// each sleeps until its answer comes, or its parent ends.
func TestSleepsWhileItWaits(t *testing.T) {
	d := start(t, silent)
	cmd := exec.Command(driver, "mount", podDir, podBlob)
	cmd.Env = []string{"FLEXD_SOCKET=" + d.socket}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	<-d.came
	woken := func() (n int) {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", cmd.Process.Pid))
		if err != nil || len(tasks) == 0 {
			t.Fatalf("%d tasks, %v", len(tasks), err)
		}
		for _, file := range tasks {
			b, _ := os.ReadFile(file)
			_, rest, _ := strings.Cut(string(b), "\nvoluntary_ctxt_switches:")
			var k int
			if _, err := fmt.Sscan(rest, &k); err != nil {
				t.Fatal(err)
			}
			n += k
		}
		return n
	}
	time.Sleep(time.Second) // it looks up a few times before it sleeps
	before := woken()
	time.Sleep(time.Second)
	if n := woken() - before; n > 5 {
		t.Errorf("it was awake %d times within a second", n)
	}
}

// No process reads the answer: stderr stays empty, with any result.
func TestClosedStdout(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	cmd := exec.Command(driver, "init")
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = write, &stderr
	cmd.Run()
	write.Close()
	if stderr.Len() > 0 {
		t.Errorf("stderr %q", stderr.String())
	}
}
