package hosttest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

// Describe returns the whole state, for a failure's text.
func (e *Env) Describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "--- mounts below %s and of devices\n", e.Root)
	for line := range strings.Lines(e.M.Text()) {
		if strings.Contains(line, e.Root) || strings.Contains(line, " /dev/") {
			b.WriteString(line)
		}
	}
	claims, leases := readNotes(e.Notes())
	for _, c := range claims {
		fmt.Fprintf(&b, "--- claim %s %s %s %s %s\n", c.Kind, c.Phase, c.Dir, c.UUID, c.Note)
	}
	for _, l := range leases {
		fmt.Fprintf(&b, "--- lease %s until %v (now %v)\n", l.UUID, l.Until, e.M.Boot())
	}
	for _, v := range e.Node().List().Volumes {
		s, _ := e.Node().VolumeDetail(v.VG, v.LV)
		fmt.Fprintf(&b, "--- %s/%s %s: step %q calls %v plan %q error %+v\n", v.VG, v.LV, v.State, s.Step, s.Calls, s.Plan, s.Error)
		for _, op := range s.History {
			fmt.Fprintf(&b, "      %s %s %s\n", op.Step, op.Error, op.CallIDs)
		}
	}
	if e.Sim != nil {
		log := e.Sim.Log()
		fmt.Fprintf(&b, "--- commands\n%s\n", strings.Join(log[max(0, len(log)-30):], "\n"))
	}
	return b.String()
}

// Idle reports whether no lane works and no call waits.
func (e *Env) Idle() bool {
	for _, v := range e.Node().List().Volumes {
		s, _ := e.Node().VolumeDetail("-", v.UUID)
		if s.Step != "" || len(s.Calls) > 0 || s.Stuck != nil {
			return false
		}
	}
	return true
}

// table is the mount table as the machine shows it.
func (e *Env) table() *mounttable.Table {
	t, err := mounttable.Read(strings.NewReader(e.M.Text()))
	if err != nil {
		e.T.Fatalf("the mount table does not parse: %v", err)
	}
	return t
}

// Mounts returns where volumes are mounted below kubelet's directory, sorted.
func (e *Env) Mounts() []string {
	var dirs []string
	for _, m := range e.table().All() {
		if strings.HasPrefix(m.Dir, e.Root+"/") && strings.HasPrefix(m.Source, "/dev/") {
			dirs = append(dirs, m.Dir)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// Active returns the names of the volumes that have a device, sorted.
func (e *Env) Active() []string {
	active, err := e.Storage.active()
	if err != nil {
		e.T.Fatal(err)
	}
	names := make([]string, 0, len(active))
	for _, lv := range active {
		names = append(names, lv.Name.LV)
	}
	slices.Sort(names)
	return names
}

// problems compares the world with its notes, flexd being at rest.
func (e *Env) problems() (all []string) {
	bad := func(format string, a ...any) { all = append(all, fmt.Sprintf(format, a...)) }
	claims, leases := readNotes(e.Notes())
	for _, p := range e.NoteProblems() {
		bad("%s", p)
	}
	claimed := func(dir string) bool {
		return slices.ContainsFunc(claims, func(c dsw.Claim) bool { return c.Dir == dir && c.Phase == volume.Held })
	}
	for _, dir := range e.Mounts() {
		if !claimed(dir) {
			bad("a mount without a held claim: %s", dir)
		}
	}
	table := e.table()
	for _, c := range claims {
		switch {
		case table.Top(c.Dir) == nil && c.Phase != volume.Held:
			bad("a claim that is %s without a mount: %s", c.Phase, c.Dir)
		}
	}
	active, err := e.Storage.active()
	if err != nil {
		bad("%v", err)
	}
	for _, lv := range active {
		if lv.UUID == "" {
			continue // not ours
		}
		if !slices.ContainsFunc(claims, func(c dsw.Claim) bool { return c.UUID == lv.UUID && table.Top(c.Dir) != nil }) &&
			!slices.ContainsFunc(leases, func(l dsw.Lease) bool { return l.UUID == lv.UUID }) {
			bad("an active device without a mounted claim or a lease: %s", lv.Name)
		}
	}
	return all
}

// AtRest waits until flexd has nothing to do, and then compares the world with the notes.
func (e *Env) AtRest() {
	e.T.Helper()
	e.Eventually("flexd at rest", e.Idle)
	e.Eventually("a world that fits its notes", func() bool { return len(e.problems()) == 0 })
	for _, p := range e.problems() {
		e.T.Error(p)
	}
}

// Empty waits until flexd has no mounts, devices and notes any more, which takes the time of a lease.
func (e *Env) Empty() {
	e.T.Helper()
	e.Eventually("no mount is left", func() bool { return len(e.Mounts()) == 0 })
	e.Eventually("no device is left", func() bool { return len(e.Active()) == 0 })
	e.Eventually("no note is left", func() bool {
		claims, leases := readNotes(e.Notes())
		return len(claims)+len(leases) == 0
	})
	e.AtRest()
}

// Close ends the test: every broken promise is a failure.
func (e *Env) Close() {
	e.T.Helper()
	e.Stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range e.broken {
		e.T.Errorf("a promise was broken: %s", b)
	}
}

// Settle gives flexd time to do what it would do by itself.
func (e *Env) Settle(d time.Duration) {
	if e.Sim == nil {
		d = min(d, 300*time.Millisecond)
	}
	time.Sleep(d)
}

// Spin waits for a condition without sleeping, for a thread that waits in the kernel while the clock of a
// synctest bubble stands still.
func Spin(is func() bool) {
	for !is() {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
		runtime.Gosched()
	}
}

// NoteProblems returns the problems of notes that a flexd starting now would report.
func (e *Env) NoteProblems() []string {
	copied := filepath.Join(e.tmp, "copied") // opening notes cleans up after a dead writer, and ours may live
	if err := copyNotes(e.Notes(), copied); err != nil {
		return []string{err.Error()}
	}
	s, err := dsw.Open(copied, e.M.BootID())
	if err != nil {
		return []string{err.Error()}
	}
	return s.Problems()
}

func copyNotes(from, to string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.json"))
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o700)); err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, filepath.Base(f)), b, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
