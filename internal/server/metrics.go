package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// A Metrics serves the metrics at a TCP address, to each client that reaches it.
type Metrics struct {
	Address func() string   // as configured now; "" = none
	Changed <-chan struct{} // receives after Address may have changed
	Write   func(io.Writer) error
	Log     *logrus.Entry

	page cachedPage

	mu      sync.Mutex
	problem string // guarded by mu
}

// The limits of connections: of one client, by its address, and of all clients.
const clientConns, allConns = 4, 32

// listenPause is the time between attempts to listen: another program may have the port, or
// the node does not have the address yet.
var listenPause = 10 * time.Second

// Problem returns why the metrics are not served at the address, or "".
func (m *Metrics) Problem() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.problem
}

// Serve answers until the context ends. Kubelet's calls do not need the address: a failure to listen
// is a problem, but no reason to end.
func (m *Metrics) Serve(ctx context.Context) error {
	for ctx.Err() == nil {
		m.serve(ctx, m.Address())
	}
	return ctx.Err()
}

// serve answers at an address until another one is configured.
func (m *Metrics) serve(ctx context.Context, address string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for m.Address() == address {
			select {
			case <-m.Changed:
			case <-ctx.Done():
				return
			}
		}
		cancel()
	}()
	for address != "" && ctx.Err() == nil {
		err := m.listen(ctx, address)
		if ctx.Err() != nil {
			break
		}
		m.failed(address, err)
		select {
		case <-ctx.Done():
		case <-time.After(listenPause):
		}
	}
	<-ctx.Done()
	m.set("")
}

func (m *Metrics) listen(ctx context.Context, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	m.set("")
	m.Log.WithField("address", address).Info("metrics are served")
	listener := &limitedListener{l, &limit{perUser: clientConns, others: allConns}, clientOf, unavailable("text/plain", "too many connections\n")}
	return serveHTTP(ctx, listener, m, 10*time.Second, m.Log, "metrics address")
}

// clientOf returns a number for the address of a client; never 0, which is root's.
func clientOf(conn net.Conn) (uint32, error) {
	a, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	h := fnv.New32a()
	h.Write(a.Addr().Unmap().AsSlice())
	return h.Sum32() | 1, err
}

func (m *Metrics) set(problem string) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed = m.problem != problem
	m.problem = problem
	return changed
}

func (m *Metrics) failed(address string, err error) {
	why := cause(err).Error()
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		why = "another program uses the port (ss -ltnp names it)"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		why = "the node does not have this address"
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EPERM):
		why = "flexd may not use TCP: its systemd unit has to allow it, see docs/monitoring.md"
	}
	problem := fmt.Sprintf("metricsAddress: the metrics are not served at %s: %s; flexd tries again every %s", address, why, listenPause)
	if m.set(problem) {
		m.Log.Warn(problem)
	}
}

// ServeHTTP answers one request.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != "/metrics":
		http.Error(w, "there is /metrics only", http.StatusNotFound)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, r.Method+" is not allowed", http.StatusMethodNotAllowed)
	default:
		writeMetrics(w, func(w io.Writer) error { return m.page.write(w, m.Write) })
	}
}

// writeMetrics answers with the page that f writes.
func writeMetrics(w http.ResponseWriter, f func(io.Writer) error) {
	var b bytes.Buffer // an error after the header could not be reported
	if err := f(&b); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Write(b.Bytes())
}

// A cachedPage is written at most once in a second, for any number of requests.
type cachedPage struct {
	mu   sync.Mutex
	text []byte    // guarded by mu
	at   time.Time // guarded by mu
}

func (c *cachedPage) write(w io.Writer, f func(io.Writer) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) >= time.Second {
		var b bytes.Buffer
		if err := f(&b); err != nil {
			return err
		}
		c.text, c.at = b.Bytes(), time.Now()
	}
	_, err := w.Write(c.text) // to a buffer
	return err
}
