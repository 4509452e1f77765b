// Package metrics measures calls, steps and LVM commands, and writes
// these and the last observation in the text format of Prometheus.
//
// It uses no client library: flexd starts itself for each step, and package initialization
// of client_golang would take a millisecond each time.
//
// The values of all labels are bounded: they contain no name of a pod, a claim or a volume.
package metrics

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// A Metrics has the measurements since flexd's start.
type Metrics struct {
	Config  *config.Live
	Version string   // flexd's
	Verbs   []string // of calls
	Classes []string // of findings

	started                       time.Time
	inFlight                      atomic.Int64
	calls, steps, commands, waits histogram
}

// other replaces unknown values of a label.
const other = "other"

// New returns empty metrics.
func New(live *config.Live, version string, verbs, classes []string) *Metrics {
	return &Metrics{
		Config: live, Version: version, Verbs: verbs, Classes: classes, started: time.Now(),
		calls: histogram{names: []string{"verb", "code"}, family: family{"flexd_call_duration_seconds",
			"Time from a call's arrival to its answer."}},
		steps: histogram{names: []string{"step", "provider", "result"}, family: family{"flexd_step_duration_seconds",
			"Time that a step on a volume took."}},
		commands: histogram{names: []string{"command", "result"}, family: family{"flexd_lvm_command_duration_seconds",
			"Time that a command of LVM took."}},
		waits: histogram{names: []string{"vg"}, family: family{"flexd_lvm_group_wait_seconds",
			"Time that a command of LVM waited for earlier ones in its volume group."}},
	}
}

// Call counts a call. done is called at its end, with the code of the
// answer; "" = success.
func (m *Metrics) Call(verb string) (done func(code string)) {
	began := time.Now()
	m.inFlight.Add(1)
	return func(code string) {
		m.inFlight.Add(-1)
		m.calls.observe(time.Since(began), known(m.Verbs, verb), cmp.Or(code, "ok"))
	}
}

// Step counts a step that has ended.
func (m *Metrics) Step(vg string, step volume.StepKind, took time.Duration, err error) {
	provider := other
	if g := m.Config.VG(vg); g != nil {
		provider = g.Provider
	}
	m.steps.observe(took, step.String(), provider, result(err))
}

// GroupWait counts a command of LVM that has waited for its volume group.
func (m *Metrics) GroupWait(vg string, took time.Duration) { m.waits.observe(took, m.group(vg)) }

func (m *Metrics) group(vg string) string {
	if m.Config.VG(vg) == nil {
		return other
	}
	return vg
}

func known(words []string, word string) string {
	if slices.Contains(words, word) {
		return word
	}
	return other
}

// result returns the result of a step or command: stuck = not ended by its deadline,
// canceled = no call waited for it any more.
func result(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, new(*run.StuckError)):
		return "stuck"
	case volume.CodeOf(err) == volume.Canceled, errors.Is(err, context.Canceled):
		return "canceled"
	}
	return "error"
}

// Commands returns a Runner that counts its LVM commands.
func (m *Metrics) Commands(r run.Runner) run.Runner { return commands{r, m} }

type commands struct {
	run.Runner
	m *Metrics
}

func (c commands) Run(ctx context.Context, cmd run.Cmd) (run.Result, error) {
	began := time.Now()
	res, err := c.Runner.Run(ctx, cmd)
	if len(cmd.Argv) > 1 && cmd.Argv[0] == "lvm" {
		c.m.commands.observe(time.Since(began), cmd.Argv[1], result(err))
	}
	return res, err
}

// Write writes all metrics, with the last observation of the node.
func (m *Metrics) Write(w io.Writer, list status.List, claims []dsw.Claim) error {
	p := &page{}
	p.gauges(family{"flexd_build_info", "The version of flexd and of Go."}, map[string]float64{
		labels([]string{"version", "goversion"}, m.Version, runtime.Version()): 1,
	})
	m.calls.write(p)
	p.gauge(family{"flexd_calls_in_flight", "Calls that wait for their answer."}, float64(m.inFlight.Load()))
	m.steps.write(p)
	m.commands.write(p)
	m.waits.write(p)
	m.writeVolumes(p, list)
	writeClaims(p, claims)
	m.writeFindings(p, list)
	p.gauge(family{"flexd_problems", "Problems of the node, as flexd status lists them."}, float64(len(list.Problems)))
	writeGroups(p, list.Groups)
	p.gauge(family{"flexd_start_time_seconds", "When flexd was started, in seconds since 1970."}, float64(m.started.UnixMilli())/1000)
	p.gauge(family{"flexd_resident_memory_bytes", "Memory that flexd has in RAM."}, residentMemory())
	_, err := io.WriteString(w, p.String())
	return err
}

