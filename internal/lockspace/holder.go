package lockspace

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// An LV is a logical volume and its lock.
type LV struct {
	UUID     volume.UUID
	LockArgs string // its lv_lockargs, "1.0.0:70254592"
}

// lease returns the name and the offset of the volume's lease. Its name is LVM's uuid of the volume.
func (l LV) lease() (leaseArg, error) {
	version, offset, ok := strings.Cut(l.LockArgs, ":")
	n, err := strconv.ParseInt(offset, 10, 64)
	if !ok || !strings.HasPrefix(version, "1.") || err != nil || n <= 0 || n%4096 != 0 {
		return leaseArg{}, volume.Errorf(volume.Unknown, "the location of the volume's lock has an unknown format (%.40q)", l.LockArgs)
	}
	return leaseArg{Name: string(cmp.Or(l.UUID.Earlier(), l.UUID)), Offset: n}, nil
}

// readPause is the minimum time between two reads of leases, so that volumes share a read.
const readPause = 200 * time.Millisecond

// perChild is the number of leases that one child reads: the size of its argument is limited.
const perChild = 500

// A reading is one read of leases of a volume group, for all requests before its start.
type reading struct {
	leases map[leaseArg]bool
	done   chan struct{}
	hosts  map[string]volume.Holder // the result, by lease
	errors map[string]string        // of leases that could not be read
	err    error
}

// A sighting has the owner of a lease, and the times when this node saw it first and last.
type sighting struct {
	owner
	first, last time.Time
}

// Holder returns the other host whose lock would make LVM's command fail; nil = no host, this host, or
// a host that is dead by sanlock's rules. It is a hint: LVM's command decides.
func (m *Manager) Holder(ctx context.Context, vg string, lv LV) (*volume.Holder, error) {
	l, err := lv.lease()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	s := m.space(vg)
	if s.next == nil {
		s.next = &reading{leases: map[leaseArg]bool{}, done: make(chan struct{})}
	}
	r := s.next
	r.leases[l] = true
	if !s.reading {
		s.reading = true
		go m.readAll(s)
	}
	m.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
		return nil, volume.Errorf(volume.Unknown, "the holder of the lock is not known yet: %w", ctx.Err())
	}
	if r.err != nil {
		return nil, r.err
	}
	if text := r.errors[l.Name]; text != "" {
		return nil, volume.Errorf(volume.Unknown, "the holder of the lock is not known: %s", text)
	}
	if h, ok := r.hosts[l.Name]; ok {
		return &h, nil
	}
	return nil, nil
}

