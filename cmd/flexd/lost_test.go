package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/lockspace"
	children "github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// openDevices is a device-mapper with devices of LVM, by name: how often each is open.
type openDevices map[string]int

func (d openDevices) List() (all []devmapper.Mapped, err error) {
	for name, open := range d {
		all = append(all, devmapper.Mapped{Name: name, UUID: "LVM-" + name, Open: open, Live: true})
	}
	return all, nil
}

func (d openDevices) Device(key devmapper.Key) (devmapper.Mapped, error) {
	name := strings.TrimPrefix(key.UUID, "LVM-")
	open, ok := d[name]
	if !ok {
		return devmapper.Mapped{}, devmapper.ErrNoDevice
	}
	return devmapper.Mapped{Name: name, UUID: key.UUID, Open: open, Live: true}, nil
}

func (d openDevices) Status(key devmapper.Key) (devmapper.Mapped, error) { return d.Device(key) }

func (d openDevices) Run(_ context.Context, c children.Cmd) (children.Result, error) {
	if c.Argv[0] != "dmsetup" {
		return children.Result{}, errors.New("unexpected: " + strings.Join(c.Argv, " "))
	}
	for _, name := range c.Argv[3:] {
		if d[name] == 0 {
			delete(d, name)
		}
	}
	return children.Result{}, nil
}

// With a daemon, without one and with one that does not know the command: the exit status
// depends on what is active.
func TestLockspaceLost(t *testing.T) {
	t.Parallel()
	says := func(a flexvolume.Answer) *flexvolume.Answer { return &a }
	busy := flexvolume.Refusal("busy", "still active: vg0/a (for pod ns/x: its pod still runs)")
	for _, row := range []struct {
		name    string
		devices openDevices
		answer  *flexvolume.Answer // nil = no daemon
		want    string             // of the error; "" = none
	}{
		{"nothing is active", openDevices{"vg1-a": 1, "vg0-lvmlock": 1}, says(flexvolume.Success()), ""},
		{"without a daemon", openDevices{"vg0-a": 0, "vg0-b": 0}, nil, ""},
		{"in use without a daemon", openDevices{"vg0-a": 1}, nil, "flexd does not answer"},
		{"in use", openDevices{"vg0-a": 2}, &busy, "its pod still runs). Active: vg0/a (open 2 times)"},
		{"freed meanwhile", openDevices{"vg0-a": 0}, &busy, ""},
		{"active again", openDevices{"vg0-a": 1}, says(flexvolume.Success()), "became active meanwhile"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			said := ""
			l := lockspaceLost{vg: "vg0", socket: filepath.Join(t.TempDir(), "s"), runner: row.devices, dm: row.devices, say: func(text string) { said = text }}
			if row.answer != nil {
				answering(t, l.socket, *row.answer)
			}
			err := l.run(t.Context())
			if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), "watchdog resets")) {
				t.Errorf("got %v", err)
			}
			if !strings.Contains(said, "vg0") || err != nil && said != err.Error() {
				t.Errorf("said %q", said)
			}
		})
	}
}

// answering serves one call at a socket.
func answering(t *testing.T, socket string, a flexvolume.Answer) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		q, err := flexvolume.ReadRequest(c)
		if err != nil || q.Verb != flexvolume.LockspaceLost || len(q.Args) != 1 || q.Args[0] != "vg0" {
			a = flexvolume.Refusal("invalid", "not understood")
		}
		_ = flexvolume.WriteReply(c, flexvolume.Reply{V: flexvolume.Version, ID: q.ID, Answer: a})
	}()
}

// A stale lockspace is dropped and started again, unless a volume is active.
func TestStaleLockspace(t *testing.T) {
	t.Parallel()
	daemons := &staleDaemons{}
	active := []volume.Used{{Name: volume.Name{VG: "svg", LV: "a"}, Open: 1}}
	l := locks{Manager: lockspace.New(lockspace.Options{Runner: daemons, LockDir: t.TempDir()}), dropping: make(chan struct{}, 1),
		removeUnused: func(context.Context, string) ([]volume.Used, error) { return active, nil }}
	if err := l.Ready(t.Context(), "svg"); !errors.Is(err, lockspace.ErrStale) || !strings.Contains(err.Error(), "svg/a is open") || daemons.dropped.Load() {
		t.Errorf("with an active volume: %v", err)
	}
	active = nil
	var wait *volume.WaitError
	if err := l.Ready(t.Context(), "svg"); !errors.As(err, &wait) || !daemons.dropped.Load() {
		t.Errorf("without: %v", err)
	}
}

// staleDaemons are those of a node whose sanlock has given the lockspace of svg up.
type staleDaemons struct{ dropped atomic.Bool }

func (d *staleDaemons) Run(_ context.Context, c children.Cmd) (children.Result, error) {
	out := ""
	switch argv := strings.Join(c.Argv, " "); argv {
	case "lvmlockctl --info --dump":
		out = "info=structs unused_action_count=0\n"
		if !d.dropped.Load() {
			out += "info=ls ls_name=lvm_svg vg_name=svg vg_uuid=x lm_type=sanlock host_id=1 create_fail=0 create_done=1 kill_vg=0 drop_vg=0 sanlock_gl_enabled=1\n"
		}
	case "sanlock client status -D":
		out = "daemon n1\n    our_host_name=n1\n    use_watchdog=1\n    version_str=3.8.5\n    io_timeout=10\n    monotime=100\n"
	case "wdmd -d":
		out = "wdmd 137 socket_gid 111 high_priority 0 now 33 last_keepalive 30 last_closeunclean 30 allow_scripts 0 kill_script_sec 0\n"
	case "lvmlockctl --drop svg":
		d.dropped.Store(true)
	default:
		return children.Result{}, errors.New("not here: " + argv) // the start in the background
	}
	return children.Result{Stdout: []byte(out)}, nil
}
