package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/asw"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/volume"
)

const (
	tableVolumes = 1000
	tableMounts  = 10000
	tableRuns    = 200
	scaleRuns    = 30

	tableChild = "table" // the argument that makes us the child
)

// A tableResult is what the child measured.
type tableResult struct {
	Mounts, Bytes                           int
	Read, Whole, Parse, Assemble, PlanSteps samples
	Cold                                    samples // Whole, by a flexd that has never seen the table
	Small, Large                            samples // synthetic: 1,000 volumes (means of ten), and 10,000
}

// table measures the cost of reading a mount table in a new mount namespace, and of planning from it.
func table(ctx context.Context) (goals []goal, err error) {
	dir, err := os.MkdirTemp("", "flexd-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the mounts were in another namespace, and went with it
	var out bytes.Buffer
	if insideNamespace(&out, tableChild, dir) != 0 || ctx.Err() != nil {
		return nil, errors.New("the mount table was not measured")
	}
	var r tableResult
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return nil, err
	}
	fmt.Printf("  a real mount table of %d mounts, %d bytes\n", r.Mounts, r.Bytes)
	r.Read.show("reading it and nothing else")
	r.Whole.show("reading, parsing and planning 1,000 volumes")
	r.Parse.show("  of it: reading and parsing")
	r.Assemble.show("  of it: the facts of 1,000 volumes")
	r.PlanSteps.show("  of it: their plans")
	r.Cold.show("the same at flexd's first look, once in its life")
	r.Small.show("synthetic: 1,000 volumes, 10,000 mounts")
	r.Large.show("synthetic: 10,000 volumes, 100,000 mounts")
	return []goal{
		atMost("parse and plan, to reading the mount table", 2, ratio(r.Whole, r.Read)),
		atMost("10,000 volumes, to 1,000", 12, turnByTurn(r.Large, r.Small)),
	}, nil
}

