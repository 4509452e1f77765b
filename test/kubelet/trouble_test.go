package kubelet

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/flexd/flexd/test/host"
)

// telling fails the test if a warning exceeds the API server's limit of 1024 bytes, with kubelet's own text.
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
	n.warnedOne([]*v1.Pod{p}, words...)
}

// warnedOne does so for one of the pods: kubelet expands a volume for one of its pods.
func (n *node) warnedOne(pods []*v1.Pod, words ...string) {
	n.t.Helper()
	n.eventually(pods[0].Name+" gets an event", func() string {
		for _, e := range n.warnings() {
			missing := false
			for _, w := range words {
				missing = missing || !strings.Contains(e.Message, w)
			}
			if !missing && slices.ContainsFunc(pods, func(p *v1.Pod) bool { return e.Pod == p.Name }) {
				return ""
			}
		}
		return fmt.Sprintf("none says %q: %q", words, n.warnings())
	})
	n.telling()
}

// For an error that only an operator can repair, the event names the volume and the remedy.
func TestVolumeThatFailsForGood(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.failures = true
		n.must(os.Remove(n.Dir + "/gone"))
		n.claim("novg", 16*mib, "volumegroup", "vg9")
		n.claim("gone", 16*mib, "volumegroup", "gone")
		n.claim("nolv", 16*mib, "size", "")
		n.claim("large", 16*mib, "size", "30Gi")
		n.claim("full", 16*mib, "volumegroup", "small")
		n.claim("swap", 16*mib)
		n.claim("data", 16*mib)
		n.claim("torn", 16*mib)
		n.claim("fine", 16*mib)
		swap := n.byHand("swap", 16*mib)
		if out, err := exec.Command("mkswap", swap).CombinedOutput(); err != nil {
			t.Fatalf("mkswap: %v: %s", err, out)
		}
		fine, first := pod("fine", "fine"), pod("first", "data", "torn")
		n.run(first)
		n.end(first)
		n.quiet()
		n.claim("other", 16*mib, "fsType", "xfs", "size", "304Mi", "volumeID", "data")
		f, err := os.OpenFile(n.vg+"/torn", os.O_WRONLY, 0)
		n.must(err)
		_, err = f.WriteAt(bytes.Repeat([]byte("something else "), 4000), 0)
		n.must(err)
		n.must(f.Close())
		for _, c := range []struct {
			claim string
			words []string
		}{
			{"novg", []string{`"vg9"`, "not configured", "volumeGroups"}},
			{"gone", []string{"volume group gone not found", n.Dir + "/gone; mount its filesystem, or correct `directory`"}},
			{"nolv", []string{"vg0/nolv", "option size"}},
			{"large", []string{"vg0/large", "maxSize"}},
			{"full", []string{"small/full", "no space left", "16 MiB wanted", "free space on the filesystem of " + n.Dir + "/small", "or use a smaller size"}},
			{"swap", []string{"vg0/swap", "swap", "never formats over data", "blkid -p " + n.Dir + "/vg0/swap;", "wipefs -a $L && blkdiscard $L"}},
			{"torn", []string{"vg0/torn", "never formats over data", "seen ext4 on it before", "wipefs " + n.Dir + "/vg0/torn;", "wipefs -o OFFSET"}},
			{"other", []string{"vg0/data", "ext4", "xfs"}},
		} {
			p := pod("wants-"+c.claim, c.claim)
			n.want(p)
			n.warned(p, c.words...)
			n.end(p)
		}
		n.run(fine)
		// What the events say helps.
		n.end(fine)
		n.quiet()
		n.must(os.Truncate(swap, 0))
		n.must(os.Truncate(swap, 16*mib))
		n.must(unix.Mount("", n.Dir+"/small", "tmpfs", unix.MS_REMOUNT, "size=64m"))
		n.must(os.Mkdir(n.Dir+"/gone", 0o755))
		repaired := pod("repaired", "swap", "full", "gone")
		n.run(repaired)
		n.end(repaired)
	}, func(n *node) {
		n.settings.Groups += "  - {name: small, provider: loopdev, directory: " + n.Dir + "/small, create: true, maxSize: 20GiB, namespaces: ['*']}\n" +
			"  - {name: gone, provider: loopdev, directory: " + n.Dir + "/gone, reserve: 0%, create: true, maxSize: 20GiB, namespaces: ['*']}\n"
		n.must(os.Mkdir(n.Dir+"/gone", 0o755))
		n.must(os.Mkdir(n.Dir+"/small", 0o755))
		n.must(unix.Mount("tmpfs", n.Dir+"/small", "tmpfs", 0, "size=8m"))
	})
}

