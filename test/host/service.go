package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Unit is a unit file under whose restrictions systemd runs every flexd; "" = this process
// starts it. Systemd must be process 1, and share this process's mount namespace.
var Unit = os.Getenv("FLEXD_TEST_UNIT")

// A service is a process that systemd has started, and its children.
type service struct {
	name, log string
	end       string // a file that says how it has ended
}

// replaced are settings of a unit that are not for tests, which start flexd themselves.
var replaced = regexp.MustCompile(`(?m)^(ExecStart|Restart|RestartSec|Type)=.*\n`)

// modules are settings that load kernel modules, which stay loaded.
var modules = regexp.MustCompile(`(?m)^(Wants|After)=modprobe@.*\n`)

var modulesLoaded atomic.Bool

// startService starts a command under the restrictions of Unit.
func startService(log string, argv ...string) (service, error) {
	s := service{filepath.Base(filepath.Dir(log)) + "-" + filepath.Base(log) + ".service", log, log + ".end"}
	text, err := os.ReadFile(Unit)
	if err != nil {
		return s, err
	}
	os.Remove(s.end)
	if modulesLoaded.Load() {
		text = modules.ReplaceAll(text, nil)
	}
	own := "\n[Unit]\nStartLimitIntervalSec=0\n[Service]\nType=exec\nExecStart=" + strings.Join(argv, " ") +
		"\nStandardOutput=append:" + log + "\nStandardError=inherit" +
		"\nExecStopPost=sh -c 'echo $EXIT_CODE $EXIT_STATUS >" + s.end + "'\n"
	if err := os.WriteFile("/run/systemd/system/"+s.name, []byte(replaced.ReplaceAllString(string(text), "")+own), 0o644); err != nil {
		return s, err
	}
	if _, err := systemctl("daemon-reload"); err != nil {
		return s, err
	}
	_, err = systemctl("start", s.name)
	if err == nil {
		modulesLoaded.Store(true)
	}
	return s, err
}

// process is its first one, which still runs.
func (s service) process() (*os.Process, error) {
	main, err := systemctl("show", "--value", "--property", "MainPID", s.name)
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(main)
	if err != nil || pid == 0 {
		return nil, fmt.Errorf("%s has ended: %s", s.name, Tail(s.log, 20))
	}
	return os.FindProcess(pid)
}

// wait waits until that process has ended, and returns how in the words of os.ProcessState.
func (s service) wait() string {
	for {
		text, _ := os.ReadFile(s.end)
		if how := strings.Fields(string(text)); len(how) == 2 {
			if how[0] == "exited" {
				return "exit status " + how[1]
			}
			return "signal: " + unix.SignalNum("SIG"+how[1]).String()
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Restricted runs a shell script under the restrictions of Unit, in a directory of the
// test's own, and returns its output.
func Restricted(dir, script string) (string, error) {
	if err := os.WriteFile(dir+"/script", []byte(script), 0o644); err != nil {
		return "", err
	}
	s, err := startService(dir+"/script.log", "/bin/sh", dir+"/script")
	if err != nil {
		return "", err
	}
	how := s.wait()
	out, err := os.ReadFile(s.log)
	if err == nil && how != "exit status 0" {
		err = fmt.Errorf("%s", how)
	}
	return string(out), err
}

func systemctl(args ...string) (string, error) {
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}