func (m *Metrics) writeVolumes(p *page, list status.List) {
	names, count := []string{"vg", "state"}, map[string]float64{}
	for _, g := range m.Config.Get().VolumeGroups {
		for _, s := range status.States {
			count[labels(names, g.Name, string(s))] = 0
		}
	}
	for _, v := range list.Volumes {
		count[labels(names, m.group(v.VG), string(v.State))]++
	}
	p.gauges(family{"flexd_volumes", "Volumes that flexd knows, by state."}, count)
	m.writeWaits(p, list.Volumes)
}

// writeWaits writes only shared groups. A call that fails and is repeated does not begin a new wait.
func (m *Metrics) writeWaits(p *page, volumes []status.Volume) {
	longest := map[string]float64{}
	for _, g := range m.Config.Get().VolumeGroups {
		if g.Shared {
			longest[labels([]string{"vg"}, g.Name)] = 0
		}
	}
	for _, v := range volumes {
		if v.Waiting == nil {
			continue
		}
		since := v.Waiting.Since
		if h := v.Waiting.Holder; h != nil && !h.Since.IsZero() && h.Since.Before(since) {
			since = h.Since
		}
		vg := labels([]string{"vg"}, m.group(v.VG))
		longest[vg] = max(longest[vg], time.Since(since).Truncate(time.Second).Seconds())
	}
	p.gauges(family{"flexd_longest_wait_seconds", "For how long the volume that calls have waited for longest is in use by another node."}, longest)
}

func writeClaims(p *page, claims []dsw.Claim) {
	names, count := []string{"kind", "phase"}, map[string]float64{}
	for _, kind := range []volume.Kind{volume.Staged, volume.Published} {
		for _, phase := range []volume.Phase{volume.Making, volume.Held, volume.Releasing} {
			count[labels(names, string(kind), string(phase))] = 0
		}
	}
	for _, c := range claims {
		count[labels(names, string(c.Kind), string(c.Phase))]++
	}
	p.gauges(family{"flexd_claims", "Directories at which kubelet wants a volume mounted."}, count)
}

func (m *Metrics) writeFindings(p *page, list status.List) {
	names, count := []string{"class"}, map[string]float64{}
	for _, class := range m.Classes {
		count[labels(names, class)] = 0
	}
	for _, d := range list.Findings {
		count[labels(names, known(m.Classes, d.Class))]++
	}
	p.gauges(family{"flexd_findings", "Disagreements that flexd check reports, as seen last."}, count)
}

// writeGroups leaves out values that are unknown now.
func writeGroups(p *page, groups []status.Group) {
	state, size, free, largest := map[string]float64{}, map[string]float64{}, map[string]float64{}, map[string]float64{}
	dataUsed, dataSize, metaUsed, metaSize := map[string]float64{}, map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, g := range groups {
		for _, s := range status.GroupStates {
			state[labels([]string{"vg", "state"}, g.Name, s)] = 0
		}
		state[labels([]string{"vg", "state"}, g.Name, g.State)] = 1
		if g.State == status.GroupUnknown || g.State == status.GroupMissing {
			continue
		}
		vg := labels([]string{"vg"}, g.Name)
		size[vg], free[vg] = float64(g.Size), float64(g.Free)
		if g.LargestVolume != nil {
			largest[vg] = float64(*g.LargestVolume)
		}
		for _, t := range g.ThinPools {
			if t.State != status.PoolInactive {
				pool := labels([]string{"vg", "pool"}, g.Name, t.Name)
				dataUsed[pool], dataSize[pool] = float64(t.Used), float64(t.Size)
				metaUsed[pool], metaSize[pool] = float64(t.MetadataUsed), float64(t.MetadataSize)
			}
		}
	}
	p.gauges(family{"flexd_volume_groups", "Configured volume groups: 1 for the state that they have."}, state)
	p.gauges(family{"flexd_volume_group_size_bytes", "Size of a volume group."}, size)
	p.gauges(family{"flexd_volume_group_free_bytes", "What new volumes of a group can get."}, free)
	p.gauges(family{"flexd_volume_group_largest_volume_bytes", "The largest volume that flexd would create now."}, largest)
	p.gauges(family{"flexd_thin_pool_data_used_bytes", "Data in a thin pool."}, dataUsed)
	p.gauges(family{"flexd_thin_pool_data_size_bytes", "Size of a thin pool."}, dataSize)
	p.gauges(family{"flexd_thin_pool_metadata_used_bytes", "Metadata in a thin pool."}, metaUsed)
	p.gauges(family{"flexd_thin_pool_metadata_size_bytes", "Size of a thin pool's metadata."}, metaSize)
}

// residentMemory returns 0 if it is unknown.
func residentMemory() float64 {
	text, _ := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return float64(pages) * float64(os.Getpagesize())
}
