package volume

import (
	"strings"
	"testing"
	"time"
)

// Ensure that a node continues what another one began, as far as its tag permits.
func TestRecordWith(t *testing.T) {
	now := time.Date(2026, 11, 23, 10, 0, 0, 0, time.UTC)
	file := RecordFacts{State: Formatting, Type: "ext4", File: "/r.json"}
	none := RecordFacts{State: NoRecord}
	tag := func(age time.Duration, here bool) RecordTag {
		return RecordTag{Shared: true, State: Formatting, Type: "xfs", Here: here, At: now.Add(-age), Tags: []string{"t"}}
	}
	seen := RecordTag{Shared: true, State: Seen, Type: "xfs", Tags: []string{"t"}}
	for name, c := range map[string]struct {
		file  RecordFacts
		tag   RecordTag
		state Record
		fs    string
		late  string // a part; "" = the mkfs may be repeated
	}{
		"nothing":                     {none, RecordTag{Shared: true, State: NoRecord}, NoRecord, "", ""},
		"another node's mkfs":         {none, tag(time.Minute, false), Formatting, "xfs", ""},
		"its clock is ahead a little": {none, tag(-30*time.Second, false), Formatting, "xfs", ""},
		"its clock is wrong":          {none, tag(-time.Hour, false), Formatting, "xfs", "it was started at 2026-11-23T11:00:00Z"},
		"another node's old mkfs":     {none, tag(time.Hour, false), Formatting, "xfs", "it was started at 2026-11-23T09:00:00Z, and is repeated within 1h"},
		"after this node's":           {file, tag(time.Minute, false), Formatting, "xfs", ""},
		"this node's":                 {file, tag(time.Minute, true), Formatting, "ext4", ""},
		"this node's ended":           {none, tag(time.Minute, true), NoRecord, "", ""},
		"another node ended it":       {file, RecordTag{Shared: true, State: NoRecord}, Formatting, "ext4", "its tag is gone"},
		"not shared":                  {file, RecordTag{State: NoRecord}, Formatting, "ext4", ""},
		"seen by another node":        {none, seen, Seen, "xfs", ""},
		"seen after this node's mkfs": {file, seen, Seen, "xfs", ""},
		"the file is damaged":         {RecordFacts{}, seen, RecordUnknown, "", ""},
	} {
		got := c.file.With(c.tag, now)
		if got.State != c.state || got.Type != c.fs || (got.Late == "") != (c.late == "") || !strings.Contains(got.Late, c.late) {
			t.Errorf("%s: got %+v", name, got)
		}
		if got.Partial != (c.file.State != Seen || c.tag.Shared && c.tag.State != Seen) || got.File != c.file.File || len(got.Tags) != len(c.tag.Tags) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

// A mounted volume without a record gets one, but no volume that is mounted only by something else.
func TestRecordOfMounted(t *testing.T) {
	const dir = "/pods/p"
	for _, c := range []struct {
		record Record
		owner  Owner
		want   bool
	}{
		{NoRecord, Ours, true}, {Formatting, Ours, true}, {Seen, Ours, false}, {RecordUnknown, Ours, false}, {NoRecord, Elsewhere, false},
	} {
		h := Have{
			LV:      LV{Presence: Present},
			Device:  Device{Activity: Active},
			Record:  c.record,
			Targets: map[string]TargetState{dir: {This: true}},
			Mounts:  []Mount{{Dir: "/bind", Type: "xfs", Owner: Elsewhere}, {Dir: dir, Type: "xfs", Owner: c.owner, Kind: Published}},
		}
		v := Plan(Want{Claims: []Claim{{Kind: Published, Dir: dir, Phase: Held}}}, h)
		if got := len(v.Steps) == 1 && v.Steps[0].Kind == RecordSeen && v.Steps[0].FSType == "xfs"; got != c.want || len(v.Steps) > 1 {
			t.Errorf("%+v: got %+v", c, v)
		}
	}
}
