package server

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// A limit bounds the number of resources in use: for each user, and for all users but root together,
// so that they never exhaust the resources that root needs.
type limit struct {
	perUser, others int

	mu     sync.Mutex
	users  map[uint32]int // guarded by mu
	taken  int            // guarded by mu: by others than root
	change chan struct{}  // guarded by mu: closed at the next release; nil = nothing waits
}

// take takes a resource for a user if one becomes free before ctx ends. release frees it.
func (l *limit) take(ctx context.Context, uid uint32) bool {
	for {
		l.mu.Lock()
		if l.users[uid] < l.perUser && (uid == 0 || l.taken < l.others) {
			l.add(uid, 1)
			l.mu.Unlock()
			return true
		}
		if l.change == nil {
			l.change = make(chan struct{})
		}
		change := l.change
		l.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return false
		}
	}
}

func (l *limit) release(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(uid, -1)
	if l.change != nil {
		close(l.change)
		l.change = nil
	}
}

// add needs mu.
func (l *limit) add(uid uint32, n int) {
	if l.users == nil {
		l.users = map[uint32]int{}
	}
	if l.users[uid] += n; l.users[uid] == 0 {
		delete(l.users, uid)
	}
	if uid != 0 {
		l.taken += n
	}
}

// A limitedListener accepts connections within a limit. One that exceeds it gets an answer
// and is closed at once.
type limitedListener struct {
	net.Listener
	limit *limit
	user  func(net.Conn) (uint32, error)
	busy  string // the answer
}

// A limitedConn is a connection of a known user.
type limitedConn struct {
	net.Conn
	uid   uint32
	close func() error // closes it and returns it to the limit
}

func (c *limitedConn) Close() error { return c.close() }

var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := l.user(conn)
		if err != nil {
			conn.Close()
			continue
		}
		if l.limit.take(ended, uid) {
			return &limitedConn{conn, uid, sync.OnceValue(func() error {
				defer l.limit.release(uid)
				return conn.Close()
			})}, nil
		}
		conn.SetWriteDeadline(time.Now().Add(time.Millisecond)) // it fits into the socket's buffer
		io.WriteString(conn, l.busy)
		conn.Close()
	}
}

// unavailable is the answer to a request that has not been read.
func unavailable(contentType, text string) string {
	return fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", contentType, len(text), text)
}

// serveHTTP answers requests until ctx ends. Clients can repeat those that are cut off then.
func serveHTTP(ctx context.Context, l *limitedListener, h http.Handler, writeTimeout time.Duration, entry *logrus.Entry, name string) error {
	errorLog := entry.WriterLevel(logrus.WarnLevel)
	defer errorLog.Close()
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       10 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(errorLog, name+": ", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return asUser(ctx, c.(*limitedConn).uid)
		},
	}
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	return srv.Serve(l)
}

// uidOf returns the user of a connection of a unix socket.
func uidOf(conn net.Conn) (uint32, error) {
	cred, err := credentials(conn.(*net.UnixConn))
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

// credentials returns who made a connection.
func credentials(conn *net.UnixConn) (*unix.Ucred, error) {
	return option(conn, func(fd int) (*unix.Ucred, error) { return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED) })
}

// option reads an option of a connection.
func option[T any](conn *net.UnixConn, get func(fd int) (T, error)) (v T, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return v, err
	}
	if gone := raw.Control(func(fd uintptr) { v, err = get(int(fd)) }); gone != nil {
		return v, gone
	}
	return v, err
}
