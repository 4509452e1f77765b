package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/audit"
	"github.com/flexd/flexd/internal/boottime"
	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/flexserve"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/history"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/metrics"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/procfs"
	"github.com/flexd/flexd/internal/reconcile"
	children "github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/server"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/udev"
	"github.com/flexd/flexd/internal/volume"
)

// newNode connects the packages; no other code uses them all. It returns the daemon with
// its background tasks. Each of problems returns one for the status, or "".
func newNode(live *config.Live, log *logrus.Entry, past *history.Log, problems ...func() string) (served, []task, error) {
	cfg := live.Get()
	boot, err := procfs.BootID() // notes of another one are about mounts that are gone
	if err != nil {
		return served{}, nil, err
	}
	store, err := dsw.Open(filepath.Join(cfg.RunDir, "notes"), boot)
	if err != nil {
		return served{}, nil, err
	}
	records, err := dsw.OpenRecords(filepath.Join(cfg.StateDir, "formats"), boot, boottime.Now)
	if err != nil {
		return served{}, nil, err
	}
	if err := records.LinkDevices(udev.Links(cfg.StateDir), lvm.DeviceUUID); err != nil {
		log.WithError(err).Warn("udev's rule does not see all format records")
	}
	mounts, err := asw.OpenMountinfo()
	if err != nil {
		return served{}, nil, err
	}
	self, err := flexserve.OwnNamespaces()
	if err != nil {
		return served{}, nil, err
	}
	runner := children.NewExec()
	measured := metrics.New(live, version, flexserve.Verbs, audit.Classes())
	locks := newLocks(live, measured.Commands(runner), filepath.Join(cfg.RunDir, "lanes"))
	providers := providers(live, measured.Commands(runner), locks)
	locks.Words = providers.lvm.Words
	for _, vg := range cfg.VolumeGroups {
		if vg.Shared {
			locks.Start(vg.Name)
		}
	}
	providers.lvm.Waited = measured.GroupWait
	providers.lvm.Lost = func(vg string) bool { why, _ := locks.LostReason(vg); return why != "" }
	renameNotes(store, providers.lvm, filepath.Join(cfg.RunDir, "lanes"), log)
	layout := kubelet.Layout{Dirs: cfg.KubeletRoots, Driver: cfg.Driver}
	observer := asw.New([]asw.Layout{layout}, providers.seen, records.Get, mounts)
	parts := reconcile.Parts{
		Config: live, Version: version, Log: log,
		Store: store, Records: records, Observer: observer, Mounts: mounts,
		Ops: mount.Ops{Runner: runner, Memory: cfg.CheckMemory}, Providers: providers.acting, Boot: boottime.Now,
		Stepped: measured.Step, Record: past.Record, Locks: locks, RemoveUnused: providers.lvm.RemoveUnused,
	}
	gauge := &mount.Gauge{Runner: runner}
	for i := range 4 {
		gauge.Locks = append(gauge.Locks, filepath.Join(cfg.RunDir, "lanes", fmt.Sprint("statfs-", i)))
	}
	parts.Gauge = gauge
	if kernelLog, err := asw.OpenKernelLog(); err != nil {
		log.WithError(err).Warn("the kernel log cannot be read: filesystem errors are noticed only at the next call")
	} else {
		observer.KernelLog = kernelLog
	}
	cgroups := kubelet.NewCgroups(cfg.CgroupDir)
	observer.Pods = func() asw.Pods { return cgroups.Look() }
	if ends, err := kubelet.OpenPodEvents(); err != nil {
		log.WithError(err).Warn("the end of pods cannot be watched: flexd polls for it")
	} else {
		parts.PodEvents = ends
	}
	n := reconcile.New(parts)
	tasks := []task{{"reconciler", n.Run}, watchFiles(n, providers.loop)}
	if lvmGroups(cfg) {
		tasks = append(tasks, watchDevices(n, providers.lvm))
	}
	return served{n, &flexserve.Frontend{Config: live, Log: log, Boot: boottime.Now, Self: self, Node: n, History: past}, past, problems, newUdevRule(cfg, log), providers, measured}, tasks, nil
}

// A served node is the core of the daemon: it answers kubelet's calls and provides the status
// documents, from the start on, before it is Ready.
type served struct {
	*reconcile.Node
	flex     *flexserve.Frontend
	past     *history.Log
	problems []func() string
	rule     *udevRule
	kinds    kinds
	metrics  *metrics.Metrics
}

// The documents of the node, with the calls that were refused.

func (s served) List() status.List { return s.complete(s.Node.List()) }

func (s served) Known() status.List { return s.complete(s.Node.Known()) }

func (s served) complete(l status.List) status.List {
	for _, problem := range s.problems {
		if text := problem(); text != "" {
			l.Problems = append(l.Problems, text)
		}
	}
	l.AddRefused(s.flex.Calls(time.Now()), time.Now())
	return l
}

func (s served) VolumeDetail(vg, lv string) (status.VolumeDetail, bool) {
	calls := s.flex.Calls(time.Now())
	d, ok := s.Node.VolumeDetail(vg, lv)
	if ok {
		d.RefusedCalls = status.Refusals(calls, d.Volume)
		return d, true
	}
	if calls = status.Refusals(calls, status.Volume{VG: vg, LV: lv}); len(calls) > 0 {
		return status.RefusedDetail(calls), true
	}
	return d, false
}

func (s served) Check(ctx context.Context) status.Check {
	c := s.Node.Check(ctx)
	c.RefusedCalls = s.flex.Calls(time.Now())
	c.Findings = append(c.Findings, s.rule.findings()...)
	c.Findings = append(c.Findings, s.kinds.oneDirectory(s.Config.Get())...)
	c.Verdict = c.Judge()
	return c
}

func (s served) Explain(ctx context.Context, calls []string) status.Explained {
	e := s.flex.Explain(ctx, calls)
	e.Version = version
	return e
}

// Resolve finds the volumes that the target of a query names.
func (s served) Resolve(q *status.EventQuery) {
	if strings.Contains(q.Target, "/") {
		q.Resolve(s.Node.Known())
	}
}

func (s served) Events(ctx context.Context, q status.EventQuery) status.Events {
	events := s.past.Events(ctx, q)
	events.Node = s.Config.Get().NodeName
	if len(events.Waiting) > 0 {
		events.AddSteps(s.Node.Known(), time.Now())
	}
	return events
}

func (s served) EventsAfter(id uint64) <-chan struct{} { return s.past.Changed(id) }

func (s served) Serve(ctx context.Context, r flexvolume.Request, peer server.Peer) flexvolume.Answer {
	code := string(volume.Failed) // unless Serve returns
	done := s.metrics.Call(r.Verb)
	defer func() { done(code) }()
	a := s.flex.Serve(ctx, r, peer.Pid)
	code = a.Code
	return a
}

func (s served) WriteMetrics(w io.Writer) error {
	return s.metrics.Write(w, s.List(), s.Node.Store.All())
}
