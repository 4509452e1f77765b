//go:build !vm

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"
)

const monitoring = "../../examples/monitoring/"

// promtool runs one of its checks.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	c := exec.Command("promtool", args...)
	c.Stdin = strings.NewReader(stdin)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v: %s", args, err, out)
	}
}

// loopback returns an address that no other test uses.
func loopback(t *testing.T) string {
	r := seeded(t)
	return fmt.Sprintf("127.%d.%d.%d:9809", 1+r.IntN(250), r.IntN(250), 1+r.IntN(250))
}

// Prometheus accepts the metrics of a working flexd, and the rules and the dashboard of examples/monitoring,
// which use only existing metrics and labels.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	need(t, "promtool")
	address := loopback(t)
	h := newHost(t, func(h *host) { h.settings.extra = "metricsAddress: " + address + "\n" })
	served := func(address string) (text string) {
		t.Helper()
		h.eventually("metrics at "+address, func() string {
			resp, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				return err.Error()
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if text = string(b); err != nil || resp.StatusCode != http.StatusOK {
				return fmt.Sprint(resp.Status, err)
			}
			return ""
		})
		return text
	}
	served(address)

	v, p := h.vol("data", "ext4"), podN(1)
	h.ok(h.up(noAttach, v, p))
	foreign := h.vol("data", "ext4")
	foreign.Options["volumegroup"] = "none-of-ours"
	h.refused(h.mount(foreign, podN(2)), "none-of-ours")
	text, err := h.Get("/metrics")
	h.must(err)
	for _, sample := range []string{
		`flexd_call_duration_seconds_count{verb="mount",code="ok"} 1`,
		`flexd_call_duration_seconds_count{verb="mount",code="not-allowed"} 1`,
		`flexd_calls_in_flight 0`,
		`flexd_step_duration_seconds_count{step="create",provider="loopdev",result="ok"} 1`,
		`flexd_step_duration_seconds_count{step="mkfs",provider="loopdev",result="ok"} 1`,
		`flexd_volumes{vg="vg0",state="mounted"} 1`,
		`flexd_volumes{vg="other",state="refused"} 1`,
		`flexd_claims{kind="published",phase="held"} 1`,
		`flexd_findings{class="degraded"} 0`,
		`flexd_problems 0`,
		`flexd_volume_groups{vg="vg0",state="ok"} 1`,
	} {
		if !strings.Contains(text, sample+"\n") {
			t.Errorf("no %s", sample)
		}
	}
	for _, private := range []string{p.Name, p.UID, v.Name, "none-of-ours"} {
		if strings.Contains(text, private) {
			t.Errorf("%s is in the metrics", private)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	promtool(t, text, "check", "metrics")

	// A changed address, and one that another program has.
	other, err := net.Listen("tcp", loopback(t))
	h.must(err)
	defer other.Close()
	reload := func(address string) {
		h.settings.extra = "metricsAddress: " + address + "\n"
		h.configure()
		h.must(syscall.Kill(h.Pid(), syscall.SIGHUP))
	}
	reload(other.Addr().String())
	h.eventually("a port in use is a problem", func() string {
		if text := h.show(); !strings.Contains(text, "another program uses the port") {
			return text
		}
		return ""
	})
	reload(address)
	served(address)
	if problems := h.list().Problems; len(problems) > 0 {
		t.Errorf("problems: %q", problems)
	}
	h.ok(h.unmount(v, p))

	promtool(t, "", "check", "config", monitoring+"prometheus.yaml") // and the rules
	promtool(t, "", "test", "rules", monitoring+"flexd.rules_test.yaml")
	shown := dashboard(t)
	file := filepath.Join(h.Dir, "dashboard.rules.yaml")
	h.must(os.WriteFile(file, asRules(shown), 0o600))
	promtool(t, "", "check", "rules", file)
	rules, err := os.ReadFile(monitoring + "flexd.rules.yaml")
	h.must(err)
	var alerts struct {
		Groups []struct{ Rules []struct{ Expr string } }
	}
	h.must(yaml.Unmarshal(rules, &alerts))
	for _, r := range alerts.Groups[0].Rules {
		shown = append(shown, r.Expr)
	}
	known := documented(t)
	for name := range known {
		if !strings.Contains(text, "\n# TYPE "+name+" ") && !strings.HasPrefix(text, "# HELP "+name+" ") {
			t.Errorf("docs/monitoring.md: flexd has no %s", name)
		}
	}
	for _, expr := range shown {
		uses(t, expr, known)
	}
}

// documented returns the labels of each metric of docs/monitoring.md.
func documented(t *testing.T) map[string][]string {
	page, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| \\w+ \\|([^|]*)\\|").FindAllStringSubmatch(string(page), -1) {
		all[m[1]] = regexp.MustCompile(`\w+`).FindAllString(m[2], -1)
	}
	return all
}

var (
	metric   = regexp.MustCompile(`\b(flexd_\w+?)(?:_bucket|_sum|_count)?\b(?:\{([^}]*)\})?`)
	selector = regexp.MustCompile(`(\w+)\s*(?:=|!=|=~|!~)\s*"`)
	grouping = regexp.MustCompile(`by \(([^)]*)\)`)
)

// uses reports metrics and labels of an expression that flexd does not have.
func uses(t *testing.T, expr string, known map[string][]string) {
	t.Helper()
	labels := []string{"instance", "job", "le"} // of Prometheus
	for _, m := range metric.FindAllStringSubmatch(expr, -1) {
		own, ok := known[m[1]]
		if !ok {
			t.Errorf("flexd has no metric %s: %s", m[1], expr)
		}
		labels = append(labels, own...)
		for _, s := range selector.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels[:2], s[1]) && !slices.Contains(own, s[1]) {
				t.Errorf("%s has no label %s: %s", m[1], s[1], expr)
			}
		}
	}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for by := range strings.SplitSeq(m[1], ",") {
			if !slices.Contains(labels, strings.TrimSpace(by)) {
				t.Errorf("there is no label %s: %s", by, expr)
			}
		}
	}
}

// dashboard returns every expression of the dashboard, as Grafana sends it.
func dashboard(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile(monitoring + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID      int
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Definition string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$__rate_interval", "2m", "$instance", "n1:9809|n2:9809", "$vg", "vg0|vg1")
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("dashboard.json: two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			all = append(all, fill.Replace(target.Expr))
		}
	}
	for _, v := range d.Templating.List {
		if m := regexp.MustCompile(`^label_values\((.*), \w+\)$`).FindStringSubmatch(v.Definition); m != nil {
			all = append(all, fill.Replace(m[1]))
		}
	}
	if len(all) < 10 {
		t.Fatalf("the dashboard has the expressions %q", all)
	}
	return all
}

// asRules returns a file of rules with these expressions.
func asRules(exprs []string) []byte {
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []rule
	for i, e := range exprs {
		rules = append(rules, rule{fmt.Sprint("dashboard:", i), e})
	}
	b, _ := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	return b
}
