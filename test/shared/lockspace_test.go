//go:build vm

package shared

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/lockspace"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
	"github.com/flexd/flexd/test/shared/nodes"
)

// A view is what the package lockspace says on a node.
type view struct {
	Waits  []string // the errors until it was ready or failed
	Failed string
	Status lockspace.Status
	Holder *volume.Holder // of the volume that was asked for
}

// inside runs in a machine: as the package's child, or to print a view of the group and of
// the holder of a volume.
func inside(args []string) {
	if len(args) == 3 && args[0] == "child" {
		if code, ok := lockspace.Child(args[1], []byte(args[2])); ok {
			os.Exit(code)
		}
	}
	if len(args) == 0 || args[0] != "view" {
		return
	}
	ctx := context.Background()
	m := lockspace.New(lockspace.Options{Runner: run.NewExec(), LockDir: "/run"})
	var v view
	for {
		err := m.Ready(ctx, nodes.Group)
		if errors.As(err, new(*volume.WaitError)) {
			v.Waits = slices.Compact(append(v.Waits, err.Error()))
			time.Sleep(time.Second)
			continue
		}
		if err != nil {
			v.Failed = err.Error()
		}
		break
	}
	v.Status = m.Status(nodes.Group)
	if len(args) == 3 {
		var err error
		if v.Holder, err = m.Holder(ctx, nodes.Group, lockspace.LV{UUID: volume.UUID(args[1]), LockArgs: args[2]}); err != nil {
			v.Failed = err.Error()
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(v)
	os.Exit(0)
}

// viewOf returns what the package says on a node.
func viewOf(t *testing.T, n *nodes.Node, args string) (v view) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(n.Sh(self+" view "+args)), &v); err != nil {
		t.Errorf("%v", err)
	}
	return v
}

// locks is about the lock managers of a node: who holds a lock, a lockspace that was
// stopped, and an lvmlockd that was killed.
func locks(t *testing.T, a, b *nodes.Node) {
	a.Sh("lvcreate -q -an -L 16M -n locks svg && lvchange -aey svg/locks")
	lv := strings.TrimSpace(a.Sh("lvs --noheadings -o lv_uuid,lv_lockargs svg/locks"))
	v := viewOf(t, b, lv)
	if v.Status.State != lockspace.Started || v.Status.HostID != 2 || v.Status.HostName != "node-2" || v.Status.Watchdog != "live" {
		t.Errorf("%+v", v)
	}
	if h := v.Holder; h == nil || h.HostID != 1 || h.Host != "node-1" || h.State != "live" || !h.FreeAt.IsZero() {
		t.Errorf("the holder is %+v, %s", h, v.Failed)
	}
	if v := viewOf(t, a, lv); v.Holder != nil || v.Failed != "" {
		t.Errorf("on its own node: %+v", v)
	}
	a.Sh("lvchange -an svg/locks")
	if v := viewOf(t, b, lv); v.Holder != nil || v.Failed != "" {
		t.Errorf("of a free volume: %+v", v)
	}

	// flexd may still deactivate the volume of the test before.
	b.Sh("for i in $(seq 300); do dmsetup ls | grep -v lvmlock | grep -q ^svg- || break; sleep 0.1; done; vgchange --lockstop svg")
	// lvmlockd may still be stopping the lockspace when vgchange returns.
	if v := viewOf(t, b, ""); v.Status.State != lockspace.Started || !strings.Contains(strings.Join(v.Waits, "\n"), "has been starting since") || v.Status.Versions.Lvmlockd == "" {
		t.Errorf("after a stop: %+v", v)
	}

	restart := b.Sh("pid=$(pidof lvmlockd); args=$(tr '\\0' ' ' </proc/$pid/cmdline | sed 's/--adopt 1//'); kill -9 $pid; sleep 1; echo $args; $args")
	v = viewOf(t, b, "")
	remedy := regexp.MustCompile(`sanlock client rem_lockspace -s \S+`).FindString(v.Failed)
	if !strings.Contains(v.Failed, "lvmlockd was restarted") || remedy == "" {
		t.Fatalf("after a restart with %s: %+v", restart, v)
	}
	b.Sh(remedy)
	if v := viewOf(t, b, ""); v.Status.State != lockspace.Started {
		t.Errorf("after %s: %+v", remedy, v)
	}
	b.Sh("lvchange -aey svg/locks && lvchange -an svg/locks && lvremove -q -y svg/locks")

}
