package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/volume"
)

const (
	requestTime      = 10 * time.Second       // for a client to send its line
	untrustedTimeout = time.Second            // the same, for a client that gets Failure anyway
	maxRefused       = 16                     // such clients at once; more get no answer
	replyTime        = 10 * time.Second       // for a client to read its answer
	shutdownGrace    = 500 * time.Millisecond // for the handlers to return at shutdown
	idleTime         = 10 * time.Second       // without a call, after which memory goes back to the kernel
)

// A Handler answers kubelet's calls. It is called concurrently, even before the daemon is ready.
// The context ends when the caller hangs up or flexd shuts down; a later answer is not delivered.
type Handler interface {
	Serve(ctx context.Context, r flexvolume.Request, peer Peer) flexvolume.Answer
}

// A Driver is the driver socket: one request and one answer per connection.
type Driver struct {
	Listener net.Listener // of unix sockets; Serve closes it
	Handler  Handler
	Log      *logrus.Entry

	refused atomic.Int32 // connections of processes that may not call
}

// Serve answers until the context ends. The connections of waiting callers are then closed
// without an answer: flexdriver connects again and asks the next flexd, while an answer
// from here would be final to kubelet.
func (d *Driver) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { d.Listener.Close() })
	defer stop()

	// Go would do it some minutes later, and bit by bit.
	freeMemory := time.AfterFunc(idleTime, debug.FreeOSMemory)
	defer freeMemory.Stop()

	var all sync.WaitGroup
	for {
		conn, err := d.Listener.Accept()
		switch {
		case err == nil:
			freeMemory.Reset(idleTime)
			all.Go(func() { d.serveConn(ctx, conn.(*net.UnixConn)) })
			continue
		case ctx.Err() != nil:
			return waitFor(&all, d.Log)
		case errors.Is(err, net.ErrClosed):
			return err
		}
		// Out of descriptors or memory: retry; until then callers wait in the socket's
		// queue.
		d.Log.WithError(err).Error("driver socket: cannot accept")
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// waitFor gives the handlers some time to notice the end of their context.
func waitFor(all *sync.WaitGroup, log *logrus.Entry) error {
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(shutdownGrace):
		log.Warn("driver socket: some calls did not end; leaving without them")
	}
	return nil
}

// serveConn serves one connection.
func (d *Driver) serveConn(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	// The context ends every operation of this goroutine on the connection.
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	peer, refused, err := peerOf(conn)
	if err != nil {
		if ctx.Err() == nil {
			d.debug(logrus.Fields{logrus.ErrorKey: err}, "driver socket: the caller is gone")
		}
		return
	}
	about := logrus.Fields{"pid": peer.Pid}
	if refused != nil {
		if d.refused.Add(1) <= maxRefused {
			d.refuse(conn, about, refused)
		}
		d.refused.Add(-1)
		return
	}
	r, ok := d.request(ctx, conn, about)
	if !ok {
		return
	}
	start := time.Now()
	about["verb"] = r.Verb // never the arguments: they contain secrets
	d.debug(about, "called")

	waiting, hangUp := context.WithCancelCause(ctx)
	defer hangUp(nil)
	gone := make(chan struct{})
	go func() { // ends at the latest when the connection is closed, which is before serveConn returns
		defer close(gone)
		for b := make([]byte, 64); ; { // flexdriver sends nothing more: this ends when it closes the connection
			if _, err := conn.Read(b); err != nil {
				break
			}
		}
		hangUp(errHungUp)
	}()
	defer func() { conn.Close(); <-gone }()

	answer := d.handle(waiting, about, r, peer)
	about["took"] = time.Since(start).Round(time.Millisecond)
	switch {
	case ctx.Err() != nil || answer == flexvolume.Answer{}:
		d.Log.WithFields(about).Info("not answered, flexd is shutting down")
	case waiting.Err() != nil:
		d.Log.WithFields(about).Info("not answered, the caller hung up")
	default:
		d.reply(conn, about, r.ID, answer)
	}
}

// refuse answers a process that may not call.
func (d *Driver) refuse(conn *net.UnixConn, about logrus.Fields, refused *refusedPeer) {
	conn.SetReadDeadline(time.Now().Add(untrustedTimeout))
	r, _ := flexvolume.ReadRequest(conn)
	d.Log.WithFields(about).WithFields(refused.fields()).WithError(refused.why).Warn("driver socket: refused")
	d.reply(conn, about, r.ID, flexvolume.Refusal(string(volume.NotAllowed), refused.Error()))
}

// request reads the caller's request. If there is none, it answers the error, if possible, and returns
// false.
func (d *Driver) request(ctx context.Context, conn *net.UnixConn, about logrus.Fields) (flexvolume.Request, bool) {
	conn.SetReadDeadline(time.Now().Add(requestTime))
	defer conn.SetReadDeadline(time.Time{})
	r, err := flexvolume.ReadRequest(conn)
	if r.ID != "" {
		about["call"] = r.ID
	}
	log := d.Log.WithFields(about)
	switch {
	case err == nil:
		return r, true
	case ctx.Err() != nil, errors.Is(err, io.EOF): // shutdown, or a probe of the socket
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET):
		// No answer: if this is a flexdriver after all (stopped, swapped out),
		// it connects again.
		log.WithError(err).Warn("driver socket: no whole request came")
	default:
		log.WithError(err).Warn("driver socket: bad request")
		d.reply(conn, about, r.ID, flexvolume.Refusal(string(volume.Invalid), "flexd cannot read the request: "+err.Error()))
	}
	return r, false
}

// errHungUp is the reason in the log of a call whose caller is gone.
var errHungUp = errors.New("the caller hung up")

// handle calls the handler and turns its panic into an answer.
func (d *Driver) handle(ctx context.Context, about logrus.Fields, r flexvolume.Request, peer Peer) (answer flexvolume.Answer) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		what := fmt.Sprintf("%T", v) // its text may quote the arguments
		if e, ok := v.(runtime.Error); ok {
			what = e.Error()
		}
		d.Log.WithFields(about).WithField("stack", string(debug.Stack())).Errorf("panic: %s", what)
		answer = flexvolume.Refusal(string(volume.Failed), "a bug in flexd, its log has the details: journalctl -u flexd | grep panic")
	}()
	return d.Handler.Serve(ctx, r, peer)
}

func (d *Driver) reply(conn *net.UnixConn, about logrus.Fields, id string, a flexvolume.Answer) {
	conn.SetWriteDeadline(time.Now().Add(replyTime))
	err := flexvolume.WriteReply(conn, flexvolume.Reply{V: flexvolume.Version, ID: id, Answer: a})
	about["status"] = a.Status
	switch {
	case err != nil:
		d.Log.WithFields(about).WithError(err).Warn("answered, but the caller did not take it")
	case a.Status == flexvolume.StatusSuccess:
		d.debug(about, "answered")
	default:
		d.debug(about, "answered: "+a.Message)
	}
}

// debug logs at level debug: at other levels it costs nothing.
func (d *Driver) debug(about logrus.Fields, text string) {
	if d.Log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		d.Log.WithFields(about).Debug(text)
	}
}
