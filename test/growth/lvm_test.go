package growth

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// A group is a volume group whose volumes v0 and on are active, with its
// device-mapper and the commands of LVM that are needed.
type group struct {
	lvs, segments []string // of the report

	mu      sync.Mutex
	devices map[string]devmapper.Mapped // guarded by mu: by uuid and by number
}

const vgUUID = "VGVGVG-0000-0000-0000-0000-0000-VGVGVG"

func newGroup(n int) *group {
	g := &group{devices: map[string]devmapper.Mapped{}}
	for i := range n {
		uuid := fmt.Sprintf("LVLVLV-0000-0000-0000-0000-0000-%06d", i)
		g.lvs = append(g.lvs, fmt.Sprintf(`{"lv_name":"v%d","lv_uuid":%q,"lv_size":"8388608","lv_attr":"-wi-XX----","lv_tags":"","lv_layout":"linear",`+
			`"lv_role":"public","lv_health_status":"","pool_lv":"","origin":""}`, i, uuid))
		g.segments = append(g.segments, fmt.Sprintf(`{"pv_name":"/dev/null","pe_start":"1048576","pvseg_start":"%d","pvseg_size":"2","lv_uuid":%q}`, 2*i, uuid))
		m := devmapper.Mapped{Name: fmt.Sprintf("vg0-v%d", i), UUID: dmUUID(uuid), Number: fmt.Sprintf("253:%d", i), Live: true, Targets: []devmapper.Target{{Type: "linear", Length: 8 << 20, Params: fmt.Sprintf("1:3 %d", 2048+i<<14)}}}
		g.devices[m.UUID], g.devices[m.Number] = m, m
	}
	return g
}

func dmUUID(lv string) string { return "LVM-" + strings.ReplaceAll(vgUUID+lv, "-", "") }

func (g *group) List() (all []devmapper.Mapped, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, m := range g.devices {
		if key == m.UUID {
			all = append(all, m)
		}
	}
	return all, nil
}

func (g *group) Device(key devmapper.Key) (devmapper.Mapped, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, ok := g.devices[key.UUID+key.Number]
	if !ok {
		return m, devmapper.ErrNoDevice
	}
	return m, nil
}

func (g *group) Status(key devmapper.Key) (devmapper.Mapped, error) { return g.Device(key) }

func (g *group) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	switch {
	case c.Argv[1] == "fullreport":
		return run.Result{Stdout: fmt.Appendf(nil, `{"report":[{"vg":[{"vg_name":"vg0","vg_uuid":%q,"vg_extent_size":"4194304","vg_size":"0","vg_free":"0",`+
			`"vg_lock_type":"","vg_exported":"","vg_missing_pv_count":"0","max_lv":"0"}],"pv":[],"lv":[%s],"pvseg":[%s],"seg":[]}]}`, vgUUID, strings.Join(g.lvs, ","), strings.Join(g.segments, ","))}, nil
	case c.Argv[1] == "lvchange" && strings.Contains(strings.Join(c.Argv, " "), " -an "):
		g.mu.Lock()
		defer g.mu.Unlock()
		for key, m := range g.devices {
			if strings.Contains(strings.Join(c.Argv, " ")+" ", " vg0/"+strings.TrimPrefix(m.Name, "vg0-")+" ") {
				delete(g.devices, key)
			}
		}
		return run.Result{}, nil
	}
	return run.Result{}, fmt.Errorf("there is no such command: %q", c.Argv)
}

// TestCountedLVM is what is counted of LVM's volumes: they are looked up and looked
// at, their group is surveyed, and they are deactivated, all at once.
func TestCountedLVM(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv(volumes))
	if err != nil {
		return // it is played by TestGrowth
	}
	g := newGroup(n)
	p := lvm.New(lvm.Options{Runner: g, DM: g, LockDir: t.TempDir(), Groups: map[string]lvm.Group{"vg0": {}}, Filter: lvm.DefaultFilter, Dev: t.TempDir()})
	each := func(do func(lv volume.LV) error) {
		var calls sync.WaitGroup
		for i := range n {
			calls.Go(func() {
				lv, err := p.LookUp(t.Context(), volume.Name{VG: "vg0", LV: fmt.Sprint("v", i)})
				if err == nil {
					err = do(lv)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
	}
	each(func(lv volume.LV) error {
		d, err := p.Device(t.Context(), lv)
		if err == nil {
			_, err = p.Identify(t.Context(), d.Number)
		}
		return err
	})
	if s := p.Survey(t.Context(), "vg0", false); len(s.Devices) != n || s.Metadata != "" {
		t.Errorf("got %+v", s)
	}
	each(func(lv volume.LV) error { return p.Deactivate(t.Context(), "", lv, volume.Device{}) })
}