// The same cause has the same text in every retry of kubelet, so the API server counts them in one event. The
// id in it finds each of the calls in flexd's log.
func TestRetries(t *testing.T) {
	each(t, func(t *testing.T, n *node) {
		n.failures = true
		n.claim("novg", 16*mib, "volumegroup", "vg9")
		n.claim("nolv", 16*mib, "size", "")
		n.claim("large", 16*mib, "size", "30Gi")
		n.claim("swap", 16*mib)
		swap := n.byHand("swap", 16*mib)
		if out, err := exec.Command("mkswap", swap).CombinedOutput(); err != nil {
			t.Fatalf("mkswap: %v: %s", err, out)
		}
		var pods []*v1.Pod
		for _, c := range []string{"novg", "nolv", "large", "swap"} {
			pods = append(pods, pod("wants-"+c, c))
		}
		n.want(pods...)
		for _, p := range pods {
			texts := map[string]int{}
			n.eventually(p.Name+" fails four times", func() string {
				clear(texts)
				count := 0
				for _, e := range n.warnings() {
					if e.Pod == p.Name && strings.Contains(e.Message, "reason: ") {
						texts[e.Message]++
						count++
					}
				}
				if count < 4 {
					return fmt.Sprint(texts)
				}
				return ""
			})
			if len(texts) != 1 {
				t.Errorf("%s gets %d events: %v", p.Name, len(texts), texts)
			}
			for text, count := range texts {
				id := regexp.MustCompile(`\[([0-9a-f]{12})\]`).FindStringSubmatch(text)
				if id == nil {
					t.Errorf("no id: %s", text)
				} else if got := strings.Count(n.LogTail(math.MaxInt), " answer="+id[1]+" "); got < count {
					t.Errorf("flexd's log has %d of %d calls with answer %s", got, count, id[1])
				}
			}
		}
		n.end(pods...)
	})
}

// byHand makes a volume as an operator would, and returns its file.
func (n *node) byHand(lv string, size int64) string {
	n.t.Helper()
	file := n.vg + "/" + lv
	n.must(os.WriteFile(file, nil, 0o600))
	n.must(os.Truncate(file, size))
	n.must(unix.Setxattr(file, "trusted.flexd.uuid", []byte(uuid.NewUUID()), 0))
	return file
}

// In a group for some namespaces a missing volume is not created with attach:true: kubelet passes the
// namespace only to mount.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{noAttach, byKubelet} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, m, func(n *node) {
				n.settings.Groups = strings.Replace(n.settings.Groups, "['*']", "[team-*]", 1)
			})
			n.failures = true
			in := func(namespace, name, lv string) *v1.Pod {
				p := inline(pod(name), "data-"+lv, flex(lv))
				p.Namespace = namespace
				return p
			}
			made, stranger := in("team-a", "made", "a"), in("other", "stranger", "a")
			if m == noAttach {
				n.want(stranger)
				n.warned(stranger, "vg0/a", `namespace "other"`, "team-*")
			} else {
				n.want(made)
				n.warned(made, "vg0/a", "does not exist", "kubelet passes the namespace only at mount", "create it by hand, or use the driver without attach")
			}
			if _, err := os.Lstat(n.vg + "/a"); !os.IsNotExist(err) {
				t.Errorf("vg0/a: %v", err)
			}
			n.end(made, stranger)
			if m == byKubelet {
				file := n.byHand("a", 16*mib)
				if out, err := exec.Command("mkfs.ext4", "-q", "-F", file).CombinedOutput(); err != nil {
					t.Fatalf("%s", out)
				}
			}
			n.run(made)
			n.write(made, 0, "team's")
			n.end(made) // else kubelet itself would be in the stranger's way: TestInlineVolumesOfOneName
			n.want(stranger)
			n.warned(stranger, "vg0/a: mount", `namespace "other"`, "team-*")
			if mounted(n.podDir(stranger, 0)) {
				t.Error("a pod of another namespace has the volume")
			}
			n.end(stranger)
			n.run(made)
			n.read(made, 0, "team's")
		})
	}
}

