package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/spelling"
	"github.com/flexd/flexd/internal/status"
)

// Query are the parameters of an explanation.
type Query struct {
	File      string // its name, for messages
	Data      []byte
	Namespace string // of objects; "" = their own, or default
	Attach    bool   // the driver's mode
	// Ask asks flexd about successive calls.
	Ask func(calls []string) (status.Explained, error)
}

// Limits of one request to flexd: of its calls, and of its HTTP header.
const (
	maxCalls = 64
	maxQuery = 12 << 10
)

// A subject is a volume that is explained.
type subject struct {
	status.ExplainedVolume
	calls []string // "VERB OPTIONS"
	key   string   // the logical volume, as it is written
	away  string   // why the pod does not start on this node, "" = it may
}

// An explainer collects the subjects of a manifest.
type explainer struct {
	Query
	*manifest
	node, driver string
	subjects     []*subject
	skipped      []status.SkippedVolume
	staged       map[string]bool // PersistentVolumes that an earlier pod has staged
	claimed      map[*pv]string  // PersistentVolume → the namespace of its first claim here
	numbered     int             // pods
	assumed      string          // for pods without a namespace
}

// Explain returns the calls that kubelet would make for the objects of a manifest, and their expected
// results. Its errors are those of the manifest, and of Ask.
func Explain(q Query) (status.Explanation, error) {
	m, err := read(q.File, q.Data)
	if err != nil {
		return status.Explanation{}, err
	}
	about, err := q.Ask(nil)
	if err != nil {
		return status.Explanation{}, err
	}
	e := &explainer{Query: q, manifest: m, node: about.Node, driver: about.Driver, staged: map[string]bool{}}
	doc := status.Explanation{Node: about.Node, Driver: about.Driver, Attach: q.Attach}
	used := map[string]bool{}
	for i := range m.pods {
		if err := e.pod(&m.pods[i], used); err != nil {
			return doc, err
		}
	}
	e.claimed = e.claimNamespaces()
	for i := range m.pvs {
		if v := &m.pvs[i]; !used[v.name()] {
			if err := e.pvAlone(v); err != nil {
				return doc, err
			}
		}
	}
	if err := e.ask(); err != nil {
		return doc, err
	}
	for _, s := range e.subjects {
		e.judge(s, about)
		doc.Volumes = append(doc.Volumes, s.ExplainedVolume)
	}
	doc.Skipped = append(doc.Skipped, e.skipped...)
	if e.assumed != "" {
		doc.Problems = append(doc.Problems, e.assumed)
	}
	doc.Result = doc.Judge()
	return doc, nil
}

func (e *explainer) skip(p place, object, volume, format string, a ...any) {
	e.skipped = append(e.skipped, status.SkippedVolume{Source: p.String(), Object: object, Volume: volume, Reason: fmt.Sprintf(format, a...)})
}

// namespace returns the namespace of an object.
func (e *explainer) namespace(o *object) string {
	return cmp.Or(e.Namespace, o.Metadata.Namespace, "default")
}

// pod adds the volumes of a pod. used gets the PersistentVolumes that it uses.
func (e *explainer) pod(p *pod, used map[string]bool) error {
	ns := e.namespace(&p.object)
	title := p.Kind + " " + ns + "/" + p.name()
	e.numbered++
	if p.Metadata.UID == "" { // another for each pod: their directories differ
		p.Metadata.UID = fmt.Sprintf("00000000-0000-0000-0000-%012d", e.numbered)
	}
	for i := range p.spec.Volumes {
		n := resolved(&p.spec.Volumes[i])
		at := place{e.file, n.Line}
		var name struct {
			Name string `yaml:"name"`
		}
		if err := e.decode(n, &name); err != nil {
			return err
		}
		volume := name.Name
		newSubject := func() *subject {
			s := &subject{}
			s.ExplainedVolume = status.ExplainedVolume{Source: at.String(), Kind: p.Kind, Namespace: ns, Name: p.name(), Volume: volume}
			if e.Namespace == "" && p.Metadata.Namespace == "" {
				e.assumed = "a pod of the manifest has no namespace: default is assumed (--namespace)"
			}
			return s
		}
		if flex := value(n, "flexVolume"); flex != nil {
			f, err := e.flexVolume(flex)
			if err != nil {
				return err
			}
			if f.Driver != e.driver {
				e.skip(at, title, volume, "its driver is %s", cmp.Or(f.Driver, "missing"))
				continue
			}
			s := newSubject()
			if e.Attach {
				s.Warnings = append(s.Warnings, "with attach:true kubelet tells inline volumes apart by their name in the pod alone: a second pod on the node with a volume "+volume+" collides with this one. Use a PersistentVolume, or attach:false")
			}
			if !p.spec.placed() {
				s.Warnings = append(s.Warnings, "nothing binds the pod to a node: on another node it gets another volume of this name, or none. Set nodeName, or a nodeSelector for kubernetes.io/hostname")
			}
			s.away = p.spec.away(e.node)
			e.source(s, flex, f, volume, f.ReadOnly, p)
			continue
		}
		source := value(n, "persistentVolumeClaim")
		if source == nil {
			e.skip(at, title, volume, "%s is not flexd's", sourceName(n))
			continue
		}
		var ref struct {
			Name     string `yaml:"claimName"`
			ReadOnly bool   `yaml:"readOnly"`
		}
		if err := e.decode(source, &ref); err != nil {
			return err
		}
		v, notes, why := e.bound(ns, ref.Name)
		if v == nil {
			e.skip(at, title, volume, "%s", why)
			continue
		}
		used[v.name()] = true
		f, ok, err := e.pvFlexVolume(v)
		if err != nil {
			return err
		}
		if !ok {
			e.skip(at, title, volume, "its PersistentVolume %s is not of %s", v.name(), e.driver)
			continue
		}
		s := newSubject()
		s.PersistentVolume = v.name()
		s.Notes = append(s.Notes, notes...)
		if s.away = p.spec.away(e.node); s.away == "" {
			s.away = v.spec.NodeAffinity.away(e.node, "the PersistentVolume's nodeAffinity")
		}
		e.persistent(s, v, f, ref.ReadOnly, p)
	}
	for _, t := range p.templates {
		e.skip(p.place, title, t, "volumeClaimTemplates: each pod gets a claim of its own; explain the PersistentVolumes")
	}
	return nil
}

