package reconcile_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// Sequences in which a volume's data was, or seemed to be, lost.

// shell runs an owner's commands.
func shell(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// holds requires a file on the volume that is mounted at dir.
func holds(t *testing.T, dir, file, text string) {
	t.Helper()
	if b, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(b) != text {
		t.Errorf("%s says %q, %v; want %q", file, b, err, text)
	}
}

// A filesystem that is found while a formatting record exists is never formatted again.
func TestFormattingRecordKeepsFS(t *testing.T) {
	// The owner looks at the volume without flexd.
	byHand := func(t *testing.T, e *hosttest.Env, do string) {
		works(t, e.Storage.Shell("data", "D="+t.TempDir()+"; "+do+"; umount $D"))
	}
	ends := func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		holds(t, k.Dir(a), "precious", "data")
		works(t, k.Finish(a))
		e.Empty()
	}
	onReal(t, "made by its owner after mkfs failed", func(t *testing.T, e *hosttest.Env) {
		e.Refuse("mkfs", errSimulated)
		fails(t, hosttest.NewKubelet(e, false).Up(pod("a")), "simulated")
		e.Refuse("mkfs", nil)
		e.Empty()
		byHand(t, e, "mkfs.ext4 -q -F $L; mount $L $D; printf data > $D/precious")
		ends(t, e)
	})
	onReal(t, "finished after flexd was killed, and used", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		k := hosttest.NewKubelet(e, false)
		e.ArmStep(hosttest.CrashAfter, 1, "mkfs")
		join := behind(func() error { return k.Up(pod("a")) })
		e.Eventually("flexd is dead", e.Dead)
		k.Kill()
		_ = join()
		e.Start()
		e.Empty()
		byHand(t, e, "mount $L $D; printf data > $D/precious")
		ends(t, e)
	})
}

