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
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/volume"
)

const (
	requestTime      = 10 * time.Second       // for a client to send its line
	untrustedTimeout = time.Second            // the same, for a client that gets Failure anyway
	replyTime        = 10 * time.Second       // for a client to read its answer
	shutdownGrace    = 500 * time.Millisecond // for the handlers to return at shutdown
	rest             = 10 * time.Second       // without a call, after which memory goes back to the kernel
)

// A Peer is the process at the other end, as the kernel reports it.
type Peer struct {
	Pid int // 0 = in a pid namespace that is not visible here
	UID uint32
}

// A Handler answers kubelet's calls. It is called concurrently, from before the daemon is
// ready on. The context ends when the caller hangs up or flexd shuts down; a later answer
// is not delivered.
type Handler interface {
	Serve(ctx context.Context, r flexvolume.Request, peer Peer) flexvolume.Answer
}

// A Driver is the driver socket: one request and one answer per connection.
type Driver struct {
	Listener net.Listener // of unix sockets; Serve closes it
	Handler  Handler
	Log      *logrus.Entry
}

func (d *Driver) String() string { return "driver socket" }

// Serve answers until the context ends. The connections of waiting callers are then closed
// without an answer: flexdriver connects again and asks the next flexd, while an answer
// from here would be final to kubelet.
func (d *Driver) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { d.Listener.Close() })
	defer stop()

	// Go would do it some minutes later, and bit by bit.
	atRest := time.AfterFunc(rest, debug.FreeOSMemory)
	defer atRest.Stop()

	var all sync.WaitGroup
	for {
		conn, err := d.Listener.Accept()
		switch {
		case err == nil:
			atRest.Reset(rest)
			all.Go(func() { d.serveConn(ctx, conn.(*net.UnixConn)) })
			continue
		case ctx.Err() != nil:
			return waitFor(&all, d.Log)
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("driver socket: %w", err)
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

	peer, err := peerOf(conn)
	if err != nil {
		d.Log.WithError(err).Warn("driver socket: the caller's credentials are unknown")
		return
	}
	about := logrus.Fields{"pid": peer.Pid}
	r, ok := d.request(ctx, conn, about, peer)
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
	case ctx.Err() != nil:
		d.Log.WithFields(about).Info("not answered, flexd is shutting down")
	case waiting.Err() != nil:
		d.Log.WithFields(about).Info("not answered, the caller hung up")
	default:
		d.reply(conn, about, r.ID, answer)
	}
}

// request reads the caller's request. Without one, or from a caller that may not call, it
// answers what there is to answer, and returns false.
func (d *Driver) request(ctx context.Context, conn *net.UnixConn, about logrus.Fields, peer Peer) (flexvolume.Request, bool) {
	// Root, or flexd's own user: tests run it as themselves.
	known := peer.UID == 0 || int(peer.UID) == os.Geteuid()
	timeout := requestTime
	if !known {
		timeout = untrustedTimeout
	}
	conn.SetReadDeadline(time.Now().Add(timeout))
	defer conn.SetReadDeadline(time.Time{})
	r, err := flexvolume.ReadRequest(conn)
	if r.ID != "" {
		about["call"] = r.ID
	}
	log := d.Log.WithFields(about)
	switch {
	case !known:
		log.WithField("uid", peer.UID).Warn("driver socket: refused, only root may call")
		d.reply(conn, about, r.ID, refusal(volume.NotAllowed, fmt.Sprintf("only root may call flexd, not uid %d", peer.UID)))
	case err == nil:
		return r, true
	case ctx.Err() != nil, errors.Is(err, io.EOF): // shutdown, or a probe of the socket
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET):
		// No answer: if this is a flexdriver after all (stopped, swapped out),
		// it connects again.
		log.WithError(err).Warn("driver socket: no whole request came")
	default:
		log.WithError(err).Warn("driver socket: bad request")
		d.reply(conn, about, r.ID, refusal(volume.Invalid, "flexd cannot read the request: "+err.Error()))
	}
	return r, false
}

func refusal(code volume.Code, message string) flexvolume.Answer {
	a := flexvolume.Failure(message)
	a.Code = string(code)
	return a
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
		answer = refusal(volume.Failed, "a bug in flexd, its log has the details: journalctl -u flexd | grep panic")
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

func peerOf(conn *net.UnixConn) (Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, err
	}
	if credErr != nil {
		return Peer{}, credErr
	}
	return Peer{Pid: int(cred.Pid), UID: cred.Uid}, nil
}
