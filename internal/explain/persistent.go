package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/volopts"
)

// pvAlone adds a PersistentVolume that no pod of the manifest uses, as a pod would use it.
func (e *explainer) pvAlone(v *pv) error {
	f, ok, err := e.pvFlexVolume(v)
	if err != nil {
		return err
	}
	if !ok {
		e.skip(v.place, "PersistentVolume "+v.name(), v.name(), "it is not of driver %s", e.driver)
		return nil
	}
	s := &subject{}
	s.ExplainedVolume = status.ExplainedVolume{Source: v.place.String(), Kind: v.Kind, Name: v.name(), PersistentVolume: v.name()}
	ns := cmp.Or(e.Namespace, v.spec.ClaimRef.Namespace, e.claimed[v], "default")
	s.Notes = append(s.Notes, "no pod in the manifest uses it: one of namespace "+ns+" is assumed (--namespace)")
	s.away = v.spec.NodeAffinity.away(e.node, "its nodeAffinity")
	e.persistent(s, v, f, false, &pod{object: objectNamed("Pod", ns, "any")})
	return nil
}

// claimNamespaces returns the namespace of the first claim of each PersistentVolume.
func (e *explainer) claimNamespaces() map[*pv]string {
	all := map[*pv]string{}
	for i := range e.claims {
		ns := e.namespace(&e.claims[i].object)
		if v, _, _ := e.bound(ns, e.claims[i].name()); v != nil && all[v] == "" {
			all[v] = ns
		}
	}
	return all
}

func objectNamed(kind, ns, name string) (o object) {
	o.Kind, o.Metadata.Namespace, o.Metadata.Name = kind, ns, name
	return o
}

// bound returns the PersistentVolume of a claim in the manifest, or why it is not known.
func (e *explainer) bound(ns, name string) (v *pv, notes []string, why string) {
	i := slices.IndexFunc(e.claims, func(c claim) bool { return c.name() == name && e.namespace(&c.object) == ns })
	var fits []*pv
	for k := range e.pvs {
		ref := e.pvs[k].spec.ClaimRef
		if ref.Name == name && cmp.Or(ref.Namespace, ns) == ns {
			return &e.pvs[k], nil, ""
		}
		if i >= 0 && ref.Name == "" && e.claims[i].spec.fits(&e.pvs[k]) {
			fits = append(fits, &e.pvs[k])
		}
	}
	switch {
	case i < 0:
		return nil, nil, fmt.Sprintf("the manifest has no PersistentVolumeClaim %s/%s", ns, name)
	case len(fits) == 0:
		return nil, nil, fmt.Sprintf("the manifest has no PersistentVolume for claim %s", name)
	case len(fits) > 1:
		return nil, nil, fmt.Sprintf("claim %s fits several PersistentVolumes; name one with spec.volumeName", name)
	case e.claims[i].spec.VolumeName == "":
		notes = append(notes, fmt.Sprintf("assumed: claim %s is bound to PersistentVolume %s, the only one here that fits", name, fits[0].name()))
	}
	return fits[0], notes, ""
}

// fits reports whether Kubernetes could bind the claim to v.
func (c *claimSpec) fits(v *pv) bool {
	if c.VolumeName != "" {
		return v.name() == c.VolumeName
	}
	class := ""
	if c.StorageClassName != nil {
		class = *c.StorageClassName
	}
	has, wants := bytesOf(v.spec.Capacity["storage"]), bytesOf(c.Resources.Requests["storage"])
	return v.spec.StorageClassName == class && (has == 0 || wants <= has) &&
		!slices.ContainsFunc(c.AccessModes, func(mode string) bool { return !slices.Contains(v.spec.AccessModes, mode) })
}

// pvFlexVolume returns the source of a PersistentVolume, if it is of our driver.
func (e *explainer) pvFlexVolume(v *pv) (f flexVolume, ours bool, err error) {
	if v.spec.FlexVolume.Kind == 0 {
		return f, false, nil
	}
	f, err = e.flexVolume(resolved(&v.spec.FlexVolume))
	return f, err == nil && f.Driver == e.driver, err
}

// persistent adds a PersistentVolume as a pod uses it.
func (e *explainer) persistent(s *subject, v *pv, f flexVolume, readOnly bool, p *pod) {
	refuse := func(format string, a ...any) { s.Refusals = append(s.Refusals, fmt.Sprintf(format, a...)) }
	warn := func(format string, a ...any) { s.Warnings = append(s.Warnings, fmt.Sprintf(format, a...)) }
	if len(v.spec.MountOptions) > 0 {
		refuse("kubelet mounts no FlexVolume with spec.mountOptions (%s): write them into flexVolume.options.mountOptions", strings.Join(v.spec.MountOptions, ","))
	}
	if v.spec.VolumeMode == "Block" {
		refuse("kubelet gives a FlexVolume to no pod as a block device: volumeMode must be Filesystem")
	}
	if v.spec.NodeAffinity.Required == nil {
		warn("it has no nodeAffinity: a pod may start on another node, where it gets another volume of this name, or none")
	}
	if v.spec.ReclaimPolicy == "Delete" {
		warn("persistentVolumeReclaimPolicy is Delete, and nothing deletes a FlexVolume: the PersistentVolume would become Failed, and the data stays. Use Retain")
	}
	for _, mode := range v.spec.AccessModes {
		if mode == "ReadWriteMany" {
			warn("accessModes has ReadWriteMany, and the volume is on one node: pods of other nodes do not share it")
		}
	}
	if f.ReadOnly && !readOnly {
		warn("kubelet ignores readOnly of a PersistentVolume's flexVolume: set readOnly at the pod's persistentVolumeClaim")
	}
	node := resolved(&v.spec.FlexVolume)
	capacity, option := v.spec.Capacity["storage"], ""
	if size := value(value(node, "options"), flexvolume.KeySize); size != nil {
		option = size.Value
	}
	if size, err := volopts.ParseSize(option); option != "" && err == nil && bytesOf(capacity) > size {
		warn("its capacity is %s, and option size creates the volume with %s only", capacity, status.Size(size))
	}
	e.source(s, node, f, v.name(), readOnly, p)
}
