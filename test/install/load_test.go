package install

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/server"
	"github.com/sirupsen/logrus"
)

// slow is a flexd that takes a moment for each call.
type slow time.Duration

func (s slow) Serve(ctx context.Context, r flexvolume.Request, _ server.Peer) flexvolume.Answer {
	select {
	case <-time.After(time.Duration(s)):
	case <-ctx.Done():
	}
	return flexvolume.Success()
}

// serve is a flexd until stop.
func serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&server.Driver{Listener: l, Handler: slow(100 * time.Millisecond), Log: logrus.NewEntry(log)}).Serve(ctx)
	}()
	return func() { cancel(); <-ended }
}

// Upgrades under a storm of calls, with flexd restarted at each: no call fails,
// and each upgrade is one init.
func TestUpgradeUnderLoad(t *testing.T) {
	n := newNode(t)
	socket := filepath.Join(t.TempDir(), "driver.sock")
	stop := serve(t, socket)
	n.driver(one)
	p := startProber(t, n.plugins())

	var calls atomic.Int64
	var all sync.WaitGroup
	ctx, enough := context.WithCancel(context.Background())
	for _, call := range [][]string{
		{"init"}, {"getvolumename", "{}"}, {"attach", "{}", "node-1"},
		{"mount", "/pods/a", "{}"}, {"unmount", "/pods/a"}, {"waitforattach", "", "{}"},
	} {
		all.Go(func() {
			for ctx.Err() == nil {
				c := exec.Command(n.exe(), call...)
				c.Env = append(os.Environ(), "FLEXD_SOCKET="+socket)
				out, err := c.CombinedOutput()
				want := `{"status":"Success"`
				if call[0] == "getvolumename" {
					want = `{"status":"Not supported"}`
				}
				if err != nil || !strings.HasPrefix(string(out), want) {
					t.Errorf("%v: %v: %q", call, err, out)
				}
				calls.Add(1)
			}
		})
	}
	const upgrades = 10
	for i := range upgrades {
		stop() // calls that wait lose their flexd, and ask the next one
		n.driver([]string{two, one}[i%2])
		stop = serve(t, socket)
		time.Sleep(120 * time.Millisecond)
		if inits := p.settled(1); len(inits) != 1 {
			t.Errorf("upgrade %d: init was asked %d times: %q", i, len(inits), inits)
		}
	}
	enough()
	all.Wait()
	stop()
	n.installed(one, "false")
	t.Logf("%d calls during %d upgrades", calls.Load(), upgrades)
	if calls.Load() < 20*upgrades || p.failures() > 0 {
		t.Errorf("%d calls during %d upgrades; %d look-ups failed", calls.Load(), upgrades, p.failures())
	}
}
