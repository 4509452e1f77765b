package lvm

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

func TestRecordTag(t *testing.T) {
	const mine, others = "flexd.formatting=ext4/2026-11-23T09:32:24Z/here", "flexd.formatting=xfs/2026-11-23T09:32:24Z/there"
	at := time.Date(2026, 11, 23, 9, 32, 24, 0, time.UTC)
	for _, c := range []struct {
		tags []string
		want volume.RecordTag
	}{
		{nil, volume.RecordTag{State: volume.NoRecord}},
		{[]string{"flexd", "flexd.namespace=a", "flexd.fsx=1"}, volume.RecordTag{State: volume.NoRecord}},
		{[]string{mine}, volume.RecordTag{State: volume.Formatting, Type: "ext4", Tags: []string{mine}, Here: true, At: at}},
		{[]string{others}, volume.RecordTag{State: volume.Formatting, Type: "xfs", Tags: []string{others}, At: at}},
		{[]string{mine, "flexd.fs=xfs"}, volume.RecordTag{State: volume.Seen, Type: "xfs", Tags: []string{"flexd.fs=xfs"}}},
		{[]string{"flexd.fs=xfs", "flexd.fs=ext4"}, volume.RecordTag{State: volume.Seen, Type: "xfs", Tags: []string{"flexd.fs=xfs", "flexd.fs=ext4"}}},
		{[]string{"flexd.fs="}, volume.RecordTag{State: volume.Seen, Tags: []string{"flexd.fs="}}},
		{[]string{mine, others}, volume.RecordTag{State: volume.Formatting, Type: "ext4", Tags: []string{mine, others},
			Bad: "it has more than one tag of an mkfs (" + mine + ", " + others + ")"}},
	} {
		if got := recordTag(c.tags, "here"); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: got  %+v\nwanted %+v", c.tags, got, c.want)
		}
	}
	for _, tag := range []string{"ext4", "ext4/", "", "ext4/yesterday/here", "ext4/2026-11-23T09:32:24Z", "ext4/2026-11-23T09:32:24Z/here/x"} {
		if got := recordTag([]string{tagFormatting + tag}, "here"); got.State != volume.Formatting || got.Here || got.Bad == "" {
			t.Errorf("%q: got %+v", tag, got)
		}
	}
	if got := recordTag([]string{formattingTag("btrfs", "here", at.In(time.FixedZone("", 3600)))}, "here"); !got.Here || got.Type != "btrfs" || !got.At.Equal(at) {
		t.Errorf("got %+v", got)
	}
}

// sharedFake returns a shared group with n volumes.
func sharedFake(t *testing.T, n int) (*fakeLVM, *Provider, []volume.LV) {
	f, p := newFake(t, n)
	f.lockType = "sanlock"
	p.Host = "node-a"
	var lvs []volume.LV
	for i := range n {
		lvs = append(lvs, f.lookUp(p, fmt.Sprintf("v%d", i)))
	}
	f.commands()
	return f, p, lvs
}

func (f *fakeLVM) tags(name string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.lvs[name].tags)
}

// Ensure that the records of concurrently formatted and mounted volumes take few commands, and that each
// volume gets the right tag, and its own error.
func TestSetRecord(t *testing.T) {
	const n = 40
	f, p, lvs := sharedFake(t, n)
	if lv := lvs[0].Tagged; !lv.Shared || lv.State != volume.NoRecord {
		t.Errorf("got %+v", lv)
	}
	f.lvs["readonly"] = &fakeLV{uuid: fakeUUID(n), size: 8 * mib, attr: "-ri-XX----"}
	if lv := f.lookUp(p, "readonly"); lv.Tagged.Shared || !lv.ReadOnly {
		t.Errorf("got %+v", lv)
	}
	f.commands()
	f.broken["v7"] = "LV vg0/v7 lock failed"
	delete(f.lvs, "v8")
	f.lvs["v9"].uuid = fakeUUID(999) // deleted and created again
	f.lvs["v10"].tags = []string{"flexd.fs=xfs"}
	first, release := make(chan bool), make(chan bool)
	var once sync.Once
	f.before = func(words string) error {
		if strings.HasPrefix(words, "lvchange") {
			once.Do(func() { close(first); <-release })
		}
		return nil
	}
	state := func(i int) (volume.Record, string) {
		fsType := []string{"ext4", "xfs"}[i%2]
		if i >= n/2 {
			return volume.Seen, fsType
		}
		return volume.Formatting, fsType
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	set := func(i int) {
		s, fsType := state(i)
		errs[i] = p.SetRecord(t.Context(), lvs[i], s, fsType)
	}
	wg.Go(func() { set(0) })
	<-first
	for i := 1; i < n; i++ {
		wg.Go(func() { set(i) })
	}
	g, _ := p.group("vg0")
	eventually(t, "all have joined", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.next[tagging]) == n-1
	})
	close(release)
	wg.Wait()
	for i, err := range errs {
		switch i {
		case 7:
			is(t, err, ErrFailed, "LV vg0/v7 lock failed", "nothing was formatted", "other nodes")
		case 8, 9:
			if err == nil || !strings.Contains(err.Error(), "does not exist any more") {
				t.Errorf("v%d: got %v", i, err)
			}
		case 10:
			if err == nil || volume.CodeOf(err) != volume.DataMissing || !strings.Contains(err.Error(), "flexd.fs=xfs") {
				t.Errorf("v%d: got %v", i, err)
			}
		default:
			s, fsType := state(i)
			got := f.lookUp(p, fmt.Sprintf("v%d", i)).Tagged
			if err != nil || got.State != s || got.Type != fsType || got.Here != (s == volume.Formatting) {
				t.Errorf("v%d: %v, %+v", i, err, got)
			}
		}
	}
	if got := f.tags("v9"); got != nil {
		t.Errorf("the new v9 has tags: %q", got)
	}
	// One, the four of the others, and the four that failed alone.
	if got := f.commands(); len(got)-strings.Count(strings.Join(got, " "), "fullreport") > 9 {
		t.Errorf("got %q", got)
	}
}

