package hosttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// killGrace is how long a killed command may take to end, as in run.Exec.
const killGrace = 2 * time.Second

// A process is one running command.
type process struct {
	h       *Host
	cmd     run.Cmd
	op      string
	pid     int
	boot    string
	started time.Time
	ready   chan struct{}
	word    chan bool // the gate's
	killed  chan struct{}
	ended   chan struct{}
	once    sync.Once
	file    *File // what it works on; guarded by Host.mu
	garbled bool  // its answer is
	out     []byte
	stderr  []byte
	err     error
}

// Run implements run.Runner as run.Exec does it: a lock file that is flock'ed while the
// command lives, the two-phased gate, deadlines, and commands that outlive the context of
// their starter if they change something.
func (h *Host) Run(ctx context.Context, c run.Cmd) (run.Result, error) {
	return h.run(ctx, c, func() {})
}

func (h *Host) run(ctx context.Context, c run.Cmd, started func()) (run.Result, error) {
	if err := ctx.Err(); err != nil {
		return run.Result{}, err
	}
	op := ""
	switch {
	case len(c.Argv) == 4 && c.Argv[0] == "/proc/self/exe" && c.Argv[1] == "child" && ops[c.Argv[2]] != nil:
		op = c.Argv[2]
	case len(c.Argv) > 1 && h.locking != nil && lvmCommands[c.Argv[1]] != nil && c.Argv[0] == "lvm":
		op = c.Argv[1]
	default:
		h.broke("an unknown command was started: %q", c.Argv)
		return run.Result{}, fmt.Errorf("%s: unknown command", c.Step)
	}
	p := &process{h: h, cmd: c, op: op, boot: h.BootID(), started: time.Now(), ready: make(chan struct{}), word: make(chan bool, 1),
		killed: make(chan struct{}), ended: make(chan struct{})}
	if (c.Gate != nil) != (p.op == "mount" || p.op == "format") {
		h.broke("%s: with a gate: %v", p.op, c.Gate != nil)
	}
	h.mu.Lock()
	h.nextID++
	p.pid = 100000 + h.nextID
	h.mu.Unlock()
	unlock, err := h.lock(c, p.pid)
	if err != nil {
		return run.Result{}, err
	}
	h.mu.Lock()
	h.logf("%s %s", p.op, strings.Join(c.Argv[len(c.Argv)-1:], " "))
	h.mu.Unlock()
	go p.live(unlock)
	started()
	res, err := p.watch(ctx)
	if err == nil && c.Line != nil {
		c.Line(res.Stdout)
	}
	return res, err
}

// lock takes the lane's lock for the life of a command.
func (h *Host) lock(c run.Cmd, pid int) (unlock func(), err error) {
	if c.Lock == "" {
		if c.Mutates {
			h.broke("%s changes something and carries no lock: %q", c.Step, c.Argv)
		}
		return func() {}, nil
	}
	if e := h.Held(c.Lock); e != nil {
		e.Step = c.Step
		return nil, e
	}
	mine := &laneLock{pid: pid, argv: c.Argv, done: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.locks[c.Lock] = mine
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.locks[c.Lock] == mine { // no reboot came between
			delete(h.locks, c.Lock)
		}
		close(mine.done)
	}, nil
}

// Held is run.Held of this host's children.
func (h *Host) Held(lock string) *run.LockedError {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.locks[lock]; l != nil {
		return &run.LockedError{Step: "wait", Pids: []int{l.pid}, Done: l.done}
	}
	return nil
}

func (p *process) live(unlock func()) {
	value, err := p.do()
	if said, ok := value.(*said); ok {
		p.out, p.stderr, p.err = said.reply(p.cmd, err)
	} else {
		p.out, p.err = reply(value, err)
	}
	if p.garbled {
		p.out = p.out[:len(p.out)/2]
	}
	p.h.mu.Lock()
	if op := p.h.live[p.file]; p.file != nil && (op == p.op || op == writes) {
		delete(p.h.live, p.file)
		p.h.detached()
	}
	p.h.mu.Unlock()
	unlock()
	close(p.ended)
}

// do runs the command: its beginning, its effect, its end.
func (p *process) do() (any, error) {
	h := p.h
	if err := p.pace("before"); err != nil {
		return nil, err
	}
	if !p.stay(h.before, p.op) {
		return nil, errKilled
	}
	var value any
	var err error
	if command := lvmCommands[p.op]; command != nil {
		value, err = command(p, p.cmd.Argv[2:])
	} else {
		value, err = ops[p.op](p, []byte(p.cmd.Argv[3]))
	}
	if err := p.pace("after"); err != nil {
		return nil, err
	}
	if !p.stay(h.after, p.op) {
		return nil, errKilled
	}
	return value, err
}

