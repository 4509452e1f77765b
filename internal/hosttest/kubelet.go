package hosttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/kubelet"
)

// A Pod is one user of one volume.
type Pod struct {
	UID    string
	Volume string // kubelet's name for it: the PV's, or the pod's own of an inline volume
	LV     string
	RO     bool
	FSType string
	Size   string
	Mount  string // mountOptions
	Mkfs   string
	Extra  map[string]string
}

// A Kubelet simulates kubelet 1.36: its checks before a call, its actions after a call, and
// its retries.
type Kubelet struct {
	E      *Env
	Attach bool // the driver said attach:true

	ctx  context.Context // of this kubelet's life
	kill context.CancelFunc

	mu      sync.Mutex
	device  map[string]string // by volume: the answer to waitforattach
	staged  map[string]bool   // by volume: device globally mounted
	mounted map[string]bool   // by pod directory
	wants   map[string]Pod    // by pod directory
}

// NewKubelet starts a kubelet.
func NewKubelet(e *Env, attach bool) *Kubelet {
	k := &Kubelet{E: e, Attach: attach, device: map[string]string{}, staged: map[string]bool{}, mounted: map[string]bool{}, wants: map[string]Pod{}}
	k.ctx, k.kill = context.WithCancel(context.Background())
	return k
}

// Kill kills kubelet: its flexdrivers close their connections, and its memory is lost.
func (k *Kubelet) Kill() *Kubelet {
	k.kill()
	return NewKubelet(k.E, k.Attach)
}

// Dir returns kubelet's directory for the pod's mount.
func (k *Kubelet) Dir(p Pod) string {
	return kubelet.PodDir(k.E.Root, k.E.Config.Driver, p.UID, p.Volume)
}

// Global returns kubelet's global directory of a volume.
func (k *Kubelet) Global(volume string) string {
	return kubelet.GlobalDir(k.E.Root, k.E.Config.Driver, volume)
}

// Blob returns kubelet's JSON argument for a pod's volume.
func (k *Kubelet) Blob(p Pod, forMount bool) string {
	m := map[string]string{"kubernetes.io/fsType": p.FSType, "kubernetes.io/readwrite": "rw", "kubernetes.io/pvOrVolumeName": p.Volume}
	if p.RO {
		m["kubernetes.io/readwrite"] = "ro"
	}
	if forMount {
		m["kubernetes.io/pod.name"], m["kubernetes.io/pod.namespace"], m["kubernetes.io/pod.uid"] = p.UID, "ns", p.UID
		m["kubernetes.io/serviceAccount.name"] = "default"
	}
	m[flexvolume.KeyVG], m[flexvolume.KeyLV] = VG, p.LV
	for key, v := range map[string]string{flexvolume.KeySize: p.Size, flexvolume.KeyMountOptions: p.Mount, flexvolume.KeyMkfsOptions: p.Mkfs} {
		if v != "" {
			m[key] = v
		}
	}
	maps.Copy(m, p.Extra)
	b, _ := json.Marshal(m)
	return string(b)
}

// ErrKubeletDied ends the calls of a kubelet that was killed.
var ErrKubeletDied = errors.New("kubelet died")

// errDriverKilled is kubelet's error for a flexdriver that was killed.
var errDriverKilled = errors.New("signal: killed")

// Call is one exec of flexdriver: it waits for a flexd, repeats the call when flexd dies without an
// answer, and closes the connection when its kubelet dies.
func (k *Kubelet) Call(verb string, args ...string) (flexvolume.Answer, error) {
	return k.CallAt(k.E.M.Boot(), verb, args...)
}

