//go:build vm

package shared

import (
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/shared/nodes"
)

// killCommand makes LVM run flexd when the locks of a group are lost. Pods have a control group
// as long as they run: see runs.
const (
	killCommand = `echo 'global { lvmlockctl_kill_command="/srv/node/bin/flexd lockspace-lost" }' >>/etc/lvm/lvmlocal.conf`
	cgroups     = "cgroupDir: /srv/node/cgroup\n"
)

// runs makes kubelet's control group of a pod, with a process in it or without.
func runs(n *nodes.Node, p host.Pod, populated string) {
	n.Sh("set -e; d=/srv/node/cgroup/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(p.UID, "-", "_") + ".slice; mkdir -p $d; " +
		"touch /srv/node/cgroup/cgroup.procs; echo usage_usec 1000 >$d/cpu.stat; printf 'populated " + populated + "\\nfrozen 0\\n' >$d/cgroup.events")
}

// losing is two nodes whose disk does not answer any more. One has a volume that no pod uses:
// flexd unmounts and deactivates it, LVM drops the locks, and the node stays up. The pod of the
// other runs, and it formats one more volume: the watchdog resets that node, and the first takes its
// volumes over.
func losing(t *testing.T, idle, busy *nodes.Node) {
	unused, used := nodes.Volume("unused", "64m"), nodes.Volume("used", "64m")
	idle.SetUp(web, unused)
	runs(idle, web, "0")
	busy.SetUp(db, used)
	runs(busy, db, "1")
	dir := busy.At.PodDir(db, used)
	busy.Sh("echo data >" + dir + "/file && sync; cd " + dir + " && setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
	then := interrupted(t, busy)
	begun := time.Now()
	idle.Lose()
	busy.Hang()

	for idle.Sh("lvmlockctl -i") != "" && time.Since(begun) < time.Minute {
		time.Sleep(time.Second)
	}
	t.Logf("the locks were dropped after %.0f s", time.Since(begun).Seconds())
	if got := idle.Active(); len(got) != 0 {
		t.Errorf("%v is active", got)
	}
	if got := idle.Flexd("events"); !strings.Contains(got, "found locks-lost") { // status may show already that it is over
		t.Errorf("events: %s", got)
	}
	t.Log(busy.Sh("cat /run/flexd.log | grep locks"))
	idle.Find()
	reset := make(chan time.Duration, 1)
	go func() { <-busy.Gone(); reset <- time.Since(begun) }()
	failures := idle.SetUp(db, used)
	t.Logf("its volume was taken over after %.0f s; %q", time.Since(begun).Seconds(), failures)
	select {
	case after := <-reset:
		t.Logf("the busy node was reset after %.0f s", after.Seconds())
	default:
		t.Fatal("the busy node was not reset before")
	}
	if got := idle.Sh("cat " + idle.At.PodDir(db, used) + "/file"); got != "data\n" {
		t.Errorf("the file has %q", got)
	}
	then(idle)
	idle.TearDown(web, unused) // kubelet has not heard of the unmount
	idle.TearDown(db, used)
	t.Log(idle.Flexd("events"))
}