// Ensure that a record replaces the tags of an earlier mkfs, including those of other nodes.
func TestSetRecordReplaces(t *testing.T) {
	f, p, lvs := sharedFake(t, 1)
	old := formattingTag("xfs", "node-b", time.Now())
	f.lvs["v0"].tags = []string{"flexd", old}
	p.Invalidate("vg0")
	set := func(state volume.Record, want ...string) {
		t.Helper()
		f.lookUp(p, "v0")
		if err := p.SetRecord(t.Context(), lvs[0], state, "ext4"); err != nil {
			t.Error(err)
		}
		got := f.tags("v0")
		for i, tag := range got {
			if strings.HasPrefix(tag, "flexd.formatting=ext4/") && strings.HasSuffix(tag, "/node-a") {
				got[i] = "formatting"
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, wanted %q", got, want)
		}
	}
	set(volume.Formatting, "flexd", "formatting")
	set(volume.NoRecord, "flexd")
	f.commands()
	set(volume.NoRecord, "flexd")
	if got := f.commands(); slices.Contains(got, "lvchange") {
		t.Errorf("nothing was to be changed: %q", got)
	}
	set(volume.Formatting, "flexd", "formatting")
	set(volume.Seen, "flexd", "flexd.fs=ext4")
	set(volume.NoRecord, "flexd", "flexd.fs=ext4")
}

// Ensure that it is an error if LVM did not write a tag, or if that is unknown.
func TestSetRecordUnwritten(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	for name, c := range map[string]struct {
		hook func(c run.Cmd) (run.Result, error, bool)
		want string
	}{
		"success without a change": {func(run.Cmd) (run.Result, error, bool) { return run.Result{}, nil, true }, "LVM reported success, but"},
		"metadata is full": {func(c run.Cmd) (run.Result, error, bool) {
			res, err := utterance{Argv: c.Argv, Code: 5, Stderr: "  VG vg0 1044 metadata on /dev/vda1 (521812 bytes) too large for circular buffer (1044480 bytes with 521900 used)\n  Failed to write VG vg0.\n"}.result()
			return res, err, true
		}, "too large for circular buffer"},
		"hangs": {func(run.Cmd) (run.Result, error, bool) {
			return run.Result{}, &run.StuckError{Step: "tag", Pid: 4711, Since: time.Now(), Done: done}, true
		}, "4711"},
	} {
		t.Run(name, func(t *testing.T) {
			f, p, lvs := sharedFake(t, 1)
			f.hook = func(cmd run.Cmd) (run.Result, error, bool) {
				if cmd.Argv[1] != "lvchange" {
					return run.Result{}, nil, false
				}
				return c.hook(cmd)
			}
			for _, state := range []volume.Record{volume.Formatting, volume.Seen} {
				err := p.SetRecord(t.Context(), lvs[0], state, "ext4")
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v", err)
				}
				var stuck *run.StuckError
				if errors.As(err, &stuck) {
					return
				}
			}
		})
	}
	t.Run("another host changes the group", func(t *testing.T) {
		f, p, lvs := sharedFake(t, 1)
		p.Groups["vg0"] = Group{Shared: true}
		f.hook = func(c run.Cmd) (run.Result, error, bool) {
			if c.Argv[1] != "lvchange" {
				return run.Result{}, nil, false
			}
			res, err := utterance{Argv: c.Argv, Code: 5, Stderr: "  VG vg0 lock failed: held by other host\n"}.result()
			return res, err, true
		}
		var wait *volume.WaitError
		if err := p.SetRecord(t.Context(), lvs[0], volume.Formatting, "ext4"); !errors.As(err, &wait) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("metadata cannot be read again", func(t *testing.T) {
		f, p, lvs := sharedFake(t, 1)
		f.before = func(words string) error {
			if strings.HasPrefix(words, "fullreport") {
				return &run.ExitError{Step: "replay", Argv: []string{"lvm", "fullreport"}, Code: 5}
			}
			return nil
		}
		if err := p.SetRecord(t.Context(), lvs[0], volume.Seen, "ext4"); err == nil || !strings.Contains(err.Error(), "nothing was mounted") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("caller ends", func(t *testing.T) {
		_, p, lvs := sharedFake(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.SetRecord(ctx, lvs[0], volume.Seen, "ext4"); !errors.Is(err, context.Canceled) && err != nil {
			t.Errorf("got %v", err)
		}
	})
}
