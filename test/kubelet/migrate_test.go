package kubelet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/flexd/flexd/test/host"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// fromShell returns a node with the shell script kubernetes.io/lvm as its driver, and with a configured flexd
// that does not run.
func fromShell(n *node) {
	n.shell, n.migrates = true, true
	n.Driver = n.plugins + "/kubernetes.io~lvm/lvm"
	n.settings.Lines += "driver: kubernetes.io/lvm\n"
	n.must(os.MkdirAll(n.mapper(), 0o755))
}

func (n *node) mapper() string { return n.Dir + "/mapper" }

// shellDriver writes the script for this node's mode, and returns its path.
func (n *node) shellDriver() string {
	n.t.Helper()
	text, err := os.ReadFile("../host/shell-driver")
	n.must(err)
	mode := "attach"
	if n.mode == noAttach {
		mode = "mount"
	}
	const line = "\nmode=attach "
	if !bytes.Contains(text, []byte(line)) {
		n.t.Fatalf("no %q in the script", line)
	}
	text = bytes.Replace(text, []byte(line), fmt.Appendf(nil, "\nDEV_MAPPER=%s mode=%s ", n.mapper(), mode), 1)
	// A child forked by another test would have the file open for writing, and exec of the
	// script would fail with ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	// A new file each time: the installed script is a link to the former one, and kubelet may run it.
	file := n.Dir + "/shell-driver"
	n.must(os.WriteFile(file+".new", text, 0o755))
	n.must(os.Rename(file+".new", file))
	return file
}

// to replaces the driver while kubelet runs, and starts or ends flexd. Kubelet calls init of the new driver
// before its next use.
func (n *node) to(shell bool) {
	n.t.Helper()
	if n.shell = shell; !shell {
		n.startFlexd()
	}
	n.install(n.Driver)
	if n.controller != nil {
		n.install(n.Dir + "/controller/plugins/" + n.DriverDir() + "/lvm")
	}
	if shell {
		n.endFlexd(syscall.SIGTERM)
	}
}

// blank makes an empty volume of the owner's.
func (n *node) blank(lv string, size int64) {
	n.t.Helper()
	file := n.vg + "/" + lv
	n.must(os.WriteFile(file, nil, 0o600))
	n.must(os.Truncate(file, size))
	if out, err := exec.Command(n.Flexd(), "uuid", "--new", file).CombinedOutput(); err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
}

// activate is lvchange for a file: the device has the volume's identity.
func (n *node) activate(lv string) {
	n.t.Helper()
	file, err := os.OpenFile(n.vg+"/"+lv, os.O_RDWR, 0)
	n.must(err)
	defer file.Close()
	uuid, err := exec.Command(n.Flexd(), "uuid", file.Name()).Output()
	n.must(err)
	control, err := os.Open("/dev/loop-control")
	n.must(err)
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(file.Fd())}
	copy(config.Info.File_name[:], "flexd:"+strings.TrimSpace(string(uuid)))
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		n.must(err)
		device, err := os.OpenFile(fmt.Sprint("/dev/loop", number), os.O_RDWR, 0)
		n.must(err)
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		device.Close()
		if err == unix.EBUSY { // another test has taken it
			continue
		}
		n.must(err)
		os.Remove(n.mapper() + "/vg0-" + lv)
		n.must(os.Symlink(device.Name(), n.mapper()+"/vg0-"+lv))
		return
	}
}

// table returns the mount table's lines of kubelet's volumes.
func (n *node) table() (lines []string) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	n.must(err)
	for line := range strings.Lines(string(text)) {
		if dir := strings.Fields(line)[4]; strings.HasPrefix(dir, n.Root+"/") {
			lines = append(lines, line)
		}
	}
	return lines
}

// adopted waits until flexd has a claim for each mount, and reports nothing but the missing flags of
// unflagged.
func (n *node) adopted(unflagged ...string) {
	n.t.Helper()
	n.eventually("flexd has adopted the mounts", func() string {
		wanted := n.volumes()
		text, err := n.Get("/v1/volumes")
		n.must(err)
		var all struct {
			Volumes []struct{ VG, LV, State string }
		}
		n.must(json.Unmarshal([]byte(text), &all))
		for _, v := range all.Volumes {
			if v.State != "mounted" && v.State != "idle" {
				return v.LV + " is " + v.State
			}
			text, err := n.Get("/v1/volumes/" + v.VG + "/" + v.LV)
			n.must(err)
			var detail struct {
				Claims []struct{ Dir, Phase, Note string }
			}
			n.must(json.Unmarshal([]byte(text), &detail))
			for _, c := range detail.Claims {
				if c.Phase != "held" || c.Note != "" && c.Note != "adopted from the mount table" {
					return fmt.Sprintf("%+v", c)
				}
				wanted = slices.DeleteFunc(wanted, func(dir string) bool { return dir == c.Dir })
			}
		}
		if len(wanted) > 0 {
			return fmt.Sprintf("no claim: %q", wanted)
		}
		text, err = n.Get("/v1/check")
		n.must(err)
		var check struct{ Disagreements []struct{ Class, Dir string } }
		n.must(json.Unmarshal([]byte(text), &check))
		for _, d := range check.Disagreements {
			if d.Class != "mount-flags" || !slices.Contains(unflagged, d.Dir) {
				return text
			}
		}
		return ""
	})
}

