//go:build vm

package lvm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/host"
)

// Ensure that the creation of a RAID is completed after lvcreate was killed at any point, with and without
// its devices, as after a power cut.
func TestVMCreateRAIDCut(t *testing.T) {
	l := newLab(t)
	if _, err := exec.LookPath("strace"); err != nil {
		t.Fatal("needs strace, which kills lvcreate")
	}
	l.sh("vgextend", "-q", "vg0", l.disks[2], l.disks[3])
	trace := filepath.Join(t.TempDir(), "trace")
	type layout struct {
		layout string
		step   int
	}
	layouts := []layout{{"raid5", 41}, {"raid10", 53}}
	if host.Times(len(layouts)) == 1 {
		layouts = layouts[host.Random(t).IntN(2):][:1]
	}
	for _, row := range append(layouts, layout{"raid1", 9}) {
		g := Group{Layout: Layout{Type: row.layout}}
		// lvcreate runs lvcreate, which is killed at that call of device-mapper, and returns their number.
		lvcreate := func(name string, at int) int {
			return strings.Count(traceCreate(t, trace, g, name, at), " ioctl(")
		}
		all := lvcreate("whole", 0)
		l.sh("lvremove", "-q", "-y", "vg0/whole")
		cut := map[string]int{}
		for at := row.step; at <= all; at += row.step {
			name := fmt.Sprintf("%s-%d", row.layout, at)
			lvcreate(name, at)
			parts := l.sh("lvs", "-a", "--noheadings", "-o", "lv_name", "vg0")
			switch left := l.sh("dmsetup", "ls"); {
			case strings.Contains(strings.ReplaceAll(parts, "["+name, ""), name+"_rmeta_0"):
				cut["visible"]++
				if at%2 == 0 { // a power cut
					exec.Command("dmsetup", "remove_all", "--noudevsync").Run()
				}
			case strings.Contains(left, "_rmeta_") && !strings.Contains(left, "vg0-"+strings.ReplaceAll(name, "-", "--")+"\t"):
				cut["parts"]++
			}
			l.restart(g)
			if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: name}, 16*mib, ""); err != nil {
				t.Errorf("%s, killed at call %d of %d: %v", row.layout, at, all, err)
				l.wipe()
				l.sh("vgcreate", "-q", "vg0", l.disks[0], l.disks[1], l.disks[2], l.disks[3])
				continue
			}
			lv := l.present(name)
			if d := l.device(lv); lv.Size != 16*mib || !lv.Created || d.Size != lv.Size {
				t.Errorf("%s, killed at call %d: got %+v %+v", row.layout, at, lv, d)
			}
			l.sh("lvremove", "-q", "-y", "vg0/"+name)
			if left := l.sh("lvs", "-a", "--noheadings", "-o", "lv_name", "vg0") + l.sh("dmsetup", "ls"); strings.Contains(left, name[:5]) {
				t.Errorf("%s, killed at call %d, left %s", row.layout, at, left)
			}
		}
		t.Logf("%s: %d calls: %v", row.layout, all, cut)
		if row.layout == "raid1" && (cut["visible"] == 0 || cut["parts"] == 0) {
			t.Error("no creation was killed at the point that matters")
		}
	}

	// It was used, and its deactivation was interrupted: what it has stays.
	l.sh("lvcreate", "-q", "-y", "-ay", "-Zn", "-Wn", "--type", "raid1", "-L", "16M", "--addtag", tagCreating, "-n", "used", "vg0")
	l.sh("mkfs.ext4", "-q", "-F", "/dev/vg0/used")
	l.sh("dmsetup", "remove", "vg0-used")
	l.restart(Group{})
	var refusal *mount.Refusal
	if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: "used"}, 16*mib, ""); !errors.As(err, &refusal) || !strings.Contains(err.Error(), "an ext4 signature") {
		t.Errorf("create used: got %v", err)
	}
	l.sh("lvchange", "-ay", "vg0/used")
	l.sh("e2fsck", "-fn", "/dev/vg0/used")
}