// With attach:false each pod's inline volume is its own, also with equal names.
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
			calls := n.since(func() {
				n.want(two)
				if n.ask("Start", two.UID, nil) == nil {
					t.Fatal("the second pod starts: rewrite this test")
				}
			})
			n.noWarnings()
			if len(calls) > 0 {
				t.Errorf("calls for the second pod:\n%s", calls)
			}
			direct := exec.Command(n.Driver, "mount", n.podDir(two, 0),
				`{"kubernetes.io/fsType":"ext4","kubernetes.io/pvOrVolumeName":"data","kubernetes.io/readwrite":"rw","volumegroup":"vg0","volumeID":"b","size":"16Mi","kubernetes.io/pod.uid":"uid-two","kubernetes.io/pod.name":"two","kubernetes.io/pod.namespace":"default"}`)
			direct.Env = append(os.Environ(), "FLEXD_SOCKET="+n.DriverSocket())
			n.must(os.MkdirAll(n.podDir(two, 0), 0o750))
			out, err := direct.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "Failure") || !strings.Contains(string(out), "vg0/a") {
				t.Errorf("mount answers %s (%v)", out, err)
			}
			n.read(one, 0, "first")
			n.forget(one)
			n.warned(two, "vg0/b", "has another volume", "vg0/a", "different names")
			if mounted(n.podDir(two, 0)) {
				t.Error("the second pod has a volume: whose?")
			}
			n.end(two)
			n.ended(one)
		})
	}
}

// One volume has two names: kubelet would never unmount either (its reference check), so the second is
// refused.
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
			n.warned(two, "vg0/a", "pv-a", "two names", "use one PV (or one inline volume name) for one logical volume")
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

// A waitforattach that exceeds kubelet's timeout (ten minutes, five seconds here) is ended by SIGTERM. If the
// driver did not end, kubelet would crash ten seconds later. flexd continues its work, and kubelet's next
// calls join it.
func TestWaitForAttachTooLong(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{byKubelet, byController} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, m, func(n *node) { // the volume stays active while kubelet pauses
				n.settings.Lease = 15 * time.Second
			})
			n.failures = true
			n.killKubelet()
			n.startKubelet(func(_ *exec.Cmd, s *Setup) { s.WaitForAttach = 5 * time.Second })
			lv, p, child := n.creating()
			defer syscall.Kill(child, syscall.SIGCONT)
			begun := len(n.trace().of("waitforattach"))
			n.thaw()
			n.eventually("kubelet gives up, and asks again", func() string {
				c := n.trace().of("waitforattach")
				if len(c) <= begun {
					return fmt.Sprint(c)
				}
				return ""
			})
			time.Sleep(11 * time.Second) // after Stop, kubelet's exec looks again in ten
			for pid, line := range n.Processes() {
				if pid != child && strings.Contains(line, " child loop-create ") {
					t.Errorf("the volume is created twice at once: %s", line)
				}
			}
			if _, err := os.Lstat(n.vg + "/" + lv); !os.IsNotExist(err) {
				t.Errorf("it is there (%v), and the child that is to make it is stopped", err)
			}
			syscall.Kill(child, syscall.SIGCONT)
			n.started(p)
			for _, c := range n.trace().of("waitforattach") {
				if c.Ended && c.status() != "Success" && !strings.Contains(c.Exit, syscall.SIGTERM.String()) {
					t.Errorf("it does not join: %s", c)
				}
			}
			var staged int
			for _, c := range n.trace().of("mountdevice") {
				if c.Argv[1] == n.globalDir("pv-"+lv) {
					staged++
				}
			}
			if staged != 1 {
				t.Errorf("%d calls of mountdevice, want 1", staged)
			}
			// Nothing ran twice: the global mount and the pod's are two.
			log := n.LogTail(math.MaxInt)
			for step, want := range map[string]int{"create": 1, "activate": 1, "mkfs": 1, "mount": 2} {
				if got := len(regexp.MustCompile(` volume=vg0/`+lv+` .*step=`+step+`  done `).FindAllString(log, -1)); got != want {
					t.Errorf("flexd did %s %d times, want %d", step, got, want)
				}
			}
		})
	}
}

// creating stops the child that makes a new volume, for the waitforattach of a new
// pod, before the volume is there. flexd is stopped, too. The child takes an instant: some
// may get away.
func (n *node) creating() (lv string, p *v1.Pod, child int) {
	n.t.Helper()
	for i := range 20 {
		lv = fmt.Sprint("a-", i)
		n.claim(lv, 16*mib)
		p = pod("web-"+lv, lv)
		child, ok := n.midway("waitforattach", "loop-create", func() { n.want(p) })
		if ok && host.Stop(child) {
			if _, err := os.Lstat(n.vg + "/" + lv); os.IsNotExist(err) {
				return lv, p, child
			}
		}
		if ok {
			syscall.Kill(child, syscall.SIGCONT)
			n.thaw()
		}
		n.started(p)
		n.end(p)
	}
	n.t.Fatal("flexd was always too quick")
	return "", nil, 0
}
