package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/status"
	"github.com/sirupsen/logrus"
)

// A Source provides the documents. Its methods are called concurrently. Check, Orphans and
// Explain observe again; the others return the last observation at once, and wait for no operation on a
// volume.
type Source interface {
	List() status.List
	VolumeDetail(vg, lv string) (status.VolumeDetail, bool)
	Check(ctx context.Context) status.Check // within 25 s
	// Orphans observes again, too: all orphans, or those of the targets.
	Orphans(ctx context.Context, targets []string) status.Orphans
	// Explain observes again, and returns the expected results of calls, within 15 s.
	Explain(ctx context.Context, calls []string) status.Explained
	// Health returns why the daemon cannot serve calls, and why it cannot for some volume groups.
	Health() (failing, degraded []string)
}

// A Status is the status socket: HTTP, JSON, read-only.
type Status struct {
	Listener net.Listener // Serve closes it
	Source   Source
	Metrics  func(io.Writer) error
	History  History
	Version  string // flexd's own
	Log      *logrus.Entry

	requests, looks, reads, follows limit
	slowReader                      time.Duration // for tests; 0 = slowReader
}

// The limits of each user of the status socket, and of all users but root together. A member of
// statusGroup must not exhaust the descriptors, memory or processors that kubelet's calls need.
const (
	userConns, otherConns       = 16, 48
	userRequests, otherRequests = 4, 8
	userLooks, otherLooks       = 2, 3            // observations: /v1/check, /v1/orphans and /v1/explain
	maxTargets                  = 64              // of one request: targets, or calls to explain
	maxWait                     = 4 * time.Second // for one of them
	compressed                  = 4 << 10         // bytes of an answer that is compressed
)

// Serve answers until the context ends.
func (s *Status) Serve(ctx context.Context) error {
	s.requests = limit{perUser: userRequests, others: otherRequests}
	s.looks = limit{perUser: userLooks, others: otherLooks}
	s.reads = limit{perUser: userReads, others: otherReads}
	s.follows = limit{perUser: userFollows, others: otherFollows}
	listener := &limitedListener{s.Listener, &limit{perUser: userConns, others: otherConns}, uidOf,
		unavailable("application/json", `{"error":"flexd has too many connections to its status socket; try again"}`)}
	err := serveHTTP(ctx, listener, s, 30*time.Second, s.Log, "status socket")
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// userKey is the key of the uid in a request's context.
type userKey struct{}

func asUser(ctx context.Context, uid uint32) context.Context {
	return context.WithValue(ctx, userKey{}, uid)
}

// take waits for a part of a limit, and answers if there is none in time.
func take(w http.ResponseWriter, r *http.Request, l *limit) (release func(), ok bool) {
	uid := r.Context().Value(userKey{}).(uint32)
	ctx, cancel := context.WithTimeout(r.Context(), maxWait)
	defer cancel()
	if !l.take(ctx, uid) {
		fail(w, http.StatusServiceUnavailable, "flexd is busy with other requests of its status socket; try again")
		return nil, false
	}
	return func() { l.release(uid) }, true
}

var errNotFound = errors.New("no such page; there are /v1/volumes, /v1/volumes/{vg}/{lv}, /v1/check, /v1/orphans, /v1/events, /v1/explain, /metrics, /healthz and /version")

// ServeHTTP answers one request. It does not use http.ServeMux, whose redirects are HTML
// and whose errors are text.
func (s *Status) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if v := recover(); v != nil {
			s.Log.WithField("stack", string(debug.Stack())).Errorf("status socket: panic: %v", v)
			fail(w, http.StatusInternalServerError, "a bug in flexd; its log has the details")
		}
	}()
	protect(w.Header())
	if code, why := untrusted(r); code != 0 {
		fail(w, code, why)
		return
	}
	release, ok := take(w, r, &s.requests)
	if !ok {
		return
	}
	release = sync.OnceFunc(release)
	defer release()
	path := r.URL.EscapedPath()
	var show func()
	asset, isAsset := assets[path]
	switch {
	case isAsset:
		show = func() { asset.write(w) }
	case path == "/metrics":
		show = func() { writeMetrics(w, s.Metrics) }
	case path == "/v1/events":
		show = func() { s.events(w, r, release) }
	case slices.Contains(looking, path):
		show = func() { s.look(w, r, path) }
	default:
		code, doc, err := s.page(path)
		if err != nil {
			fail(w, code, err.Error())
			return
		}
		show = func() { compress(w, r, code, doc) }
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		fail(w, http.StatusMethodNotAllowed, r.Method+" is not allowed: the status socket only shows")
		return
	}
	show()
}

