//go:build vm

package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexd/flexd/test/shared/nodes"
)

// A guest is a node in a virtual machine, with a shared volume group.
type guest struct {
	*nodes.Node
	exe string
}

// TestShared has two nodes with one disk, in virtual machines without a network; the control plane is
// outside. The attach-detach controller does not know the locks of the volume group, and may attach too
// early: still the nodes never write at the same time.
func TestShared(t *testing.T) {
	t.Setenv("FLEXD_TEST_GRACE", "30s") // an emulated kubelet may be late
	var api atomic.Pointer[plane]       // of the current cluster
	a, b := bootGuests(t, forward(&http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", api.Load().dir+"/api.sock")
	}}))
	for _, m := range []mode{attachFalse, attachTrue} {
		ok := t.Run(string(m), func(t *testing.T) {
			c := newCluster(t, m)
			api.Store(c.plane)
			a, b := &guest{a.For(t), a.exe}, &guest{b.For(t), b.exe}
			both(func(n *guest) { n.startKubelet(c) }, a, b)
			defer both((*guest).killKubelet, a, b)
			c.registered(a.Name)
			c.registered(b.Name)
			c.claim("data-db-0", []string{a.Name, b.Name}, func(pv *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) {
				pv.Spec.FlexVolume.Options["volumegroup"] = nodes.Group
			})
			sharedMove(c, a, b)
			sharedTwoPods(c, a, b)
			sharedKubeletGone(c, a, b)
			last := b
			if m == attachTrue {
				sharedNodeGone(c, b, a)
				last = a
			}
			c.statefulSet("db", 0)
			c.ended("db-0")
			last.quiet(c)
		})
		if !ok {
			break
		}
	}
}

// sharedMove moves a pod from one node to the other.
func sharedMove(c *cluster, a, b *guest) {
	c.cordon(b.Name, true)
	began := time.Now()
	c.statefulSet("db", 1)
	p := c.running("db-0")
	c.t.Logf("the first pod runs after %.1f s", time.Since(began).Seconds())
	a.write(p, "from A")
	c.cordon(b.Name, false)
	c.cordon(a.Name, true)
	began = time.Now()
	c.moveAway(p)
	c.t.Logf("it has gone after %.1f s", time.Since(began).Seconds())
	q := c.running("db-0")
	c.t.Logf("its successor runs after %.1f s; the calls on %s:%s\nand on %s:%s", time.Since(began).Seconds(), a.Name, a.callsSince(began), b.Name, b.callsSince(began))
	b.reads(q, "from A")
	b.write(q, "from B")
}

// sharedTwoPods starts a second pod with the volume on the node that does not have it.
func sharedTwoPods(c *cluster, a, b *guest) {
	c.runOn(a.Name, "second", "data-db-0")
	reason, text := "FailedMount", "host "+b.Name
	if c.mode == attachTrue {
		reason, text = "FailedAttachVolume", "Multi-Attach error"
	}
	c.t.Log(c.warned("second", reason, text))
	if active := a.Active(); len(active) > 0 {
		c.t.Errorf("%s has %v active", a.Name, active)
	}
	began := time.Now()
	c.statefulSet("db", 0)
	c.ended("db-0")
	c.t.Logf("the first pod has gone after %.1f s", time.Since(began).Seconds())
	p := c.running("second")
	c.t.Logf("the second pod runs after %.1f s", time.Since(began).Seconds())
	a.reads(p, "from B")
	c.end("second")
	c.cordon(a.Name, false)
	a.quiet(c)
	b.quiet(c)
}

