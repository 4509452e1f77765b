package server

import (
	_ "embed"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// The page for a browser. Its script reads the documents.
var (
	//go:embed page/index.html
	pageHTML string
	//go:embed page/page.css
	pageCSS string
	//go:embed page/page.js
	pageScript string
)

// An asset is a part of the page.
type asset struct{ content, contentType string }

var assets = map[string]asset{
	"/":         {pageHTML, "text/html; charset=utf-8"},
	"/page.css": {pageCSS, "text/css; charset=utf-8"},
	"/page.js":  {pageScript, "text/javascript; charset=utf-8"},
}

// The browser loads and runs nothing else, and no text becomes markup: the texts come from pods and
// from programs.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// protect sets the headers that keep other pages of a browser from the answer.
func protect(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", pagePolicy)
}

func (a asset) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", a.contentType)
	w.Write([]byte(a.content))
}

// untrusted returns why a request may come from another page of a browser, which reaches
// the socket through ssh -L. Such a page has a name in DNS that can be made to mean
// localhost, or asks across origins. Programs such as curl send any name they like, and
// none of the headers that browsers send.
func untrusted(r *http.Request) (code int, why string) {
	if !ownHost(r.Host) {
		return http.StatusMisdirectedRequest, "the Host header must be flexd, localhost or an IP address: open http://localhost:PORT/, or let a proxy send \"Host: flexd\""
	}
	site := r.Header.Get("Sec-Fetch-Site")
	opens := r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	if slices.Contains([]string{"", "none", "same-origin"}, site) || opens { // a link to the page itself
		return 0, ""
	}
	return http.StatusForbidden, "another web page asks for this (Sec-Fetch-Site: " + site + "): only the page at / may"
}

// ownHost reports whether a Host header is not a name that DNS resolves.
func ownHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return slices.Contains([]string{"", "flexd", "localhost"}, host)
}