// looking are the paths that look answers.
var looking = []string{"/v1/check", "/v1/orphans", "/v1/explain"}

// look answers with a new observation.
func (s *Status) look(w http.ResponseWriter, r *http.Request, path string) {
	targets, calls := r.URL.Query()["target"], r.URL.Query()["call"]
	if n := max(len(targets), len(calls)); n > maxTargets {
		fail(w, http.StatusBadRequest, fmt.Sprintf("%d targets or calls, at most %d are possible", n, maxTargets))
		return
	}
	release, ok := take(w, r, &s.looks)
	if !ok {
		return
	}
	var doc any
	func() {
		defer release() // also after a panic, and before a slow reader
		switch path {
		case "/v1/check":
			doc = s.Source.Check(r.Context())
		case "/v1/orphans":
			doc = s.Source.Orphans(r.Context(), targets)
		default:
			doc = s.Source.Explain(r.Context(), calls)
		}
	}()
	write(w, http.StatusOK, doc)
}

// page returns the document of a path; with a 404 the error names the missing object.
func (s *Status) page(path string) (code int, doc any, err error) {
	switch path {
	case "/v1/volumes":
		return http.StatusOK, s.Source.List(), nil
	case "/healthz":
		failing, degraded := s.Source.Health()
		switch all := slices.Concat(failing, degraded); {
		case len(failing) > 0:
			return http.StatusServiceUnavailable, health{"failing", all}, nil
		case len(degraded) > 0:
			return http.StatusOK, health{"degraded", all}, nil
		}
		return http.StatusOK, health{"ok", nil}, nil
	case "/version":
		return http.StatusOK, versions{s.Version, runtime.Version()}, nil
	}
	name, ok := strings.CutPrefix(path, "/v1/volumes/")
	escapedVG, escapedLV, two := strings.Cut(name, "/")
	vg, err1 := url.PathUnescape(escapedVG)
	lv, err2 := url.PathUnescape(escapedLV)
	if !ok || !two || err1 != nil || err2 != nil || vg == "" || lv == "" || strings.Contains(escapedLV, "/") {
		return http.StatusNotFound, nil, errNotFound
	}
	detail, ok := s.Source.VolumeDetail(vg, lv)
	if !ok {
		if vg == "-" {
			return http.StatusNotFound, nil, fmt.Errorf("flexd knows no volume with the uuid %s: nothing has asked for it here; a name is written VG/LV", lv)
		}
		return http.StatusNotFound, nil, fmt.Errorf("flexd knows no volume %s/%s: nothing has asked for it here", vg, lv)
	}
	return http.StatusOK, detail, nil
}

type health struct {
	Status  string   `json:"status"`
	Reasons []string `json:"reasons"`
}

type versions struct {
	Version string `json:"version"`
	Go      string `json:"go"`
}

type failure struct {
	Error string `json:"error"`
}

func fail(w http.ResponseWriter, code int, text string) { write(w, code, failure{text}) }

// compress writes a document of the page. With a thousand volumes, the page requests half a megabyte
// every two seconds, mostly through ssh; compressed it is a tenth of that.
func compress(w http.ResponseWriter, r *http.Request, code int, doc any) {
	code, body := encode(code, doc)
	if len(body) < compressed || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		writeBody(w, code, body)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	z.Write(body)
	z.Close()
	writeBody(w, code, b.Bytes())
}

func write(w http.ResponseWriter, code int, doc any) {
	code, body := encode(code, doc)
	writeBody(w, code, body)
}

// encode encodes a document first: an error after the header could not be reported.
func encode(code int, doc any) (int, []byte) {
	var b bytes.Buffer
	if err := status.WriteJSON(&b, doc); err != nil {
		code = http.StatusInternalServerError
		b.Reset()
		status.WriteJSON(&b, failure{"cannot encode the answer: " + err.Error()})
	}
	return code, b.Bytes()
}

func writeBody(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	w.Write(body) // #nosec G705 -- JSON, with nosniff
}
