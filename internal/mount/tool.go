package mount

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// printed is what a program printed, and its exit status.
type printed struct {
	out, errs []byte
	code      int
}

// tool runs a program for a child and returns what it printed and its exit status. The
// program gets the lane's lock as standard input like the child itself, so that the lock is
// held until both have ended, and the files as its descriptors 3, 4, .... It fails only if
// the program could not be run or died.
func tool(pkg string, files []*os.File, argv ...string) (printed, error) {
	return toolWithin(0, pkg, files, argv...)
}

// toolWithin is tool for a program that is killed after a time; 0 = never.
func toolWithin(limit time.Duration, pkg string, files []*os.File, argv ...string) (printed, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return printed{}, notInstalled(argv[0], pkg)
	}
	var out, errs bytes.Buffer
	c := exec.Cmd{
		Path: path, Args: argv, Dir: "/",
		Stdin: os.Stdin, Stdout: &out, Stderr: &errs,
		ExtraFiles: files,
		WaitDelay:  time.Second,
	}
	if err = c.Start(); err == nil {
		if limit > 0 {
			defer time.AfterFunc(limit, func() { _ = c.Process.Kill() }).Stop()
		}
		err = c.Wait()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return printed{out.Bytes(), errs.Bytes(), exit.ExitCode()}, nil
	}
	if err != nil {
		return printed{}, fmt.Errorf("%s: %w", argv[0], err)
	}
	return printed{out.Bytes(), errs.Bytes(), 0}, nil
}

func notInstalled(program, pkg string) error {
	return fmt.Errorf("%w: %s is not installed (Debian package %s)", ErrNoTool, program, pkg)
}

// oneLine makes the output of a program one line.
func oneLine(outputs ...[]byte) string {
	s := strings.Join(strings.Fields(string(bytes.ToValidUTF8(bytes.Join(outputs, []byte(" ")), []byte("?")))), " ")
	if len(s) > 600 {
		s = "…" + strings.ToValidUTF8(s[len(s)-600:], "")
	}
	return s
}
