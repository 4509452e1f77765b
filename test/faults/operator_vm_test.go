//go:build vm

package faults

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/test/host"
)

// suspendLV is what an operator types in the middle of something.
func (l *lab) suspendLV(lv string) {
	l.Helper()
	l.sh("dmsetup", "suspend", "--nolockfs", "--noudevsync", host.VG+"-"+lv)
	l.Cleanup(func() { l.resumeLV(lv) })
}

func (l *lab) resumeLV(lv string) {
	l.Helper()
	l.sh("dmsetup", "resume", "--noudevsync", host.VG+"-"+lv)
}

// An operator's process holds LVM's lock of the group, and volumes are suspended
// under a mount, an unmount and a growing filesystem. The answer to a call that must
// wait names the process and the time; all other calls succeed; and all continues when
// the operator's process ends.
func TestOperatorInTheWay(t *testing.T) {
	l := newLab(t, deadline,
		create("near", "40M", host.Disks()[1]), create("up", "32M", under), create("late", "8M", under), create("down", "32M", under), create("more", "40M", under),
		"lvcreate -qq -y -an -Zn -Wn -L 8M -n cold "+host.VG, "lvcreate -qq -y -an -Zn -Wn -L 8M -n colder "+host.VG)
	l.mkfs("ext4", "near", "up", "down", "more")
	for _, lv := range []string{"down", "more"} {
		l.ok(l.mount(lv))
	}
	const many = 20
	l.ok(l.attach("near"))
	l.served("near", 2) // fsck comes only once
	alone := l.served("near", many)
	l.must(os.WriteFile(l.dir("down")+"/dirty", make([]byte, 4<<20), 0o644))
	size := int64(40 << 20)
	expand := func() reply {
		return l.call("expandfs more", "expandfs", volumeOf("more").Blob(nil), device("more"), l.dir("more"), host.Bytes(size), host.Bytes(40<<20))
	}
	suspended := []string{"up", "late", "down", "more"}

	// Each in the middle of its step.
	waits, frozen := map[string]chan reply{}, []int{0}
	for frozen[0] == 0 { // growing takes an instant, and may be missed, or done when it is stopped
		size += 24 << 20
		before := l.bytes("more")
		waits["more"] = behind(expand)
		frozen[0] = l.Freeze(func() bool { return len(waits["more"]) > 0 }, "grow")
		if frozen[0] != 0 && l.bytes("more") > before {
			l.must(syscall.Kill(frozen[0], syscall.SIGCONT))
			l.ok(<-waits["more"])
			frozen[0] = 0
		}
		if size > 400<<20 {
			t.Fatal("no growth was stopped")
		}
	}
	up, pid := l.mountFrozen("up")
	waits["up"], frozen = up, append(frozen, pid)
	for _, lv := range suspended {
		l.suspendLV(lv)
	}
	for _, pid := range frozen {
		l.must(syscall.Kill(pid, syscall.SIGCONT))
	}
	waits["down"] = behind(func() reply { return l.unmount("down") })
	held, err := os.Create("/run/lock/lvm/V_" + host.VG)
	l.must(err)
	defer held.Close()
	l.must(unix.Flock(int(held.Fd()), unix.LOCK_EX))
	waits["cold"] = behind(func() reply { return l.attach("cold") })

	for _, lv := range []string{"up", "down", "more"} {
		l.hangs(lv)
	}
	l.twice("a pod of the same group", alone, l.served("near", many)) // no command of LVM is needed
	l.refused(l.mount("late"), "stays suspended", "pvmove --abort", "dmsetup resume")
	lock := fmt.Sprintf("for LVM's lock of %s, which pid %d (", host.VG, os.Getpid())
	for lv, words := range map[string][]string{
		"up":   {"mount", "pid ", "waits in ", "dmesg"},
		"down": {"umount", "pid ", "waits in ", "dmesg"},
		"more": {"grow", "pid ", "waits in ", "dmesg"},
		"cold": {"activate", "pid ", "waits in ", lock},
	} {
		r := <-waits[lv]
		t.Log(r)
		l.refused(r, words...)
		l.howLong(r)
		l.soonEnough(r, deadline+2*time.Second)
	}
	r := l.attach("colder")
	l.refused(r, "volume group "+host.VG+" is blocked", lock)
	l.howLong(r)
	l.soonEnough(r, time.Second)

	l.ok(l.mount("near"))
	begun := time.Now()
	if took := l.ends(); took > 10*time.Second {
		t.Errorf("flexd stopped after %s", took)
	}
	l.must(l.Start())
	if down := l.ok(l.unmount("near")); down.took > deadline/2 {
		t.Errorf("%s: it waited for LVM", down)
	}
	l.knows(begun, "up", "down", "more")

	held.Close()
	for _, lv := range suspended {
		l.resumeLV(lv)
	}
	for _, lv := range []string{"cold", "colder"} {
		l.within(soon, lv+" is attached", func() string {
			if r := l.attach(lv); !r.ok() {
				return r.String()
			}
			return ""
		})
	}
	for _, lv := range []string{"up", "down", "more"} {
		l.within(soon, lv+" goes on", func() string {
			if s := l.story(lv); s.Stuck != nil || s.State == status.Stuck || s.State == status.Working {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
	}
	l.ok(l.unmount("down"))
	for _, lv := range []string{"up", "down"} {
		l.ok(l.mount(lv))
	}
	if st, err := os.Stat(l.dir("down") + "/dirty"); err != nil || st.Size() != 4<<20 {
		t.Errorf("what was written: %v %v", st, err)
	}
	l.ok(expand())
	if got := l.bytes("more"); got < 48<<20 {
		t.Errorf("the filesystem has %d bytes", got)
	}
	// For a moment, as every snapshot suspends its origin.
	l.suspendLV("near")
	near := behind(func() reply { return l.mount("near") })
	time.Sleep(3 * time.Second)
	l.resumeLV("near")
	l.ok(<-near)
	l.ok(l.unmount("near"))
	for _, lv := range []string{"up", "down", "more"} {
		l.ok(l.unmount(lv))
	}
}