// readAll reads leases until no request is left.
func (m *Manager) readAll(s *space) {
	for {
		m.mu.Lock()
		r := s.next
		if s.next = nil; r == nil {
			s.reading = false
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		if r.err = m.read(s, r); r.err != nil {
			r.err = volume.WithCode(volume.Unknown, fmt.Errorf("the holder of the lock is not known: %w", r.err))
		}
		close(r.done)
		time.Sleep(readPause)
	}
}

// read reads the owners of leases, and the state of these hosts in this node's sanlock.
func (m *Manager) read(s *space, r *reading) error {
	vg := s.status.VG
	f, err := m.look(context.Background())
	if err != nil {
		return err
	}
	if err := cmp.Or(f.lvmlockdErr, f.sanlockErr); f.lvmlockd[vg].Type == "dlm" || err != nil {
		return cmp.Or(err, fmt.Errorf("dlm does not report it"))
	}
	lease, ok := f.sanlock.Spaces["lvm_"+vg]
	if !ok || lease.List != "spaces" || !strings.HasPrefix(lease.Path, "/dev/") {
		return fmt.Errorf("the lockspace is not started")
	}
	// The hosts are read first: the leases then show if a host joins or renews its lease meanwhile.
	out, err := m.command("sanlock hosts", "sanlock", "client", "host_status", "-s", "lvm_"+vg, "-D")
	if err != nil {
		return err
	}
	hosts, err := parseHosts(out)
	if err != nil {
		return err
	}
	arg := leasesArg{Path: lease.Path, Lockspace: "lvm_" + vg, SectorSize: lease.SectorSize, MaxHost: lease.HostID}
	for id := range hosts {
		arg.MaxHost = max(arg.MaxHost, id)
	}
	arg.Leases = slices.Collect(maps.Keys(r.leases))
	r.errors, r.hosts = map[string]string{}, map[string]volume.Holder{}
	return m.askLeases(context.Background(), arg, m.lock(vg, "leases"), func(got leasesAnswer) {
		m.holders(s, r, got, hosts, lease)
	})
}

// askLeases reads leases with as many children as it needs, and passes each result to use.
func (m *Manager) askLeases(ctx context.Context, arg leasesArg, lock string, use func(leasesAnswer)) error {
	for some := range slices.Chunk(arg.Leases, perChild) {
		arg.Leases = some
		var got leasesAnswer
		if err := run.Ask(ctx, m.Runner, run.Cmd{Step: "leases", Argv: run.Self("lockspace-leases", arg), Deadline: commandDeadline, Lock: lock}, &got); err != nil {
			return err
		}
		use(got)
	}
	return nil
}

// holders adds the leases that a child has read to the result of a reading.
func (m *Manager) holders(s *space, r *reading, got leasesAnswer, hosts map[int]host, own Leases) {
	now := m.monotonic()
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.Copy(r.errors, got.Errors)
	for name, owners := range got.Owners {
		var last hostState // of several owners, the one that keeps the lock longest
		var by *owner
		for _, o := range owners {
			h, alive := holder(o, got.Hosts[o.ID], hosts, own, now)
			if o.ID != own.HostID && alive && (by == nil || last.freeAt != 0 && (h.freeAt == 0 || h.freeAt > last.freeAt)) {
				last, by = h, &o
			}
		}
		if by != nil {
			r.hosts[name] = m.seen(s, name, *by, last, now)
		} else {
			delete(s.sightings, name)
		}
	}
	maps.DeleteFunc(s.sightings, func(_ string, g sighting) bool { return m.now().Sub(g.last) > time.Hour })
}

// A hostState is the state of a host by sanlock's rules, with times in seconds of CLOCK_MONOTONIC.
type hostState struct {
	name    string
	state   string
	renewed int // the last renewal that was seen; 0 = none
	freeAt  int // when its locks can be taken; 0 = it renews its lease
}

// holder applies sanlock's rules to the owner of a lease (sanlock's source: paxos_acquire). A host is
// dead if this node has seen no renewal of its delta lease for so long that its watchdog has reset it,
// even if it was paused.
func holder(o owner, d delta, hosts map[int]host, own Leases, now int) (s hostState, alive bool) {
	if d.Timestamp == 0 || d.Generation > o.Generation {
		return s, false // it has left, or joined again: it does not hold its old locks
	}
	s = hostState{name: d.Name, state: volume.LeaseUnknown}
	h, ok := hosts[o.ID]
	if !ok || h.Generation != d.Generation || h.LastLive == 0 {
		return s, true // it joined after this node's sanlock last read the hosts
	}
	age := now - h.LastLive
	if h.Timestamp != d.Timestamp {
		age = 0 // it has renewed its lease since
	}
	timeout := cmp.Or(h.IOTimeout, own.IOTimeout)
	if age > deadAfter(timeout) {
		return s, false
	}
	s.freeAt = now - age + deadAfter(timeout) + 1
	neverRenewed := age > 0 && h.LastLive-own.Joined <= 3*own.IOTimeout
	switch {
	case !neverRenewed && age <= staleAfter(timeout):
		s.state, s.renewed, s.freeAt = volume.LeaseLive, now-age, 0
	case !neverRenewed:
		s.state, s.renewed = volume.LeaseFailing, now-age
	}
	return s, true
}

// seen returns the holder of a lease with the time when it was first seen. m.mu is held.
func (m *Manager) seen(s *space, lease string, o owner, h hostState, now int) volume.Holder {
	at := m.now()
	clock := func(t int) time.Time {
		if t == 0 {
			return time.Time{}
		}
		return at.Add(time.Duration(t-now) * time.Second)
	}
	g := s.sightings[lease]
	if g.owner != o {
		g = sighting{owner: o, first: at}
	}
	g.last = at
	if s.sightings == nil {
		s.sightings = map[string]sighting{}
	}
	s.sightings[lease] = g
	return volume.Holder{HostID: o.ID, Host: h.name, Shared: o.Shared, Since: g.first, State: h.state, Renewed: clock(h.renewed), FreeAt: clock(h.freeAt)}
}

// monotonic returns the clock that sanlock uses.
func monotonic() int {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail
	return int(t.Sec)
}
