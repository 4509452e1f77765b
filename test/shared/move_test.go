//go:build vm

package shared

import (
	"testing"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/shared/nodes"
)

var web = host.Pod{Namespace: "default", Name: "web", UID: "uid-1"}

// move is a volume that a pod on A has made and written; the same pod on B gets it when A has
// unmounted it, and not before.
func move(t *testing.T, a, b *nodes.Node) {
	v := nodes.Volume("move", "64m")
	a.SetUp(web, v)
	a.Sh("echo data >" + a.At.PodDir(web, v) + "/file")
	b.Refused("lvchange -aey svg/move", "locked by other host")
	moved := make(chan []string)
	go func() { moved <- b.SetUp(web, v) }()
	a.TearDown(web, v)
	t.Logf("refused %q", <-moved)
	if got := b.Sh("cat " + b.At.PodDir(web, v) + "/file"); got != "data\n" {
		t.Errorf("the file has %q", got)
	}
	if got := a.Active(); len(got) != 0 {
		t.Errorf("A still has %v", got)
	}
	b.TearDown(web, v)
}