// measureTable is the child, in its own mount namespace.
func measureTable(dir string) error {
	root := filepath.Join(dir, "kubelet")
	if err := makeMounts(root, filepath.Join(dir, "other")); err != nil {
		return err
	}
	text, err := os.ReadFile(mountinfo)
	if err != nil {
		return err
	}
	real, err := newBenchWorld(root, text, tableVolumes)
	if err != nil {
		return err
	}
	r := tableResult{Mounts: bytes.Count(text, []byte("\n")), Bytes: len(text)}
	open := func() (io.ReadCloser, error) { return os.Open(mountinfo) }
	for i := range tableRuns + 5 {
		// flexd reads the table when it has changed, and remembers lines.
		if err := changeMount(dir); err != nil {
			return err
		}
		read, err := readOnly()
		if err != nil {
			return err
		}
		p, err := real.pass(open)
		if err != nil {
			return err
		}
		if i < 5 {
			continue
		}
		if i%10 == 0 {
			real.reader = mounttable.Reader{}
			cold, err := real.pass(open)
			if err != nil {
				return err
			}
			r.Cold = append(r.Cold, cold.parse+cold.assemble+cold.plan)
		}
		r.Read = append(r.Read, read)
		r.Parse, r.Assemble, r.PlanSteps = append(r.Parse, p.parse), append(r.Assemble, p.assemble), append(r.PlanSteps, p.plan)
		r.Whole = append(r.Whole, p.parse+p.assemble+p.plan)
	}
	if err := r.scale(dir); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

const mountinfo = "/proc/self/mountinfo"

// changeMount makes a mount, or takes it away.
func changeMount(dir string) error {
	at := filepath.Join(dir, "changing")
	if err := unix.Unmount(at, 0); err == nil {
		return nil
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	return unix.Mount("/proc", at, "", unix.MS_BIND, "")
}

// makeMounts makes a node's mounts: 1,000 volumes, each a filesystem of its own
// that is mounted twice, and others.
func makeMounts(root, other string) error {
	made := 0
	for i := range tableVolumes {
		global, pod := dirs(root, i)
		for _, d := range []string{global, pod} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount("tmpfs", global, "tmpfs", 0, "size=64k"); err != nil {
			return err
		}
		if err := unix.Mount(global, pod, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		made += 2
	}
	text, err := os.ReadFile(mountinfo)
	if err != nil {
		return err
	}
	for have := bytes.Count(text, []byte("\n")); have < tableMounts; have++ {
		d := filepath.Join(other, fmt.Sprint(have))
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("/proc", d, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

// dirs are kubelet's two directories of a volume.
func dirs(root string, i int) (global, pod string) {
	return fmt.Sprintf("%s/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/pv%d", root, i),
		fmt.Sprintf("%s/pods/0b1f0000-0000-4000-8000-%012d/volumes/flexd~lvm/pv%d", root, i, i)
}

// readOnly reads the mount table and does nothing with it.
func readOnly() (time.Duration, error) {
	started := time.Now()
	f, err := os.Open(mountinfo)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	for {
		_, err := f.Read(buf)
		if err == io.EOF {
			return time.Since(started), nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// A benchWorld is volumes in memory below a mount table.
type benchWorld struct {
	reader   mounttable.Reader
	observer *asw.Observer
	targets  []asw.Target
	wants    []volume.Want
	lvs      []volume.LV
	devices  []volume.Device
}

// newBenchWorld makes volumes for the directories in a mount table.
func newBenchWorld(root string, text []byte, volumes int) (*benchWorld, error) {
	t, err := mounttable.Read(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	w := &benchWorld{}
	for i := range volumes {
		name, uuid := volume.Name{VG: "vg0", LV: fmt.Sprintf("pv%d", i)}, volume.UUID(fmt.Sprintf("uuid-%d", i))
		global, pod := dirs(root, i)
		e := t.Top(global)
		if e == nil {
			return nil, fmt.Errorf("nothing is mounted at %s", global)
		}
		w.lvs = append(w.lvs, volume.LV{Presence: volume.Present, Name: name, UUID: uuid, Size: 1 << 30})
		w.devices = append(w.devices, volume.Device{Activity: volume.Active, Path: fmt.Sprintf("/dev/dm-%d", i), Number: e.Number, Seq: uint64(i + 1), Size: 1 << 30})
		w.targets = append(w.targets, asw.Target{UUID: uuid, Name: name, Dirs: []string{global, pod}})
		w.wants = append(w.wants, volume.Want{Claims: []volume.Claim{
			{Kind: volume.Staged, Dir: global, Phase: volume.Held}, {Kind: volume.Published, Dir: pod, Phase: volume.Held}}})
	}
	w.observer = asw.New([]asw.Layout{kubelet.Layout{Dirs: []string{root}, Driver: "flexd/lvm"}}, map[string]asw.Provider{"vg0": w},
		func(volume.UUID) (volume.RecordFacts, error) { return volume.RecordFacts{State: volume.Seen}, nil }, nil)
	return w, nil
}

func (w *benchWorld) LookUp(_ context.Context, n volume.Name) (volume.LV, error) {
	i, err := strconv.Atoi(n.LV[len("pv"):]) // a map would cost as much as what is measured
	return w.lvs[i], err
}

func (w *benchWorld) Device(_ context.Context, lv volume.LV) (volume.Device, error) {
	i, err := strconv.Atoi(lv.Name.LV[len("pv"):])
	return w.devices[i], err
}

func (w *benchWorld) Identify(context.Context, string) (volume.Identity, error) {
	return volume.Identity{}, errors.New("not asked here")
}

// A pass has the durations of one look at everything.
type pass struct{ parse, assemble, plan time.Duration }

// pass looks at everything once: the table, the facts of each volume, its plan.
func (w *benchWorld) pass(open func() (io.ReadCloser, error)) (pass, error) {
	var p pass
	started := time.Now()
	f, err := open()
	if err != nil {
		return p, err
	}
	defer f.Close()
	t, err := w.reader.Read(f)
	if err != nil {
		return p, err
	}
	parsed := time.Now()
	for i, target := range w.targets {
		began := time.Now()
		h := w.observer.Assemble(context.Background(), target, t)
		assembled := time.Now()
		v := volume.Plan(w.wants[i], h)
		p.assemble, p.plan = p.assemble+assembled.Sub(began), p.plan+time.Since(assembled)
		if len(v.Steps) > 0 || len(h.Mounts) != 2 {
			return p, fmt.Errorf("volume %d is not at rest: %v, %d mounts", i, v.Steps, len(h.Mounts))
		}
	}
	p.parse = parsed.Sub(started)
	return p, nil
}

// scale measures how the cost grows with the number of volumes.
func (r *tableResult) scale(root string) error {
	small, large := synthetic(root, tableVolumes, tableMounts), synthetic(root, 10*tableVolumes, 10*tableMounts)
	ws, err := newBenchWorld(root, small, tableVolumes)
	if err != nil {
		return err
	}
	wl, err := newBenchWorld(root, large, 10*tableVolumes)
	if err != nil {
		return err
	}
	for i := range scaleRuns + 2 {
		// The mean of ten: as long as the large one takes, so that what else
		// the machine does, and the collector, weigh the same.
		var ten time.Duration
		for range 10 {
			p, err := ws.pass(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(small)), nil })
			if err != nil {
				return err
			}
			ten += p.parse + p.assemble + p.plan
		}
		p, err := wl.pass(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(large)), nil })
		if err != nil {
			return err
		}
		if i >= 2 {
			r.Small = append(r.Small, ten/10)
			r.Large = append(r.Large, p.parse+p.assemble+p.plan)
		}
	}
	return nil
}

// synthetic is a mount table as text.
func synthetic(root string, volumes, mounts int) []byte {
	var b strings.Builder
	b.WriteString("22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n")
	id := 100
	line := func(number, root, dir, kind, source string) {
		fmt.Fprintf(&b, "%d 22 %s %s %s rw,relatime shared:%d - %s %s rw,stripe=4\n", id, number, root, dir, id, kind, source)
		id++
	}
	for i := range volumes {
		global, pod := dirs(root, i)
		number, source := fmt.Sprintf("253:%d", i), fmt.Sprintf("/dev/mapper/vg0-pv%d", i)
		line(number, "/", global, "ext4", source)
		line(number, "/", pod, "ext4", source)
	}
	for id < 100+mounts-1 {
		line("0:55", "/", fmt.Sprintf("/run/containerd/io.containerd.runtime.v2.task/k8s.io/%064x/rootfs", id), "overlay", "overlay")
	}
	return []byte(b.String())
}
