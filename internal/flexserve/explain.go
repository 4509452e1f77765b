package flexserve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/reconcile"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volume"
)

// Offline returns a frontend that explains from the configuration alone; why is the reason for which
// the state of the node is unknown.
func Offline(live *config.Live, why error) *Frontend {
	return &Frontend{Config: live, Node: reconcile.NewUnobserved(live, why)}
}

// Explain predicts the results of calls, each "VERB OPTIONS", one after
// another. flexd adds the other arguments, so that a client cannot make it access a
// directory that is not kubelet's.
func (f *Frontend) Explain(ctx context.Context, calls []string) status.Explained {
	cfg := f.Config.Get()
	doc := status.Explained{Node: cfg.NodeName, Driver: cfg.Driver, Lease: cfg.Lease.String()}
	for _, vg := range cfg.VolumeGroups {
		if vg.Shared {
			doc.Shared = append(doc.Shared, vg.Name)
		}
	}
	var (
		requests []reconcile.Request
		parsed   []flexvolume.Call
		asked    []int // the index of the call for each request
	)
	for i, text := range calls {
		verb, blob, _ := strings.Cut(text, " ")
		e := status.ExplainedCall{Verb: verb, Result: status.WouldSucceed, Args: f.arguments(verb, blob)}
		call, err := flexvolume.Parse(verb, e.Args)
		switch {
		case e.Args == nil:
			e.Result, e.Code, e.Message = status.WouldRefuse, string(volume.Invalid), "not one of attach, waitforattach, mountdevice, mount"
		case err != nil:
			e.Result, e.Code, e.Message = status.WouldRefuse, string(volume.Invalid), message(verb, volumeOf(call), err)
		default:
			id := fmt.Sprintf("explain %d", i)
			requests = append(requests, f.request(flexvolume.Request{ID: id, Verb: verb}, call, reconcile.Caller{}))
			parsed, asked = append(parsed, call), append(asked, i)
		}
		doc.Calls = append(doc.Calls, e)
	}
	if len(requests) == 0 {
		return doc
	}
	for i, o := range f.Node.Explain(ctx, requests) {
		e, call := &doc.Calls[asked[i]], parsed[i]
		e.Notes = append(e.Notes, o.Notes...)
		e.Steps = append(e.Steps, steps(call, o.Steps)...)
		if o.Err == nil {
			continue
		}
		e.Result, e.Code, e.Message = status.WouldRefuse, string(volume.CodeOf(o.Err)), message(call.Verb, volumeOf(call), o.Err)
		if !o.Known {
			e.Result = status.OutcomeUnknown
			e.Notes = append(e.Notes, f.lastRefusal(call)...)
		}
	}
	return doc
}

// lastRefusal returns a note about the last mount of a call's volume, if it failed.
func (f *Frontend) lastRefusal(call flexvolume.Call) []string {
	now := time.Now()
	for _, r := range f.Calls(now) {
		if r.VG == call.Options.VG && r.LV == call.Options.LV && (r.Verb == flexvolume.Mount || r.Verb == flexvolume.MountDevice) {
			return []string{fmt.Sprintf("its last %s failed at %s: %s", r.Verb, r.Last.UTC().Format(time.RFC3339), r.Message)}
		}
	}
	return nil
}

// anyPod is the uid for a pod without one.
const anyPod = "00000000-0000-0000-0000-000000000000"

// arguments returns the arguments of a set-up as kubelet passes them.
func (f *Frontend) arguments(verb, blob string) []string {
	cfg := f.Config.Get()
	o, _ := flexvolume.ParseOptions(blob) // Explain parses the options again and reports the error
	name, root := cmp.Or(o.Name, "volume"), cfg.KubeletRoots[0]
	switch verb {
	case flexvolume.Attach:
		return []string{blob, cfg.NodeName}
	case flexvolume.WaitForAttach:
		return []string{"", blob}
	case flexvolume.MountDevice:
		return []string{kubelet.GlobalDir(root, cfg.Driver, name), "", blob}
	case flexvolume.Mount:
		return []string{kubelet.PodDir(root, cfg.Driver, cmp.Or(o.Pod.UID, anyPod), name), blob}
	}
	return nil
}

// steps describes steps for people, without notes and records.
func steps(call flexvolume.Call, steps []volume.Step) (all []string) {
	o := call.Options
	name := o.VG + "/" + o.LV
	for _, s := range steps {
		text := ""
		switch s.Kind {
		case volume.CreateVolume:
			text = fmt.Sprintf("create %s with %s", name, status.Size(s.Size))
		case volume.ActivateDevice:
			text = "activate " + name
		case volume.Inspect:
			text = "look at its content"
		case volume.Format:
			text = strings.Join(append([]string{"mkfs." + s.FSType}, o.MkfsOptions...), " ")
		case volume.CheckFS:
			text = "fsck." + s.FSType
		case volume.Extend:
			text = fmt.Sprintf("extend %s to %s", name, status.Size(s.Size))
		case volume.MountVolume:
			options := slices.Concat(o.Attrs, o.Super)
			if o.ReadOnly && call.Verb == flexvolume.Mount {
				options = slices.Insert(options, 0, "ro")
			}
			if text = fmt.Sprintf("mount the %s", s.FSType); len(options) > 0 {
				text += " (" + strings.Join(options, ",") + ")"
			}
		}
		if text != "" && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}
