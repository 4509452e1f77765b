package hosttest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/run"
)

// A pair is two hosts with a common disk, and the volumes lv1 and lv2.
type pair struct {
	*Disk
	a, b *Host
}

// twoHosts runs a test of two hosts whose lockspaces are started.
func twoHosts(t *testing.T, test func(t *testing.T, p pair)) {
	notes := t.TempDir()
	for _, lv := range []string{"lv1", "lv2"} { // what is activated must be noted
		if err := os.WriteFile(filepath.Join(notes, "lease-"+lv+".json"), []byte(`{"uuid":"name:`+VG+`:`+lv+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		d := NewDisk(t.Errorf)
		p := pair{d, NewSharedHost(t.Errorf, d, 1), NewSharedHost(t.Errorf, d, 2)}
		for _, lv := range []string{"lv1", "lv2"} {
			_ = sharedVolumes{p.a}.Make(lv, 64<<20)
		}
		done := make(chan struct{})
		defer close(done)
		for _, h := range d.users {
			h.dirs = func() (string, string) { return notes, "" }
			h.locking.Lockstart()
			go h.locking.Run(done)
		}
		time.Sleep(joinTime + time.Second)
		test(t, p)
	})
}

// lvchange runs the command on a host and returns what LVM says; "" = success.
func lvchange(h *Host, args ...string) string {
	return command(h, append([]string{"lvchange", "-y"}, args...)...)
}

func command(h *Host, args ...string) string {
	res, err := h.Run(context.Background(), run.Cmd{Step: args[0], Argv: append([]string{"lvm"}, args...), Lock: "vg", Mutates: true, NoKill: true, Deadline: time.Hour})
	if err == nil {
		return ""
	}
	return string(res.Stderr) + err.Error()
}

func granted(t *testing.T, h *Host, args ...string) {
	t.Helper()
	if said := lvchange(h, args...); said != "" {
		t.Errorf("host %d: lvchange %v: %s", h.locking.id, args, said)
	}
}

func refused(t *testing.T, why string, h *Host, args ...string) {
	t.Helper()
	if said := lvchange(h, args...); !strings.Contains(said, why) {
		t.Errorf("host %d: lvchange %v: %q, want %q", h.locking.id, args, said, why)
	}
}

func active(h *Host) (names []string) {
	lvs, _ := sharedVolumes{h}.active()
	for _, lv := range lvs {
		names = append(names, lv.Name.LV)
	}
	slices.Sort(names)
	return names
}

const elsewhere = "LV locked by other host: vg0/lv1"

func TestExclusiveActivation(t *testing.T) {
	twoHosts(t, func(t *testing.T, p pair) {
		granted(t, p.a, "-aey", "vg0/lv1")
		granted(t, p.a, "-aey", "vg0/lv1")
		refused(t, elsewhere, p.b, "-aey", "vg0/lv1", "vg0/lv2")
		if got := active(p.b); !slices.Equal(got, []string{"lv2"}) {
			t.Errorf("host 2 has %v active, want lv2: one of two was refused", got)
		}
		refused(t, elsewhere, p.b, "-asy", "vg0/lv1")
		if said := command(p.b, "lvextend", "-L", "134217728b", "vg0/lv1"); !strings.Contains(said, elsewhere) {
			t.Errorf("lvextend: %q", said)
		}
		granted(t, p.a, "-an", "vg0/lv1")
		granted(t, p.b, "-aey", "vg0/lv1")
		granted(t, p.b, "-an", "vg0/lv1")
		granted(t, p.a, "-asy", "vg0/lv1")
		granted(t, p.b, "-asy", "vg0/lv1")
		granted(t, p.a, "-an", "vg0/lv1")
		refused(t, elsewhere, p.a, "-aey", "vg0/lv1")
	})
}

// A dead host's lock may be taken over when its lease has not changed for HostDead on the
// clock of the other, and not before; at once if it has left the lockspace or started again.
func TestTakeover(t *testing.T) {
	twoHosts(t, func(t *testing.T, p pair) {
		granted(t, p.a, "-aey", "vg0/lv1", "vg0/lv2")
		p.a.Reboot()
		p.a.locking.PowerOff()
		time.Sleep(hostDead - 2*renewEvery)
		refused(t, elsewhere, p.b, "-aey", "vg0/lv1")
		time.Sleep(3 * renewEvery)
		granted(t, p.b, "-aey", "vg0/lv1")

		granted(t, p.b, "-an", "vg0/lv1")
		p.a.locking.PowerOn()
		time.Sleep(joinTime + 2*time.Second)
		granted(t, p.a, "-aey", "vg0/lv1")
		p.a.Reboot()
		p.a.locking.PowerOff()
		p.a.locking.PowerOn()
		time.Sleep(joinTime + 2*time.Second)
		granted(t, p.b, "-aey", "vg0/lv1") // its generation is another
	})
}

// A host that cannot renew its lease is reset before others may take its locks over, paused or
// not. Without a watchdog it goes on.
func TestWatchdog(t *testing.T) {
	for _, c := range []struct {
		what     string
		happens  func(m *LockManager) bool
		watchdog bool
	}{
		{"its disk is cut off", func(m *LockManager) bool { return m.CutOff(true) }, true},
		{"it is paused", func(m *LockManager) bool { return m.Pause(true) }, true},
		{"sanlock is killed", (*LockManager).KillSanlock, true},
		{"it is paused, without a watchdog", func(m *LockManager) bool { return m.Pause(true) }, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			twoHosts(t, func(t *testing.T, p pair) {
				var reset, taken time.Duration
				began, m := time.Now(), p.a.locking
				m.Watchdog, m.Reset = c.watchdog, func() { reset = time.Since(began) }
				granted(t, p.a, "-aey", "vg0/lv1")
				c.happens(m)
				for lvchange(p.b, "-aey", "vg0/lv1") != "" {
					time.Sleep(100 * time.Millisecond)
				}
				if taken = time.Since(began); taken < hostDead-renewEvery || taken > hostDead+2*renewEvery {
					t.Errorf("taken over after %v", taken)
				}
				if c.watchdog != (reset > 0 && reset < taken) {
					t.Errorf("reset after %v, taken over after %v", reset, taken)
				}
			})
		})
	}
}

