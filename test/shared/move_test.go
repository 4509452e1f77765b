//go:build vm

package shared

import (
	"testing"
	"time"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/shared/nodes"
)

var web = host.Pod{Namespace: "default", Name: "web", UID: "uid-1"}

// move is a volume that a pod on A has made and written. The same pod on B waits for it, and gets
// it when A has unmounted it.
func move(t *testing.T, a, b *nodes.Node) {
	v := nodes.Volume("move", "64m")
	a.SetUp(web, v)
	a.Sh("echo data >" + a.At.PodDir(web, v) + "/file")
	moved := make(chan []string)
	go func() { moved <- b.SetUp(web, v) }()
	a.TearDown(web, v)
	t.Logf("B was refused: %q", <-moved)
	if got := b.Sh("cat " + b.At.PodDir(web, v) + "/file"); got != "data\n" {
		t.Errorf("the file has %q", got)
	}
	if got := a.Active(); len(got) != 0 {
		t.Errorf("A still has %v", got)
	}
	b.TearDown(web, v)
}

// elsewhere is what A changes, and B sees: a volume that grows, and others that are made, renamed
// and removed.
func elsewhere(t *testing.T, a, b *nodes.Node) {
	grows := nodes.Volume("grows", "64m")
	b.SetUp(web, grows)
	b.TearDown(web, grows)
	a.SetUp(web, grows)
	a.Sh("lvextend -q -L 128m svg/grows; lvcreate -q -an -L 32m -n made svg")
	a.TearDown(web, grows)
	b.SetUp(web, grows)
	if got := b.Sh("blockdev --getsize64 /dev/svg/grows"); got != "134217728\n" {
		t.Errorf("the volume that has grown has %s", got)
	}
	b.TearDown(web, grows)

	b.SetUp(web, nodes.Volume("made", ""))
	b.Sh("echo data >" + b.At.PodDir(web, nodes.Volume("made", "")) + "/file")
	unused(b, web, nodes.Volume("made", ""))
	a.Sh("lvrename -q svg/made svg/renamed")
	missing(t, b, "made")
	b.SetUp(web, nodes.Volume("renamed", ""))
	if got := b.Sh("cat " + b.At.PodDir(web, nodes.Volume("renamed", "")) + "/file"); got != "data\n" {
		t.Errorf("the file has %q", got)
	}
	unused(b, web, nodes.Volume("renamed", ""))
	a.Sh("lvremove -q -y svg/renamed")
	missing(t, b, "renamed")
}

// missing is a call for a volume that another node has taken away.
func missing(t *testing.T, n *nodes.Node, lv string) {
	t.Helper()
	if got, err := n.Mount(t.Context(), web, nodes.Volume(lv, "")); err != nil || got.Code != "not-found" {
		t.Errorf("%s: %+v %v", lv, got, err)
	}
}

// eventually waits for something.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is() && !t.Failed(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("never: %s", what)
		}
	}
}
