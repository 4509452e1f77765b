//go:build vm

package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/test/host"
)

// A disk hangs while flexd probes, formats, checks, mounts and unmounts volumes on
// it, and LVM works on their group. All other calls succeed; the answer to a call that
// must wait names the process and the remedy; flexd can be stopped, and the next one
// finds the processes. When the disk is back, all continues by itself.
func TestDiskHangs(t *testing.T) {
	// LVM changes something in the group, or reads its metadata.
	commands := []string{"cold", "unknown"}
	if random := host.Random(t); !soak {
		commands = commands[random.IntN(2):][:1]
	}
	for _, first := range commands {
		t.Run(first, func(t *testing.T) { diskHangs(t, first) })
	}
}

func diskHangs(t *testing.T, first string) {
	ways := []string{"probe", "mkfs", "fsck", "mount", "umount"}
	commands := []string{
		create("near", "64M", host.Disks()[1]),
		"lvcreate -qq -y -an -Zn -Wn -L 8M -n cold " + host.VG + " " + under,
		"lvcreate -qq -y -an -Zn -Wn -L 8M -n colder " + host.VG + " " + under,
	}
	for _, way := range ways {
		commands = append(commands, create(way, "32M", under))
	}
	const many = 10 // so many that one of them may be slow for another reason
	for i := range 3 * many {
		commands = append(commands, fmt.Sprintf("lvcreate -qq -y -an -Zn -Wn -L 8M -n v-%d other", i))
	}
	l := newLab(t, deadline, commands...)
	l.mkfs("ext4", "near", "fsck", "mount", "umount")
	attached := func(from int) (took []time.Duration) {
		for i := range many {
			took = append(took, l.ok(l.attach(fmt.Sprintf("other/v-%d", from+i))).took)
		}
		return took
	}
	l.ok(l.mount("umount"))
	l.ok(l.attach("near"))
	l.served("near", 2) // fsck comes only once
	alone := l.served("near", 2*many)
	attachedAlone := attached(0)
	if t.Failed() {
		t.FailNow()
	}

	// Each in the middle of its step, and then the disk hangs.
	waits := map[string]chan reply{}
	var frozen []int
	mounting, pid := l.mountFrozen("mount")
	waits["mount"], frozen = mounting, append(frozen, pid)
	for way, child := range map[string]string{"mkfs": "mkfs.ext4", "fsck": "e2fsck"} {
		waits[way] = behind(func() reply { return l.mount(way) })
		frozen = append(frozen, l.freeze(child))
	}
	l.must(os.WriteFile(l.dir("umount")+"/dirty", make([]byte, 4<<20), 0o644))
	l.suspend()
	for _, pid := range frozen {
		l.must(syscall.Kill(pid, syscall.SIGCONT))
	}
	waits["probe"] = behind(func() reply { return l.mount("probe") })
	waits["umount"] = behind(func() reply { return l.unmount("umount") })
	waits["lvm"] = behind(func() reply { return l.attach(first) })
	for _, way := range ways {
		l.hangs(way)
	}
	l.twice("a pod of the same group", alone, l.served("near", 2*many))

	for _, way := range append(ways, "lvm") {
		r := <-waits[way]
		t.Log(r)
		l.refused(r, "pid ", "waits in ", "dmesg")
		l.howLong(r)
		l.soonEnough(r, deadline+2*time.Second)
	}
	os.Remove("/run/lvm/hints") // where LVM remembers which disks it need not look at
	l.twice("commands of LVM for another group", attachedAlone, attached(many))
	r := l.attach("colder")
	l.refused(r, "volume group "+host.VG+" is blocked", "pid ", "dmesg")
	l.howLong(r)
	l.soonEnough(r, time.Second)
	begun := time.Now()
	if again := l.unmount("near"); !again.ok() {
		t.Errorf("%s", again)
	}
	l.ok(l.mount("near"))

	l.beating()
	if took := l.ends(); took > 10*time.Second {
		t.Errorf("flexd stopped after %s", took)
	}
	l.must(l.Start())
	if down := l.ok(l.unmount("near")); down.took > deadline/2 {
		t.Errorf("%s: it waited for LVM", down)
	}
	l.knows(begun, ways...)
	os.Remove("/run/lvm/hints")
	l.twice("commands of LVM for another group after a restart", attachedAlone, attached(2*many))
	// A command of the earlier flexd blocks the group as soon as it is known to hang. If none is
	// left, LVM finds the group without the disk.
	l.within(deadline, "the new flexd refuses the group", func() string {
		r := l.attach("colder")
		blocked := strings.Contains(r.Message, "is blocked") && strings.Contains(r.Message, "pid ")
		if r.Status == "Failure" && (blocked || strings.Contains(r.Message, "PVs are missing")) && strings.Contains(r.Message, under) {
			return ""
		}
		return r.String()
	})
	again := l.attach("colder")
	l.refused(again, under, "dmesg")
	l.soonEnough(again, 2*time.Second) // at most one report
	l.beating()

	l.resume()
	for _, way := range ways {
		l.within(soon, way+" goes on", func() string {
			if s := l.story(way); s.Stuck != nil || s.State == status.Stuck || s.State == status.Working || len(s.Claims) > 0 && way != "umount" {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
	}
	if host.Mounted(l.dir("umount")) {
		t.Error("the umount that hung did nothing")
	}
	l.within(soon, "LVM answers again", func() string {
		if r := l.attach("cold"); !r.ok() {
			return r.String()
		}
		return ""
	})
	l.ok(l.unmount("umount"))
	for _, way := range ways {
		l.ok(l.mount(way))
		if way == "umount" {
			if st, err := os.Stat(l.dir(way) + "/dirty"); err != nil || st.Size() != 4<<20 {
				t.Errorf("what was written: %v %v", st, err)
			}
		}
		l.ok(l.unmount(way))
	}
}

// knows waits until a new flexd reports the children of the old one that hang.
func (l *lab) knows(begun time.Time, lvs ...string) {
	l.Helper()
	for _, lv := range lvs {
		l.within(soon, "the new flexd knows of "+lv, func() string {
			s := l.story(lv)
			if c := s.Stuck; s.State == status.Stuck && c != nil && c.Wchan != "" && c.Since.Before(begun) && asleep(c.Pid) && strings.Contains(c.Hint, "dmesg") {
				return ""
			}
			// flexd kills a child that only observes, and the kernel may let it end.
			if v, err := l.Volume(lv); lv == "probe" && err == nil && run.Held(l.Node.Run+"/lanes/"+v.UUID) == nil {
				return ""
			}
			return fmt.Sprintf("%+v", s)
		})
	}
}

// The disk with the metadata of a thin pool, or with its data, hangs during a commit, and the kernel blocks every
// request to the pool: flexd does not ask it, reports that, and can be stopped.
func TestPoolHangs(t *testing.T) {
	for _, part := range []string{"metadata", "data"} {
		t.Run(part, func(t *testing.T) { poolHangs(t, part) })
	}
}

func poolHangs(t *testing.T, part string) {
	on := map[string]string{"metadata": host.Disks()[1], "data": host.Disks()[1]}
	on[part] = under
	l := newLab(t, deadline,
		create("near", "64M", host.Disks()[1]),
		"lvcreate -qq -y -an -Zn -Wn -L 64M -n pool "+host.VG+" "+on["data"],
		"lvcreate -qq -y -an -Zn -Wn -L 4M -n metadata "+host.VG+" "+on["metadata"],
		"lvconvert -qq -y --type thin-pool --poolmetadata "+host.VG+"/metadata "+host.VG+"/pool",
		"lvcreate -qq -y -V 32M -T "+host.VG+"/pool -n thin",
		"lvcreate -qq -y -an -Zn -Wn -L 8M -n elsewhere other",
	)
	l.mkfs("ext4", "near", "thin")
	l.ok(l.mount("thin"))
	node := "/dev/mapper/" + host.VG + "-pool_t" + strings.Replace(part, "metadata", "meta", 1)
	device, err := os.Readlink(node)
	if err != nil { // without udev it is the node itself
		device = fmt.Sprint("dm-", l.number("stat", "-c", "%Lr", node))
	}
	l.suspend()
	c := exec.Command("sh", "-c", `head -c 4M /dev/zero > "$0/dirty" && sync -f "$0"`, l.dir("thin"))
	l.must(c.Start())
	l.within(soon, "the metadata is committed", func() string {
		b, err := os.ReadFile("/sys/block/" + filepath.Base(device) + "/inflight")
		if err != nil || strings.Trim(string(b), " 0\n") == "" {
			return fmt.Sprintf("%q %v", b, err)
		}
		return ""
	})
	l.ok(l.mount("near"))
	r := l.mount("thin", "second")
	l.refused(r, "the state of "+host.VG+"-pool-tpool cannot be read", "its "+part+" device", "has completed no request", "dmesg")
	l.soonEnough(r, deadline/2)
	os.Remove("/run/lvm/hints")
	l.ok(l.attach("other/elsewhere"))
	l.ok(l.unmount("near"))
	l.beating()
	if took := l.ends(); took > 10*time.Second {
		t.Errorf("flexd stopped after %s", took)
	}
	l.must(l.Start())
	l.resume()
	l.must(c.Wait())
	l.within(soon, "a second pod gets it", func() string {
		if r := l.mount("thin", "second"); !r.ok() {
			return r.String()
		}
		return ""
	})
	l.ok(l.call("unmount", "unmount", l.PodDir(podOf("second"), volumeOf("thin"))))
	l.ok(l.unmount("thin"))
}

// Fifty volumes hang at once, and the fifty-first is served as usual. Only the soak has fifty, since each
// takes a second in a virtual machine.
func TestFiftyHang(t *testing.T) {
	hung, many := 20, 10 // before, beside and after
	if os.Getenv("FLEXD_SOAK") != "" {
		hung, many = 50, 20
	}
	commands := []string{create("near", "64M", host.Disks()[1])}
	var names []string
	for i := range hung {
		names = append(names, fmt.Sprintf("v-%d", i))
		commands = append(commands, create(names[i], "8M", under))
	}
	l := newLab(t, deadline, commands...)
	l.mkfs("ext4", "near")
	l.ok(l.attach("near"))
	l.served("near", 2) // fsck comes only once
	alone := l.served("near", many)
	memory, goroutines := l.size()
	l.suspend()
	var waits []chan reply
	for some := range slices.Chunk(names, 10) { // a slow machine needs a call's time to start fifty
		for _, lv := range some {
			waits = append(waits, behind(func() reply { return l.mount(lv) }))
		}
		for _, lv := range some {
			l.hangs(lv)
		}
	}
	beside := l.served("near", many)
	l.beating()
	m, g := l.size()
	t.Logf("with %d hung: %d KiB of memory instead of %d, %d goroutines instead of %d", hung, m>>10, memory>>10, g, goroutines)
	if m > memory+10<<20 {
		t.Errorf("memory: %d KiB instead of %d", m>>10, memory>>10)
	}
	if g > goroutines+10*hung {
		t.Errorf("goroutines: %d instead of %d", g, goroutines)
	}
	for _, wait := range waits {
		r := <-wait
		l.refused(r, "probe", "pid ", "waits in ", "dmesg")
		l.howLong(r)
	}
	l.resume()
	l.within(soon, "all is at rest", func() string {
		list := l.list()
		for _, v := range list.Volumes {
			if v.State != status.Active && v.LV != "near" {
				return fmt.Sprintf("%+v", v)
			}
		}
		if list.Goroutines > goroutines+10 {
			return fmt.Sprintf("%d goroutines", list.Goroutines)
		}
		return ""
	})
	// This machine may have changed its pace meanwhile: alone is before and after.
	l.twice("the fifty-first", append(alone, l.served("near", many)...), beside)
	l.within(soon, "one that hung is used", func() string {
		if r := l.mount(names[hung-1]); !r.ok() {
			return r.String()
		}
		return ""
	})
	l.ok(l.unmount(names[hung-1]))
}