// CallAt is Call by a flexdriver that started at that time since boot.
func (k *Kubelet) CallAt(started time.Duration, verb string, args ...string) (flexvolume.Answer, error) {
	e := k.E
	if k.pause("kubelet calls %s %s", verb, args); k.ctx.Err() != nil {
		return flexvolume.Answer{}, ErrKubeletDied
	}
	r := flexvolume.Request{V: flexvolume.Version, ID: fmt.Sprintf("c%d", e.calls.Add(1)), Verb: verb, Args: args, Started: int64(started)}
	timeout, cancel := context.WithTimeout(k.ctx, 5*time.Minute)
	defer cancel()
	for {
		e.mu.Lock()
		l, born := e.life, e.born
		e.mu.Unlock()
		if l == nil || l.dead.Load() {
			select {
			case <-born:
				continue
			case <-timeout.Done():
				if k.ctx.Err() != nil {
					return flexvolume.Answer{}, ErrKubeletDied
				}
				return flexvolume.Failure("flexd is down"), nil
			}
		}
		ctx, hangUp := context.WithCancel(timeout)
		stop := make(chan struct{})
		go func() {
			select {
			case <-l.over:
			case <-stop:
			}
			hangUp()
		}()
		var killed atomic.Bool
		off := e.waits(driver{args, func() { killed.Store(true); hangUp() }})
		over := func(*flexvolume.Answer) {}
		if e.Calling != nil {
			over = e.Calling(r)
			context.AfterFunc(ctx, func() { over(nil) })
		}
		late := e.watch(l, r)
		a := l.flex.Serve(ctx, r, 0)
		if late.Stop(); a != (flexvolume.Answer{}) && (a.Status == flexvolume.StatusSuccess) != (a.Code == "") {
			e.broke("%s %q is answered with %s and the code %q", verb, args, a.Status, a.Code)
		}
		if ctx.Err() == nil && !l.dead.Load() {
			over(&a)
		} else {
			over(nil)
		}
		off()
		close(stop)
		e.tap.mu.Lock()
		lost := e.tap.count(answer, CrashAnswer)
		e.tap.mu.Unlock()
		if lost != Never {
			l.crash()
		}
		switch {
		case k.ctx.Err() != nil:
			return flexvolume.Answer{}, ErrKubeletDied
		case killed.Load():
			return flexvolume.Answer{}, errDriverKilled
		case l.dead.Load():
			continue // no answer came: it is asked again under the same id
		}
		if os.Getenv("HOSTTEST_LOG") != "" {
			fmt.Fprintf(os.Stderr, "kubelet: %s %q -> %s %s\n", verb, args, a.Status, a.Message)
		}
		if k.pause("kubelet receives answer to %s %s", verb, args); k.ctx.Err() != nil {
			return flexvolume.Answer{}, ErrKubeletDied
		}
		return a, nil
	}
}

// watch verifies that flexd answers in time, whatever its children do: only the time for a committed mount
// is added to a call's deadline.
func (e *Env) watch(l *life, r flexvolume.Request) *time.Timer {
	const grace = 21 * time.Second
	waited := e.M.Boot() - time.Duration(r.Started)
	if r.Started <= 0 { // not known
		waited = 0
	}
	return time.AfterFunc(max(e.Config.CallDeadline-waited, time.Second)+grace, func() {
		if !l.dead.Load() {
			e.broke("%s %q has no answer %v after its deadline", r.Verb, r.Args, grace)
		}
	})
}

// pause stops kubelet at a point that the test selects.
func (k *Kubelet) pause(format, verb string, args []string) {
	if pause := k.E.pauses.Load(); pause != nil {
		(*pause)(fmt.Sprintf(format, verb, k.about(args)), k.ctx.Done())
	}
}

// about returns the directory of a call, or its first argument.
func (k *Kubelet) about(args []string) (about string) {
	for _, a := range args {
		if about == "" || strings.HasPrefix(a, k.E.Root) {
			about = a
		}
	}
	return about
}

// Remember gives a new kubelet the directory of a pod.
func (k *Kubelet) Remember(p Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wants[k.Dir(p)] = p
}

// call is Call with failures as errors.
func (k *Kubelet) call(verb string, args ...string) (string, error) {
	a, err := k.Call(verb, args...)
	if err == nil && a.Status != flexvolume.StatusSuccess {
		err = fmt.Errorf("%s command failed, status: %s, reason: %s", verb, a.Status, a.Message)
	}
	return a.Device, err
}

// Insist makes a call until it succeeds.
func (k *Kubelet) Insist(verb string, args ...string) error {
	return k.retry(verb, func() error { _, err := k.call(verb, args...); return err })
}

