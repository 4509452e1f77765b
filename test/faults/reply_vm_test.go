//go:build vm

package faults

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
)

// A reply is an answer, and how long it took.
type reply struct {
	host.Answer
	what string
	took time.Duration
	err  error
}

func (r reply) ok() bool { return r.err == nil && r.Status == "Success" }

func (r reply) String() string {
	return fmt.Sprintf("%s, after %s: %s %s %v", r.what, r.took.Round(time.Millisecond), r.Status, r.Message, r.err)
}

// call runs the driver as kubelet does.
func (l *lab) call(what string, args ...string) reply {
	begun := time.Now()
	a, err := l.Call(context.Background(), args...)
	return reply{Answer: a, what: what, took: time.Since(begun), err: err}
}

func (l *lab) mount(lv string, more ...string) reply {
	v, p := volumeOf(lv), podOf(lv)
	if len(more) > 0 {
		p = podOf(more[0])
	}
	dir := l.PodDir(p, v)
	if err := host.Prepare(dir); err != nil {
		return reply{what: "mount " + lv, err: err}
	}
	return l.call("mount "+lv, "mount", dir, v.Blob(&p))
}

func (l *lab) unmount(lv string) reply { return l.call("unmount "+lv, "unmount", l.dir(lv)) }

func (l *lab) attach(lv string) reply {
	return l.call("waitforattach "+lv, "waitforattach", "", volumeOf(lv).Blob(nil))
}

// behind does something while the test goes on.
func behind(do func() reply) chan reply {
	done := make(chan reply, 1)
	go func() { done <- do() }()
	return done
}

// ok fails the test unless the answer is Success.
func (l *lab) ok(r reply) reply {
	l.Helper()
	if !r.ok() {
		l.Errorf("%s", r)
	}
	return r
}

// refused fails the test unless the answer is a Failure with all the words.
func (l *lab) refused(r reply, words ...string) {
	l.Helper()
	if r.err != nil || r.Status != "Failure" {
		l.Errorf("%s; want a Failure that says %q", r, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(r.Message, w) {
			l.Errorf("%s\n\tdoes not say %q", r, w)
		}
	}
}

var howLong = regexp.MustCompile(`, ((?:\d+m)?\d+s)\b| since (\d\d:\d\d:\d\d)\b`)

// howLong fails the test unless an answer says since when something hangs, and that
// is credible.
func (l *lab) howLong(r reply) {
	l.Helper()
	m := howLong.FindStringSubmatch(r.Message)
	if m == nil {
		l.Errorf("%s\n\tdoes not say how long", r)
		return
	}
	age, err := time.ParseDuration(m[1])
	if m[2] != "" {
		var at time.Time
		at, err = time.ParseInLocation(time.DateTime, time.Now().Format(time.DateOnly+" ")+m[2], time.Local)
		if age = time.Since(at); age < -time.Hour { // yesterday's
			age += 24 * time.Hour
		}
	}
	if err != nil || age < time.Second || age > soon+deadline {
		l.Errorf("%s\n\tsays that it is %s (%v)", r, age, err)
	}
}

var answerID, answered = regexp.MustCompile(`^\[([0-9a-f]+)\]`), `(?m) answer=%s .* took=(\S+)`

// soonEnough fails the test unless flexd has given an answer within that time. It
// is flexd's own that counts: what a process costs here is no part of it.
func (l *lab) soonEnough(r reply, d time.Duration) {
	l.Helper()
	id := answerID.FindStringSubmatch(r.Message)
	if id == nil {
		l.Errorf("%s\n\thas no id", r)
		return
	}
	line := regexp.MustCompile(fmt.Sprintf(answered, id[1]))
	var took time.Duration
	log, err := os.ReadFile(l.Node.Log) // it is written before the answer is
	l.must(err)
	calls := line.FindAllSubmatch(log, -1)
	if len(calls) == 0 {
		l.Errorf("flexd's log does not have %s", r)
		return
	}
	took, err = time.ParseDuration(string(calls[len(calls)-1][1]))
	l.must(err)
	if took > d {
		l.Errorf("%s\n\tanswered after %s, want %s", r, took, d)
	}
}

// served lets a pod start and stop, again and again, and returns how long each of
// both together took.
func (l *lab) served(lv string, times int) (took []time.Duration) {
	l.Helper()
	for range times {
		up := l.ok(l.mount(lv))
		down := l.ok(l.unmount(lv))
		took = append(took, up.took+down.took)
	}
	return took
}

// p90 is what nine of ten stay below.
func p90(took []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[(len(sorted)*9+9)/10-1]
}

// bytes returns the size of a mounted filesystem.
func (l *lab) bytes(lv string) int64 {
	l.Helper()
	var fs unix.Statfs_t
	l.must(unix.Statfs(l.dir(lv), &fs))
	return int64(fs.Blocks) * fs.Bsize
}

// twice fails the test if what hangs elsewhere makes a service take more than
// twice as long as alone, and long: a busy machine also slows down calls that take
// a fraction of a second.
func (l *lab) twice(what string, alone, now []time.Duration) {
	l.Helper()
	a, n := p90(alone), p90(now)
	l.Logf("%s: p90 %s, alone %s", what, n.Round(time.Millisecond), a.Round(time.Millisecond))
	if n > 2*a && n > deadline/8 {
		l.Errorf("%s: p90 %s, more than twice %s: %v, alone %v", what, n, a, now, alone)
	}
}