// The lock of a volume stays when the command that took it is killed, and ends with a
// deactivation, also of an inactive volume.
func TestLockOfKilledCommand(t *testing.T) {
	twoHosts(t, func(t *testing.T, p pair) {
		p.a.Pace = func(at Point) Fate {
			if at.Where == "within" {
				return Dies
			}
			return Lives
		}
		refused(t, "SIGKILL", p.a, "-aey", "vg0/lv1")
		if len(active(p.a)) > 0 || !p.a.locking.Holds(p.files["/sim/vg0/lv1"].UUID) {
			t.Errorf("active: %v", active(p.a))
		}
		refused(t, elsewhere, p.b, "-aey", "vg0/lv1")
		p.a.Pace = func(Point) Fate { return Lives }
		granted(t, p.a, "-an", "vg0/lv1")
		granted(t, p.b, "-aey", "vg0/lv1")
	})
}

// Without lvmlockd nothing is activated, and the locks stay; the next one takes those of active
// volumes over.
func TestLockdKilled(t *testing.T) {
	twoHosts(t, func(t *testing.T, p pair) {
		granted(t, p.a, "-aey", "vg0/lv1", "vg0/lv2")
		p.a.locking.KillLockd()
		granted(t, p.a, "-an", "vg0/lv2")
		refused(t, "lvmlockd is not running", p.a, "-aey", "vg0/lv2")
		time.Sleep(2 * hostDead)
		refused(t, "locked by other host", p.b, "-aey", "vg0/lv2")
		p.a.locking.AdoptLocks()
		granted(t, p.b, "-aey", "vg0/lv2")
		refused(t, elsewhere, p.b, "-aey", "vg0/lv1")
		granted(t, p.a, "-aey", "vg0/lv1")
	})
}

// A lease that was lost grants nothing any more, until the lockspace was dropped and started
// again, for which no volume may be active.
func TestLostLease(t *testing.T) {
	twoHosts(t, func(t *testing.T, p pair) {
		m, killed := p.a.locking, false
		m.Kill = func() { killed = true }
		granted(t, p.a, "-aey", "vg0/lv1")
		m.CutOff(true)
		refused(t, "not found", p.a, "-an", "vg0/lv1")
		time.Sleep(renewFail + renewEvery)
		if m.CutOff(false); !killed {
			t.Error("lvmlockctl_kill_command was not called")
		}
		refused(t, "due to failed lock", p.a, "-aey", "vg0/lv2")
		if m.Lockstop() {
			t.Error("the lockspace was dropped, and a volume is active")
		}
		granted(t, p.a, "-an", "vg0/lv1")
		if !m.Lockstop() {
			t.Error("the lockspace is not dropped")
		}
		m.Lockstart()
		time.Sleep(joinTime + 2*time.Second)
		granted(t, p.a, "-aey", "vg0/lv2")
		granted(t, p.b, "-aey", "vg0/lv1")
	})
}
