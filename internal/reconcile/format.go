package reconcile

import (
	"context"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/mount"
	"github.com/flexd/flexd/internal/volume"
)

// format makes a filesystem. Its record is made durable after the device is proven
// blank, while the child has it open exclusively. The child removes the record if
// mkfs does not start or fails: a record that remains means a crash.
func (l *lane) format(ctx context.Context, s volume.Step, c *call, h *volume.Have) error {
	l.facts = volume.FS{}
	done, err := l.awaitCheck(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	f := mount.Formatting{
		Device: h.Device, Type: s.FSType, Opts: c.asked.Options.MkfsOptions,
		Repeat: s.Repeat, Created: l.created(h), Record: l.n.Records.File(l.uuid),
	}
	recorded := false
	err = l.n.Ops.Format(ctx, l.lock, f, func() error {
		if l.waitingCall(s) == nil {
			return dsw.ErrNotWanted
		}
		recorded = true
		if err := l.recordFormat(ctx, s, h); err != nil {
			return err
		}
		return l.hasLock(ctx, s, h.LV)
	})
	if err == nil {
		l.facts = volume.FS{Made: true, Checked: true}
	} else if recorded && h.LV.Tagged.Shared {
		l.resolveTag(ctx, s, h)
	}
	return err
}

// created returns the volume's uuid if flexd created it.
func (l *lane) created(h *volume.Have) volume.UUID {
	if !h.LV.Created {
		return ""
	}
	return l.uuid
}

// recordFormat makes durable that mkfs is about to run: on this node and, in a shared group, for
// the other nodes.
func (l *lane) recordFormat(ctx context.Context, s volume.Step, h *volume.Have) error {
	if err := l.n.Records.Formatting(l.uuid, h.LV.Name, s.FSType); err != nil {
		return err
	}
	if err := l.setTag(ctx, h, volume.Formatting, s.FSType); err != nil {
		return err
	}
	l.stepLog(s).WithField("step", "record format").Info("done")
	// mkfs may take an hour, and status shows the last observation.
	seen := *h
	seen.Record, seen.RecordType = volume.Formatting, s.FSType
	l.n.Observer.Publish(l.uuid, seen)
	return nil
}

// resolveTag removes the tag of an mkfs that has ended without a filesystem: then its child has
// removed the record.
func (l *lane) resolveTag(ctx context.Context, s volume.Step, h *volume.Have) {
	if own, err := l.n.Records.Get(l.uuid); err != nil || own.State != volume.NoRecord {
		return
	}
	l.warn(s, l.setTag(ctx, h, volume.NoRecord, ""))
}

// resolveOldTag is resolveTag for an mkfs that ended while flexd was not running, before another
// node may get the volume.
func (l *lane) resolveOldTag(ctx context.Context, h *volume.Have) {
	if t := h.LV.Tagged; t.State == volume.Formatting && t.Here && h.Record == volume.NoRecord {
		l.warn(volume.Step{Kind: volume.Deactivate}, l.setTag(ctx, h, volume.NoRecord, ""))
	}
}

// recordSeen makes durable that the volume has a filesystem. In a shared group nothing is
// mounted before the other nodes see it.
func (l *lane) recordSeen(ctx context.Context, s volume.Step, h *volume.Have) error {
	if err := l.writeSeen(s, h); err != nil {
		if own, unread := l.n.Records.Get(l.uuid); unread != nil || own.State != volume.Seen {
			return err // the old record says that mkfs was started
		}
		l.warn(s, err) // flexd has run no mkfs here, and remembers the filesystem until it ends
	}
	if h.LV.Tagged.State == volume.Seen {
		return nil
	}
	return l.setTag(ctx, h, volume.Seen, s.FSType)
}

// seenTimeout is how long a lane waits for a record that no call waits for.
const seenTimeout = 2 * time.Second

// writeSeen writes the record. A record that no call waits for is that of a mounted volume, whose unmount must not
// wait for a stateDir that hangs.
func (l *lane) writeSeen(s volume.Step, h *volume.Have) error {
	name, birth := h.LV.Name, h.LV.File.Birth
	write := func() error { return l.n.Records.Seen(l.uuid, name, s.FSType, birth) }
	if len(s.Calls) > 0 {
		return write()
	}
	if l.recording == nil {
		done := make(chan error, 1)
		l.recording = done
		go func() { done <- write() }()
	}
	select {
	case err := <-l.recording:
		l.recording = nil
		return err
	case <-time.After(seenTimeout):
		return volume.Errorf(volume.InProgress, "format record %s: stateDir does not respond", l.n.Records.File(l.uuid))
	}
}

// setTag writes the record to the tags of the volume, for the other nodes of a shared group.
func (l *lane) setTag(ctx context.Context, h *volume.Have, state volume.Record, fsType string) error {
	if !h.LV.Tagged.Shared {
		return nil
	}
	// Only the provider of a configured group reads Tagged, so there is one.
	return l.n.Providers[h.LV.Name.VG].SetRecord(ctx, h.LV, state, fsType)
}

// adoptRecord notes on this node that another node has seen a filesystem, before the device
// appears: udev's rule then ignores the device from its first event on, and no new volume gets its
// name while this one is missing.
func (l *lane) adoptRecord(lv volume.LV) {
	if lv.Tagged.State != volume.Seen {
		return
	}
	own, err := l.n.Records.Get(l.uuid)
	if err != nil || own.State == volume.Seen {
		return
	}
	if err := l.n.Records.Seen(l.uuid, lv.Name, lv.Tagged.Type, lv.File.Birth); err != nil {
		l.log().WithError(err).Warn("the format record in its tags is not noted on this node")
	}
}
