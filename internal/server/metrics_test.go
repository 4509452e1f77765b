package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

// A metricsAddress is a running Metrics.
type metricsAddress struct {
	*Metrics
	address atomic.Value
	changed chan struct{}
	pages   atomic.Int32 // that were written
	log     *logBuffer
}

func serveMetrics(t *testing.T, address string) *metricsAddress {
	t.Helper()
	listenPause = 10 * time.Millisecond
	m := &metricsAddress{changed: make(chan struct{}, 1), log: &logBuffer{}}
	m.address.Store(address)
	log := logrus.New()
	log.SetOutput(m.log)
	m.Metrics = &Metrics{
		Address: func() string { return m.address.Load().(string) }, Changed: m.changed, Log: logrus.NewEntry(log),
		Write: func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "pages %d\n%s\n", m.pages.Add(1), m.Problem())
			return err
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { m.Serve(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return m
}

func (m *metricsAddress) change(address string) {
	m.address.Store(address)
	m.changed <- struct{}{}
}

// eventually waits until wrong returns "".
func eventually(t *testing.T, wrong func() string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		s := wrong()
		if s == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(s)
		}
	}
}

func (m *metricsAddress) served(t *testing.T, address string) {
	t.Helper()
	eventually(t, func() string {
		code, text := scrape(address, "GET", "/metrics")
		if code != http.StatusOK || !strings.HasPrefix(text, "pages ") {
			return fmt.Sprintf("%s: %d %s", address, code, text)
		}
		return m.Problem()
	})
}

func scrape(address, method, path string) (int, string) {
	c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, _ := http.NewRequest(method, "http://"+address+path, nil)
	resp, err := c.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	if resp.StatusCode == http.StatusOK && !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		return resp.StatusCode, "Content-Type: " + resp.Header.Get("Content-Type")
	}
	return resp.StatusCode, string(b)
}

// listener returns a listener on a port of its own, and its address.
func listener(t *testing.T) (net.Listener, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().String()
}

func free(t *testing.T) string {
	l, address := listener(t)
	l.Close()
	return address
}

func TestMetricsAddress(t *testing.T) {
	a, b := free(t), free(t)
	m := serveMetrics(t, a)
	m.served(t, a)
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"HEAD", "/metrics", http.StatusOK}, {"POST", "/metrics", http.StatusMethodNotAllowed},
		{"GET", "/", http.StatusNotFound}, {"GET", "/v1/volumes", http.StatusNotFound}, {"GET", "/metrics/", http.StatusNotFound},
	} {
		if code, text := scrape(a, c.method, c.path); code != c.want {
			t.Errorf("%s %s: %d %s", c.method, c.path, code, text)
		}
	}
	m.change(b)
	m.served(t, b)
	if code, text := scrape(a, "GET", "/metrics"); code != 0 {
		t.Errorf("the former address: %d %s", code, text)
	}
	m.change("")
	eventually(t, func() string {
		if code, text := scrape(b, "GET", "/metrics"); code != 0 {
			return text
		}
		return ""
	})
	m.change(b)
	m.served(t, b)
}

// A port that another program uses is a problem until it is free.
func TestMetricsAddressInUse(t *testing.T) {
	l, address := listener(t)
	m := serveMetrics(t, address)
	eventually(t, func() string {
		if p := m.Problem(); !strings.Contains(p, address+": another program uses the port") {
			return "problem: " + p
		}
		return ""
	})
	l.Close()
	m.served(t, address)
	if n := strings.Count(m.log.String(), "another program"); n != 1 {
		t.Errorf("logged %d times: %s", n, m.log)
	}
	m.change("192.0.2.1:9809") // of no host
	eventually(t, func() string {
		if p := m.Problem(); !strings.Contains(p, "the node does not have this address") {
			return "problem: " + p
		}
		return ""
	})
	m.change("")
	eventually(t, m.Problem)
}

// One client cannot keep the metrics from the others, nor a processor busy.
func TestMetricsHostile(t *testing.T) {
	address := free(t)
	m := serveMetrics(t, address)
	m.served(t, address)
	var own []net.Conn
	busy := 0
	for i := range 3 * clientConns { // idle, half a request, an answer that is not read
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, []string{"", "GET /metrics HT", strings.Repeat("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 100)}[i%3])
		own = append(own, c)
	}
	for i, c := range own {
		if i < clientConns {
			continue
		}
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		line, err := bufio.NewReader(c).ReadString('\n')
		if strings.Contains(line, " 503 ") || err != nil && line == "" {
			busy++
		}
	}
	if busy == 0 { // the first ones end after some seconds
		t.Errorf("none of %d connections was refused", len(own))
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}} // another client
	c, err := d.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if line, err := bufio.NewReader(c).ReadString('\n'); !strings.Contains(line, " 200 ") {
		t.Errorf("another client: %q %v", line, err)
	}
}

// Scrapes within a second get one page.
func TestMetricsPageIsKept(t *testing.T) {
	var c cachedPage
	n := 0
	write := func(w io.Writer) error { n++; _, err := fmt.Fprint(w, n); return err }
	var b strings.Builder
	for range 3 {
		if err := c.write(&b, write); err != nil {
			t.Fatal(err)
		}
		c.at = time.Now().Add(time.Hour) // the machine may be slow
	}
	c.at = time.Now().Add(-time.Second)
	c.write(&b, write)
	if b.String() != "1112" {
		t.Errorf("%s", &b)
	}
}