// sharedKubeletGone kills only the kubelet of a node while its pod writes: the cluster considers the node
// dead, and the other node does not get the volume before kubelet returns and unmounts it.
func sharedKubeletGone(c *cluster, a, b *guest) {
	c.cordon(b.Name, true)
	c.statefulSet("db", 1)
	p := c.running("db-0")
	a.write(p, "before")
	a.Sh("f=" + dirIn(p) + `/busy
		(while :; do dd if=/dev/urandom of=$f bs=4k count=100 oflag=dsync conv=notrunc; sleep 0.2; done) </dev/null >/dev/null 2>&1 & echo $! >/run/writer`)
	a.killKubelet()
	c.cordon(b.Name, false)
	c.cordon(a.Name, true)
	c.notReady(a.Name)
	began := time.Now()
	if c.mode == attachTrue { // and the controller detaches by force after a while
		now := int64(0)
		c.must(c.api.CoreV1().Pods("default").Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	} else {
		c.outOfService(a.Name, true)
	}
	c.moved(p)
	c.detached(a.Name)
	c.t.Logf("the volume is not attached after %.1f s", time.Since(began).Seconds())
	c.t.Log(c.warned("db-0", "FailedMount", "host "+a.Name))
	if active := b.Active(); len(active) > 0 {
		c.t.Errorf("%s has %v active", b.Name, active)
	}
	a.Sh("kill -0 $(cat /run/writer); touch " + dirIn(p) + "/still")

	began = time.Now()
	a.startKubelet(c)
	a.Sh("kill $(cat /run/writer)") // kubelet ends what it finds
	q := c.running("db-0")
	c.t.Logf("after kubelet's return the pod runs on %s in %.1f s; the calls on %s:%s\nand on %s:%s", b.Name, time.Since(began).Seconds(),
		a.Name, a.callsSince(began), b.Name, b.callsSince(began))
	if q.Spec.NodeName != b.Name {
		c.t.Errorf("the pod is on %s", q.Spec.NodeName)
	}
	b.reads(q, "before")
	b.Sh("test -e " + dirIn(q) + "/still")
	c.outOfService(a.Name, false)
	c.cordon(a.Name, false)
	c.registered(a.Name)
	a.quiet(c)
}

// sharedNodeGone cuts the power of the node with the pod.
func sharedNodeGone(c *cluster, a, b *guest) {
	p := c.running("db-0")
	a.write(p, "last")
	a.Sh("sync")
	a.Kill()
	died := time.Now()
	c.notReady(a.Name)
	c.outOfService(a.Name, true)
	c.moved(p)
	c.detached(a.Name)
	c.t.Logf("detached by force %.1f s after the death", time.Since(died).Seconds())
	q := c.running("db-0")
	took := time.Since(died)
	c.t.Logf("the pod runs %.1f s after the death; the calls:%s", took.Seconds(), b.callsSince(died))
	if took < time.Minute {
		c.t.Errorf("%s has the volume %v after the death of %s: its watchdog had not reset it", b.Name, took, a.Name)
	}
	b.reads(q, "last")
}

// bootGuests boots the two nodes, with flexd and without kubelet.
func bootGuests(t *testing.T, api http.Handler) (a, b *guest) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	all := nodes.New(t, t.TempDir(), nodes.Settings{Nodes: 2, Bin: built, Options: []string{"-m", "2048"}, Ports: []string{apiPort}})
	t.Cleanup(func() {
		nodes.Together(all, func(n *nodes.Node) {
			if t.Failed() {
				n.Report()
			}
			n.Kill()
		})
	})
	if !t.Failed() {
		nodes.Together(all, func(n *nodes.Node) {
			n.Install("callDeadline: 30s\n") // kubelet makes an event of each call that fails
			n.Serve()
			port, err := n.Dial(apiPort)
			if err != nil {
				t.Error(err)
				return
			}
			go serveWire(port, api)
			n.Sh("mkdir -p /srv/node/logs && mkfifo /run/never && " + (&guest{n, exe}).role("guest", "/run/guest.log"))
			for end := time.Now().Add(soon); ; time.Sleep(time.Second) {
				if _, err := n.Try("grep -q ready /run/guest.log"); err == nil || time.Now().After(end) {
					if err != nil {
						t.Errorf("%v: %s", err, n.Sh("cat /run/guest.log"))
					}
					break
				}
			}
		})
	}
	if t.Failed() {
		t.FailNow()
	}
	return &guest{all[0], exe}, &guest{all[1], exe}
}

