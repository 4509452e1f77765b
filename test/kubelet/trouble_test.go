package kubelet

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// telling fails the test if a warning is longer than the API server keeps: 1024
// bytes, with kubelet's own words.
func (n *node) telling() {
	n.t.Helper()
	for _, e := range n.warnings() {
		if len(e.Message) > 1024 {
			n.t.Errorf("an event of %d bytes: %s", len(e.Message), e.Message)
		}
	}
}

// warned waits for an event of the pod that says all the words.
func (n *node) warned(p *v1.Pod, words ...string) {
	n.t.Helper()
	n.eventually(p.Name+" gets an event", func() string {
		for _, e := range n.warnings() {
			missing := false
			for _, w := range words {
				missing = missing || !strings.Contains(e.Message, w)
			}
			if e.Pod == p.Name && !missing {
				return ""
			}
		}
		return fmt.Sprintf("none says %q: %q", words, n.warnings())
	})
	n.telling()
}

// What nobody but an operator can repair: the event names the volume and what to do.
func TestVolumeThatFailsForGood(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.failures = true
		n.claim("novg", 16*mib, "volumegroup", "vg9")
		n.claim("nolv", 16*mib, "size", "")
		n.claim("large", 16*mib, "size", "30Gi")
		n.claim("data", 16*mib)
		n.claim("torn", 16*mib)
		n.claim("fine", 16*mib)
		fine, first := pod("fine", "fine"), pod("first", "data", "torn")
		n.run(first)
		n.end(first)
		n.quiet()
		n.claim("other", 16*mib, "fsType", "xfs", "size", "300Mi", "volumeID", "data")
		files, err := filepath.Glob(n.vg + "/*torn*")
		if err != nil || len(files) != 1 {
			t.Fatalf("the file of vg0/torn: %v, %v", files, err)
		}
		f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
		n.must(err)
		_, err = f.WriteAt(bytes.Repeat([]byte("something else "), 4000), 0)
		n.must(err)
		n.must(f.Close())
		for _, c := range []struct {
			claim string
			words []string
		}{
			{"novg", []string{`"vg9"`, "not configured", "volumeGroups"}},
			{"nolv", []string{"vg0/nolv", "size"}},
			{"large", []string{"vg0/large", "maxSize"}},
			{"torn", []string{"vg0/torn", "never"}},
			{"other", []string{"vg0/data", "ext4", "xfs"}},
		} {
			p := pod("wants-"+c.claim, c.claim)
			n.want(p)
			n.warned(p, c.words...)
			n.end(p)
		}
		n.run(fine)
	})
}

// With attach:false each pod's inline volume is one of its own, whatever its name.
func TestInlineVolumesOfOneName(t *testing.T) {
	t.Parallel()
	t.Run(string(noAttach), func(t *testing.T) {
		t.Parallel()
		n := newNode(t, noAttach)
		one, two := inline(pod("one"), "data", flex("a")), inline(pod("two"), "data", flex("b"))
		n.run(one, two)
		n.write(one, 0, "first")
		n.write(two, 0, "second")
		n.read(one, 0, "first")
		n.read(two, 0, "second")
		n.end(one)
		n.run(one)
		n.read(one, 0, "first")
		n.read(two, 0, "second")
	})
	// With attach:true kubelet takes the two for one. While the first pod has it the
	// second is stuck in kubelet (a nil pointer, no event); when the first has gone
	// kubelet gives the first one's mount to the second, which only `mount` can notice.
	for _, m := range []mode{byKubelet, byController} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, m)
			n.failures = true
			one, two := inline(pod("one"), "data", flex("a")), inline(pod("two"), "data", flex("b"))
			n.run(one)
			n.write(one, 0, "first")
			n.want(two)
			if n.ask("Start", two.UID, nil) == nil {
				t.Fatal("the second pod starts: rewrite this test")
			}
			n.noWarnings()
			if c := n.trace().of("mount"); len(c) != 1 {
				t.Errorf("kubelet calls for the second pod:\n%s", c)
			}
			direct := exec.Command(n.driver, "mount", n.podDir(two, 0),
				`{"kubernetes.io/fsType":"ext4","kubernetes.io/pvOrVolumeName":"data","kubernetes.io/readwrite":"rw","volumegroup":"vg0","volumeID":"b","size":"16Mi","kubernetes.io/pod.uid":"uid-two","kubernetes.io/pod.name":"two","kubernetes.io/pod.namespace":"default"}`)
			direct.Env = append(os.Environ(), "FLEXD_SOCKET="+n.runDir+"/driver.sock")
			n.must(os.MkdirAll(n.podDir(two, 0), 0o750))
			out, err := direct.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "Failure") || !strings.Contains(string(out), "vg0/a") {
				t.Errorf("mount answers %s (%v)", out, err)
			}
			n.read(one, 0, "first")
			n.forget(one)
			n.warned(two, "vg0/b", "holds another volume", "vg0/a", "different names")
			if mounted(n.podDir(two, 0)) {
				t.Error("the second pod has a volume: whose?")
			}
			n.end(two)
			n.ended(one)
		})
	}
}

// One volume under two names: kubelet would never unmount either (its reference
// check), so the second is refused.
func TestOneVolumeUnderTwoNames(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{byKubelet, byController} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, m)
			n.failures = true
			n.claim("a", 16*mib)
			n.claim("alias", 16*mib, "volumeID", "a")
			one, two := pod("one", "a"), pod("two", "alias")
			n.run(one)
			n.write(one, 0, "first")
			n.want(two)
			n.warned(two, "vg0/a", "pv-a")
			n.end(one)
			n.eventually("the second pod starts when the first has ended", func() string {
				if err := n.ask("Start", two.UID, nil); err != nil {
					return err.Error()
				}
				return ""
			})
			n.read(two, 0, "first")
		})
	}
}

// A waitforattach that takes longer than kubelet waits (ten minutes, five seconds
// here) is ended by SIGTERM. A driver that would not die of it makes kubelet crash
// ten seconds later.
func TestWaitForAttachTooLong(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{byKubelet, byController} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, m, func(n *node) { // the volume stays active while kubelet pauses
				n.config = strings.Replace(n.config, "lease: "+lease.String(), "lease: 15s", 1)
			})
			n.failures = true
			n.killKubelet()
			n.startKubelet(func(_ *exec.Cmd, s *Setup) { s.WaitForAttach = 5 * time.Second })
			n.claim("a", 16*mib)
			p := pod("web", "a")
			n.caught("waitforattach", func() { n.want(p) })
			n.eventually("kubelet gives up, and asks again", func() string {
				c := n.trace().of("waitforattach")
				if len(c) < 2 {
					return fmt.Sprint(c)
				}
				return ""
			})
			time.Sleep(11 * time.Second) // after Stop, kubelet's exec looks again in ten
			n.thaw()
			n.started(p)
			for _, c := range n.trace().of("waitforattach") {
				if c.Ended && c.Exit != "" && !strings.Contains(c.Exit, syscall.SIGTERM.String()) {
					t.Errorf("%s", c)
				}
			}
			if got := len(n.trace().of("mountdevice")); got != 1 {
				t.Errorf("%d calls of mountdevice, want 1", got)
			}
			// Nothing ran twice: the global mount and the pod's are two.
			log := tail(n.dir+"/flexd.log", 1<<20)
			for step, want := range map[string]int{"create": 1, "activate": 1, "mkfs": 1, "mount": 2} {
				if got := strings.Count(log, " step="+step+"  done "); got != want {
					t.Errorf("flexd did %s %d times, want %d", step, got, want)
				}
			}
		})
	}
}
