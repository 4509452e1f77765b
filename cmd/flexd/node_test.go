package main

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/history"
	"github.com/flexd/flexd/internal/server"
)

// The node runs with all that it listens to, and ends with its context.
func TestNodeRuns(t *testing.T) {
	dir := t.TempDir()
	cfg := config.Default()
	cfg.NodeName, cfg.RunDir, cfg.StateDir, cfg.KubeletRoots = "node-1", dir+"/run", dir+"/state", []string{dir + "/kubelet"}
	cfg.VolumeGroups = []config.VolumeGroup{{Name: "vg0", Provider: "loopdev", Directory: dir + "/vg0", Volumes: []string{"*"}, Namespaces: []string{"*"}}}
	for _, d := range []string{cfg.RunDir, cfg.StateDir, cfg.KubeletRoots[0], dir + "/vg0"} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	n, tasks, err := newNode(config.NewLive(cfg), logrus.NewEntry(log), history.Open("", 0, logrus.NewEntry(log)), func() string { return "a problem" })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- runTasks(ctx, logrus.NewEntry(log), n.Ready(), func() string { return found(n.List(), n.Mounted()) }, tasks)
	}()
	select {
	case <-n.Ready():
	case err := <-ended:
		t.Fatalf("ended at once: %v", err)
	case <-time.After(30 * time.Second):
		t.Fatal("not ready")
	}
	n.Serve(ctx, flexvolume.Request{ID: "c1", Verb: "mount"}, server.Peer{})
	var text strings.Builder
	if err := n.WriteMetrics(&text); err != nil {
		t.Error(err)
	}
	for _, want := range []string{`flexd_call_duration_seconds_count{verb="mount",code="invalid"} 1`, "flexd_calls_in_flight 0", "flexd_problems 1"} {
		if !strings.Contains(text.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, &text)
		}
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it does not end")
	}
}
