// Package nodes boots virtual machines that stay, of scripts/vm, and makes them nodes with one
// shared disk. Commands run in each, many at once; a machine can be paused, lose its power, lose the
// disk, and be booted again. There is no network.
package nodes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Machine is one that has been booted. Its fields say how, and stay the same when it is
// booted again.
type Machine struct {
	Name    string
	Options []string // others of scripts/vm, such as -D FILE:SIZE, -l HOST_ID
	Ports   []string // names of ports for programs in it: see Dial and Port

	script *exec.Cmd
	said   *bytes.Buffer // of the machine's own, such as a kernel's last words
	dir    string        // of the socket
	conn   net.Conn
	gone   chan struct{} // closed when it is off
	status int           // written before: of scripts/vm

	writes  sync.Mutex
	mu      sync.Mutex // of the rest
	last    int
	pending map[int]chan answer
}

// ErrGone says that a machine ended before a command did.
var ErrGone = errors.New("the machine is off")

// Boot boots a machine, which runs until it is killed. It is killed when this process ends.
func Boot(ctx context.Context, name string, options ...string) (*Machine, error) {
	m := &Machine{Name: name, Options: options}
	return m, m.Boot(ctx)
}

// Boot boots a machine that is off.
func (m *Machine) Boot(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if m.dir, err = os.MkdirTemp("", "flexd-vm-"); err != nil {
		return err
	}
	m.said, m.gone, m.pending = &bytes.Buffer{}, make(chan struct{}), map[int]chan answer{}
	ready := make(chan answer, 1)
	m.pending[0] = ready
	args := []string{"-q", "-t", "0", "-n", m.Name, "-Q", m.dir + "/monitor", "-e", inside + "=yes"}
	for _, port := range append([]string{"agent"}, m.Ports...) {
		args = append(args, "-p", port+"="+m.dir+"/"+port)
	}
	args = append(args, m.Options...)
	m.script = exec.Command(module()+"/scripts/vm", append(args, "--", self)...)
	m.script.Stdout, m.script.Stderr = m.said, m.said
	// Not for a Ctrl-C on the terminal, nor for the thread that starts it.
	m.script.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig is about the thread
		defer runtime.UnlockOSThread()
		err := m.script.Start()
		started <- err
		if err != nil {
			return
		}
		m.script.Wait()
		m.status = m.script.ProcessState.ExitCode()
		os.RemoveAll(m.dir)
		close(m.gone)
	}()
	if err := <-started; err != nil {
		return err
	}
	if err := m.connect(ctx); err != nil {
		m.Kill()
		return err
	}
	go m.read()
	select {
	case <-ready:
		return nil
	case <-m.gone:
		return fmt.Errorf("%s did not boot: status %d: %s", m.Name, m.status, m.said)
	case <-ctx.Done():
		m.Kill()
		return fmt.Errorf("%s did not boot: %w: %s", m.Name, ctx.Err(), m.said)
	}
}

// module is the directory of the repository, from any directory in it, also of its other modules.
func module() string {
	dir, _ := os.Getwd()
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir + "/scripts/vm"); err == nil {
			break
		}
	}
	return dir
}

