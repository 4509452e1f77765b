package host

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// soon is the limit for quick operations on the slowest machine.
const soon = time.Minute

// A process is a run of flexd.
type process struct {
	*os.Process
	ended chan struct{} // closed when it has
	how   string        // written before: such as "signal: killed"
}

// Start starts flexd and returns when it is ready.
func (n *Node) Start() error {
	log, err := os.OpenFile(n.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	argv := append(slices.Clone(n.Enter), n.Flexd(), "serve", "--config", n.Config())
	p := &process{ended: make(chan struct{})}
	wait := p.wait
	if Unit == "" || n.Enter != nil {
		c := exec.Command(argv[0], argv[1:]...)
		c.Stdout, c.Stderr = log, log
		// A Ctrl-C on the terminal is for this process, which ends flexd by itself.
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		err = c.Start()
		p.Process = c.Process
	} else {
		var s service
		if s, err = startService(n.Log, argv...); err == nil {
			p.Process, err = s.process()
		}
		wait = s.wait
	}
	if err != nil {
		return err
	}
	go func() {
		p.how = wait()
		close(p.ended)
	}()
	n.mu.Lock()
	n.flexd = p
	n.mu.Unlock()
	for end := time.Now().Add(soon); ; time.Sleep(5 * time.Millisecond) {
		if _, err = get(n.StatusSocket(), "/healthz", 2*time.Second); err == nil { // a dying flexd never answers
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("flexd ended: %v: %s", p.how, Tail(n.Log, 20))
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("flexd is not ready after %v: %w: %s", soon, err, Tail(n.Log, 20))
		}
	}
}

func (p *process) wait() string {
	state, err := p.Wait()
	if err != nil {
		return err.Error()
	}
	return state.String()
}

func (n *Node) running() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.flexd
}

// Pid returns flexd's pid, 0 if it does not run.
func (n *Node) Pid() int {
	if p := n.running(); p != nil {
		return p.Pid
	}
	return 0
}

// Ended returns a channel that is closed when the present flexd has ended.
func (n *Node) Ended() <-chan struct{} { return n.running().ended }

// Wait waits until flexd has ended, and returns the reason, such as "signal: killed".
func (n *Node) Wait() (how string, err error) {
	p := n.running()
	if p == nil {
		return "", nil
	}
	select {
	case <-p.ended:
	case <-time.After(soon):
		p.Kill()
		return "", fmt.Errorf("flexd (pid %d) has not ended after %v", p.Pid, soon)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.flexd == p {
		n.flexd = nil
	}
	return p.how, nil
}

// Signal sends flexd, if it runs, a signal that ends it, and waits for its end.
func (n *Node) Signal(s syscall.Signal) error {
	p := n.running()
	if p == nil {
		return nil
	}
	p.Process.Signal(s) // an error means that it has ended
	how, err := n.Wait()
	if err == nil && s == syscall.SIGTERM && how != "exit status 0" {
		err = fmt.Errorf("%v ended flexd with %s", s, how)
	}
	return err
}

// Get asks the status socket.
func (n *Node) Get(path string) (string, error) { return Get(n.StatusSocket(), path) }

// Get asks a status socket. An answer other than 200 is an error.
func Get(socket, path string) (string, error) { return get(socket, path, soon/2) }

func get(socket, path string, timeout time.Duration) (string, error) {
	client := http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	r, err := client.Get("http://flexd" + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, r.Status, text)
	}
	return string(text), err
}

// Tail returns the last lines of a file.
func Tail(file string, lines int) string {
	text, _ := os.ReadFile(file)
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// LogTail returns the last lines of flexd's log.
func (n *Node) LogTail(lines int) string { return Tail(n.Log, lines) }

// Client is flexd with a command that asks the one that runs, such as check.
func (n *Node) Client(name string, args ...string) *exec.Cmd {
	return exec.Command(n.Flexd(), append([]string{name, "--socket", n.StatusSocket()}, args...)...)
}

// Status returns the output of `flexd status`.
func (n *Node) Status(args ...string) (string, error) {
	out, err := n.Client("status", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("flexd status %v: %w: %s", args, err, out)
	}
	return string(out), err
}
