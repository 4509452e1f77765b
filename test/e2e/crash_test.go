package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// flexd is killed at many moments of many calls. The waiting flexdriver gets the right answer from the next
// flexd, and written data stays. The time until a kill adapts to the duration of the verb; rounds are added
// until half as many kills as planned rounds hit a waiting call.
func TestKillAnywhere(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	r := seeded(t)
	var (
		v      vol
		p      = podN(1)
		size   int64
		mark   string
		calls  = []string{"mountdevice", "mount", "expandfs", "unmount", "mount", "expandfs", "unmount", "unmountdevice"}
		rounds = max(8, times(40))
		caught int
		limit  = map[string]time.Duration{} // by verb: no kill comes later
		kinds  = []string{"xfs", "btrfs"}
	)
	if growsExt4() {
		kinds = append(kinds, "ext4")
	}
	for round := 0; ; round++ {
		if round%len(calls) == 0 {
			if round >= 5*rounds || round >= rounds && caught >= rounds/2 {
				break
			}
			v, mark = h.vol(fmt.Sprint("killed-", round), kinds[round/len(calls)%len(kinds)]), ""
			size = map[string]int64{"ext4": 16 * mib, "xfs": 320 * mib, "btrfs": 320 * mib}[v.FSType]
			v = v.With("size", fmt.Sprintf("%db", size))
		}
		dir, global := h.PodDir(p, v), h.GlobalDir(v)
		h.must(os.MkdirAll(dir, 0o750))
		h.must(os.MkdirAll(global, 0o750))
		verb := calls[round%len(calls)]
		var args []string
		switch verb {
		case "mountdevice":
			args = []string{verb, global, "", v.Blob(nil)}
		case "mount":
			args = []string{verb, dir, v.Blob(&p)}
		case "expandfs":
			size += 64 * mib
			args = []string{verb, v.Blob(nil), "", dir, fmt.Sprint(size), fmt.Sprint(size - 64*mib)}
		case "unmount":
			args = []string{verb, dir}
		case "unmountdevice":
			args = []string{verb, global}
		}
		about := fmt.Sprintf("round %d: %s", round, verb)
		b := h.begin(args...)
		if limit[verb] == 0 {
			limit[verb] = pace * 40 * time.Millisecond
		}
		for range 1 + r.IntN(2) {
			time.Sleep(time.Duration(r.Int64N(int64(limit[verb]))))
			if len(b.done) > 0 { // it is over
				limit[verb] = max(limit[verb]*2/3, time.Millisecond)
				break
			}
			caught++
			h.kill()
			time.Sleep(time.Duration(r.Int64N(int64(30 * time.Millisecond))))
			h.start()
		}
		if a := b.wait(t); !a.ok() {
			t.Fatalf("%s: %s", about, a)
		}
		switch {
		case mounted(dir) != (verb == "mount" || verb == "expandfs"):
			t.Fatalf("%s: pod's mount: %v", about, mounted(dir))
		case mounted(global) != (verb != "unmountdevice"):
			t.Fatalf("%s: global mount: %v", about, mounted(global))
		}
		switch verb {
		case "mount":
			if mark != "" {
				h.reads(v, p, "mark", mark)
			}
			mark = about
			h.write(v, p, "mark", mark)
		case "expandfs":
			h.reads(v, p, "mark", mark)
			if got := capacity(t, dir); got < size*2/3 {
				t.Errorf("%s: the filesystem has %d bytes, wanted %d", about, got, size)
			}
		}
		if t.Failed() {
			return
		}
	}
	if t.Logf("%d kills while the call waited: %v", caught, limit); caught < rounds/2 {
		t.Errorf("only %d kills came while a call waited, of %d", caught, rounds/2)
	}
	h.end(byKubelet, v, p)
}

// capacity is the size of a mounted filesystem.
func capacity(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks) * st.Bsize
}

// settled waits until no operation runs on the volume and no call waits for it.
func (h *host) settled(lv string) volumeStatus {
	h.t.Helper()
	var s volumeStatus
	h.eventually("vg0/"+lv+" settles", func() string {
		if s = h.story(lv); s.Step == "" && s.State != "uncertain" && !slices.ContainsFunc(s.Claims, func(c claimStatus) bool { return c.Phase != "held" }) {
			return ""
		}
		return fmt.Sprintf("%+v", s)
	})
	return s
}

// The run directory is lost: the mount table shows the mounts.
func TestRunDirectoryLost(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, w, p, q := h.vol("a", "ext4"), h.vol("b", "btrfs"), podN(1), podN(2)
	up := func() {
		t.Helper()
		h.ok(h.up(byKubelet, v, p))
		h.ok(h.up(noAttach, w, q))
		h.write(v, p, "f", "x")
	}
	known := func() {
		t.Helper()
		h.state("a", "mounted")
		h.state("b", "mounted")
		h.eventually("each claim is known", func() string {
			if s := h.story("a"); len(s.Pods) != 1 || s.Pods[0].UID != p.UID || len(s.Claims) != 2 {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
		h.reads(v, p, "f", "x")
		h.ok(h.up(byKubelet, v, q)) // a further pod
		h.end(byKubelet, v, p, q)
		h.end(noAttach, w, q)
		h.quiet()
	}
	up()
	h.stop()
	h.must(os.RemoveAll(h.Run))
	h.start()
	known()

	// While it runs: the notes only.
	up()
	h.must(os.RemoveAll(h.Run + "/notes"))
	h.must(os.RemoveAll(h.Run + "/lanes"))
	h.must(os.RemoveAll(h.Run + "/dev"))
	known()

	// While it runs: with the sockets. It ends, so that its supervisor starts it
	// anew; kubelet's calls say what is wrong.
	up()
	h.must(os.RemoveAll(h.Run))
	h.refused(h.callWith([]string{"FLEXD_CONNECT_TIMEOUT=300ms"}, "unmount", h.PodDir(p, v)), "flexd is not running", h.DriverSocket(), "systemctl start flexd")
	h.gone("was removed from outside")
	h.start()
	known()
}

// flexd is killed in a loop under load: nothing is lost.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	r := seeded(t)
	stop := make(chan struct{})
	ended := make(chan struct{})
	const pods = 4
	pause := rand.New(rand.NewPCG(r.Uint64(), 0))
	done := make(chan bool, pods)
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(100+pause.IntN(300)+20*n+n*n) * pace * time.Millisecond): // a life that is too short comes to nothing
			}
			h.restart()
		}
	}()
	for i := range pods {
		r := rand.New(rand.NewPCG(r.Uint64(), uint64(i)))
		go func() {
			defer func() { done <- true }()
			p, v := podN(i), h.vol(fmt.Sprint("loop-", i%2), "ext4")
			for n := range times(8) {
				a := h.up(noAttach, v, p)
				for !a.ok() && !t.Failed() && strings.Contains(a.Message, "killed") {
					a = h.up(noAttach, v, p) // as kubelet does
				}
				if h.ok(a); t.Failed() {
					return
				}
				name := fmt.Sprint("n-", i)
				if n > 0 {
					h.reads(v, p, name, fmt.Sprint(n-1))
				}
				h.write(v, p, name, fmt.Sprint(n))
				time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
				h.ok(h.unmount(v, p))
			}
		}()
	}
	for range pods {
		<-done
	}
	close(stop)
	<-ended
}
