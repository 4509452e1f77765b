package lockspace

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/run"
)

// startDeadline is the time after which a start is reported as stuck. It takes at most a few minutes,
// more with a larger io timeout.
const startDeadline = 15 * time.Minute

// start starts a lockspace in the background, unless a start runs. m.mu is held.
func (m *Manager) start(s *space) {
	if !s.starting.IsZero() {
		return
	}
	s.starting, s.failed = m.now(), nil
	go m.join(s)
}

// join starts a lockspace, and stores the result.
func (m *Manager) join(s *space) {
	vg := s.status.VG
	lockType, err := m.tryJoin(vg)
	var f *facts
	if err == nil || !errors.As(err, new(*downError)) {
		f, _ = m.lookNow(context.Background())
	}
	if err == nil {
		err = m.joined(vg, f)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if lockType != "" {
		s.lockType = lockType
	}
	s.starting = time.Time{}
	s.failed, s.failedAt = err, m.now()
	if f != nil {
		if e := m.judge(s, f); e == nil && s.status.State == Stopped && err != nil {
			s.status.Reason = err.Error()
		}
	} else if err != nil {
		m.enter(s, Unavailable, err.Error())
	}
}

// tryJoin runs the commands. LVM also reports success when the lockspace does not start.
func (m *Manager) tryJoin(vg string) (lockType string, err error) {
	ctx := context.Background()
	f, err := m.look(ctx)
	if err != nil {
		return "", err
	}
	m.readVersions()
	if f.lvmlockdErr != nil {
		return "", unusable("the lockspace of volume group %s does not start: %w%s", vg, f.lvmlockdErr, remedy(f.lvmlockdErr))
	}
	if l, ok := f.lvmlockd[vg]; ok && l.Started {
		return l.Type, nil
	}
	lockType, err = m.readLockType(vg)
	if err != nil {
		return "", err
	}
	if lockType == "sanlock" {
		// Return the error if LVM would wait in vain, or if there is no watchdog.
		m.mu.Lock()
		probe := space{status: Status{VG: vg}, lockType: lockType, starting: m.now()}
		state, err := m.stateOf(&probe, f)
		m.mu.Unlock()
		if err != nil && state != Starting && state != Stopped {
			return lockType, err
		}
	}
	for try := 0; ; try++ {
		said, err := m.lvm(ctx, vg, "vgchange", "--lockstart")
		// Without udev, LVM creates the device node of the leases after lvmlockd has tried to open
		// it.
		if err != nil && try == 0 && strings.Contains(said, "invalid parameters for") {
			continue
		}
		if earlier, ok := errors.AsType[*run.LockedError](err); ok { // an earlier flexd starts it
			select {
			case <-earlier.Done:
				return lockType, nil
			case <-time.After(startDeadline):
			}
		}
		if err != nil || strings.Contains(said, "requires lvmlockd") {
			return lockType, startError(vg, said, err)
		}
		return lockType, nil
	}
}

// lvm runs an LVM command for a volume group.
func (m *Manager) lvm(ctx context.Context, vg, command string, more ...string) (said string, err error) {
	words, err := m.Words(ctx, vg)
	if err != nil {
		return "", err
	}
	c := run.Cmd{Step: command, Argv: append([]string{"lvm", command}, words...), Deadline: commandDeadline, Lock: m.lock(vg, command)}
	changes := command == "vgchange"
	if changes {
		c.Deadline, c.NoKill, c.Mutates = startDeadline, true, true
	}
	c.Argv = append(append(c.Argv, more...), vg)
	res, err := m.Runner.Run(ctx, c)
	text := string(res.Stdout)
	if err != nil || changes {
		text = strings.Join(strings.Fields(text+" "+string(res.Stderr)), " ")
	}
	return text, err
}

// lock returns a lock file for children that may hang with the disks, of which only one runs at a time.
// Names of volume groups contain no colon.
func (m *Manager) lock(vg, what string) string {
	return filepath.Join(m.LockDir, "vg-"+vg+":"+what)
}

// NoLockType returns the error of a volume group that is configured as shared, but has no lock type.
func NoLockType(vg string) string {
	return fmt.Sprintf("volume group %s is configured as shared, but it has no lock type, so another node could use its volumes at the same time: vgchange --lock-type sanlock %[1]s (while no volume is active; if no group has LVM's global lock yet: with --lockopt skipgl, and then lvmlockctl --gl-enable %[1]s), or remove `shared: true`", vg)
}

// readLockType returns the lock type of a volume group.
func (m *Manager) readLockType(vg string) (string, error) {
	out, err := m.lvm(context.Background(), vg, "vgs", "--noheadings", "-o", "vg_lock_type")
	if err != nil {
		return "", startError(vg, out, err)
	}
	switch t := strings.TrimSpace(out); t {
	case "sanlock", "dlm":
		return t, nil
	case "", "none":
		return "", unusable("%s", NoLockType(vg))
	default:
		return "", unusable("volume group %s has the lock type %.20q, which flexd does not know", vg, t)
	}
}

// joined returns why a lockspace does not exist after its start; nil = it exists.
func (m *Manager) joined(vg string, f *facts) error {
	if f.lvmlockdErr != nil {
		return unusable("the lockspace of volume group %s does not start: %w%s", vg, f.lvmlockdErr, remedy(f.lvmlockdErr))
	}
	if l, ok := f.lvmlockd[vg]; ok && !l.Failed {
		return nil
	}
	return m.whyNot(vg)
}

// outputOr returns the output of a command that failed, or else its error.
func outputOr(text string, err error) string {
	if text != "" {
		return text
	}
	return err.Error()
}

// startErrors maps the output of vgchange to remedies.
var startErrors = []struct{ text, meaning string }{
	{"invalid sanlock host_id", "this node has no valid host id: set local/host_id in /etc/lvm/lvmlocal.conf to a number from 1 to 2000 that no other node of the group has"},
	{"requires lvmlockd", "LVM does not use lvmlockd: set global/use_lvmlockd=1 in /etc/lvm/lvm.conf"},
	{"lock manager", "its lock manager does not run: systemctl start sanlock (or dlm)"},
	{"lvmlockd is not running", "lvmlockd does not run: systemctl start lvmlockd"},
	{"not found", "LVM does not find the volume group: its disks may be missing, unreadable, or excluded by the filter or the devices file"},
}

func startError(vg, text string, err error) error {
	for _, e := range startErrors {
		if strings.Contains(text, e.text) {
			return unusable("the lockspace of volume group %s does not start: %s (LVM: %s)", vg, e.meaning, text)
		}
	}
	return unusable("the lockspace of volume group %s does not start: %s", vg, outputOr(text, err))
}

// readVersions reads the versions of the programs, which an upgrade may have changed.
func (m *Manager) readVersions() {
	version := func(before string, argv ...string) string {
		out, _ := m.command(argv[0]+" version", argv...)
		_, rest, _ := strings.Cut(out, before)
		if w := strings.Fields(rest); len(w) > 0 {
			return w[0]
		}
		return ""
	}
	v := Versions{
		LVM:      version("LVM version:", "lvm", "version"),
		Lvmlockd: version("lvmlockd version:", "lvmlockd", "--version"),
		Sanlock:  version("daemon version ", "sanlock", "client", "version"),
		Wdmd:     version("wdmd version ", "wdmd", "-V"),
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.versions = v
}
