package kubelet

import (
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/flexvolume"
	"k8s.io/kubernetes/pkg/volume/util"
	"k8s.io/mount-utils"
)

// A controller is the attach/detach controller: it calls the driver through the
// same plugin, on a machine without a flexd. The order of its steps is that of
// pkg/controller/volume/attachdetach/reconciler: nothing is detached that the
// node reports in use, and a volume is taken from the node's status before it is
// detached.
type controller struct {
	n       *node
	plugins *volume.VolumePluginMgr
	done    chan struct{}
	ended   sync.WaitGroup
	specs   map[v1.UniqueVolumeName]*volume.Spec // attached
}

func newController(n *node) *controller {
	n.t.Helper()
	plugins := n.Dir + "/controller/plugins"
	n.install(plugins + "/" + n.DriverDir() + "/lvm")
	tracer, err := newTracer("controller", n.calls())
	n.must(err)
	client := fake.NewClientset()
	c := &controller{n: n, plugins: &volume.VolumePluginMgr{}, done: make(chan struct{}), specs: map[v1.UniqueVolumeName]*volume.Spec{}}
	host := &volumeHost{client: client, informers: informers.NewSharedInformerFactory(client, 0), mounter: mount.New("")}
	n.must(c.plugins.InitPlugins(nil, flexvolume.GetDynamicPluginProber(n.t.Context(), plugins, tracer), host))
	c.ended.Go(c.loop)
	return c
}

func (c *controller) stop() {
	close(c.done)
	c.ended.Wait()
}

func (c *controller) loop() {
	for {
		select {
		case <-c.done:
			return
		case <-time.After(50 * time.Millisecond):
		}
		if err := c.reconcile(); err != nil {
			c.n.t.Errorf("controller: %v", err)
			return
		}
	}
}

func (c *controller) reconcile() error {
	n := c.n
	n.mu.Lock()
	pods, pvs, inUse := slices.Clone(n.world.Pods), slices.Clone(n.world.PVs), n.inUse
	n.mu.Unlock()
	wanted := map[v1.UniqueVolumeName]*volume.Spec{}
	for _, p := range pods {
		for i, v := range p.Spec.Volumes {
			spec := volume.NewSpecFromVolume(&v)
			if v.PersistentVolumeClaim != nil {
				at := slices.IndexFunc(pvs, func(pv *v1.PersistentVolume) bool { return pv.Name == volumeName(p, i) })
				spec = volume.NewSpecFromPersistentVolume(pvs[at], v.PersistentVolumeClaim.ReadOnly)
			}
			plugin, err := c.plugins.FindAttachablePluginBySpec(spec)
			if err != nil || plugin == nil {
				return fmt.Errorf("no plugin: %w", err)
			}
			name, err := util.GetUniqueVolumeNameFromSpec(plugin, spec)
			if err != nil {
				return err
			}
			if wanted[name] == nil {
				wanted[name] = spec
			}
		}
	}
	for name, spec := range c.specs {
		if wanted[name] != nil || slices.Contains(inUse, name) {
			continue
		}
		n.change(func(w *World) {
			w.Attached = slices.DeleteFunc(slices.Clone(w.Attached), func(a v1.AttachedVolume) bool { return a.Name == name })
		})
		plugin, _ := c.plugins.FindAttachablePluginBySpec(spec)
		d, err := plugin.NewDetacher()
		if err == nil {
			err = d.Detach(spec.Name(), nodeName)
		}
		if err != nil {
			return err
		}
		delete(c.specs, name)
	}
	for name, spec := range wanted {
		if c.specs[name] != nil {
			continue
		}
		plugin, _ := c.plugins.FindAttachablePluginBySpec(spec)
		a, err := plugin.NewAttacher()
		if err != nil {
			return err
		}
		device, err := a.Attach(spec, types.NodeName(nodeName))
		if err != nil {
			return err
		}
		c.specs[name] = spec
		n.change(func(w *World) {
			w.Attached = append(slices.Clone(w.Attached), v1.AttachedVolume{Name: name, DevicePath: device})
		})
	}
	return nil
}