// connect waits for the socket of the machine's port.
func (m *Machine) connect(ctx context.Context) error {
	for {
		conn, err := net.Dial("unix", m.dir+"/agent")
		if err == nil {
			m.conn = conn
			return nil
		}
		select {
		case <-m.gone:
			return fmt.Errorf("%s did not start: status %d: %s", m.Name, m.status, m.said)
		case <-ctx.Done():
			return fmt.Errorf("%s did not start: %w", m.Name, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Dial connects to a port of a machine that has been booted.
func (m *Machine) Dial(port string) (net.Conn, error) { return net.Dial("unix", m.dir+"/"+port) }

// read gives answers to those that wait for them.
func (m *Machine) read() {
	defer m.conn.Close()
	for in := json.NewDecoder(m.conn); ; {
		var a answer
		if in.Decode(&a) != nil {
			return
		}
		m.mu.Lock()
		if c := m.pending[a.ID]; c != nil {
			c <- a
			delete(m.pending, a.ID)
		}
		m.mu.Unlock()
	}
}

// A Result is what a command printed, and its status.
type Result struct {
	Stdout, Stderr string
	Status         int
}

// Run runs a command and waits for its end. It is killed when ctx ends. The error says that
// the command's end is not known; it is ErrGone when the machine is off.
func (m *Machine) Run(ctx context.Context, args ...string) (Result, error) {
	return m.Pipe(ctx, nil, args...)
}

// Pipe is Run for a command that reads.
func (m *Machine) Pipe(ctx context.Context, stdin []byte, args ...string) (Result, error) {
	c := make(chan answer, 1)
	m.mu.Lock()
	m.last++
	id := m.last
	m.pending[id] = c
	m.mu.Unlock()
	// A machine that is paused does not read.
	go m.send(request{id, args, stdin})
	var late <-chan time.Time
	for cancelled := ctx.Done(); ; {
		select {
		case a := <-c:
			return Result{string(a.Stdout), string(a.Stderr), a.Status}, ctx.Err()
		case <-m.gone:
			return Result{}, fmt.Errorf("%s: %s: %w", m.Name, strings.Join(args, " "), ErrGone)
		case <-cancelled:
			cancelled = nil
			go m.send(request{ID: id})
			late = time.After(5 * time.Second) // in state D, and in a machine that is paused, none can be killed
		case <-late:
			return Result{}, fmt.Errorf("%s: %s: %w, and it has not ended", m.Name, strings.Join(args, " "), ctx.Err())
		}
	}
}

func (m *Machine) send(r request) {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	m.writes.Lock()
	defer m.writes.Unlock()
	m.conn.Write(b) // an error means that it is off
}

// Shell runs a command of the shell. A status other than 0 is an error, with what it printed.
func (m *Machine) Shell(ctx context.Context, command string) (string, error) {
	r, err := m.Run(ctx, "bash", "-c", command)
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("%s: %s: status %d: %s%s", m.Name, command, r.Status, r.Stdout, r.Stderr)
	}
	return r.Stdout, err
}

// Write writes a file in the machine.
func (m *Machine) Write(ctx context.Context, path, text string) error {
	r, err := m.Pipe(ctx, []byte(text), "sh", "-c", `cat >"$1"`, "sh", path)
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("%s: %s: %s", m.Name, path, r.Stderr)
	}
	return err
}

// Pause stops the whole machine, while time goes on for it, too.
func (m *Machine) Pause() error { return m.signal(syscall.SIGSTOP) }

// Continue lets a paused machine go on.
func (m *Machine) Continue() error { return m.signal(syscall.SIGCONT) }

// Stop stops the machine and its time, as virsh suspend does.
func (m *Machine) Stop() error { return m.monitor("stop") }

// Resume lets a stopped machine go on, with the time when it was stopped.
func (m *Machine) Resume() error { return m.monitor("cont") }

// monitor gives a command to QEMU.
func (m *Machine) monitor(command string) error {
	conn, err := net.Dial("unix", m.dir+"/monitor")
	if err != nil {
		return err
	}
	defer conn.Close()
	out, in := json.NewEncoder(conn), json.NewDecoder(conn)
	for _, c := range []string{"qmp_capabilities", command} {
		if err := out.Encode(map[string]string{"execute": c}); err != nil {
			return err
		}
		for answer := map[string]any{}; ; clear(answer) { // a greeting and events come between
			if err := in.Decode(&answer); err != nil {
				return err
			}
			if answer["error"] != nil {
				return fmt.Errorf("%s: %s: %v", m.Name, c, answer["error"])
			}
			if answer["return"] != nil {
				break
			}
		}
	}
	return nil
}

// Kill cuts the power, and waits until the machine is off.
func (m *Machine) Kill() {
	if m.script == nil || m.script.Process == nil {
		return
	}
	m.signal(syscall.SIGKILL) // scripts/vm's own signals do not reach a QEMU that is paused
	m.script.Process.Signal(syscall.SIGTERM)
	<-m.gone
}

// Gone is closed when the machine is off, also by itself.
func (m *Machine) Gone() <-chan struct{} { return m.gone }

// Off says whether the machine is off.
func (m *Machine) Off() bool {
	select {
	case <-m.gone:
		return true
	default:
		return false
	}
}

// Said is what a machine that is off has printed, such as the kernel's last words.
func (m *Machine) Said() string { return m.said.String() }

// signal sends QEMU a signal.
func (m *Machine) signal(s syscall.Signal) error {
	if m.Off() {
		return ErrGone
	}
	pid, err := qemu(m.script.Process.Pid)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, s)
}

// qemu finds the process among the descendants of another.
func qemu(parent int) (int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for _, word := range strings.Fields(string(text)) {
			pid, _ := strconv.Atoi(word)
			if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.HasPrefix(string(comm), "qemu-") {
				return pid, nil
			}
			if found, err := qemu(pid); err == nil {
				return found, nil
			}
		}
	}
	return 0, errors.Join(err, errors.New("there is no QEMU"))
}
