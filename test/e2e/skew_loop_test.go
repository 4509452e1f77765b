package e2e

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	testhost "github.com/flexd/flexd/test/host"
)

// flexdriver and flexd of two releases serve kubelet together, and each flexd continues with
// the volumes of the other. FLEXD_PREVIOUS is the directory of the other release's two
// executables (scripts/test-skew); without it both are of this one.
func TestSkew(t *testing.T) {
	t.Parallel()
	previous := cmp.Or(os.Getenv("FLEXD_PREVIOUS"), built)
	for _, s := range []struct{ name, driver, daemon, other string }{
		{"the other flexd", built, previous, built},
		{"the other flexdriver", previous, built, previous},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, func(h *host) {
				h.must(testhost.Install(s.driver+"/flexdriver", h.Driver))
				h.must(testhost.Install(s.daemon+"/flexd", h.Flexd()))
			})
			h.skewedLife()
			h.skewedTrouble()
			h.skewedRestart(s.daemon, s.other)
		})
	}
}

// skewedLife makes every call of kubelet, in each mode.
func (h *host) skewedLife() {
	h.t.Helper()
	if a := h.ok(h.call("init")); a.Capabilities == nil {
		h.t.Errorf("init: %s", a.Text)
	}
	for i, m := range modes {
		v, p := h.vol(fmt.Sprint("life", i), "ext4"), podN(1)
		h.ok(h.up(m, v, p))
		h.write(v, p, "f", "text")
		if a := h.ok(h.call("isattached", v.Blob(nil), node)); a.Attached == nil || !*a.Attached {
			h.t.Errorf("isattached: %s", a.Text)
		}
		if growsExt4() {
			h.ok(h.call("expandfs", v.Blob(nil), "", h.PodDir(p, v), testhost.Bytes(32*mib), testhost.Bytes(16*mib)))
			if size := h.story(v.Options["volumeID"]).Size; size != 32*mib {
				h.t.Errorf("%d bytes after expandfs", size)
			}
		}
		h.reads(v, p, "f", "text")
		h.end(m, v, p)
	}
}

// skewedTrouble makes failing calls, and calls that only a later release would send.
func (h *host) skewedTrouble() {
	h.t.Helper()
	v, p := h.vol("no", "ext4"), podN(1)
	for _, r := range []struct {
		v    vol
		code string
		word string
	}{
		{v.With("later", "1"), "invalid", "later"},
		{v.With("volumegroup", "vg9"), "not-allowed", "vg9"},
		{v.With("size", "-"), "not-found", "vg0/no"},
		{v.With("size", "1000Ti"), "no-space", "maxSize"},
	} {
		a := h.mount(r.v, p)
		if h.refused(a, r.word); a.Code != r.code {
			h.t.Errorf("%s: the code is %q, want %s", a, a.Code, r.code)
		}
	}
	h.ok(h.call("unmount", h.PodDir(p, v)))
	if a := h.call("later"); a.Status != "Not supported" {
		h.t.Errorf("a verb that FlexVolume does not have: %s", a)
	}

	h.must(syscall.Kill(h.Pid(), syscall.SIGSTOP))
	h.refused(h.callWith([]string{"FLEXD_TIMEOUT=1s"}, "unmount", h.PodDir(p, v)), "did not answer within 1s")
	h.must(syscall.Kill(h.Pid(), syscall.SIGCONT))

	line := func(version int, verb string) string {
		return fmt.Sprintf(`{"v":%d,"later":{"a":[1,"x",null]},"id":"skew","verb":%q,"args":[%q],"started":%d,"parent":%d,"also":true}`,
			version, verb, h.PodDir(p, v), bootTime(), os.Getpid())
	}
	for _, r := range []struct {
		line string
		want []string
	}{
		{line(1, "unmount"), []string{`"id":"skew"`, `"status":"Success"`}},
		{line(1, "later"), []string{`"id":"skew"`, `"status":"Failure"`, "verb"}},
		{line(99, "unmount"), []string{`"id":"skew"`, `"status":"Failure"`, "protocol version 99", "different releases"}},
	} {
		answer := h.raw(r.line)
		for _, w := range r.want {
			if !strings.Contains(answer, w) {
				h.t.Errorf("%s: answered %s, which does not say %s", r.line, answer, w)
			}
		}
	}
}

// skewedRestart replaces flexd by that of the other release and back, with a mounted volume and a waiting
// call.
func (h *host) skewedRestart(daemon, other string) {
	h.t.Helper()
	v, a, b := h.vol("kept", "ext4"), podN(1), podN(2)
	h.ok(h.up(noAttach, v, a))
	h.write(v, a, "f", "kept")
	for _, release := range []string{other, daemon} {
		h.stop()
		h.must(os.MkdirAll(h.PodDir(b, v), 0o750))
		second := h.begin("mount", h.PodDir(b, v), v.Blob(&b))
		h.must(testhost.Install(release+"/flexd", h.Flexd()))
		h.start()
		h.ok(second.wait(h.t))
		h.reads(v, b, "f", "kept")
		h.state("kept", "mounted")
		for _, dir := range []string{daemon, other} { // the command of either asks this flexd
			if out := h.sh(dir+"/flexd", "status", "--socket", h.StatusSocket()); !strings.Contains(out, "default/web-1") || !strings.Contains(out, "default/web-2") {
				h.t.Errorf("flexd status: %s", out)
			}
			h.sh(dir+"/flexd", "check", "--socket", h.StatusSocket())
		}
		h.ok(h.unmount(v, b))
	}
	h.end(noAttach, v, a)
}

// bootTime is the clock of calls.
func bootTime() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	return now.Nano()
}