func (e *explainer) flexVolume(n *yaml.Node) (f flexVolume, err error) {
	err = e.decode(n, &f)
	return f, err
}

// source adds a FlexVolume: the options that kubelet passes, and the calls.
func (e *explainer) source(s *subject, n *yaml.Node, f flexVolume, name string, readOnly bool, p *pod) {
	e.subjects = append(e.subjects, s)
	refuse := func(n *yaml.Node, format string, a ...any) {
		s.Refusals = append(s.Refusals, fmt.Sprintf("%s:%d: ", e.file, n.Line)+fmt.Sprintf(format, a...))
	}
	for k := range pairs(n) {
		if !slices.Contains(fields, k.Value) {
			refuse(k, "the API server knows no field flexVolume.%s%s", k.Value, spelling.Suggest(k.Value, fields))
		}
	}
	options := map[string]string{}
	for key, v := range pairs(value(n, "options")) {
		k := key.Value
		switch {
		case v.Kind != yaml.ScalarNode || v.Tag != "!!str":
			refuse(v, "option %s is not a string, so the API server refuses it: quote it", k)
		case reserved(k):
			refuse(v, "the API server refuses option %s: the prefix is Kubernetes' own", k)
		default:
			options[k] = v.Value
		}
	}
	s.VG, s.LV = options[flexvolume.KeyVG], options[flexvolume.KeyLV]
	s.key = s.VG + "/" + s.LV
	readwrite := "rw"
	if readOnly {
		readwrite = "ro"
	}
	base := map[string]string{"kubernetes.io/fsType": f.FSType, "kubernetes.io/readwrite": readwrite, "kubernetes.io/pvOrVolumeName": name}
	ns := cmp.Or(s.Namespace, p.Metadata.Namespace)
	ofPod := map[string]string{
		"kubernetes.io/pod.name": p.name(), "kubernetes.io/pod.namespace": ns, "kubernetes.io/pod.uid": p.Metadata.UID,
		"kubernetes.io/serviceAccount.name": cmp.Or(p.spec.ServiceAccount, "default"),
	}
	if g := p.spec.SecurityContext.FSGroup; g != nil {
		ofPod["kubernetes.io/mounterArgs.FsGroup"] = fmt.Sprint(*g)
		if !readOnly {
			s.Notes = append(s.Notes, fmt.Sprintf("after mount kubelet itself changes the files to group %d (fsGroup); flexd does not", *g))
		}
	}
	if f.SecretRef != nil {
		s.Notes = append(s.Notes, fmt.Sprintf("kubelet passes the keys of secret %s to mount as kubernetes.io/secret/KEY, in base64; flexd ignores them. Unless its type is %s, kubelet refuses the volume", f.SecretRef.Name, e.driver))
	}
	e.mounts(s, p)
	if e.Attach {
		if !e.staged[s.PersistentVolume] {
			e.call(s, flexvolume.Attach, base, options)
		}
		e.call(s, flexvolume.WaitForAttach, base, options)
		if !e.staged[s.PersistentVolume] {
			e.call(s, flexvolume.MountDevice, base, options)
		}
		e.staged[s.PersistentVolume] = s.PersistentVolume != ""
	}
	e.call(s, flexvolume.Mount, base, ofPod, options)
}

