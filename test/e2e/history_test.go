package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// After kill -9 the history has the former events, and a following client continues without a repetition. The
// history of a call has its steps and its answer.
func TestHistory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p, q := h.vol("data", "ext4"), podN(1), podN(2)
	follower := h.Client("events", "-f", "-n", "0", "-o", "json", "vg0/data")
	out, err := follower.StdoutPipe()
	h.must(err)
	followed := bufio.NewReader(out)
	h.must(follower.Start())
	h.ok(h.up(noAttach, v, p))
	other := v
	other.FSType = "xfs"
	for range 3 {
		h.refused(h.mount(other, q), "fsType asks for xfs")
	}
	h.restart()
	h.ok(h.unmount(v, p))

	text, code := h.client("events", "vg0/data")
	for _, want := range []string{
		`step create .*ok`, `step mkfs .*ok`, `step mount default/web-1 .*ok`, `call mount default/web-1 .*ok`,
		`call mount default/web-2 .*failed.*: conflict: .*asks for xfs`, `step umount default/web-1 .*ok`, `call unmount default/web-1 .*ok`,
	} {
		found := regexp.MustCompile(want).FindStringIndex(text)
		if found == nil {
			t.Fatalf("exit status %d: there is no %q in what follows in:\n%s", code, want, text)
		}
		text = text[found[1]:]
	}
	// In the log, too, also where kubelet names no pod.
	log, err := os.ReadFile(h.Log)
	h.must(err)
	for _, want := range []string{
		`step=mkfs +done +pod=default/web-1 `, `step=mount +done .*pod=default/web-1 `, `success .*pod=default/web-1 .*verb=mount`,
		`failure .*pod=default/web-2 `, `step=umount +done .*pod=default/web-1 `, `success .*pod=default/web-1 .*verb=unmount`,
	} {
		if !regexp.MustCompile(want).Match(log) {
			t.Errorf("no line %q in the log", want)
		}
	}
	if all, _ := h.client("events"); !strings.Contains(all, "the last one was killed") || strings.Count(all, "starts, version") != 2 {
		t.Errorf("the restart is not shown:\n%s", all)
	}

	var doc struct {
		Events []struct {
			ID           uint64
			Type, Verb   string
			CallID, Code string
		}
	}
	text, _ = h.client("events", "-o", "json", "vg0/data")
	h.must(json.Unmarshal([]byte(text), &doc))
	for _, e := range doc.Events {
		if e.Type != "call" {
			continue
		}
		story, code := h.client("logs", e.CallID)
		if want := map[bool]string{true: "answered after", false: "in kubelet's event ["}[e.Code == ""]; code != 0 || !strings.Contains(story, want) || !strings.Contains(story, "received") {
			t.Errorf("flexd logs %s: exit status %d:\n%s", e.CallID, code, story)
		}
		if e.Verb == "mount" && e.Code == "" && !strings.Contains(story, "mkfs ok") {
			t.Errorf("a story without mkfs:\n%s", story)
		}
	}
	if text, code := h.client("logs", "nonsense"); code != 1 || !strings.Contains(text, "the history has no call nonsense; it begins ") {
		t.Errorf("exit status %d: %s", code, text)
	}

	for _, e := range doc.Events {
		if e.ID == 0 {
			continue // repetitions that are still counted
		}
		var got struct{ ID uint64 }
		if line, err := followed.ReadBytes('\n'); err != nil || json.Unmarshal(line, &got) != nil || got.ID != e.ID {
			t.Fatalf("the follower got %q, %v, want event %d", line, err, e.ID)
		}
	}
	h.must(follower.Process.Signal(unix.SIGINT))
	h.must(follower.Wait())
}