// Ensure that the creation of a thin volume is completed after lvcreate was killed before one of its messages
// to the pool, with and without its devices, as after a power cut.
func TestVMCreateThinCut(t *testing.T) {
	l := newLab(t)
	trace := filepath.Join(t.TempDir(), "trace")
	l.sh("lvcreate", "-q", "-y", "-an", "-L", "64M", "-T", "vg0/pool")
	g := Group{ThinPool: "pool"}
	// lvcreate runs lvcreate, which is killed before that call of device-mapper, and returns which of
	// its calls are messages to the pool.
	lvcreate := func(name string, at int) (messages []int) {
		text := traceCreate(t, trace, g, name, at)
		pid, _, _ := strings.Cut(text, " ") // strace counts the calls of each process
		call := 0
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, pid) && strings.Contains(line, " ioctl(") {
				if call++; strings.Contains(line, "DM_TARGET_MSG") {
					messages = append(messages, call)
				}
			}
		}
		return messages
	}
	lvcreate("first", 0) // has more calls
	replaced := 0
	for i := range 3 {
		active, message := i%2 == 0, i/2 // the first one creates the volume, the second one confirms it
		l.sh("lvchange", map[bool]string{true: "-ay", false: "-an"}[active], "vg0/pool")
		messages := lvcreate("whole", 0)
		if len(messages) != 2 {
			t.Fatalf("lvcreate sends %d messages to the pool", len(messages))
		}
		l.sh("lvremove", "-q", "-y", "vg0/whole")
		name := fmt.Sprint("v", i)
		lvcreate(name, messages[message])
		if !active {
			exec.Command("dmsetup", "remove_all", "--noudevsync").Run()
		}
		l.restart(g)
		was := l.sh("lvs", "--noheadings", "-o", "lv_uuid", "vg0/"+name)
		if err := l.Create(t.Context(), l.lock, volume.Name{VG: "vg0", LV: name}, 16*mib, ""); err != nil {
			t.Errorf("killed before message %d, pool active %v: %v", message, active, err)
			continue
		}
		lv := l.present(name)
		if d := l.device(lv); lv.Size != 16*mib || !lv.Created || d.Size != lv.Size {
			t.Errorf("killed before message %d: got %+v %+v", message, lv, d)
		}
		if !strings.HasSuffix(string(lv.UUID), was) {
			replaced++
		}
		l.sh("lvremove", "-q", "-y", "vg0/"+name)
	}
	if replaced != 2 {
		t.Errorf("%d creations were killed at the point that matters", replaced)
	}
}

// Ensure that the remaining devices of a cache after an interrupted deactivation are named in the order of
// their removal, and that the volume is activated afterwards.
func TestVMLeftCache(t *testing.T) {
	l := newLab(t)
	l.lvm("lvcreate -q -y -an -Zn -Wn -L 32M -n a vg0", "lvcreate -q -y -an -Zn -Wn -L 16M -n fast vg0", "lvconvert -q -y --type cache --cachevol fast --cachemode writethrough vg0/a",
		"lvcreate -q -y -an -Zn -Wn -L 32M -n b vg0", "lvcreate -q -y -an -L 16M --type cache-pool -n pool vg0", "lvconvert -q -y --type cache --cachepool pool vg0/b")
	for _, name := range []string{"a", "b"} {
		lv := l.present(name)
		l.activate(lv)
		l.sh("dmsetup", "remove", "vg0-"+name)
		err := l.Activate(t.Context(), l.lock, lv)
		_, remedy, found := strings.Cut(fmt.Sprint(err), "nothing uses it: ")
		if !found {
			t.Errorf("activate %s: got %v", name, err)
			continue
		}
		t.Log(remedy)
		l.sh("sh", "-c", remedy)
		if left := l.sh("dmsetup", "ls"); !strings.Contains(left, "No devices") {
			t.Errorf("%s left %s", remedy, left)
		}
		l.activate(lv)
		l.deactivate(lv)
	}
}

// Ensure that the remedy for damaged metadata of a cache works, also if it is followed after several calls.
func TestVMDamagedCache(t *testing.T) {
	l := newLab(t)
	l.lvm("lvcreate -q -y -an -Zn -Wn -L 32M -n a vg0", "lvcreate -q -y -an -Zn -Wn -L 16M -n fast vg0", "lvconvert -q -y --type cache --cachevol fast --cachemode writethrough vg0/a")
	lv := l.present("a")
	l.activate(lv)
	l.deactivate(lv)
	disk, extent, _ := strings.Cut(strings.TrimSpace(l.sh("lvs", "-a", "--noheadings", "-o", "seg_pe_ranges", "vg0/fast_cvol")), ":")
	first, _, _ := strings.Cut(extent, "-")
	l.sh("sh", "-c", fmt.Sprintf("dd if=/dev/urandom of=%s bs=64k count=1 seek=$((16 + %s * 64)) conv=notrunc,fsync 2>&1", disk, first))
	for range 2 {
		is(t, l.Activate(t.Context(), l.lock, lv), nil, "Manual repair required!", "the metadata of its cache is damaged", "lvconvert --uncache vg0/a, then")
	}
	l.sh("lvconvert", "-q", "-y", "--uncache", "vg0/a")
	l.Invalidate("")
	l.activate(lv)
}

// traceCreate runs lvcreate, kills it before the device-mapper call with that number (0 = never), and returns
// strace's output.
func traceCreate(t *testing.T, trace string, g Group, name string, at int) string {
	t.Helper()
	args := []string{"-f", "-qq", "-o", trace, "-e", "trace=ioctl"}
	if at > 0 {
		args = append(args, "-e", fmt.Sprint("inject=ioctl:signal=KILL:when=", at))
	}
	made := createArgs(g, volume.Name{VG: "vg0", LV: name}, 4, 4*mib, "team-a")
	args = append(append(args, made[0], "--config", "activation{monitoring=0}"), made[1:]...)
	exec.Command("strace", args...).Run()
	calls, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	return string(calls)
}
