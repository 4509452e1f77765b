package server

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/status"
	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
)

type source struct{ sick, degraded []string }

func (s *source) List() status.List {
	return status.List{Node: "node-1", Volumes: []status.Volume{{VG: "vg0", LV: "data", State: status.Mounted}}}
}

func (s *source) VolumeDetail(vg, lv string) (status.VolumeDetail, bool) {
	switch vg + "/" + lv {
	case "vg0/data", "vg0/a b":
		return status.VolumeDetail{Volume: status.Volume{VG: vg, LV: lv}}, true
	case "vg0/panic":
		panic("oh")
	}
	return status.VolumeDetail{}, false
}

func (s *source) Health() (_, _ []string) { return s.sick, s.degraded }

func (s *source) Check(context.Context) status.Check {
	return status.Check{Node: "node-1", Verdict: status.Unknown, Groups: []status.Checked{{VG: "vg0", Provider: "lvm", Unknown: "it hangs"}}}
}

func (s *source) Orphans(_ context.Context, targets []string) status.Orphans {
	o := status.Orphans{Node: "node-1"}
	for _, t := range targets {
		o.Refused = append(o.Refused, status.Refusal{Target: t, Message: "no"})
	}
	return o
}

func TestStatus(t *testing.T) {
	path := socketPath(t)
	l, err := Listen(path, 0o660, "")
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	src := &source{}
	metrics := func(w io.Writer) error { _, err := io.WriteString(w, "up 1\n"); return err }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- (&Status{Listener: l, Source: src, Metrics: metrics, Version: "1.2.3", Log: logrus.NewEntry(log)}).Serve(ctx)
	}()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) },
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

	const unknown = `{"error":"no such page; there are /v1/volumes, /v1/volumes/{vg}/{lv}, /v1/check, /v1/orphans, /v1/events, /v1/explain, /metrics, /healthz and /version"}`
	for _, row := range []struct {
		method, path string
		sick         []string
		code         int
		want         string // JSON, "" = any
	}{
		{"GET", "/v1/volumes", nil, 200, `{"node":"node-1","version":"","volumes":[{"vg":"vg0","lv":"data","uuid":"","size":0,"state":"mounted","pods":[]}],"problems":[],"disagreements":[],"pools":[],"groups":[],"refusedCalls":[],"goroutines":0}`},
		{"GET", "/v1/check", nil, 200, `{"node":"node-1","version":"","verdict":"unknown","groups":[{"vg":"vg0","provider":"lvm","unknown":"it hangs","volumes":0,"active":0,"seconds":0}],"disagreements":[],"problems":[],"refusedCalls":[]}`},
		{"GET", "/v1/check/", nil, 404, unknown},
		{"GET", "/v1/orphans", nil, 200, `{"node":"node-1","version":"","orphans":[],"refused":[]}`},
		{"GET", "/v1/orphans?target=/a%20b&target=vg0/data", nil, 200, `{"node":"node-1","version":"","orphans":[],"refused":[{"target":"/a b","message":"no"},{"target":"vg0/data","message":"no"}]}`},
		{"GET", "/v1/explain", nil, 200, `{"node":"node-1","version":"","driver":"flexd/lvm","lease":"30s","calls":[]}`},
		{"GET", "/v1/explain?call=mount+%7B%7D", nil, 200, `{"node":"node-1","version":"","driver":"flexd/lvm","lease":"30s","calls":[{"verb":"mount {}","args":[],"result":"success","steps":[],"notes":[]}]}`},
		{"GET", "/v1/explain?" + strings.Repeat("call=x&", 65), nil, 400, `{"error":"65 targets or calls, at most 64 are possible"}`},
		{"POST", "/v1/explain", nil, 405, `{"error":"POST is not allowed: the status socket only shows"}`},
		{"POST", "/v1/orphans", nil, 405, `{"error":"POST is not allowed: the status socket only shows"}`},
		{"POST", "/metrics", nil, 405, `{"error":"POST is not allowed: the status socket only shows"}`},
		{"POST", "/v1/check", nil, 405, `{"error":"POST is not allowed: the status socket only shows"}`},
		{"GET", "/v1/volumes/vg0/data", nil, 200, ""},
		{"GET", "/v1/volumes/vg0/a%20b?x=y", nil, 200, ""},
		{"GET", "/v1/volumes/vg0/none", nil, 404, `{"error":"flexd knows no volume vg0/none: nothing has asked for it here"}`},
		{"GET", "/v1/volumes/vg0/..%2Fdata", nil, 404, `{"error":"flexd knows no volume vg0/../data: nothing has asked for it here"}`},
		{"GET", "/v1/volumes/", nil, 404, unknown},
		{"GET", "/v1/volumes/vg0", nil, 404, unknown},
		{"GET", "/v1/volumes/vg0/", nil, 404, unknown},
		{"GET", "/v1/volumes/vg0/data/", nil, 404, unknown},
		{"GET", "//v1/volumes", nil, 404, unknown},
		{"POST", "/", nil, 405, `{"error":"POST is not allowed: the status socket only shows"}`},
		{"GET", "/index.html", nil, 404, unknown},
		{"GET", "/v1/volumes/vg0/panic", nil, 500, `{"error":"a bug in flexd; its log has the details"}`},
		{"GET", "/healthz", nil, 200, `{"status":"ok","reasons":[]}`},
		{"GET", "/healthz", []string{"not ready"}, 503, `{"status":"failing","reasons":["not ready"]}`},
		{"GET", "/healthz", []string{"vg1 is lost"}, 200, `{"status":"degraded","reasons":["vg1 is lost"]}`},
		{"GET", "/version", nil, 200, ""},
		{"POST", "/v1/volumes", nil, 405, `{"error":"POST is not allowed: the status socket only shows"}`},
		{"DELETE", "/v1/volumes/vg0/data", nil, 405, `{"error":"DELETE is not allowed: the status socket only shows"}`},
		{"PUT", "/nowhere", nil, 404, unknown},
		{"HEAD", "/healthz", nil, 200, ""},
	} {
		t.Run(row.method+" "+row.path, func(t *testing.T) {
			src.sick, src.degraded = row.sick, nil
			if strings.Contains(row.want, "degraded") {
				src.sick, src.degraded = nil, row.sick
			}
			req, _ := http.NewRequest(row.method, "http://flexd"+row.path, nil)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != row.code || resp.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%d, %s: %s", resp.StatusCode, resp.Header.Get("Content-Type"), body)
			}
			if resp.StatusCode == 405 && resp.Header.Get("Allow") != "GET, HEAD" {
				t.Error("405 without Allow")
			}
			if row.method == "HEAD" {
				return
			}
			var got, want any
			if err := json.Unmarshal(body, &got); err != nil {
				t.Fatalf("%v: %s", err, body)
			}
			if row.want != "" {
				json.Unmarshal([]byte(row.want), &want)
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			}
		})
	}

	resp, err := client.Get("http://flexd/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(resp.Body); string(b) != "up 1\n" || resp.Header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("/metrics: %s %v", b, resp.Header)
	}

	// Garbage ends with 400, and shutdown does not wait for a reader.
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "\x00garbage\n\n")
	if b, _ := io.ReadAll(c); !strings.Contains(string(b), "400") {
		t.Errorf("garbage: %q", b)
	}
	idle, _ := net.Dial("unix", path)
	defer idle.Close()
	begin := time.Now()
	cancel()
	if err := <-ended; err != nil || time.Since(begin) > time.Second {
		t.Errorf("Serve: %v after %v", err, time.Since(begin))
	}
}

func (s *source) Explain(_ context.Context, calls []string) status.Explained {
	e := status.Explained{Node: "node-1", Driver: "flexd/lvm", Lease: "30s", Calls: []status.ExplainedCall{}}
	for _, c := range calls {
		e.Calls = append(e.Calls, status.ExplainedCall{Verb: c, Result: status.WouldSucceed})
	}
	return e
}