// mounts checks the use of a volume by the pod's containers.
func (e *explainer) mounts(s *subject, p *pod) {
	for _, c := range slices.Concat(p.spec.InitContainers, p.spec.Containers) {
		for _, d := range c.VolumeDevices {
			if d.Name == s.Volume {
				s.Refusals = append(s.Refusals, "a container uses it as a block device (volumeDevices), and a FlexVolume is always a filesystem")
			}
		}
		for _, m := range c.VolumeMounts {
			if path := cmp.Or(m.SubPath, m.SubPathExpr); m.Name == s.Volume && path != "" {
				s.Notes = append(s.Notes, "subPath "+path+": kubelet itself makes the directory and bind-mounts it")
			}
		}
	}
}

// call adds a call with its options, as kubelet merges and encodes them.
func (e *explainer) call(s *subject, verb string, options ...map[string]string) {
	all := map[string]string{}
	for _, o := range options {
		maps.Copy(all, o)
	}
	blob, _ := json.Marshal(all) // strings only
	s.calls = append(s.calls, verb+" "+string(blob))
}

// ask asks flexd about the calls. Calls for one logical volume are in one request, if they fit.
func (e *explainer) ask() error {
	var keys []string
	groups := map[string][]*subject{}
	for _, s := range e.subjects {
		if len(s.Refusals) > 0 {
			continue
		}
		if groups[s.key] == nil {
			keys = append(keys, s.key)
		}
		groups[s.key] = append(groups[s.key], s)
	}
	for _, key := range keys {
		var batch []*subject
		calls, length := []string(nil), 0
		flush := func() error {
			if len(calls) == 0 {
				return nil
			}
			answer, err := e.Ask(calls)
			if err == nil && len(answer.Calls) != len(calls) {
				err = fmt.Errorf("flexd's answer has %d calls, and %d were asked about", len(answer.Calls), len(calls))
			}
			if err != nil {
				return err
			}
			for _, s := range batch {
				s.Calls, answer.Calls = answer.Calls[:len(s.calls)], answer.Calls[len(s.calls):]
			}
			batch, calls, length = nil, nil, 0
			return nil
		}
		for _, s := range groups[key] {
			size := 0
			for _, c := range s.calls {
				size += len(url.QueryEscape(c)) + len("call=&")
			}
			if size > maxQuery {
				s.Notes = append(s.Notes, "its options are too long to ask flexd about them")
				continue
			}
			if len(calls)+len(s.calls) > maxCalls || length+size > maxQuery {
				if err := flush(); err != nil {
					return err
				}
			}
			batch, calls, length = append(batch, s), append(calls, s.calls...), length+size
		}
		if err := flush(); err != nil {
			return err
		}
	}
	return nil
}

// judge completes a subject with the answers.
func (e *explainer) judge(s *subject, about status.Explained) {
	s.Result = status.WouldSucceed
	if len(s.Calls) == 0 {
		s.Result = status.OutcomeUnknown
	}
	for i, c := range s.Calls {
		if c.Result == status.OutcomeUnknown {
			s.Result = status.OutcomeUnknown
		}
		if c.Result == status.WouldRefuse { // kubelet does not make the later calls
			s.Result, s.Calls = status.WouldRefuse, s.Calls[:i+1]
			break
		}
	}
	if s.away != "" {
		s.Warnings = slices.Insert(s.Warnings, 0, s.away)
		if s.Result == status.WouldSucceed {
			s.Result = status.OutcomeUnknown
		}
	}
	if len(s.Refusals) > 0 {
		s.Result = status.WouldRefuse
	}
	if s.Result != status.WouldRefuse {
		verbs := "unmount"
		if e.Attach {
			verbs = "unmount, and after the last pod unmountdevice"
		}
		then := fmt.Sprintf("%s later, unless its group has `deactivate: never`", about.Lease)
		if slices.Contains(about.Shared, s.VG) {
			then = "at once, and until then a call on another node waits for it"
		}
		s.End = append(s.End, fmt.Sprintf("when the pod is deleted kubelet calls %s; flexd deactivates the volume %s. The data stays", verbs, then))
	}
	for _, list := range []*[]string{&s.Refusals, &s.End, &s.Warnings, &s.Notes} {
		*list = slices.Compact(*list)
	}
}

// fields are those of a flexVolume.
var fields = []string{"driver", "fsType", "secretRef", "readOnly", "options"}

// reserved reports whether the API server refuses an option's key.
func reserved(key string) bool {
	prefix, _, ok := strings.Cut(key, "/")
	return ok && (prefix == "kubernetes.io" || prefix == "k8s.io" || strings.HasSuffix(prefix, ".kubernetes.io") || strings.HasSuffix(prefix, ".k8s.io"))
}

// sourceName returns the type of a volume's source.
func sourceName(n *yaml.Node) string {
	for k := range pairs(n) {
		if k.Value != "name" {
			return k.Value
		}
	}
	return "a volume without a source"
}
