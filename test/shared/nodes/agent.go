package nodes

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// inside is in the environment of a machine's first command, which is the agent.
const inside = "FLEXD_TEST_AGENT"

// A request is a command that a machine shall run; one without arguments ends the command of
// that number.
type request struct {
	ID    int
	Args  []string
	Stdin []byte
}

// An answer is how a command ended.
type answer struct {
	ID     int
	Stdout []byte
	Stderr []byte
	Status int // 128 and more: by a signal
}

// Agent does not return in a machine: there it runs commands until the machine ends. Each
// program that boots machines calls it first, since it is what they run.
func Agent() {
	if os.Getenv(inside) == "" {
		return
	}
	os.Unsetenv(inside)
	log.Fatalf("agent: %v", serve())
}

// serve runs commands as they come, many at once, until that fails.
func serve() error {
	port, err := Port("agent")
	if err != nil {
		return err
	}
	var mu sync.Mutex // of out and running
	out := json.NewEncoder(port)
	running := map[int]*os.Process{}
	send := func(a answer) {
		mu.Lock()
		defer mu.Unlock()
		delete(running, a.ID)
		out.Encode(a)
	}
	send(answer{}) // it listens
	for in := json.NewDecoder(port); ; {
		var r request
		if err := in.Decode(&r); err != nil {
			return err
		}
		if r.Args == nil {
			mu.Lock()
			if p := running[r.ID]; p != nil {
				syscall.Kill(-p.Pid, syscall.SIGKILL)
			}
			mu.Unlock()
			continue
		}
		c := exec.Command(r.Args[0], r.Args[1:]...)
		var stdout, stderr bytes.Buffer
		c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(r.Stdin), &stdout, &stderr
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		c.WaitDelay = time.Second // a daemon that it left may have its output
		if err := c.Start(); err != nil {
			send(answer{ID: r.ID, Stderr: []byte(err.Error()), Status: 127})
			continue
		}
		mu.Lock()
		running[r.ID] = c.Process
		mu.Unlock()
		go func() {
			c.Wait()
			status := c.ProcessState.ExitCode()
			if w := c.ProcessState.Sys().(syscall.WaitStatus); w.Signaled() {
				status = 128 + int(w.Signal())
			}
			send(answer{r.ID, stdout.Bytes(), stderr.Bytes(), status})
		}()
	}
}

// A port is a virtio-serial port, on which a missing peer reads as the end of the file.
type port struct{ *os.File }

// Port opens a machine's port of that name (option -p of scripts/vm), which only one can have open.
func Port(name string) (io.ReadWriteCloser, error) {
	names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
	for _, path := range names {
		if text, _ := os.ReadFile(path); strings.TrimSpace(string(text)) == name {
			f, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(path)), os.O_RDWR, 0)
			return port{f}, err
		}
	}
	return nil, errors.New("there is no port " + name)
}

// Read waits for a peer.
func (p port) Read(b []byte) (int, error) {
	for {
		if n, err := p.File.Read(b); n > 0 || err != io.EOF {
			return n, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}
