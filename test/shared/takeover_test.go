//go:build vm

package shared

import (
	"context"
	"testing"
	"time"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/shared/nodes"
)

// killed is A's flexd, killed while a pod writes: B does not get the volume, and the next flexd lets
// it go.
func killed(t *testing.T, a, b *nodes.Node) {
	v := nodes.Volume("killed", "64m")
	a.SetUp(web, v)
	write(a, v)
	a.Sh("kill -9 $(pidof -s flexd)")
	b.Refused("lvchange -aey svg/killed", "locked by other host")
	a.Serve()
	a.Sh("kill $(cat /run/writer)")
	a.TearDown(web, v)
	b.SetUp(web, v)
	b.TearDown(web, v)

	// Killed during the creation.
	v = nodes.Volume("creation", "16m")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = a.Mount(ctx, web, v)
	}()
	a.Sh("for n in $(seq 1000); do ! pgrep -f '^lvm lvcreate' >/dev/null || { kill -9 $(pidof -s flexd); exit 0; }; sleep 0.02; done; exit 1")
	cancel()
	<-ended
	a.Sh("while pgrep -f '^lvm lvcreate' >/dev/null; do sleep 0.1; done; pkill -x flexdriver; dmsetup info svg-creation")
	a.Serve()
	b.SetUp(web, v)
	mounted(t, b, web, v)
	b.TearDown(web, v)
}

// write starts a process that writes to a volume until it is killed.
func write(n *nodes.Node, v host.Volume) {
	n.T.Helper()
	n.Sh("f=" + n.At.PodDir(web, v) + `/busy
		(while :; do dd if=/dev/urandom of=$f bs=4k count=500 oflag=dsync conv=notrunc; done) </dev/null >/dev/null 2>&1 &
		echo $! >/run/writer
		for n in $(seq 600); do [ ! -s $f ] || exit 0; sleep 0.1; done; exit 1`)
}

// TestPause has two nodes, of which one is off after it.
func TestPause(t *testing.T) {
	two := start(t, nodes.Settings{Nodes: 2})
	nodes.Together(two, func(n *nodes.Node) {
		n.Install("")
		n.Serve()
	})
	pause(t, two[0], two[1])
}

// pause is a node that stops for longer than its lease, while a pod writes without a pause: B gets
// the volume, and when A goes on, its watchdog resets it before anything is written.
func pause(t *testing.T, a, b *nodes.Node) {
	v := nodes.Volume("pause", "64m")
	a.SetUp(web, v)
	a.Sh("cp /etc/services " + a.At.PodDir(web, v) + "/kept && sync")
	write(a, v)
	if err := a.Pause(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	failures := b.SetUp(web, v)
	t.Logf("B has the volume after %.0f s, and after %q", time.Since(began).Seconds(), failures)
	at := b.At.PodDir(web, v)
	b.Sh("cmp /etc/services " + at + "/kept && echo here >" + at + "/new && sync && fsfreeze -f " + at)
	const sum = "dd if=/dev/svg/pause bs=1M iflag=direct status=none | sha256sum"
	before := b.Sh(sum)
	if err := a.Continue(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.Gone():
	case <-time.After(2 * time.Minute):
		t.Error("A runs on")
	}
	if after := b.Sh(sum); after != before {
		t.Error("A wrote after B had taken the volume over")
	}
	b.Sh("fsfreeze -u " + at)
	b.TearDown(web, v)
}