// flexd replaces a shell driver while pods run, and that driver replaces flexd.
func TestMigration(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		for _, lv := range []string{"a", "b", "c"} {
			n.blank(lv, 16*mib)
			n.claim(lv, 16*mib)
		}
		n.blank("grows", 304*mib)
		n.claim("grows", 304*mib, "fsType", "xfs", "size", "304Mi")
		for _, lv := range []string{"a", "b", "grows"} {
			n.activate(lv)
		}
		web, early := pod("web", "grows", "a"), pod("early", "b")
		n.run(web, early)
		n.write(web, 1, "before")
		n.write(early, 0, "b")
		size := n.space(web, 0)
		open, err := os.OpenFile(n.podDir(web, 1)+"/data", os.O_WRONLY|os.O_APPEND, 0) // the container's
		n.must(err)
		defer open.Close()

		before := n.table()
		calls := n.since(func() {
			n.to(false)
			n.adopted()
			for _, want := range []string{fmt.Sprint("mounts in kubelet's directories: ", len(n.volumes())), `INFO  volume=vg0/a step="note held"  adopted from the mount table`} {
				if log := n.LogTail(100); !strings.Contains(log, want) {
					t.Errorf("flexd does not log %q: %s", want, log)
				}
			}
			n.started(web, early)
		})
		if c := calls.of("mount", "mountdevice", "unmount", "unmountdevice"); len(c) > 0 {
			t.Errorf("a mount of a running pod was touched:\n%s", c)
		}
		if after := n.table(); !slices.Equal(after, before) {
			t.Errorf("the mounts were\n%s and are\n%s", before, after)
		}
		_, err = open.WriteString(", and with flexd")
		n.must(err)

		calls = n.since(func() {
			second, fresh := pod("second", "a"), pod("fresh", "c")
			n.run(second, fresh)
			n.read(second, 0, "before, and with flexd")
			n.write(fresh, 0, "c")
			n.end(early)
			n.eventually("the volume is inactive", func() string { return strings.Join(n.active("b"), "") })
			n.killKubelet()
			n.startKubelet()
			n.started(web, second, fresh)
			n.grow("grows", 400*mib)
			n.grown(web, size+90*mib)
			n.adopted()
		})
		for _, c := range calls {
			if c.status() == "Not supported" && c.verb() != "getvolumename" {
				t.Errorf("kubelet would never call it again: %s", c)
			}
		}

		before = n.table()
		n.to(true)
		n.started(n.world.Pods...)
		if after := n.table(); !slices.Equal(after, before) {
			t.Errorf("back: the mounts were\n%s and are\n%s", before, after)
		}
		_, err = open.WriteString(", and with the script")
		n.must(err)
		// The script unmounts what flexd has mounted, and mounts what it has formatted.
		n.end(n.pod("second"), n.pod("fresh"))
		n.activate("b") // flexd has deactivated it
		n.must(os.Symlink(n.Volumes.(host.Loops).Devices()["vg0/c"], n.mapper()+"/vg0-c"))
		third := pod("third", "a", "b", "c")
		n.run(third)
		n.read(third, 0, "before, and with flexd, and with the script")
		n.read(third, 1, "b")
		n.read(third, 2, "c")
		n.must(open.Close())
		n.end(web)

		n.to(false)
		n.adopted(n.globalDir("pv-c")) // flexd's note of its own mount there is left
		n.read(third, 2, "c")
	}, fromShell)
}

// pod is one of those that run.
func (n *node) pod(name string) *v1.Pod {
	n.t.Helper()
	i := slices.IndexFunc(n.world.Pods, func(p *v1.Pod) bool { return p.Name == name })
	return n.world.Pods[i]
}

// active lists the devices of a volume.
func (n *node) active(lv string) []string {
	return slices.DeleteFunc(n.Volumes.Active(), func(file string) bool { return filepath.Base(file) != lv })
}
