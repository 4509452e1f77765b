//go:build vm

package shared

import (
	"context"
	"fmt"
	"strconv"
	"strings"
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
	a.Sh(`for n in $(seq 300); do lvcreate=$(pgrep -o -f '^lvm lvcreate') || break; sleep 0.1; done
		[ -z "$lvcreate" ] || { ps -eo pid,ppid,stat,etimes,args --ppid 2 -N; cat /proc/$lvcreate/stack; lvmlockctl -i; exit 1; }
		pkill -x flexdriver; dmsetup info svg-creation`)
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

// TestPause has two nodes whose time stops, and then two that stop while time goes on; one is off
// after it.
func TestPause(t *testing.T) {
	two := start(t, nodes.Settings{Nodes: 2})
	nodes.Together(two, func(n *nodes.Node) {
		n.Install("")
		n.Serve()
	})
	stop(t, two[0], two[1])
	pause(t, two[0], two[1])
}

// pause is a node that stops for longer than its lease, while a pod writes without a pause: B gets
// the volume, and when A goes on, its watchdog resets it before the pod writes again. The write that
// the machine had been given before is made then.
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
	const read = "dd if=/dev/svg/pause bs=1M iflag=direct status=none of=/run/pause"
	b.Sh(read)
	if err := a.Continue(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.Gone():
	case <-time.After(2 * time.Minute):
		t.Error("A runs on")
	}
	changed := b.Sh("mv /run/pause /run/before; " + read + "; cmp -l /run/before /run/pause | wc -l; rm /run/before /run/pause")
	if n, err := strconv.Atoi(strings.TrimSpace(changed)); err != nil || n > 8<<10 { // a block of data, and one of the journal
		t.Errorf("A wrote %s bytes after B had taken the volume over", changed)
	}
	b.Sh("fsfreeze -u " + at)
	b.TearDown(web, v)
}

// stop is a node whose time stops for longer than its lease, which neither sanlock nor a watchdog
// notices: B gets two of its three volumes. A fences these when it goes on, and writes to neither after that:
// not to one that is written without a pause, and not what was cached of the other.
func stop(t *testing.T, a, b *nodes.Node) {
	busy, cached, kept, other := nodes.Volume("busy", "64m"), nodes.Volume("cached", "64m"), nodes.Volume("kept", "16m"), host.Pod{Namespace: "default", Name: "other", UID: "uid-3"}
	a.SetUp(web, busy)
	a.SetUp(web, cached)
	a.SetUp(other, kept)
	write(a, busy)
	a.Sh("sync; seq 1000000 >" + a.At.PodDir(web, cached) + "/never")
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	b.SetUp(web, busy)
	b.SetUp(web, cached)
	t.Logf("B has the volumes after %.0f s", time.Since(began).Seconds())
	sum := func(v host.Volume) string {
		return b.Sh("dd if=/dev/svg/" + v.Options["volumeID"] + " bs=1M iflag=direct status=none | sha256sum")
	}
	for _, v := range []host.Volume{busy, cached} {
		b.Sh("sync; fsfreeze -f " + b.At.PodDir(web, v))
	}
	if err := a.Resume(); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	// On a slow machine the first attempt may fail, as its message says.
	a.Sh("for n in $(seq 600); do [ $(grep -c 'took over its lock.*reads and writes fail now' /run/flexd.log) != 2 ] || exit 0; sleep 0.1; done; exit 1")
	t.Logf("A has fenced them after %.1f s", time.Since(began).Seconds())
	before := map[string]string{"busy": sum(busy), "cached": sum(cached)}
	a.Sh("kill $(cat /run/writer); sync; echo more >" + a.At.PodDir(other, kept) + "/more && sync")
	if got := a.Flexd("check", "||", "true"); strings.Count(got, "lock-taken") != 2 || strings.Contains(got, "stale-mapping") || strings.Contains(got, "kept") {
		t.Error(got)
	}
	a.TearDown(web, busy)
	a.TearDown(web, cached)
	a.TearDown(other, kept)
	for name, then := range before {
		if now := sum(nodes.Volume(name, "")); now != then {
			t.Errorf("A wrote to %s after it had fenced it:\n%s", name, a.Sh("grep 'took over its lock' /run/flexd.log"))
		}
	}
	if got := a.Flexd("check"); strings.Contains(got, "lock-taken") {
		t.Error(got)
	}
	for _, v := range []host.Volume{busy, cached} {
		b.Sh("fsfreeze -u " + b.At.PodDir(web, v))
		unused(b, web, v)
		// What A wrote before the fence may have damaged it: on a slow machine the cached data, too.
		b.Sh(fmt.Sprintf("lvchange -aey svg/%[1]s && { e2fsck -fy /dev/svg/%[1]s || [ $? -lt 4 ]; } && lvchange -an svg/%[1]s", v.Options["volumeID"]))
		a.SetUp(web, v)
		a.TearDown(web, v)
	}
}
