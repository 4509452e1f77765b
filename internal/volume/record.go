package volume

import (
	"fmt"
	"time"
)

// A Record is the state of a volume's format record.
type Record uint8

// The format records. Formatting is written durably before mkfs starts, and removed when mkfs fails
// without a crash. Seen forbids mkfs for that UUID forever.
const (
	RecordUnknown Record = iota
	NoRecord
	Formatting
	Seen
)

// RepeatWithin is the age up to which an interrupted mkfs is repeated. Kubelet repeats its call within
// minutes after a crash; later, the owner may have used the volume for something else.
const RepeatWithin = time.Hour

// RecordFacts are the contents of a volume's format record.
type RecordFacts struct {
	State Record
	Type  string // the filesystem
	Name  Name   // the volume's name
	Birth int64  // of the volume's file when its filesystem was seen; 0 = not known
	File  string // the path of the record, for the operator; "" = there is none
	Late  string // Formatting: why that mkfs must not be repeated any more, "" = it may be

	Tags    []string // the tags with the same record
	Partial bool     // the record or a required tag does not say "seen"
}

// A RecordTag is the format record in the tags of a volume, where all nodes that share the group see it.
// A node changes the tags of a volume only while it has the volume exclusively active.
type RecordTag struct {
	Shared bool     // the group is shared: the volume must have its record in its tags
	State  Record   // RecordUnknown = NoRecord
	Type   string   // the filesystem
	Tags   []string // the tags themselves
	Here   bool     // Formatting: this node started the mkfs
	At     time.Time
	Bad    string // Formatting: why the node or the time of the mkfs is unknown
}

// With combines the record of a volume with its tags. The stronger one counts, because either may be
// missing, with one exception: an mkfs that ended by itself has no record on its own node, and its tag
// may have remained.
func (f RecordFacts) With(t RecordTag, now time.Time) RecordFacts {
	f.Tags, f.Partial = t.Tags, f.State != Seen || t.Shared && t.State != Seen
	switch {
	case f.State == RecordUnknown:
	case t.State == Seen:
		if f.State != Seen {
			f.Type, f.Late = t.Type, ""
		}
		f.State = Seen
	case f.State == Seen:
	case t.State == Formatting && t.Bad != "":
		f.State, f.Type, f.Late = Formatting, t.Type, t.Bad
	case t.State == Formatting && !t.Here:
		f.State, f.Type, f.Late = Formatting, t.Type, TooLate(t.At, now.Sub(t.At))
	case t.State == Formatting: // started here: without a record, that mkfs has ended
	case t.Shared && f.State == Formatting && f.Late == "":
		f.Late = "its tag is gone: another node has had the volume since, or an administrator removed the tag"
	}
	return f
}

// TooLate returns why an mkfs that was started at that time must not be repeated any more; "" = it may
// be. The clock may have been set back by less than a minute since.
func TooLate(at time.Time, age time.Duration) string {
	if age <= -time.Minute || age >= RepeatWithin {
		return fmt.Sprintf("it was started at %s, and is repeated within %s only", at.Format(time.RFC3339), RepeatWithin)
	}
	return ""
}
