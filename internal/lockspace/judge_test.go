package lockspace

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// What a node says when something is wrong, by transcript.
func TestNotReady(t *testing.T) {
	for _, c := range []struct {
		transcript string
		state      State
		says       []string // parts of the error; none = it waits
	}{
		{"nothing-runs", Unavailable, []string{"lvmlockd does not run", ": systemctl start lvmlockd"}},
		{"only-lvmlockd", Unavailable, []string{"sanlock does not run: systemctl start sanlock"}},
		{"no-wdmd", Unavailable, []string{"wdmd does not run", "/dev/watchdog", "watchdog: none"}},
		{"without-watchdog", Unavailable, []string{"-w 0 in /etc/default/sanlock", "a node that was paused could write"}},
		{"without-watchdog-started", Unavailable, []string{"-w 0 in /etc/default/sanlock"}},
		{"lvmlockd-restarted", Unavailable, []string{"lvmlockd was restarted", "the locks of the earlier one (1)", "reboot it", "--adopt 1"}},
		{"renewal-fails", Unavailable, []string{"was not renewed for 11 s", "result -5", "are its disks reachable?", "16 s after the last renewal"}},
		{"killed", Lost, []string{"has lost its locks", "deactivate the volumes", "lvmlockctl --drop svg"}},
	} {
		t.Run(c.transcript, func(t *testing.T) {
			m, n := newNode(t, c.transcript)
			err := m.Ready(t.Context(), "svg")
			if err == nil || errors.As(err, new(*volume.WaitError)) || volume.CodeOf(err) != volume.Unusable {
				t.Fatalf("%v", err)
			}
			for _, part := range append(c.says, "volume group svg") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if st := m.Status("svg"); st.State != c.state || st.Reason != err.Error() {
				t.Errorf("%+v", st)
			}
			if n.count(lockstart) != 0 {
				t.Error("started")
			}
		})
	}
}

// A group that is used without a watchdog.
func TestNoWatchdog(t *testing.T) {
	m, _ := newNode(t, "without-watchdog-started")
	m.NoWatchdog = func(vg string) bool { return vg == "svg" }
	if err := m.Ready(t.Context(), "svg"); err != nil {
		t.Error(err)
	}
	if st := m.Status("svg"); st.Watchdog != "none" || st.State != Started {
		t.Errorf("%+v", st)
	}
}

// Why a start failed is the answer to all who waited for it, and then it is tried again.
func TestStartFails(t *testing.T) {
	for _, c := range []struct{ transcript, says string }{
		{"host-id-unset", "local/host_id in /etc/lvm/lvmlocal.conf"},
		{"no-use-lvmlockd", "use_lvmlockd=1 in /etc/lvm/lvm.conf"},
		{"host-id-used", "host id 1 is used by n1: give this node another local/host_id"},
	} {
		t.Run(c.transcript, func(t *testing.T) {
			m, n := newNode(t, "stopped", c.transcript)
			if _, ok := n.says[lockstart]; !ok {
				n.says[lockstart] = utterance{} // LVM succeeds also when the lockspace does not start
			}
			for i := range 3 {
				err := m.Ready(t.Context(), "svg")
				settle(m, "svg")
				if waits := errors.As(err, new(*volume.WaitError)); waits != (i == 0) {
					t.Fatalf("call %d: %v", i, err)
				}
				if i > 0 && (!strings.Contains(err.Error(), c.says) || volume.CodeOf(err) != volume.Unusable) {
					t.Errorf("%v", err)
				}
			}
			if st := m.Status("svg"); !strings.Contains(st.Reason, c.says) {
				t.Errorf("%+v", st)
			}
			m.now = func() time.Time { return time.Now().Add(failedFor + time.Second) }
			if err := m.Ready(t.Context(), "svg"); !errors.As(err, new(*volume.WaitError)) {
				t.Errorf("not tried again: %v", err)
			}
			settle(m, "svg")
		})
	}
}

// Without udev the first try fails, since LVM makes the device too late.
func TestStartTwice(t *testing.T) {
	m, n := newNode(t, "started", "stopped")
	n.says[lockstart] = utterance{code: 5, stderr: "  VG svg start failed: invalid parameters for sanlock\n"}
	n.then = func(argv string) {
		if argv == lockstart && n.count(lockstart) == 1 {
			n.replace(transcript(t, "started"))
			n.says[lockstart] = utterance{}
		}
	}
	m.Start("svg")
	settle(m, "svg")
	if c := n.count(lockstart); c != 2 {
		t.Errorf("%d tries", c)
	}
	if st := m.Status("svg"); st.State != Started {
		t.Errorf("%+v", st)
	}
}

