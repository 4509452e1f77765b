//go:build vm

package shared

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/shared/nodes"
)

var db = host.Pod{Namespace: "default", Name: "db", UID: "uid-2"}

// says waits until flexd's command prints these words.
func says(t *testing.T, n *nodes.Node, command string, words ...string) string {
	t.Helper()
	said := ""
	eventually(t, command+" says "+strings.Join(words, ", "), func() bool {
		r, err := n.Run(t.Context(), "bash", "-c", n.At.Flexd()+" "+command)
		said = r.Stdout + r.Stderr
		for _, w := range words {
			if err != nil || !strings.Contains(said, w) {
				return false
			}
		}
		return true
	})
	if t.Failed() {
		t.Logf("it says: %s", said)
	}
	return said
}

func socket(n *nodes.Node) string { return " --socket " + n.At.StatusSocket() + " " }

// lvmlockd is killed while A has a volume mounted: A does not deactivate it before the next
// lvmlockd has taken its lock over, and then B gets it.
func lvmlockd(t *testing.T, a, b *nodes.Node) {
	v, other := nodes.Volume("lockd", "32m"), nodes.Volume("lockd2", "32m")
	moves := func(what string) {
		t.Helper()
		eventually(t, what+": A lets its volume go", func() bool { return len(a.Active()) == 0 })
		released(a, v)
		b.Sh("lvchange -aey svg/lockd && lvchange -an svg/lockd")
	}
	a.SetUp(web, v)
	a.Sh("echo data >" + a.At.PodDir(web, v) + "/file; kill -9 $(pidof lvmlockd)")
	b.Refused("lvchange -aey svg/lockd", "locked by other host")
	if got, err := a.Mount(t.Context(), db, other); err != nil || !strings.Contains(got.Message, ": systemctl start lvmlockd") {
		t.Errorf("without lvmlockd: %+v %v", got, err)
	}
	a.TearDown(web, v)
	says(t, a, "status"+socket(a)+"svg/lockd", "it stays active until its lock can be released", "systemctl start lvmlockd")
	says(t, a, "check"+socket(a), "locks-unavailable", "lvmlockd does not run")
	says(t, a, "doctor --config "+a.At.Config(), "lvmlockd does not run")
	a.Sh("vm-lockd 1 2")
	moves("adopted")

	// One that runs without --adopt: its file is written by hand.
	a.SetUp(web, v)
	a.Sh("kill -9 $(pidof lvmlockd); rm /run/lvm/lvmlockd.adopt; lvmlockd -g sanlock -o 2; until lvmlockctl -i; do sleep 0.1; done")
	eventually(t, "calls fail because of the restart", func() bool { // the first one relies on what was seen a moment ago
		got, err := a.Mount(t.Context(), db, other)
		return err == nil && strings.Contains(got.Message, "lvmlockd was restarted, and sanlock still has the locks of the earlier one (1)")
	})
	a.Sh("kill $(pidof lvmlockd); while pidof lvmlockd; do sleep 0.1; done\n" + adoptFile(t) + "vm-lockd 1 2")
	a.TearDown(web, v)
	moves("adopted by a file of ours")

	// The lock of a volume without a device is not adopted.
	a.Sh("lvchange -aey svg/lockd && kill -9 $(pidof lvmlockd); dmsetup remove --retry svg-lockd; vm-lockd 1 2")
	if got, err := a.Mount(t.Context(), web, v); err != nil || !strings.Contains(got.Message, "(ORPHAN, flexd doctor names it)") {
		t.Errorf("with its lock left: %+v %v", got, err)
	}
	release := regexp.MustCompile(`sanlock client release -r \S+ -O 1 -p \$\(pidof lvmlockd\)`).FindString(says(t, a, "doctor --config "+a.At.Config(), "ORPHAN"))
	if _, err := a.Run(t.Context(), "bash", "-c", release); err != nil || release == "" {
		t.Errorf("%q: %v", release, err)
	}
	time.Sleep(time.Second)
	b.SetUp(web, v)
	if got := b.Sh("cat " + b.At.PodDir(web, v) + "/file"); got != "data\n" {
		t.Errorf("the file has %q", got)
	}
	b.TearDown(web, v)
}

// adoptFile returns the commands of docs/shared.md that write lvmlockd's file.
func adoptFile(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/shared.md")
	commands := regexp.MustCompile(`(?s)    \{ echo lvmlockd .*?/run/lvm/lvmlockd\.adopt\n`).Find(text)
	if err != nil || commands == nil {
		t.Fatalf("docs/shared.md does not write it: %v", err)
	}
	return string(commands)
}

// podManifest is of a pod with the volume idle.
const podManifest = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db", "namespace": "default"}, "spec": {"containers": [{"name": "c"}],
	"volumes": [{"name": "data", "flexVolume": {"driver": "flexd/lvm", "fsType": "ext4", "options": {"volumegroup": "svg", "volumeID": "idle"}}}]}}`

// TestSanlock has two nodes, of which one loses its sanlock while a pod writes: its watchdog resets
// it, and the other gets the volume after that. sanlock ends without wdmd, and that node is reset, too.
func TestSanlock(t *testing.T) {
	two := start(t, nodes.Settings{Nodes: 2})
	nodes.Together(two, func(n *nodes.Node) {
		n.Install("")
		n.Serve()
	})
	a, b := two[0], two[1]
	v, other := nodes.Volume("sanlock", "64m"), blank(a, "idle")
	a.SetUp(web, v)
	a.Sh("cp /etc/services " + a.At.PodDir(web, v) + "/kept && sync")
	write(a, v)
	a.Sh("pids=$(pidof sanlock); kill -9 $pids; for pid in $pids; do timeout 20 tail --pid=$pid -f /dev/null; done")
	began := time.Now()
	reset := make(chan time.Duration, 1)
	go func() { <-a.Gone(); reset <- time.Since(began) }()
	if got, err := a.Mount(t.Context(), db, other); err != nil || !strings.Contains(got.Message, "sanlock does not run: it ended while it held locks: the watchdog resets this node") {
		t.Errorf("without sanlock: %+v %v", got, err)
	}
	says(t, a, "check"+socket(a), "locks-unavailable", "sanlock does not run")
	says(t, a, "doctor --config "+a.At.Config(), "sanlock does not run")
	if err := a.Write(t.Context(), "/run/pod.json", podManifest); err != nil {
		t.Error(err)
	}
	says(t, a, "explain"+socket(a)+"--attach false /run/pod.json", "sanlock does not run")
	failures := b.SetUp(web, v)
	t.Logf("B has the volume after %.0f s, and after %q", time.Since(began).Seconds(), failures)
	select {
	case after := <-reset:
		t.Logf("A was reset after %.0f s", after.Seconds())
	default:
		t.Error("B has the volume, and A runs on")
	}
	b.Sh("cmp /etc/services " + b.At.PodDir(web, v) + "/kept")
	b.Sh("kill -9 $(pidof wdmd)")
	began = time.Now()
	says(t, b, "doctor --config "+b.At.Config(), "wdmd does not run")
	select {
	case <-b.Gone():
		t.Logf("B was reset %.0f s after wdmd was killed", time.Since(began).Seconds())
	case <-time.After(2 * time.Minute):
		t.Error("B runs on without wdmd")
	}
}