// Up is one attempt of kubelet to set up a pod's volume.
func (k *Kubelet) Up(p Pod) error {
	dir := k.Dir(p)
	if k.Attach {
		if err := k.stage(p); err != nil {
			return err
		}
	}
	k.mu.Lock()
	k.wants[dir] = p
	k.mu.Unlock()
	m := k.E.M
	if !m.IsMountPoint(dir) {
		if err := m.Mkdir(dir); err != nil {
			return err
		}
		if _, err := k.call(flexvolume.Mount, dir, k.Blob(p, true)); err != nil {
			if k.ctx.Err() == nil {
				_ = m.Remove(dir)
			}
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mounted[dir] = true
	return nil
}

// stage is the first half of an attachable volume's mount.
func (k *Kubelet) stage(p Pod) error {
	k.mu.Lock()
	device, staged := k.device[p.Volume], k.staged[p.Volume]
	k.mu.Unlock()
	device, err := k.call(flexvolume.WaitForAttach, device, k.Blob(p, false))
	if err != nil {
		return err
	}
	if device == "" {
		return errors.New("waitforattach answered Success without a device")
	}
	if !staged {
		global := k.Global(p.Volume)
		if !k.E.M.IsMountPoint(global) {
			if err := k.E.M.Mkdir(global); err != nil {
				return err
			}
			if _, err := k.call(flexvolume.MountDevice, global, device, k.Blob(p, false)); err != nil {
				return err
			}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.device[p.Volume], k.staged[p.Volume] = device, true
	return nil
}

// Down is one attempt of kubelet to tear down a pod's volume.
func (k *Kubelet) Down(p Pod) error {
	dir, m := k.Dir(p), k.E.M
	if m.Exists(dir) {
		if _, err := k.call(flexvolume.Unmount, dir); err != nil {
			return err
		}
		if err := m.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	k.mu.Lock()
	delete(k.mounted, dir)
	delete(k.wants, dir)
	last := k.Attach
	for _, other := range k.wants {
		last = last && other.Volume != p.Volume
	}
	k.mu.Unlock()
	if last {
		return k.unstage(p.Volume)
	}
	return nil
}

// Forget is kubelet's cleanup for a pod that is deleted after its mount failed.
func (k *Kubelet) Forget(p Pod) {
	_ = k.E.M.Remove(k.Dir(p))
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.wants, k.Dir(p))
}

// unstage unmounts the global mount, if there is one.
func (k *Kubelet) unstage(volume string) error {
	global, m := k.Global(volume), k.E.M
	if m.Exists(global) {
		if m.IsMountPoint(global) {
			if _, err := k.call(flexvolume.UnmountDevice, global); err != nil {
				return err
			}
		}
		if err := m.Remove(global); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	k.mu.Lock()
	delete(k.staged, volume)
	delete(k.device, volume)
	k.mu.Unlock()
	_, err := k.call(flexvolume.Detach, volume, k.E.Config.NodeName)
	return err
}

// retry is kubelet's exponential backoff around one operation.
func (k *Kubelet) retry(what string, attempt func() error) error {
	wait := 500 * time.Millisecond
	if k.E.Sim == nil {
		wait = 50 * time.Millisecond
	}
	end := time.Now().Add(k.E.Limit)
	for {
		err := attempt()
		if err == nil || errors.Is(err, ErrKubeletDied) {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: kubelet's retries do not succeed: %w", what, err)
		}
		time.Sleep(wait)
		wait = min(2*wait, 2*time.Minute+2*time.Second)
	}
}

// Start sets up a pod's volume, with retries.
func (k *Kubelet) Start(p Pod) error {
	return k.retry("start "+path.Base(p.UID), func() error { return k.Up(p) })
}

// Finish tears down a pod's volume, with retries.
func (k *Kubelet) Finish(p Pod) error {
	return k.retry("stop "+path.Base(p.UID), func() error { return k.Down(p) })
}

// Expand is kubelet's online expansion.
func (k *Kubelet) Expand(p Pod, bytes int64) error {
	return k.retry("expand "+p.UID, func() error {
		k.mu.Lock()
		device := k.device[p.Volume]
		k.mu.Unlock()
		_, err := k.call(flexvolume.ExpandFS, k.Blob(p, false), device, k.Dir(p), fmt.Sprint(bytes), "0")
		return err
	})
}