// role returns a shell command that starts this executable in a role, with environment variables.
func (n *guest) role(what, log string, env ...string) string {
	return fmt.Sprintf("%s=%s %s=%s %s setsid %s <>/run/never >>%s 2>&1 &", role, what, place, n.At.Dir, strings.Join(env, " "), n.exe, log)
}

func both(do func(*guest), all ...*guest) {
	var wg sync.WaitGroup
	for _, n := range all {
		wg.Go(func() { do(n) })
	}
	wg.Wait()
}

func (n *guest) startKubelet(c *cluster) {
	n.T.Helper()
	n.Sh(fmt.Sprintf(`echo '{"attach": %t, "supportsMetrics": true}' >%s/.lvm.init.json; `, c.mode == attachTrue, filepath.Dir(n.At.Driver)) +
		n.role("kubelet", "/run/kubelet.log", nodeName+"="+n.Name, apiDir+"="+n.At.Dir, callsFile+"=/run/calls", "FLEXD_SOCKET="+n.At.DriverSocket()) +
		" echo $! >/run/kubelet.pid")
}

func (n *guest) killKubelet() {
	n.T.Helper()
	if !n.Off() {
		n.Sh("kill -9 $(cat /run/kubelet.pid)")
	}
}

// dirIn returns the directory of a pod's claim in its machine.
func dirIn(p *v1.Pod) string {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return "/srv/node/kubelet/pods/" + string(p.UID) + "/volumes/flexd~lvm/pv-" + v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// write and reads are the container's.

func (n *guest) write(p *v1.Pod, text string) {
	n.T.Helper()
	if p.Spec.NodeName != n.Name {
		n.T.Errorf("%s is on %s, want %s", p.Name, p.Spec.NodeName, n.Name)
	}
	n.Sh("mountpoint -q " + dirIn(p) + " && echo '" + text + "' >" + dirIn(p) + "/data")
}

func (n *guest) reads(p *v1.Pod, want string) {
	n.T.Helper()
	if got := strings.TrimSpace(n.Sh("cat " + dirIn(p) + "/data")); got != want || p.Spec.NodeName != n.Name {
		n.T.Errorf("%s on %s reads %q, want %q on %s", p.Name, p.Spec.NodeName, got, want, n.Name)
	}
}

// callsSince returns the ends of kubelet's calls of the driver since t.
func (n *guest) callsSince(t time.Time) string {
	var s strings.Builder
	if now, err := strconv.ParseFloat(strings.TrimSpace(n.Sh("date +%s.%N")), 64); err == nil { // its clock
		t = t.Add(-time.Since(time.UnixMicro(int64(now * 1e6))))
	}
	for _, k := range parseCalls([]byte(n.Sh("cat /run/calls"))) {
		if k.At.Add(k.Took).After(t) && k.verb() != "getvolumename" {
			fmt.Fprintf(&s, "\n  %5.1f s, took %4.1f s: %s: %s", k.At.Sub(t).Seconds(), k.Took.Seconds(), k.verb(), k.Answer)
		}
	}
	return s.String()
}

// left returns the remains of volumes on the node.
func (n *guest) left() string {
	return strings.TrimSpace(n.Sh("grep -o '[^ ]*flexd~lvm/[^ ]*' /proc/self/mountinfo; dmsetup ls | grep -v 'svg-lvmlock\\|^shared'; ls " + n.At.Root + "/pods"))
}

// quiet waits until nothing remains of any pod on the node, and in the API.
func (n *guest) quiet(c *cluster) {
	c.t.Helper()
	c.eventually("nothing is left on "+n.Name, func() string {
		if a, u := c.attached(n.Name); len(a)+len(u) > 0 {
			return fmt.Sprintf("attached %v, in use %v", a, u)
		}
		return n.left()
	})
}
