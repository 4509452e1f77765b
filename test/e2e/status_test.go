package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

// The status socket answers curl at once, during any operation on a volume.
func TestStatusSocket(t *testing.T) {
	t.Parallel()
	need(t, "curl")
	h := newHost(t, func(h *host) { h.settings.lease = 10 * time.Second }) // longer than a slow machine takes for a command
	curl := func(path string) (string, map[string]any) {
		t.Helper()
		begun := time.Now()
		out := h.sh("curl", "-s", "-m", "60", "-w", "\n%{http_code} %{content_type}", "--unix-socket", h.StatusSocket(), "http://flexd"+path)
		if took := time.Since(begun); took > 30*time.Second {
			t.Errorf("%s took %v", path, took)
		}
		i := strings.LastIndex(out, "\n")
		var doc map[string]any
		if err := json.Unmarshal([]byte(out[:i]), &doc); err != nil {
			t.Errorf("%s: %v: %s", path, err, out)
		}
		return out[i+1:], doc
	}
	const ok = "200 application/json"
	if text := h.show(); !strings.Contains(text, "No volumes on "+node) {
		t.Errorf("%s", text)
	}
	other, o := h.vol("other", "ext4"), podN(2)
	h.ok(h.up(noAttach, other, o))
	v, p := h.slow("slow"), podN(1)
	h.must(os.MkdirAll(h.PodDir(p, v), 0o750))
	b := h.begin("mount", h.PodDir(p, v), v.Blob(&p))
	mkfs := h.freeze("mkfs.ext4")

	code, list := curl("/v1/volumes")
	if !strings.HasPrefix(code, ok) || list["node"] != node {
		t.Errorf("%s %v", code, list)
	}
	states := map[any]any{}
	for _, v := range list["volumes"].([]any) {
		v := v.(map[string]any)
		states[v["lv"]] = v["state"]
	}
	if states["slow"] != "working" || states["other"] != "mounted" || len(states) != 2 {
		t.Errorf("states: %v", states)
	}
	code, story := curl("/v1/volumes/vg0/slow")
	if !strings.HasPrefix(code, ok) || story["step"] != "mkfs" || story["stepSince"] == nil || len(story["calls"].([]any)) != 1 || len(story["claims"].([]any)) != 1 {
		t.Errorf("%s %v", code, story)
	}
	if code, doc := curl("/v1/volumes/-/" + story["uuid"].(string)); !strings.HasPrefix(code, ok) || doc["lv"] != "slow" {
		t.Errorf("by uuid: %s %v", code, doc)
	}
	if code, doc := curl("/healthz"); !strings.HasPrefix(code, ok) || doc["status"] != "ok" {
		t.Errorf("%s %v", code, doc)
	}
	if code, doc := curl("/version"); !strings.HasPrefix(code, ok) || doc["version"] == "" || doc["go"] == nil {
		t.Errorf("%s %v", code, doc)
	}
	for _, path := range []string{"/v1/volumes/vg0/none", "/v1/volumes/vg0", "/nothing", "/v1/volumes/a/b/c", "/v1/volumes/vg0/%2e%2e"} {
		if code, doc := curl(path); !strings.HasPrefix(code, "404 application/json") || doc["error"] == nil {
			t.Errorf("%s: %s %v", path, code, doc)
		}
	}
	text, err := h.Get("/metrics")
	h.must(err)
	samples := []string{`flexd_calls_in_flight 1`, `flexd_volumes{vg="vg0",state="mounted"} 1`, `flexd_volumes{vg="vg0",state="working"} 1`, `flexd_claims{kind="published",phase="making"} 1`}
	if strings.Contains(h.group("vg0"), "provider: lvm") {
		samples = append(samples, `flexd_step_duration_seconds_count{step="create",provider="lvm",result="ok"} 2`,
			`flexd_lvm_command_duration_seconds_count{command="lvcreate",result="ok"} 2`, `flexd_lvm_group_wait_seconds_bucket{vg="vg0",le="+Inf"} `)
	}
	for _, sample := range samples {
		if !strings.Contains(text, "\n"+sample) {
			t.Errorf("no %s in %s", sample, text)
		}
	}
	// Another volume's calls do not wait either.
	begun := time.Now()
	h.ok(h.unmount(other, o))
	h.ok(h.up(noAttach, other, o))
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("another volume waited %v", took)
	}

	// What a person reads meanwhile.
	has := func(text string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("no %q in:\n%s", w, text)
			}
		}
	}
	has(h.show(), "VOLUME", "SIZE", "STATE", "DEVICE", "FS", "PODS", "LAST ERROR",
		"vg0/slow", slowText, "working: mkfs ", "vg0/other", "16.0 MiB", "mounted", "ext4", "default/web-2", "2 volumes on "+node+": 1 working, 1 mounted.")
	has(h.show("vg0/slow"), "vg0/slow  working: mkfs ", "uuid ", "Claims", "published, making for", "default/web-1", `as "pv-slow"`, h.PodDir(p, v),
		"Waiting calls", "mount", "Observed", block, "format record", "mkfs of ext4 was started and has not ended", "Would do now", "Would refuse now", "Last operations, newest first", "probe")
	thaw(mkfs)
	h.ok(b.wait(t))
	has(h.show("vg0/slow"), "vg0/slow  mounted, "+slowText+", ext4 on "+block, "held for", "mkfs ext4", "ok (call ", "nothing: all is as wanted", "never formatted again")
	h.refused(h.call("mount", h.PodDir(p, v), v.With("mountOptions", "ro").Blob(&p)), "read-only")
	has(h.show("vg0/slow"), "last error", "read-only", "(call ")
	h.ok(h.unmount(v, p))
	has(h.show("vg0/slow"), "vg0/slow  active", "Lease", "deactivate (when the lease ends")
	h.end(noAttach, other, o)
	h.state("slow", "idle")
	has(h.show("vg0/slow"), "none: inactive", "none: kubelet wants it mounted nowhere")
}