// pace is an error if the process ended there, also by a reboot.
func (p *process) pace(where string) error {
	fate := p.h.Pace(Point{p.op, p.on(), where})
	switch {
	case fate == Dies || p.h.BootID() != p.boot:
		return errKilled
	case fate == Fails:
		return errFailed
	case fate == Busy:
		return &mount.BusyError{What: p.on()}
	case fate == Garbles:
		p.garbled = true
	}
	return nil
}

// on returns the object of the command: a directory, or a volume's file.
func (p *process) on() string {
	if p.cmd.Argv[0] == "lvm" {
		return lvmNames(p.cmd.Argv)
	}
	var a struct {
		Dir, At, File string
		Device        volume.Device
	}
	_ = json.Unmarshal([]byte(p.cmd.Argv[3]), &a)
	switch {
	case a.Dir != "":
		return a.Dir
	case a.File != "":
		return filepath.Base(a.File)
	case a.At != "":
		return a.At
	}
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if l := p.h.loops[filepath.Base(a.Device.Path)]; l != nil {
		return filepath.Base(l.file.path)
	}
	return a.Device.Path
}

var (
	errKilled = errors.New("killed")
	errFailed = errors.New("failed")
)

// stay hangs if the test requests it. It returns false if the process was killed.
func (p *process) stay(where map[string]*hang, what string) bool {
	p.h.mu.Lock()
	g := where[what]
	delete(where, what)
	p.h.mu.Unlock()
	if g == nil {
		return true
	}
	close(g.hit)
	if g.die {
		return false
	}
	if g.hard {
		<-g.release
		return true
	}
	select {
	case <-g.release:
		return true
	case <-p.killed:
		return false
	}
}

// gate reports that the command is ready, and waits for the permission.
func (p *process) gate() bool {
	close(p.ready)
	return <-p.word
}

// openGate lets a gated command run or fail; only the first call counts.
func (p *process) openGate(ok bool) {
	p.once.Do(func() { p.word <- ok })
}

func (p *process) watch(ctx context.Context) (run.Result, error) {
	defer p.openGate(false)
	var deadline <-chan time.Time
	if p.cmd.Deadline > 0 {
		t := time.NewTimer(p.cmd.Deadline)
		defer t.Stop()
		deadline = t.C
	} else {
		p.h.broke("%s has no deadline", p.op)
	}
	ready := p.ready
	var refused error
	for {
		select {
		case <-ready:
			ready = nil
			refused = p.cmd.Gate()
			p.openGate(refused == nil && ctx.Err() == nil)
		case <-p.ended:
			if refused != nil {
				return run.Result{}, refused
			}
			return run.Result{Stdout: p.out, Stderr: p.stderr}, p.err
		case <-deadline:
			p.openGate(false)
			if !p.cmd.NoKill {
				close(p.killed)
				select {
				case <-p.ended:
					return run.Result{}, &run.ExitError{Step: p.cmd.Step, Argv: p.cmd.Argv, Code: -1, Signal: "SIGKILL", Err: context.DeadlineExceeded}
				case <-time.After(killGrace):
				}
			}
			return run.Result{}, &run.StuckError{Step: p.cmd.Step, Pid: p.pid, Since: p.started, Wchan: "submit_bio_wait", Done: p.ended}
		case <-ctx.Done():
			p.openGate(false)
			if !p.cmd.Mutates && !p.cmd.NoKill {
				close(p.killed)
			}
			return run.Result{}, ctx.Err()
		}
	}
}

// reply returns the output of a child of flexd.
func reply(value any, err error) ([]byte, error) {
	switch {
	case errors.Is(err, errKilled):
		return nil, &run.ExitError{Step: "simulated", Argv: []string{"flexd"}, Code: -1, Signal: "SIGKILL"}
	case errors.Is(err, errFailed):
		return nil, &run.ExitError{Step: "simulated", Argv: []string{"flexd"}, Code: 1, Stderr: "Input/output error"}
	}
	var answer struct {
		*run.ChildError
		Value any `json:"value,omitempty"`
	}
	if err == nil {
		answer.Value = value
	} else {
		answer.ChildError = mount.ChildError(err)
	}
	b, merr := json.Marshal(answer)
	if merr != nil {
		panic(merr)
	}
	return append(b, '\n'), nil
}

// Log returns the commands that were started, oldest first.
func (h *Host) Log() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string{}, h.log...)
}

// Count returns the number of commands of that kind that were started.
func (h *Host) Count(op string) int {
	n := 0
	for _, l := range h.Log() {
		if strings.HasPrefix(l, op+" ") {
			n++
		}
	}
	return n
}
