package metrics

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// bounds are the buckets of all histograms, in seconds: those of kubelet's
// storage_operation_duration_seconds and of the CSI sidecars, and three smaller ones, since
// most steps take less than 0.1 s.
var bounds = [...]float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}

// A histogram counts durations for each combination of label values.
type histogram struct {
	family
	names []string // of the labels

	mu     sync.Mutex
	series map[string]*series // guarded by mu: by labels
}

type series struct {
	counts [len(bounds) + 1]uint64 // by bound, the last one beyond all bounds
	sum    float64
}

func (h *histogram) observe(took time.Duration, values ...string) {
	key := labels(h.names, values...)
	seconds := took.Seconds()
	i, _ := slices.BinarySearch(bounds[:], seconds)
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.series[key]
	if s == nil {
		if h.series == nil {
			h.series = map[string]*series{}
		}
		s = &series{}
		h.series[key] = s
	}
	s.counts[i]++
	s.sum += seconds
}

func (h *histogram) write(p *page) {
	p.head(h.family, "histogram")
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(h.series)) {
		s, total := h.series[key], uint64(0)
		for i, n := range s.counts {
			le := "+Inf"
			if i < len(bounds) {
				le = number(bounds[i])
			}
			total += n
			p.sample(h.name+"_bucket", key+`,le="`+le+`"`, float64(total))
		}
		p.sample(h.name+"_sum", key, s.sum)
		p.sample(h.name+"_count", key, float64(total))
	}
}

// A family is one metric.
type family struct{ name, help string }

// A page is text in the format of Prometheus.
type page struct{ strings.Builder }

func (p *page) head(f family, kind string) {
	p.WriteString("# HELP " + f.name + " " + f.help + "\n# TYPE " + f.name + " " + kind + "\n")
}

func (p *page) sample(name, labels string, value float64) {
	p.WriteString(name)
	if labels != "" {
		p.WriteString("{" + labels + "}")
	}
	p.WriteString(" " + number(value) + "\n")
}

// gauge writes a metric without labels.
func (p *page) gauge(f family, value float64) {
	p.head(f, "gauge")
	p.sample(f.name, "", value)
}

// gauges writes a metric with one sample for each of the keys, which are labels.
func (p *page) gauges(f family, values map[string]float64) {
	p.head(f, "gauge")
	for _, key := range slices.Sorted(maps.Keys(values)) {
		p.sample(f.name, key, values[key])
	}
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// labels returns the text between the braces of a sample.
func labels(names []string, values ...string) string {
	var b strings.Builder
	for i, name := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(name + `="` + escape.Replace(values[i]) + `"`)
	}
	return b.String()
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
