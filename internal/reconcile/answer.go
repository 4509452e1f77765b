package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/volume"
)

func (l *lane) answer(v volume.Verdict, h volume.Have) (ids []string) {
	l.refuseUnseen(&v)
	l.renew(v.Done)
	l.noteStarts(v.Done)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range v.Done {
		l.n.requests.Answer(l.uuid, id, dsw.Answer{Device: h.Device.Link})
		ids = append(ids, id)
	}
	if len(v.Refused) > 0 {
		l.facts.Use = volume.UseUnknown // the use may have ended before a retry
	}
	for _, r := range v.Refused {
		l.lastErr = &failure{step: "refused", code: r.Code, text: r.Reason, at: time.Now(), call: r.Call}
		l.n.requests.Refuse(l.uuid, r.Call, volume.WithCode(r.Code, errors.New(r.Reason)))
		ids = append(ids, r.Call)
	}
	if len(v.Done) > 0 {
		l.lastErr = nil
	}
	return ids
}

// refuseUnseen refuses the calls whose mount exists, but is not visible to the caller. commitMount has
// checked one call, not those that joined it or found its mount. The checked call gets Success, even if
// its caller's mount table cannot be read now.
func (l *lane) refuseUnseen(v *volume.Verdict) {
	for _, c := range l.calls() {
		if !c.Mounts() || c.visible || !slices.Contains(v.Done, c.ID) {
			continue
		}
		if err := c.asked.sees(l.table); err != nil {
			v.Done = slices.DeleteFunc(v.Done, func(id string) bool { return id == c.ID })
			v.Refused = append(v.Refused, volume.Refusal{Call: c.ID, Code: volume.CodeOr(err, volume.Unknown), Reason: err.Error()})
		}
	}
}

// renew extends the lease for a Check or Activate that found one. The lease of an Activate gets the name under
// which kubelet will stage the volume; see replacedReason.
func (l *lane) renew(done []string) {
	for _, c := range l.calls() {
		if c.Verb != volume.Check && c.Verb != volume.Activate || !slices.Contains(done, c.ID) {
			continue
		}
		lease, ok := l.n.Store.Lease(l.uuid)
		name := lease.Name
		if c.Verb == volume.Activate {
			name = cmp.Or(kubeName(c), name)
		}
		if left := lease.Until - l.n.Boot(); !ok || left > l.n.Config.Get().Lease*9/10 && name == lease.Name {
			continue
		}
		l.warn(volume.Step{Kind: volume.NoteLease}, l.n.Store.MoveLease(l.uuid, name, l.n.Boot()+l.n.Config.Get().Lease))
	}
}

// noteStarts notes the start times of mount calls whose mount exists already.
func (l *lane) noteStarts(done []string) {
	starts := map[string]time.Duration{} // by directory
	for _, r := range l.n.requests.Of(l.uuid) {
		if r.Mounts() && slices.Contains(done, r.ID) {
			starts[r.Dir] = max(starts[r.Dir], r.Started)
		}
	}
	if len(starts) == 0 {
		return
	}
	for _, c := range l.n.Store.Claims(l.uuid) {
		if c.Started < starts[c.Dir] {
			c.Started = starts[c.Dir]
			l.warn(volume.Step{Kind: volume.NoteHeld}, l.n.Store.Put(c))
		}
	}
}

// fail answers the calls that waited for a step, or delays the retry of a step without a call. It
// reports whether the turn may continue.
func (l *lane) fail(ctx context.Context, step volume.Step, what string, err error) bool {
	if ctx.Err() != nil {
		return false // flexd stops: the callers will ask the next flexd
	}
	if step.Kind == volume.CreateVolume { // calls that arrived meanwhile wait for this creation
		step.Calls = append(step.Calls, l.answerable()...)
	}
	err = l.n.withAdvice(err)
	l.mu.Lock()
	f := &failure{step: what, code: volume.CodeOf(err), text: err.Error(), at: time.Now()}
	if l.lastErr = f; len(step.Calls) > 0 {
		f.call = step.Calls[0]
		err = atStep(what, err)
		for _, id := range step.Calls {
			l.n.requests.Answer(l.uuid, id, dsw.Answer{Err: err})
		}
		l.mu.Unlock()
		return true
	}
	l.retry.failed(time.Now())
	l.mu.Unlock()
	l.retryLater()
	return false
}

// answerable returns the calls that a failed observation may answer: not those whose mount is
// committed, which may have appeared.
func (l *lane) answerable() (ids []string) {
	for _, r := range l.n.requests.Free(l.uuid) {
		ids = append(ids, r.ID)
	}
	return ids
}

// atStep adds the step to an error. A child's error has it already.
func atStep(what string, err error) error {
	if strings.HasPrefix(err.Error(), what+": ") {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}
