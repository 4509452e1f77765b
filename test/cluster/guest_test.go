package cluster

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"time"

	"golang.org/x/net/http2"

	"github.com/flexd/flexd/test/shared/nodes"
)

// apiPort is the port of a virtual machine through which its kubelet reaches the API: the machine
// has no network.
const apiPort = "api"

// serveGuest is this process as the services of a kubelet in a virtual machine: its containers, and the API's
// socket, whose requests go through the port.
func serveGuest() error {
	dir := os.Getenv(place)
	if err := serveRuntime(dir); err != nil {
		return err
	}
	port, err := nodes.Port(apiPort)
	if err != nil {
		return err
	}
	client, err := (&http2.Transport{AllowHTTP: true}).NewClientConn(wire{port})
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", dir+"/api.sock")
	if err != nil {
		return err
	}
	go http.Serve(l, forward(client))
	fmt.Println("ready")
	return nil
}

// serveWire answers requests from the other end of a port, until it is closed.
func serveWire(port net.Conn, h http.Handler) {
	(&http2.Server{}).ServeConn(port, &http2.ServeConnOpts{Handler: h})
}

// forward forwards requests, whose answers may be watches.
func forward(to http.RoundTripper) http.Handler {
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "api"})
	p.Transport, p.FlushInterval = to, -1
	p.ErrorLog = log.New(io.Discard, "", 0) // of watches that end with their cluster
	return p
}

// A wire is a port as a connection.
type wire struct{ io.ReadWriteCloser }

func (wire) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (wire) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (wire) SetDeadline(time.Time) error      { return nil }
func (wire) SetReadDeadline(time.Time) error  { return nil }
func (wire) SetWriteDeadline(time.Time) error { return nil }