// A group whose lock type is not that of a shared one is not used.
func TestNotShared(t *testing.T) {
	for said, want := range map[string]string{"\n": "vgchange --lock-type sanlock svg", "  idm\n": `"idm"`} {
		m, n := newNode(t, "stopped")
		n.says["lvm vgs --noheadings -o vg_lock_type svg"] = utterance{stdout: said}
		m.Start("svg")
		settle(m, "svg")
		if err := m.Ready(t.Context(), "svg"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
		if n.count(lockstart) != 0 {
			t.Error("started")
		}
	}
}

// Once lvmlockd has asked to stop using a group, it is not used until its locks were dropped
// and it was started again.
func TestLost(t *testing.T) {
	m, n := newNode(t, "started")
	now := time.Now()
	m.now = func() time.Time { return now }
	ready := func() error { now = now.Add(2 * lookMaxAge); return m.Ready(t.Context(), "svg") }
	if err := ready(); err != nil {
		t.Fatal(err)
	}
	if err := m.Lost(t.Context(), "svg", "test"); volume.CodeOf(err) != volume.NotAllowed || m.Status("svg").State != Started {
		t.Errorf("nothing is lost: %v, %+v", err, m.Status("svg"))
	}
	for _, said := range []string{"renewal-fails", "killed", "nothing-runs"} {
		other, _ := newNode(t, said)
		if err := other.Lost(t.Context(), "svg", "test"); err != nil || other.Status("svg").State != Lost {
			t.Errorf("%s: %v, %+v", said, err, other.Status("svg"))
		}
	}
	n.replace(transcript(t, "renewal-fails"))
	if err := m.Lost(t.Context(), "svg", "the disks do not answer"); err != nil {
		t.Error(err)
	}
	n.replace(transcript(t, "started"))
	if st := m.Status("svg"); st.State != Lost || !strings.Contains(st.Reason, "the disks do not answer") {
		t.Errorf("%+v", st)
	}
	if err := ready(); err == nil || !strings.Contains(err.Error(), "the disks do not answer") { // lvmlockd was not told yet
		t.Error(err)
	}
	n.replace(transcript(t, "killed"))
	if err := ready(); err == nil || !strings.Contains(err.Error(), "has lost its locks") {
		t.Error(err)
	}
	lvmlockd := n.says["lvmlockctl --info --dump"]
	n.says["lvmlockctl --info --dump"] = transcript(t, "nothing-runs")["lvmlockctl --info --dump"] // sanlock kills it if the volumes stay in use
	if err := ready(); err == nil || !strings.Contains(err.Error(), "has lost its locks") || m.Status("svg").State != Lost {
		t.Error(err)
	}
	n.says["lvmlockctl --info --dump"] = lvmlockd
	began := make(chan bool)
	n.replace(transcript(t, "dropped"))
	n.says["lvm vgs --noheadings -o vg_lock_type svg"] = utterance{stdout: "sanlock\n"}
	n.says[lockstart] = utterance{}
	n.then = func(argv string) {
		if argv == lockstart {
			<-began
			n.replace(transcript(t, "started"))
		}
	}
	if err := ready(); !errors.As(err, new(*volume.WaitError)) {
		t.Error(err)
	}
	close(began)
	settle(m, "svg")
	if err := ready(); err != nil {
		t.Error(err)
	}
}

// A lockspace that was dropped and started again between two looks has none of the earlier locks.
func TestStartedAgain(t *testing.T) {
	m, n := newNode(t, "started")
	now := time.Now()
	m.now = func() time.Time { return now }
	since := func() time.Time {
		now = now.Add(2 * lookMaxAge)
		if err := m.Ready(t.Context(), "svg"); err != nil {
			t.Error(err)
		}
		return m.Status("svg").Since
	}
	first := since()
	if again := since(); !again.Equal(first) {
		t.Error("its locks count as lost")
	}
	u := n.says["sanlock client status -D"]
	u.stdout = regexp.MustCompile(`acquire_last_success=(\d+)`).ReplaceAllString(u.stdout, "acquire_last_success=${1}1")
	n.says["sanlock client status -D"] = u
	if again := since(); again.Equal(first) {
		t.Error("the locks of the earlier lockspace count")
	}
}

// Daemons that hang, are not installed, or say something unknown.
func TestDaemons(t *testing.T) {
	const lvmlockd, sanlock, wdmd = "lvmlockctl --info --dump", "sanlock client status -D", "wdmd -d"
	for _, c := range []struct {
		argv string
		u    utterance
		says string
	}{
		{lvmlockd, utterance{err: &run.StuckError{}}, "lvmlockd does not answer"},
		{sanlock, utterance{err: &run.StuckError{}}, "sanlock does not answer"},
		{wdmd, utterance{err: &run.StuckError{}}, "wdmd does not answer"},
		{lvmlockd, utterance{stdout: "hello\n"}, "does not parse"},
		{lvmlockd, utterance{stdout: "info=structs \ninfo=ls vg_name=svg host_id=x\n"}, "does not parse"},
		{sanlock, utterance{stdout: ""}, "does not parse"},
		{sanlock, utterance{stdout: "daemon n1\n    use_watchdog=1\n    version_str=9\n    monotime=x\n"}, "does not parse"},
		{sanlock, utterance{stdout: "daemon n1\n    use_watchdog=1\n    version_str=9\n    monotime=7\n"}, "sanlock has dropped its lockspace"},
		{wdmd, utterance{stdout: "hello"}, "does not parse"},
		{wdmd, utterance{stdout: "wdmd 147 socket_gid 111\n"}, "wdmd does not guard its lease"},
		{wdmd, utterance{stdout: "wdmd 147 socket_gid 111\nclient 2 name sanlock_lvm_svg:2 pid 150 now 90 renewal 50 expire 66\n"}, "about to reset this node"},
	} {
		m, n := newNode(t, "started")
		n.says[c.argv] = c.u
		if err := m.Ready(t.Context(), "svg"); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
	m, n := newNode(t, "started")
	delete(n.says, lvmlockd)
	if err := m.Ready(t.Context(), "svg"); err == nil || !strings.Contains(err.Error(), "lvmlockd is not installed (package lvm2-lockd)") {
		t.Error(err)
	}
}

// Another lvmlockctl that runs at the same time takes the dump.
func TestDumpIsTaken(t *testing.T) {
	m, n := newNode(t, "started")
	n.says["lvmlockctl --info --dump"] = utterance{code: 158, stdout: "socket error -98\n"}
	n.then = func(argv string) {
		if strings.HasPrefix(argv, "lvmlockctl") && n.count(argv) == 2 {
			n.replace(transcript(t, "started"))
		}
	}
	if err := m.Ready(t.Context(), "svg"); err != nil {
		t.Error(err)
	}
}

func TestGlobalLock(t *testing.T) {
	for enabled, want := range map[string]string{"1": "", "0": "lvmlockctl --gl-enable svg"} {
		m, n := newNode(t, "started")
		u := n.says["lvmlockctl --info --dump"]
		u.stdout = strings.Replace(u.stdout, "sanlock_gl_enabled=1", "sanlock_gl_enabled="+enabled, 1)
		n.says["lvmlockctl --info --dump"] = u
		if err := m.Ready(t.Context(), "svg"); err != nil {
			t.Error(err)
		}
		if st := m.Status("svg"); st.State != Started || !strings.Contains(st.Reason, want) || want == "" && st.Reason != "" {
			t.Errorf("%+v", st)
		}
	}
}

// A group with dlm is left to its cluster manager.
func TestDLM(t *testing.T) {
	m, n := newNode(t, "stopped")
	delete(n.says, "sanlock client status -D")
	delete(n.says, "wdmd -d")
	n.says["lvmlockctl --info --dump"] = utterance{stdout: "info=structs \ninfo=ls ls_name=lvm_global vg_name= vg_uuid= vg_sysid=. vg_args= lm_type=dlm host_id=0 create_fail=0 create_done=1 thread_work=0 thread_stop=0 thread_done=0 kill_vg=0 drop_vg=0 sanlock_gl_enabled=0\ninfo=ls ls_name=lvm_svg vg_name=svg lm_type=dlm host_id=0 create_fail=0 create_done=1 thread_stop=0 kill_vg=0 drop_vg=0 sanlock_gl_enabled=0\n"}
	if err := m.Ready(t.Context(), "svg"); err != nil {
		t.Error(err)
	}
	if _, err := holders(t.Context(), m, "svg", []LV{{UUID: "VG_" + lv1, LockArgs: "1.0.0:4096"}}); volume.CodeOf(err) != volume.Unknown {
		t.Error(err)
	}
}

// What sanlock's log says of the last attempt to join a lockspace.
func TestWhyNot(t *testing.T) {
	const begin = "2026-11-23 10:00:00 16 [3]: cmd_add_lockspace 4,11 lvm_svg:1:/dev/mapper/svg-lvmlock:0 flags 0 timeout 2\n"
	done := func(result string) string {
		return "2026-11-23 10:00:09 17 [3]: cmd_add_lockspace 4,11 done " + result + "\n"
	}
	for log, want := range map[string]string{
		"":                                       "",
		begin:                                    "",
		begin + done("0"):                        "",
		begin + done("-17"):                      "of an earlier lvmlockd",
		begin + done("-203"):                     "no watchdog",
		begin + done("-999"):                     "sanlock failed with -999",
		done("-203"):                             "",
		begin + done("-203") + begin + done("0"): "",
		strings.ReplaceAll(begin, "lvm_svg:", "lvm_svg2:") + done("-203"):           "",
		begin + strings.ReplaceAll(done("-203"), "4,11", "4,12"):                    "",
		begin + "2026-11-23 10:00:00 16 [3]: short\n\n garbage \x00\n" + done("-5"): "I/O errors",
	} {
		if why := parseLog(log, "lvm_svg"); !strings.Contains(why, want) || want == "" && why != "" {
			t.Errorf("%q: %q, want %q", log, why, want)
		}
	}
	if why := parseLog(transcript(t, "no-wdmd")["sanlock client log_dump"].stdout, "lvm_svg"); !strings.Contains(why, "systemctl enable --now wdmd") {
		t.Error(why)
	}
}

// Other software uses sanlock as well.
func TestOtherLockspaces(t *testing.T) {
	m, n := newNode(t, "started")
	u := n.says["sanlock client status -D"]
	u.stdout += "s __LIBVIRT__DISKS__:1:/var/lib/libvirt/sanlock/a b\\:c:0\n    list=spaces\nr 7e0c:web:/rhev/x\\:1/leases:0:4 p 12\n    list=held\n"
	n.says["sanlock client status -D"] = u
	if err := m.Ready(t.Context(), "svg"); err != nil {
		t.Error(err)
	}
}

func TestVersions(t *testing.T) {
	m, n := newNode(t, "stopped", "started")
	n.says["lvmlockd --version"] = utterance{stdout: "lvmlockd version: 2.03.11(2) (2021-01-08)\n"}
	m.Start("svg")
	settle(m, "svg")
	st := m.Status("svg")
	if want := (Versions{"2.03.16(2)", "2.03.11(2)", "3.8.5", "3.8.5"}); st.Versions != want {
		t.Errorf("%+v", st.Versions)
	}
	if st.State != Started || !strings.Contains(st.Reason, "LVM 2.03.16(2) and lvmlockd 2.03.11(2) are of different versions") {
		t.Errorf("%+v", st)
	}
}

// sanlock is killed while the locks are started.
func TestSanlockKilled(t *testing.T) {
	t.Parallel()
	m, n := newNode(t, "started")
	n.says["sanlock client status -D"] = utterance{code: 1}
	if err := m.Ready(t.Context(), "svg"); err == nil || !strings.Contains(err.Error(), "sanlock does not run: it ended while it held locks: the watchdog resets this node") {
		t.Error(err)
	}
}

// When the lock of a volume can be given back.
func TestCanUnlock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ transcript, says string }{
		{"live", ""},
		{"stopped", ""},
		{"nothing-runs", ""}, // without sanlock the watchdog resets the node
		{"lvmlockd-restarted", "the locks of the earlier one (1)"},
	} {
		m, n := newNode(t, c.transcript)
		check := func(says string) {
			t.Helper()
			if err := m.CanUnlock(t.Context(), "svg"); says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
				t.Errorf("%s: %v, want %q", c.transcript, err, says)
			}
		}
		check(c.says)
		if c.says != "" {
			n.says["lvmlockctl --info --dump"] = utterance{code: 1, stdout: "Cannot connect to lvmlockd.\n"}
			check("sanlock keeps its locks (1) for this node")
			if st := m.Status("svg"); st.State != Unavailable {
				t.Errorf("%+v", st)
			}
		}
	}
}

// Locks that no lvmlockd has taken over keep no other volume from being used.
func TestOrphans(t *testing.T) {
	t.Parallel()
	m, n := newNode(t, "started")
	u := n.says["sanlock client status -D"]
	u.stdout += "r lvm_svg:lv1:/dev/mapper/svg-lvmlock:71303168:3 p 263 ORPHAN\n    list=orphan\n"
	n.says["sanlock client status -D"] = u
	if err := m.Ready(t.Context(), "svg"); err != nil {
		t.Error(err)
	}
	if st := m.Status("svg"); !strings.Contains(st.Reason, "sanlock client release -r lvm_svg:lv1:/dev/mapper/svg-lvmlock:71303168 -O 1") {
		t.Errorf("%+v", st)
	}
}
