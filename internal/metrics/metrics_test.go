package metrics

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

func newMetrics() *Metrics {
	c := config.Default()
	c.VolumeGroups = []config.VolumeGroup{{Name: "vg0", Provider: "lvm", Shared: true}, {Name: "files", Provider: "loopdev"}}
	return New(config.NewLive(c), `1.0 "x"\`, []string{"mount", "unmount"}, []string{"faulty", "degraded"})
}

func (m *Metrics) text(t *testing.T, list status.List, claims ...dsw.Claim) string {
	t.Helper()
	var b strings.Builder
	if err := m.Write(&b, list, claims); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// samples returns the samples with a prefix, without those that are 0.
func samples(text, prefix string) string {
	var found []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) && !strings.HasSuffix(line, " 0\n") {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}

type runner func(c run.Cmd) error

func (r runner) Run(_ context.Context, c run.Cmd) (run.Result, error) { return run.Result{}, r(c) }

func TestHistogram(t *testing.T) {
	h := histogram{family: family{"x_seconds", "X."}, names: []string{"a", "b"}}
	for _, d := range []time.Duration{0, 10 * time.Millisecond, 11 * time.Millisecond, 600 * time.Second, time.Hour} {
		h.observe(d, "1", "2\n")
	}
	p := &page{}
	h.write(p)
	var b strings.Builder
	b.WriteString("# HELP x_seconds X.\n# TYPE x_seconds histogram\n")
	for _, le := range []string{"0.01 2", "0.025 3", "0.05 3", "0.1 3", "0.25 3", "0.5 3", "1 3", "2.5 3", "5 3", "10 3", "15 3", "25 3", "50 3", "120 3", "300 3", "600 4", "+Inf 5"} {
		bound, n, _ := strings.Cut(le, " ")
		fmt.Fprintf(&b, "x_seconds_bucket{a=\"1\",b=\"2\\n\",le=%q} %s\n", bound, n)
	}
	b.WriteString("x_seconds_sum{a=\"1\",b=\"2\\n\"} 4200.021\nx_seconds_count{a=\"1\",b=\"2\\n\"} 5\n")
	if d := cmp.Diff(b.String(), p.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestCalls(t *testing.T) {
	m := newMetrics()
	done, hostile := m.Call("mount"), m.Call(`x"}`)
	if got := samples(m.text(t, status.List{}), "flexd_call"); got != "flexd_calls_in_flight 2\n" {
		t.Errorf("%s", got)
	}
	done("")
	hostile("invalid")
	m.Call("mount")("busy")
	text := m.text(t, status.List{})
	want := `flexd_call_duration_seconds_count{verb="mount",code="busy"} 1
flexd_call_duration_seconds_count{verb="mount",code="ok"} 1
flexd_call_duration_seconds_count{verb="other",code="invalid"} 1
`
	if d := cmp.Diff(want, samples(text, "flexd_call_duration_seconds_count")); d != "" || samples(text, "flexd_calls") != "" {
		t.Errorf("(-want +got):\n%s%s", d, text)
	}
}

func TestSteps(t *testing.T) {
	m := newMetrics()
	stuck := fmt.Errorf("mkfs: %w", &run.StuckError{Step: "mkfs"})
	m.Step("vg0", volume.Format, time.Second, nil)
	m.Step("vg0", volume.Format, time.Second, stuck)
	m.Step("files", volume.MountVolume, time.Second, volume.Errorf(volume.Canceled, "nothing waits"))
	m.Step("gone", volume.Unmount, time.Second, errors.New("busy"))
	want := `flexd_step_duration_seconds_count{step="mkfs",provider="lvm",result="ok"} 1
flexd_step_duration_seconds_count{step="mkfs",provider="lvm",result="stuck"} 1
flexd_step_duration_seconds_count{step="mount",provider="loopdev",result="canceled"} 1
flexd_step_duration_seconds_count{step="umount",provider="other",result="error"} 1
`
	if d := cmp.Diff(want, samples(m.text(t, status.List{}), "flexd_step_duration_seconds_count")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestCommands(t *testing.T) {
	m := newMetrics()
	var end error
	r := m.Commands(runner(func(run.Cmd) error { return end }))
	ask := func(err error, argv ...string) {
		end = err
		if _, got := r.Run(t.Context(), run.Cmd{Argv: argv}); got != err {
			t.Errorf("%v: %v", argv, got)
		}
	}
	ask(nil, "lvm", "lvchange", "-ay", "vg0/data")
	ask(&run.ExitError{Argv: []string{"lvm"}}, "lvm", "lvchange")
	ask(context.Canceled, "lvm", "fullreport")
	ask(nil, "/proc/self/exe", "child", "zero", "{}")
	m.GroupWait("vg0", time.Second)
	m.GroupWait("unconfigured", time.Second)
	want := `flexd_lvm_command_duration_seconds_count{command="fullreport",result="canceled"} 1
flexd_lvm_command_duration_seconds_count{command="lvchange",result="error"} 1
flexd_lvm_command_duration_seconds_count{command="lvchange",result="ok"} 1
flexd_lvm_group_wait_seconds_count{vg="other"} 1
flexd_lvm_group_wait_seconds_count{vg="vg0"} 1
`
	text := m.text(t, status.List{})
	if d := cmp.Diff(want, samples(text, "flexd_lvm_command_duration_seconds_count")+samples(text, "flexd_lvm_group_wait_seconds_count")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestGauges(t *testing.T) {
	m := newMetrics()
	text := m.text(t, status.List{
		Volumes: []status.Volume{
			{VG: "vg0", LV: "a", State: status.Mounted}, {VG: "vg0", LV: "b", State: status.Mounted}, {VG: "files", LV: "a", State: status.Stuck},
			{VG: "of-a-hostile-pod-1", State: status.Refused}, {VG: "of-a-hostile-pod-2", State: status.Refused},
		},
		Findings: []status.Finding{{Class: "faulty", VG: "vg0", LV: "a"}, {Class: "new"}},
		Problems: []string{"a", "b"},
		Groups: []status.Group{
			{Name: "files", State: status.GroupMissing, Size: 7, Free: 8},
			{Name: "vg0", State: status.GroupFull, Size: 9, Free: 5, LargestVolume: new(int64(6)), ThinPools: []status.ThinPool{
				{Name: "pool", State: status.PoolOK, Used: 1, Size: 2, MetadataUsed: 3, MetadataSize: 4},
				{Name: "inactive", State: status.PoolInactive},
			}},
		},
	}, dsw.Claim{Kind: volume.Published, Phase: volume.Held}, dsw.Claim{Kind: volume.Staged, Phase: volume.Held}, dsw.Claim{Kind: volume.Published, Phase: volume.Held})
	want := `flexd_build_info{version="1.0 \"x\"\\",goversion="GO"} 1
flexd_volumes{vg="files",state="stuck"} 1
flexd_volumes{vg="other",state="refused"} 2
flexd_volumes{vg="vg0",state="mounted"} 2
flexd_claims{kind="published",phase="held"} 2
flexd_claims{kind="staged",phase="held"} 1
flexd_findings{class="faulty"} 1
flexd_findings{class="other"} 1
flexd_problems 2
flexd_volume_groups{vg="files",state="missing"} 1
flexd_volume_groups{vg="vg0",state="full"} 1
flexd_volume_group_size_bytes{vg="vg0"} 9
flexd_volume_group_free_bytes{vg="vg0"} 5
flexd_volume_group_largest_volume_bytes{vg="vg0"} 6
flexd_thin_pool_data_used_bytes{vg="vg0",pool="pool"} 1
flexd_thin_pool_data_size_bytes{vg="vg0",pool="pool"} 2
flexd_thin_pool_metadata_used_bytes{vg="vg0",pool="pool"} 3
flexd_thin_pool_metadata_size_bytes{vg="vg0",pool="pool"} 4
flexd_start_time_seconds SOME
flexd_resident_memory_bytes SOME
`
	got := regexp.MustCompile(`goversion="[^"]*"`).ReplaceAllString(samples(text, "flexd_"), `goversion="GO"`)
	got = regexp.MustCompile(`(?m)(time_seconds|memory_bytes) \S+$`).ReplaceAllString(got, "$1 SOME")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, zero := range []string{`flexd_volumes{vg="vg0",state="stuck"} 0`, `flexd_claims{kind="staged",phase="making"} 0`, `flexd_findings{class="degraded"} 0`} {
		if !strings.Contains(text, zero+"\n") {
			t.Errorf("no %s", zero)
		}
	}
}

// Calls and steps of many volumes end while pages are written.
func TestConcurrent(t *testing.T) {
	m := newMetrics()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				m.Call("mount")("")
				m.Step("vg0", volume.MountVolume, time.Second, nil)
				m.GroupWait("vg0", time.Second)
			}
			m.text(t, status.List{})
		})
	}
	all.Wait()
	text := m.text(t, status.List{})
	for _, want := range []string{`seconds_count{verb="mount",code="ok"} 800`, `seconds_bucket{step="mount",provider="lvm",result="ok",le="1"} 800`, `seconds_sum{vg="vg0"} 800`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// The table of docs/monitoring.md has every metric, with its type and labels, and no other.
func TestDocumented(t *testing.T) {
	m := newMetrics()
	m.Call("mount")("")
	m.Step("vg0", volume.Format, 0, nil)
	m.GroupWait("vg0", 0)
	m.Commands(runner(func(run.Cmd) error { return nil })).Run(t.Context(), run.Cmd{Argv: []string{"lvm", "lvchange"}})
	text := m.text(t, status.List{Groups: []status.Group{{Name: "vg0", LargestVolume: new(int64), ThinPools: []status.ThinPool{{Name: "pool"}}}}})
	var (
		exported []string
		kind     string
		sample   = regexp.MustCompile(`^(\w+)(?:\{(.*)\})? `)
		label    = regexp.MustCompile(`(\w+)="`)
	)
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); f[0] == "#" {
			kind = f[3]
			continue
		}
		s := sample.FindStringSubmatch(line)
		name := strings.TrimSuffix(s[1], "_bucket")
		if kind == "histogram" && name == s[1] {
			continue // _sum, _count
		}
		names := []string{}
		for _, l := range label.FindAllStringSubmatch(s[2], -1) {
			if l[1] != "le" {
				names = append(names, "`"+l[1]+"`")
			}
		}
		row := fmt.Sprintf("| `%s` | %s | %s |", name, kind, strings.Join(names, ", "))
		if !slices.Contains(exported, row) {
			exported = append(exported, row)
		}
	}
	page, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := regexp.MustCompile("(?m)^\\| `\\w+` \\| \\w+ \\|[^|]*\\|").FindAllString(string(page), -1)
	if d := cmp.Diff(exported, listed); d != "" {
		t.Errorf("(-exported +docs/monitoring.md):\n%s", d)
	}
}

// The longest wait counts from the first sight of the other node, across calls.
func TestLongestWait(t *testing.T) {
	c := config.Default()
	c.VolumeGroups = []config.VolumeGroup{{Name: "vg0", Provider: "lvm"}, {Name: "svg", Provider: "lvm", Shared: true}}
	m := New(config.NewLive(c), "1", nil, nil)
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	wait := func(since time.Duration, seen time.Time) *status.Wait {
		return &status.Wait{Since: ago(since), Holder: &status.Holder{Since: seen}}
	}
	const name = "flexd_longest_wait_seconds"
	if got := m.text(t, status.List{}); !strings.Contains(got, name+"{vg=\"svg\"} 0\n") || strings.Contains(got, name+"{vg=\"vg0\"}") {
		t.Error(got)
	}
	got := samples(m.text(t, status.List{Volumes: []status.Volume{
		{VG: "svg", LV: "a", Waiting: wait(5*time.Minute+time.Second/2, time.Time{})},
		{VG: "svg", LV: "b", Waiting: wait(time.Minute, ago(7*time.Minute+time.Second/2))},
		{VG: "svg", LV: "c", Waiting: wait(6*time.Minute+time.Second/2, ago(time.Minute))},
	}}), name)
	if got != name+"{vg=\"svg\"} 420\n" {
		t.Error(got)
	}
}