// While the directory of a volume group is not mounted, no empty volume is created under a name with a format
// record.
func TestGroupNotMounted(t *testing.T) {
	onLoops(t, "mount point without its disk", func(t *testing.T, e *hosttest.Env) {
		k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
		b.Volume, b.LV = "pv2", "new"
		works(t, e.M.MountTmpfs(e.Dir()))
		works(t, k.Up(a))
		works(t, e.M.Write(k.Dir(a)))
		works(t, k.Finish(a))
		e.Empty()
		records, _ := filepath.Glob(filepath.Join(e.Records(), "*.json"))
		if len(records) != 1 {
			t.Fatalf("records: %q", records)
		}
		works(t, e.M.Umount(e.Dir()))
		fails(t, k.Up(a), records[0])
		if e.M.Exists(e.File("data")) {
			t.Error("it was created")
		}
		mountsAre(t, e)
		works(t, k.Up(b)) // no record has that name
		works(t, k.Finish(b))
		works(t, os.Remove(records[0]))
		works(t, k.Up(a))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// recorded waits until the only format record has a volume's name.
func recorded(e *hosttest.Env, lv string) {
	e.Eventually("the record has the name "+lv, func() bool {
		records, _ := filepath.Glob(filepath.Join(e.Records(), "*.json"))
		b, _ := os.ReadFile(records[0])
		return strings.Contains(string(b), fmt.Sprintf(`"lv": %q`, lv))
	})
}

// The file of a volume in use is removed, and flexd loses its records, its notes and links, or both: no empty volume is
// created beside the device that has the data.
func TestRemovedWithoutRecords(t *testing.T) {
	for name, lost := range map[string]func(e *hosttest.Env) []string{
		"stateDir": func(e *hosttest.Env) []string { return []string{e.Records()} },
		"runDir":   func(e *hosttest.Env) []string { return []string{e.Notes(), filepath.Join(e.Config.RunDir, "dev")} },
		"both": func(e *hosttest.Env) []string {
			return []string{e.Records(), e.Notes(), filepath.Join(e.Config.RunDir, "dev")}
		},
	} {
		onLoops(t, name, func(t *testing.T, e *hosttest.Env) {
			e.Patient = true
			k, a := hosttest.NewKubelet(e, false), pod("a")
			works(t, k.Up(a))
			works(t, e.M.Write(k.Dir(a)))
			d, err := os.Readlink(filepath.Join(e.Config.RunDir, "dev/vg0/data"))
			works(t, err)
			e.AtRest()
			e.Crash() // a turn that an event of another test's device has begun may still go on
			e.Eventually("unmounted", func() bool { return e.M.Umount(k.Dir(a)) == nil })
			works(t, os.Remove(e.File("data")))
			for _, dir := range lost(e) {
				e.Eventually(dir+" is lost", func() bool {
					works(t, os.RemoveAll(dir))
					time.Sleep(200 * time.Millisecond)
					return !e.M.Exists(dir)
				})
			}
			e.Start()
			why := "/dev/" + filepath.Base(d) + " still has a deleted file with that name"
			switch name {
			case "both":
				why = "/dev/" + filepath.Base(d) + " has a deleted file with that name, but it is not noted here"
			case "runDir":
				why = "flexd has seen a filesystem on a volume of that name"
			}
			fails(t, k.Up(a), why)
			if e.M.Exists(e.File("data")) {
				t.Error("it was created")
			}
			shell(t, "losetup -d "+d)
			works(t, k.Finish(a))
		})
	}
}

// If a renamed volume is missing, it is not replaced by an empty one with its new name; its old name is free.
func TestRenamedAndMissing(t *testing.T) {
	for name, follow := range map[string]func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, b hosttest.Pod){
		"used by its new name": func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet, b hosttest.Pod) {
			works(t, os.Rename(e.File("data"), e.File("new")))
			works(t, k.Up(b))
			works(t, k.Finish(b))
		},
		"seen only": func(t *testing.T, e *hosttest.Env, _ *hosttest.Kubelet, _ hosttest.Pod) {
			works(t, os.Rename(e.File("data"), e.File("new")))
			recorded(e, "new")
		},
	} {
		onLoops(t, name, func(t *testing.T, e *hosttest.Env) {
			k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
			b.Volume, b.LV = "pv2", "new"
			works(t, k.Up(a))
			works(t, e.M.Write(k.Dir(a)))
			works(t, k.Finish(a))
			e.Empty()
			follow(t, e, k, b)
			e.Empty()
			works(t, os.Rename(e.File("new"), e.File("new")+".away"))
			fails(t, k.Up(b), "flexd has seen a filesystem on a volume of that name")
			if e.M.Exists(e.File("new")) {
				t.Error("it was created")
			}
			works(t, k.Up(a))
			works(t, k.Finish(a))
			works(t, os.Remove(e.File("new")+".away"))
			e.Empty()
		})
	}
}

// A pod uses a copy of a volume's file with its attributes. When the file is missing, it is not replaced by
// an empty one.
func TestCopiedAndMissing(t *testing.T) {
	onLoops(t, "used", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
		b.Volume, b.LV = "pv2", "copy"
		works(t, k.Up(a))
		works(t, e.M.Write(k.Dir(a)))
		works(t, k.Finish(a))
		e.Empty()
		clone(t, e, "data", "copy")
		e.Again()
		works(t, k.Up(b))
		works(t, k.Finish(b))
		e.Empty()
		works(t, os.Rename(e.File("data"), e.File("data")+".away"))
		fails(t, k.Up(a), "flexd has seen a filesystem on a volume of that name")
		if e.M.Exists(e.File("data")) {
			t.Error("it was created")
		}
		works(t, os.Rename(e.File("data")+".away", e.File("data")))
		works(t, os.Remove(e.File("copy")))
		works(t, k.Up(a))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// A volume's file is removed, and a copy with its attributes, which no pod uses, is left: it is not taken for
// the renamed volume. "while flexd is stopped" shows flexd no time at which both existed.
func TestOnlyCopyLeft(t *testing.T) {
	for name, remove := range map[string]func(t *testing.T, e *hosttest.Env){
		"while flexd runs": func(t *testing.T, e *hosttest.Env) {
			e.Again()
			works(t, os.Remove(e.File("data")))
		},
		"while flexd is stopped": func(t *testing.T, e *hosttest.Env) {
			e.Patient = true
			e.Crash()
			works(t, os.Remove(e.File("data")))
			e.Start()
		},
	} {
		onLoops(t, name, func(t *testing.T, e *hosttest.Env) {
			k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
			b.Volume, b.LV = "pv2", "copy2"
			works(t, k.Up(a))
			works(t, e.M.Write(k.Dir(a)))
			works(t, k.Finish(a))
			e.Empty()
			clone(t, e, "data", "copy")
			remove(t, e)
			recorded(e, "copy")
			fails(t, k.Up(a), "vg0/copy has this uuid, and may be a copy")
			if e.M.Exists(e.File("data")) {
				t.Error("it was created")
			}
			works(t, os.Rename(e.File("copy"), e.File("copy2")))
			works(t, k.Up(b))
			works(t, k.Finish(b))
			fails(t, k.Up(a), "vg0/copy2 has this uuid, and may be a copy")
			e.Empty()
			works(t, os.Rename(e.File("copy2"), e.File("data")))
			works(t, k.Up(a))
			works(t, k.Finish(a))
			e.Empty()
		})
	}
}

// Pods have used a copy of a volume's file since it was restored or replaced: when the copy is missing, the former
// file is not taken for it.
func TestUsedCopyMissing(t *testing.T) {
	for name, c := range map[string]struct {
		replace func(t *testing.T, e *hosttest.Env)
		used    string // by the pod since
		left    string
	}{
		"put in its place": {func(t *testing.T, e *hosttest.Env) {
			clone(t, e, "data", "data.new")
			works(t, os.Rename(e.File("data"), e.File("data.old")))
			works(t, os.Rename(e.File("data.new"), e.File("data")))
		}, "data", "data.old"},
		"restored": {func(t *testing.T, e *hosttest.Env) {
			works(t, os.Rename(e.File("data"), e.File("data.old")))
			recorded(e, "data.old")
			clone(t, e, "data.old", "data")
		}, "data", "data.old"},
		"beside it": {func(t *testing.T, e *hosttest.Env) {
			clone(t, e, "data", "data.new")
			e.Again()
		}, "data.new", "data"},
	} {
		onLoops(t, name, func(t *testing.T, e *hosttest.Env) {
			k, a, b := hosttest.NewKubelet(e, false), pod("a"), pod("b")
			b.Volume, b.LV = "pv2", c.used
			works(t, k.Up(a))
			works(t, e.M.Write(k.Dir(a)))
			works(t, k.Finish(a))
			e.Empty()
			c.replace(t, e)
			works(t, k.Up(b))
			works(t, k.Finish(b))
			e.Empty()
			works(t, os.Remove(e.File(c.used)))
			recorded(e, c.left)
			fails(t, k.Up(b), "vg0/"+c.left+" has this uuid, and may be a copy")
			if e.M.Exists(e.File(c.used)) {
				t.Error("it was created")
			}
			e.Empty()
		})
	}
}

// While a renamed volume is in use and another pod asks for the new name, no new volume gets the old name.
func TestRenamedInUse(t *testing.T) {
	onLoops(t, "both names", func(t *testing.T, e *hosttest.Env) {
		k, a, b, c := hosttest.NewKubelet(e, false), pod("a"), pod("b"), pod("c")
		b.Volume, b.LV = "pv2", "new"
		works(t, k.Up(a))
		works(t, os.Rename(e.File("data"), e.File("new")))
		works(t, k.Up(b))
		fails(t, k.Up(c), "is now named vg0/new")
		if e.M.Exists(e.File("data")) {
			t.Error("it was created")
		}
		works(t, k.Finish(b))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// While a volume that lost its name to another one is mounted, no pod gets the other one.
func TestNameTakenInUse(t *testing.T) {
	for _, global := range []bool{false, true} {
		onLoops(t, fmt.Sprintf("global %v", global), func(t *testing.T, e *hosttest.Env) {
			k, a, b, c := hosttest.NewKubelet(e, global), pod("a"), pod("b"), pod("c")
			c.Volume, c.LV = "pv2", "other"
			works(t, k.Up(c))
			works(t, k.Finish(c))
			e.Empty()
			works(t, k.Up(a))
			works(t, os.Rename(e.File("data"), e.File("old")))
			works(t, os.Rename(e.File("other"), e.File("data")))
			for range 2 {
				fails(t, k.Up(b), "had when it was mounted at "+k.Dir(a)+", for pod")
				for uuid := range e.Node().Observer.All() { // their devices are unknown
					e.Node().Observer.Publish(uuid, volume.Have{})
				}
				fails(t, k.Up(b), "had when it was mounted at "+k.Dir(a)+", for pod")
				e.Again()
			}
			works(t, k.Finish(a))
			e.Empty()
			works(t, k.Up(b))
			works(t, k.Finish(b))
			e.Empty()
		})
	}
}

// A btrfs is mounted once, and unmounted, after its default subvolume was changed. A read-only snapshot is no
// writable volume, although neither mount nor superblock are read-only.
func TestBtrfsDefaultSubvolume(t *testing.T) {
	onReal(t, "set-default", func(t *testing.T, e *hosttest.Env) {
		if _, err := exec.LookPath("btrfs"); err != nil && os.Getenv("CI") != "true" {
			t.Skip("needs btrfs-progs")
		}
		k, a := hosttest.NewKubelet(e, false), pod("a")
		a.FSType, a.Size = "btrfs", "300m"
		dir := k.Dir(a)
		works(t, k.Up(a))
		shell(t, "btrfs subvolume create "+dir+"/sub; btrfs subvolume set-default "+dir+"/sub; printf data > "+dir+"/sub/precious")
		works(t, k.Down(a))
		works(t, k.Up(a))
		holds(t, dir, "precious", "data")
		r, err := k.Call(flexvolume.Mount, dir, k.Blob(a, true)) // kubelet did not receive the answer
		works(t, err)
		if r.Status != flexvolume.StatusSuccess {
			t.Error(r)
		}
		mountsAre(t, e, dir)
		works(t, k.Up(pod2(a)))
		works(t, k.Down(pod2(a)))
		shell(t, "btrfs subvolume snapshot -r "+dir+" "+dir+"/snap; btrfs subvolume set-default "+dir+"/snap")
		works(t, k.Down(a))
		fails(t, k.Up(a), "the default subvolume of the btrfs")
		mountsAre(t, e)
		e.Empty()
	})
}

// A further device of a mounted btrfs is reported with the remedy. After a replacement the mount is still the one
// that flexd made, on another device; the volume keeps its own device, so that check's remedy stays right.
func TestBtrfsOtherDevice(t *testing.T) {
	onReal(t, "device", func(t *testing.T, e *hosttest.Env) {
		if _, err := exec.LookPath("btrfs"); err != nil && os.Getenv("CI") != "true" {
			t.Skip("needs btrfs-progs")
		}
		k, a := hosttest.NewKubelet(e, false), pod("a")
		a.FSType, a.Size = "btrfs", "300m"
		dir, file := k.Dir(a), t.TempDir()+"/other"
		works(t, k.Up(a))
		s, _ := e.Node().VolumeDetail(hosttest.VG, "data")
		out, err := exec.Command("sh", "-ec", "truncate -s 400m "+file+"; losetup -f --show "+file).Output()
		works(t, err)
		other := strings.TrimSpace(string(out))
		defer shell(t, "losetup -d "+other)
		reported := func(class string, words ...string) {
			t.Helper()
			var found []status.Finding
			e.Eventually("check reports "+class, func() bool {
				e.Node().Check(t.Context())
				found = e.Node().List().Findings
				return len(found) == 1 && found[0].Class == class || class == "" && len(found) == 0
			})
			for _, w := range words {
				if !strings.Contains(found[0].Message+" "+found[0].Hint, w) {
					t.Errorf("no %q in %+v", w, found[0])
				}
			}
		}
		reported("")
		shell(t, "btrfs device add -f "+other+" "+dir)
		reported("faulty", "on "+s.Device+" and on "+other, "btrfs device remove "+other+" "+dir)
		fails(t, k.Up(pod2(a)), "flexd mounts only filesystems on one device")
		shell(t, "btrfs device remove "+other+" "+dir)
		reported("")
		shell(t, "btrfs replace start -B -f "+s.Device+" "+other+" "+dir)
		reported("claimed-missing", "that flexd mounted at "+dir, "on "+other+" now", "btrfs replace start ID "+s.Device+" "+dir)
		fails(t, k.Down(a), "its filesystem, which is on "+other+" now")
		fails(t, k.Up(pod2(a)), "is mounted at "+dir+": flexd check says how to move it back")
		e.Again() // the restarted flexd keeps the device that check has named
		e.Settle(3 * e.Config.Lease)
		reported("claimed-missing", "btrfs replace start ID "+s.Device+" "+dir)
		shell(t, "btrfs replace start -B 1 "+s.Device+" "+dir)
		reported("")
		works(t, k.Down(a))
		e.Empty()
		if !strings.HasPrefix(s.Device, "/dev/loop") {
			return
		}
		works(t, k.Up(a)) // an operator detaches the device, and moves it back to one of his own
		s, _ = e.Node().VolumeDetail(hosttest.VG, "data")
		shell(t, "btrfs replace start -B -f 1 "+other+" "+dir+"; losetup -d "+s.Device)
		reported("claimed-missing", "on "+other+" now", "the volume is inactive", "umount "+dir)
		out, err = exec.Command("losetup", "-f", "--show", e.File("data")).Output()
		works(t, err)
		own := strings.TrimSpace(string(out))
		shell(t, "btrfs replace start -B 1 "+own+" "+dir)
		reported("claimed-missing", "on "+own+" now", "umount "+dir, "losetup -d "+own)
		shell(t, "umount "+dir+"; losetup -d "+own)
		works(t, k.Down(a))
		e.Empty()
	})
}

// After a scan, as udev's rules make it, the mount table shows another device name of a btrfs. A restarted
// flexd recognizes the mount and unmounts it.
func TestBtrfsOtherDeviceName(t *testing.T) {
	onLVM(t, "scan", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		k, a := hosttest.NewKubelet(e, false), btrfs(pod("a"))
		works(t, k.Up(a))
		shell(t, "btrfs device scan /dev/"+hosttest.VG+"/data")
		if text := e.M.Text(); !strings.Contains(text, "btrfs /dev/"+hosttest.VG+"/data ") && !strings.Contains(text, "btrfs /dev/mapper/") {
			t.Errorf("it has the same name as before\n%s", text)
		}
		e.Crash()
		loseNotes(t, e)
		e.Start()
		e.AtRest()
		mountsAre(t, e, k.Dir(a))
		works(t, k.Up(pod2(a)))
		works(t, k.Down(pod2(a)))
		works(t, k.Down(a))
		e.Empty()
	})
}

// pod2 is another pod on the same volume.
func pod2(p hosttest.Pod) hosttest.Pod { p.UID += "2"; return p }

// A volume with a format record that reads as blank is formatted only after the record is removed.
func TestBlankAfterSeen(t *testing.T) {
	onBoth(t, "while flexd runs", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		works(t, k.Down(a))
		e.Empty()
		if e.Sim != nil {
			e.Sim.Change(e.File("data"), func(f *hosttest.File) { f.State, f.Type, f.Bytes, f.Data = hosttest.Blank, "", 0, 0 })
		} else {
			works(t, e.Storage.Shell("data", "blkdiscard -z $L"))
		}
		fails(t, k.Up(a), "remove its record")
		records, _ := filepath.Glob(filepath.Join(e.Records(), "*.json"))
		if len(records) != 1 {
			t.Fatalf("records: %q", records)
		}
		works(t, os.Remove(records[0]))
		works(t, k.Up(a))
		works(t, e.M.Write(k.Dir(a)))
		works(t, k.Finish(a))
		e.Empty()
	})
}

// The next call uses the result of an mkfs that ended while no call waited.
func TestMkfsEndsWithoutCaller(t *testing.T) {
	modes(t, onSim, func(t *testing.T, e *hosttest.Env, k *hosttest.Kubelet) {
		_, release := e.Sim.Hang("format-half", false, false)
		fails(t, k.Up(pod("a")), "still preparing: mkfs")
		release()
		time.Sleep(time.Second)
		works(t, k.Up(pod("a")))
		if n := e.Sim.FileAt(e.File("data")).Mkfs; n != 1 {
			t.Errorf("mkfs ran %d times", n)
		}
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
}

// waitforattach creates no volume in a group that allows only some namespaces: kubelet passes the pod only to
// mount.
func TestNoCreateWithNamespaces(t *testing.T) {
	onSim(t, "another's", func(t *testing.T, e *hosttest.Env) {
		e.Config.VolumeGroups[0].Namespaces = []string{"prod"}
		for _, attach := range []bool{true, false} {
			fails(t, hosttest.NewKubelet(e, attach).Up(pod("a")), "namespace")
			if e.Sim.FileAt(e.File("data")) != nil {
				t.Errorf("attach:%v: it was created", attach)
			}
		}
	})
	onSim(t, "its own", func(t *testing.T, e *hosttest.Env) {
		e.Config.VolumeGroups[0].Namespaces = []string{"ns"}
		k := hosttest.NewKubelet(e, true)
		fails(t, k.Up(pod("a")), "namespace")
		if e.Sim.FileAt(e.File("data")) != nil {
			t.Error("it was created")
		}
		k = hosttest.NewKubelet(e, false)
		works(t, k.Up(pod("a")))
		works(t, k.Finish(pod("a")))
		k = hosttest.NewKubelet(e, true)
		works(t, k.Up(pod("a"))) // it exists
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
}

// A call sent again after a restart is answered before flexdriver's own deadline.
func TestResentCallDeadline(t *testing.T) {
	onSim(t, "flexd was away for four minutes", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		k := hosttest.NewKubelet(e, false)
		time.Sleep(time.Second) // after the boot
		e.ArmStep(hosttest.CrashBefore, 1, "mkfs")
		began := time.Now()
		join := behind(func() error { return k.Up(pod("a")) })
		e.Eventually("flexd is dead", e.Dead)
		time.Sleep(4 * time.Minute)
		_, release := e.Sim.Hang("format-half", false, false)
		e.Start()
		fails(t, join(), "still preparing: mkfs")
		if took := time.Since(began); took >= 5*time.Minute {
			t.Errorf("it was answered after %v", took)
		}
		release()
		works(t, k.Start(pod("a")))
		works(t, k.Finish(pod("a")))
		e.Empty()
	})
}

// A damaged note is kept aside when its mount is adopted.
func TestDamagedNoteKept(t *testing.T) {
	onBoth(t, "garbage", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		e.Crash()
		notes, _ := filepath.Glob(filepath.Join(e.Notes(), "published-*.json"))
		if len(notes) != 1 {
			t.Fatalf("notes: %q", notes)
		}
		name, garbage := filepath.Base(notes[0]), "\x7fELF"
		works(t, os.WriteFile(notes[0], []byte(garbage), 0o600))
		for range 2 { // at each start
			e.Start()
			e.AtRest()
			mountsAre(t, e, k.Dir(a))
			if claims := e.Claims(); len(claims) != 1 || claims[0].Dir != k.Dir(a) {
				t.Errorf("it was not adopted: %+v", claims)
			}
			holds(t, e.Notes(), name+".damaged", garbage)
			if p := e.Node().List().Problems; len(p) != 1 {
				t.Errorf("problems: %q", p)
			} else {
				fails(t, problem(p[0]), name+".damaged")
			}
			if v, c := verdict(t, e); v != status.Unknown || len(c.Problems) != 1 {
				t.Errorf("%s: %+v", v, c)
			}
			e.Crash()
		}
		e.Start()
		works(t, k.Finish(a))
		e.Empty()
		holds(t, e.Notes(), name+".damaged", garbage)
	})
}

type problem string

func (p problem) Error() string { return string(p) }

// A volume whose device has another user is not given to a pod until that use ends.
func TestUsedDevice(t *testing.T) {
	for name, use := range map[string]func(e *hosttest.Env, dir string) (end func()){
		"open":   func(e *hosttest.Env, _ string) func() { return e.Sim.HoldDevice(e.File("data")) },
		"loop":   func(e *hosttest.Env, _ string) func() { return e.Sim.Losetup(e.File("data")) },
		"frozen": func(e *hosttest.Env, dir string) func() { return e.Sim.Freeze(dir) },
	} {
		onSim(t, name, func(t *testing.T, e *hosttest.Env) {
			k := hosttest.NewKubelet(e, false)
			a, b := pod("a"), pod("b")
			works(t, k.Start(a))
			end := use(e, k.Dir(a))
			works(t, k.Finish(a))
			fails(t, k.Up(b), "is busy")
			end()
			works(t, k.Up(b))
			works(t, k.Finish(b))
			e.Empty()
		})
	}
}

// A volume that is smaller than its filesystem is given to no further pod, mounted or not, and no fsck runs
// on it.
func TestShrunkVolume(t *testing.T) {
	onSim(t, "lvreduce", func(t *testing.T, e *hosttest.Env) {
		k := hosttest.NewKubelet(e, false)
		a, b := pod("a"), pod("b")
		works(t, k.Start(a))
		size := e.Sim.FileAt(e.File("data")).Size
		e.Sim.Shrink(e.File("data"), size/2)
		fails(t, k.Up(b), "larger than its device")
		works(t, k.Finish(a))
		fails(t, k.Up(b), "restore a backup")
		e.Sim.Shrink(e.File("data"), size)
		works(t, k.Up(b))
		works(t, k.Finish(b))
		e.Empty()
	})
}

// A size below the filesystem's minimum creates no volume. If a volume is too small, or fsType or mkfs
// options are wrong, they may be corrected until the volume was published; then it is not extended this way.
func TestCorrected(t *testing.T) {
	onFiles(t, "size and fsType", func(t *testing.T, e *hosttest.Env) {
		k, a := hosttest.NewKubelet(e, false), pod("a")
		for fsType, size := range map[string]string{"xfs": "10m", "btrfs": "108m", "ext4": "64k"} {
			small := a
			small.FSType, small.Size = fsType, size
			fails(t, k.Up(small), "too small for "+fsType)
		}
		if e.M.Exists(e.File("data")) {
			t.Error("it was created")
		}
		a.Size = "20m"
		e.Refuse("mkfs", errSimulated)
		fails(t, k.Up(a), "simulated")
		e.Refuse("mkfs", nil)
		a = xfs(a)
		works(t, k.Up(a))
		works(t, e.M.Write(k.Dir(a)))
		works(t, k.Finish(a))
		a.Size = "400m"
		works(t, k.Up(a))
		works(t, k.Finish(a))
		e.Empty()
		for _, v := range e.Node().List().Volumes {
			if v.LV == "data" && v.Size != 320<<20 {
				t.Errorf("%d bytes", v.Size)
			}
		}
	})
	onBoth(t, "an administrator's volume", func(t *testing.T, e *hosttest.Env) {
		works(t, e.Storage.Make("data", 16<<20))
		k := hosttest.NewKubelet(e, false)
		works(t, k.Up(pod("a")))
		works(t, k.Finish(pod("a")))
		if n := e.Node().List().Volumes[0].Size; n != 16<<20 {
			t.Errorf("it was extended to %d bytes", n)
		}
		e.Empty()
	})
}

// A record that returns to a stateDir that hangs delays no unmount for longer than a moment.
func TestRecordHangs(t *testing.T) {
	onSim(t, "no call waits", func(t *testing.T, e *hosttest.Env) {
		e.Patient = true
		k, a := hosttest.NewKubelet(e, false), pod("a")
		works(t, k.Up(a))
		e.Crash()
		works(t, os.RemoveAll(e.Records()))
		answers, asked := make(chan struct{}), make(chan struct{}, 100)
		e.SetPause(func(what string, over <-chan struct{}) {
			if strings.HasPrefix(what, "writing record ") {
				asked <- struct{}{}
				select {
				case <-answers:
				case <-over:
				}
			}
		})
		e.Again()
		<-asked
		begun := time.Now()
		works(t, k.Finish(a))
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("the unmount waited for %v", took)
		}
		close(answers)
		e.Empty()
	})
}
