//go:build vm

// Package vm holds scripts/vm to what its usage says.
package vm

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A guest is a machine that has run.
type guest struct {
	out, errs string
	status    int
	took      time.Duration
}

func vm(t *testing.T, args ...string) guest {
	t.Helper()
	script, err := filepath.Abs("../../scripts/vm")
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	c := exec.Command(script, append([]string{"-q"}, args...)...)
	c.Stdout, c.Stderr = &out, &errs
	begun := time.Now()
	if err := c.Run(); c.ProcessState == nil {
		t.Fatal(err)
	}
	return guest{out.String(), errs.String(), c.ProcessState.ExitCode(), time.Since(begun)}
}

func (g guest) is(t *testing.T, status int, out, errs string) {
	t.Helper()
	if g.status != status || g.out != out || !strings.Contains(g.errs, errs) {
		t.Errorf("status %d, stdout %q, stderr %q; want %d, %q, %q", g.status, g.out, g.errs, status, out, errs)
	}
}

// A command runs as it does here, but for what it writes, which is lost.
func TestCommand(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("FLEXD_TEST_WORD", "two words")
	g := vm(t, "-d", "2", "-s", "64M", "-e", "FLEXD_TEST_WORD", "-e", "OTHER=x", "-n", "guest", "--", "sh", "-c",
		`echo "$FLEXD_TEST_WORD $OTHER" "$1"; pwd; hostname; blockdev --getsize64 /dev/vda /dev/vdb; echo lost > `+dir+`/file; echo apart >&2; exit 7`, "sh", "a  b")
	here, _ := os.Getwd()
	g.is(t, 7, "two words x a  b\n"+here+"\nguest\n67108864\n67108864\n", "apart\n")
	if strings.Contains(g.errs, "two words") {
		t.Errorf("stderr: %q", g.errs)
	}
	if all, _ := os.ReadDir(dir); len(all) != 0 {
		t.Errorf("the host has %v", all)
	}
}

// With -y systemd is process 1: it runs units, and the status is still the command's.
func TestSystemd(t *testing.T) {
	t.Parallel()
	vm(t, "-y", "-D", t.TempDir()+"/disk:64M", "--", "sh", "-c", `
		printf '[Service]\nType=oneshot\nStandardOutput=file:/run/said\nExecStart=echo said\n' >/run/systemd/system/one.service
		cat /proc/1/comm && systemctl start one && cat /run/said; exit 7`).is(t, 7, "systemd\nsaid\n", "")
}

// What is meant to be kept is: a directory, a disk, and what two machines write
// to one disk at once.
func TestKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disk := dir + "/shared"
	vm(t, "-w", dir, "-D", disk+":64M", "--", "sh", "-c", "echo kept > "+dir+"/file; echo first | dd of=/dev/vda conv=fsync,notrunc status=none").is(t, 0, "", "")
	if b, err := os.ReadFile(dir + "/file"); string(b) != "kept\n" {
		t.Errorf("%q %v", b, err)
	}
	const page = "dd bs=4096 count=1 status=none"
	ends := make(chan guest)
	go func() { // waits for what the other one writes, and answers
		ends <- vm(t, "-D", disk, "--", "sh", "-c",
			page+` if=/dev/vda | head -n 1; for i in $(seq 100); do `+page+` if=/dev/vda skip=1 iflag=direct | grep -qa ping && break; sleep 0.2; done; echo pong | `+
				page+` of=/dev/vda seek=2 conv=sync oflag=direct`)
	}()
	there := vm(t, "-D", disk, "--", "sh", "-c",
		`echo ping | `+page+` of=/dev/vda seek=1 conv=sync oflag=direct; for i in $(seq 100); do `+page+` if=/dev/vda skip=2 iflag=direct | grep -a pong && exit; sleep 0.2; done; exit 1`)
	there.is(t, 0, "pong\n", "")
	g := <-ends
	g.is(t, 0, "first\n", "")
}

// A machine that takes too long, dies, or cannot be is no failure of the command.
func TestNoEnd(t *testing.T) {
	t.Parallel()
	g := vm(t, "-t", "10", "--", "sh", "-c", "echo begins; sleep 600")
	g.is(t, 124, "begins\n", "10")
	if g.took > time.Minute {
		t.Errorf("it took %s", g.took)
	}
	vm(t, "--", "sh", "-c", "echo b > /proc/sysrq-trigger; sleep 60").is(t, 125, "", "[vm]")
	vm(t, "-d", "many", "--", "true").is(t, 125, "", "not a number: many")
	vm(t, "-C", "/nowhere", "--", "true").is(t, 125, "", "/nowhere")
}

// With -i there is a terminal, and the status is the shell's.
func TestShell(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs("../../scripts/vm")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("script", "-qec", script+" -i", "/dev/null")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	said, asked := []byte(nil), false
	for buf := make([]byte, 1024); err == nil; {
		var n int
		n, err = out.Read(buf)
		if said = append(said, buf[:n]...); !asked && bytes.Contains(said, []byte("# ")) {
			asked = true // what is typed before is lost
			_, err = io.WriteString(in, "test -t 0 && echo tty=$((6*7)); exit 3\n")
		}
	}
	c.Wait()
	if !bytes.Contains(said, []byte("tty=42")) || c.ProcessState.ExitCode() != 3 {
		t.Errorf("status %d: %s", c.ProcessState.ExitCode(), said)
	}
}
