package server

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

// answer asks a status socket without the socket.
func answer(method, path string, header ...string) *httptest.ResponseRecorder {
	return serve(&source{}, method, path, header...)
}

func serve(src Source, method, path string, header ...string) *httptest.ResponseRecorder {
	log := logrus.New()
	log.SetOutput(io.Discard)
	s := &Status{Source: src, Log: logrus.NewEntry(log)}
	s.requests, s.looks = limit{perUser: 9, others: 9}, limit{perUser: 9, others: 9}
	r := httptest.NewRequest(method, path, nil)
	r.Host = "flexd"
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	r = r.WithContext(asUser(r.Context(), 0))
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func TestPageFiles(t *testing.T) {
	size := 0
	for path, kind := range map[string]string{"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"} {
		w := answer("GET", path)
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), kind+";") || w.Body.Len() < 1000 {
			t.Errorf("%s: %d, %s, %d bytes", path, w.Code, w.Header().Get("Content-Type"), w.Body.Len())
		}
		size += w.Body.Len()
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"} {
			if w := answer(method, path); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
		}
	}
	if size > 60_000 {
		t.Errorf("the page has %d bytes, more than ssh should have to carry", size)
	}
}

// What would make markup of text, or run it, is not in the script, and there is nothing
// inline that the policy would have to allow.
func TestPageIsInert(t *testing.T) {
	for file, not := range map[string][]string{
		"page/page.js":    {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "http://", "https://", "cookie", "localStorage"},
		"page/index.html": {"<style", " style=", "onclick", "onload", "https://"},
		"page/page.css":   {"@import", "url(", "//"},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range not {
			if strings.Contains(string(text), n) {
				t.Errorf("%s has %q", file, n)
			}
		}
	}
}

// Every answer has the headers that keep it from other pages of a browser.
func TestStatusHeaders(t *testing.T) {
	for _, path := range []string{"/", "/page.js", "/v1/volumes", "/v1/check", "/nothing", "/v1/volumes/vg0/panic"} {
		h := answer("GET", path).Header()
		for name, want := range map[string]string{
			"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if h.Get(name) != want {
				t.Errorf("%s: %s: %q", path, name, h.Get(name))
			}
		}
		policy := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "trusted-types 'none'"} {
			if !strings.Contains(policy, want) || strings.Contains(policy, "unsafe") {
				t.Errorf("%s: the policy %q has no %q", path, policy, want)
			}
		}
		if h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: any origin may read it", path)
		}
	}
}

// A name of DNS can be made to mean localhost, and a page under that name would read all.
func TestHost(t *testing.T) {
	for _, host := range []string{"", "flexd", "localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080", "10.1.2.3:80"} {
		if w := answer("GET", "/v1/volumes", "Host", host); w.Code != http.StatusOK {
			t.Errorf("%q: %d %s", host, w.Code, w.Body)
		}
	}
	for _, host := range []string{
		"evil.example", "evil.example:8080", "localhost.evil.example", "localhost.", "127.0.0.1.evil.example", "flexd.evil", "0x7f000001", "2130706433",
		"127.1", "[localhost]x", "localhost:1:2", "a\x00b", "localhost@evil.example", " localhost",
	} {
		for _, path := range []string{"/", "/v1/volumes", "/v1/check", "/healthz", "/nothing"} {
			if w := answer("GET", path, "Host", host); w.Code != http.StatusMisdirectedRequest || !strings.Contains(w.Body.String(), "http://localhost:PORT/") {
				t.Errorf("%q%s: %d %s", host, path, w.Code, w.Body)
			}
		}
	}
}

func TestOtherSites(t *testing.T) {
	for _, row := range []struct {
		path             string
		site, mode, dest string
		code             int
	}{
		{"/v1/volumes", "", "", "", 200},
		{"/v1/volumes", "none", "navigate", "document", 200}, // typed
		{"/v1/volumes", "same-origin", "cors", "empty", 200},
		{"/v1/volumes", "same-site", "no-cors", "script", 403}, // another port of localhost
		{"/v1/volumes", "cross-site", "cors", "empty", 403},
		{"/v1/check", "cross-site", "navigate", "document", 403},
		{"/v1/orphans", "cross-site", "no-cors", "image", 403},
		{"/page.js", "cross-site", "no-cors", "script", 403},
		{"/", "cross-site", "navigate", "document", 200}, // a link
		{"/", "cross-site", "navigate", "iframe", 403},
		{"/", "cross-site", "no-cors", "image", 403},
		{"/", "something new", "", "", 403},
	} {
		if w := answer("GET", row.path, "Sec-Fetch-Site", row.site, "Sec-Fetch-Mode", row.mode, "Sec-Fetch-Dest", row.dest); w.Code != row.code {
			t.Errorf("%+v: %d %s", row, w.Code, w.Body)
		}
	}
}

// A large document is compressed for who can read that.
func TestCompression(t *testing.T) {
	large := &hungSource{}
	plain := serve(large, "GET", "/v1/volumes")
	if plain.Header().Get("Content-Encoding") != "" || plain.Body.Len() < 100_000 {
		t.Errorf("%v, %d bytes", plain.Header(), plain.Body.Len())
	}
	w := serve(large, "GET", "/v1/volumes", "Accept-Encoding", "gzip, deflate, br")
	packed := w.Body.Len()
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(z); err != nil || string(body) != plain.Body.String() || packed > len(body)/5 || w.Header().Get("Content-Encoding") != "gzip" {
		t.Errorf("%d bytes, packed %d: %v, %v", len(body), packed, err, w.Header())
	}
	if w := answer("GET", "/v1/volumes", "Accept-Encoding", "gzip"); w.Header().Get("Content-Encoding") != "" {
		t.Error("a small one is compressed")
	}
}
