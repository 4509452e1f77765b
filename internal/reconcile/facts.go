package reconcile

import (
	"fmt"
	"strings"

	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// observed describes the last observation as text.
func observed(h volume.Have) []status.Fact {
	facts := []status.Fact{}
	add := func(name, format string, a ...any) {
		facts = append(facts, status.Fact{Name: name, Value: fmt.Sprintf(format, a...)})
	}
	switch h.LV.Presence {
	case volume.Present:
		add("volume", "present, %s, uuid %s%s", status.Size(h.LV.Size), h.LV.UUID, readOnly(h.LV.ReadOnly))
	case volume.Absent:
		add("volume", "does not exist%s", volume.Because(h.LV.Reason))
	case volume.Foreign:
		add("volume", "foreign%s", volume.Because(h.LV.Reason))
	default:
		add("volume", "unknown%s", volume.Because(h.LV.Reason))
	}
	switch d := h.Device; d.Activity {
	case volume.Active:
		add("device", "%s (%s), %s%s%s", d.Path, d.Number, status.Size(d.Size), readOnly(d.ReadOnly), volume.Because(d.Reason))
	case volume.Inactive:
		add("device", "none: inactive")
	default:
		add("device", "unknown%s", volume.Because(d.Reason))
	}
	if why := volume.Kept(h.Device.Relatives); why != "" {
		add("stays active", "%s", why)
	}
	switch h.Record {
	case volume.Formatting:
		add("format record", "mkfs of %s was started and has not ended%s%s", h.RecordType, volume.Because(h.RecordLate), tagged(h))
	case volume.Seen:
		add("format record", "a filesystem was seen: never formatted again%s", tagged(h))
	case volume.NoRecord:
		add("format record", "none")
	default:
		add("format record", "unknown%s", volume.Because(h.RecordReason))
	}
	for _, m := range h.Mounts {
		who := ""
		switch m.Owner {
		case volume.Kubelets:
			who = ", made by kubelet or the runtime"
		case volume.Elsewhere:
			who = ", made by something else"
			if m.OtherDriver {
				who = ", in a directory of another driver"
			}
		}
		add("mount", "%s (%s%s%s)", m.Dir, m.Type, readOnly(m.ReadOnly), who)
	}
	if h.FS.Content == volume.FilesystemFailed {
		add("filesystem", "in error: %s", h.FS.What)
	}
	if h.FS.Content == volume.Truncated {
		add("filesystem", "%s, larger than its device (%s)", volume.Bytes(h.FS.Size), volume.Bytes(h.Device.Size))
	}
	return facts
}

// tagged describes whether the other nodes of a shared group see the record.
func tagged(h volume.Have) string {
	switch {
	case len(h.RecordTags) > 0:
		return " (tag " + strings.Join(h.RecordTags, ", ") + ")"
	case h.LV.Tagged.Shared:
		return " (no tag yet: other nodes do not see it)"
	}
	return ""
}

func readOnly(ro bool) string {
	if ro {
		return ", read-only"
	}
	return ""
}
