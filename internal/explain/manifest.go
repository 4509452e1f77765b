// Package explain translates Kubernetes manifests into the calls that kubelet makes for their
// FlexVolumes. It starts nothing and sends no request: cmd/flexd asks flexd about the calls.
package explain

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// MaxInput is the largest manifest, in bytes.
const MaxInput = 1 << 20

// maxObjects bounds the objects of a manifest, maxNodes its words, keys and lists with the contents
// of aliases, and maxDepth the lists within lists.
const (
	maxObjects = 1000
	maxNodes   = 1 << 18
	maxDepth   = 4
)

// A manifest has the parts of the objects in a file that flexd needs.
type manifest struct {
	file   string
	pods   []pod // and the templates of pods
	pvs    []pv
	claims []claim
	others []string // kinds without volumes
	count  int
}

type place struct {
	file string
	line int
}

func (p place) String() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

// An object has the fields of all objects of Kubernetes.
type object struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name         string `yaml:"name"`
		GenerateName string `yaml:"generateName"`
		Namespace    string `yaml:"namespace"`
		UID          string `yaml:"uid"`
	} `yaml:"metadata"`
	Spec  yaml.Node   `yaml:"spec"`
	Items []yaml.Node `yaml:"items"`

	place
}

func (o *object) name() string {
	switch {
	case o.Metadata.Name != "":
		return o.Metadata.Name
	case o.Metadata.GenerateName != "":
		return o.Metadata.GenerateName + "x"
	}
	return "unnamed"
}

type pod struct {
	object
	spec      podSpec
	templates []string // of volumeClaimTemplates
}

type podSpec struct {
	Volumes         []yaml.Node       `yaml:"volumes"`
	Containers      []container       `yaml:"containers"`
	InitContainers  []container       `yaml:"initContainers"`
	NodeName        string            `yaml:"nodeName"`
	NodeSelector    map[string]string `yaml:"nodeSelector"`
	ServiceAccount  string            `yaml:"serviceAccountName"`
	SecurityContext struct {
		FSGroup *int64 `yaml:"fsGroup"`
	} `yaml:"securityContext"`
	Affinity struct {
		NodeAffinity nodeAffinity `yaml:"nodeAffinity"`
	} `yaml:"affinity"`
}

type container struct {
	VolumeMounts []struct {
		Name        string `yaml:"name"`
		SubPath     string `yaml:"subPath"`
		SubPathExpr string `yaml:"subPathExpr"`
	} `yaml:"volumeMounts"`
	VolumeDevices []struct {
		Name string `yaml:"name"`
	} `yaml:"volumeDevices"`
}

// A nodeAffinity is that of a pod, or of a PersistentVolume.
type nodeAffinity struct {
	Required   *nodeSelector `yaml:"required"`
	Scheduling *nodeSelector `yaml:"requiredDuringSchedulingIgnoredDuringExecution"`
}

type nodeSelector struct {
	Terms []struct {
		Expressions []struct {
			Key      string   `yaml:"key"`
			Operator string   `yaml:"operator"`
			Values   []string `yaml:"values"`
		} `yaml:"matchExpressions"`
	} `yaml:"nodeSelectorTerms"`
}

type pv struct {
	object
	spec pvSpec
}

type pvSpec struct {
	Capacity         map[string]string `yaml:"capacity"`
	AccessModes      []string          `yaml:"accessModes"`
	ReclaimPolicy    string            `yaml:"persistentVolumeReclaimPolicy"`
	StorageClassName string            `yaml:"storageClassName"`
	MountOptions     []string          `yaml:"mountOptions"`
	VolumeMode       string            `yaml:"volumeMode"`
	ClaimRef         struct {
		Namespace string `yaml:"namespace"`
		Name      string `yaml:"name"`
	} `yaml:"claimRef"`
	NodeAffinity nodeAffinity `yaml:"nodeAffinity"`
	FlexVolume   yaml.Node    `yaml:"flexVolume"`
}

type claim struct {
	object
	spec claimSpec
}

type claimSpec struct {
	VolumeName       string   `yaml:"volumeName"`
	StorageClassName *string  `yaml:"storageClassName"`
	AccessModes      []string `yaml:"accessModes"`
	VolumeMode       string   `yaml:"volumeMode"`
	Resources        struct {
		Requests map[string]string `yaml:"requests"`
	} `yaml:"resources"`
}

// A flexVolume is the source of a volume.
type flexVolume struct {
	Driver    string `yaml:"driver"`
	FSType    string `yaml:"fsType"`
	ReadOnly  bool   `yaml:"readOnly"`
	SecretRef *struct {
		Name string `yaml:"name"`
	} `yaml:"secretRef"`
}

// read reads a manifest. Its errors name the file and the line.
func read(file string, data []byte) (*manifest, error) {
	if len(data) > MaxInput {
		return nil, fmt.Errorf("%s: larger than 1 MiB; is this a manifest?", file)
	}
	if first := bytes.TrimSpace(data); len(first) > 0 && first[0] == '{' {
		data = bytes.ReplaceAll(data, []byte("\t"), []byte(" ")) // JSON allows tabs between words, YAML does not
	}
	m := &manifest{file: file}
	left := maxNodes
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, m.located(err, 1)
		}
		if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
			continue
		}
		if left = less(left, &doc); left < 0 {
			return nil, fmt.Errorf("%s:%d: too much for a manifest, with all that its aliases repeat", file, doc.Line)
		}
		if err := m.add(doc.Content[0], 0); err != nil {
			return nil, err
		}
	}
	if m.count == 0 {
		return nil, fmt.Errorf("%s: no object of Kubernetes", file)
	}
	return m, nil
}

// less returns left less the number of nodes in n, aliases resolved; negative = more than left.
func less(left int, n *yaml.Node) int {
	left--
	if n.Kind == yaml.AliasNode && left >= 0 { // it may contain itself
		return less(left, n.Alias)
	}
	for _, c := range n.Content {
		if left < 0 {
			break
		}
		left = less(left, c)
	}
	return left
}

var yamlLine = lazily(`^(?:yaml: )?line (\d+): `)

// located is an error of the YAML reader, with file and line.
func (m *manifest) located(err error, line int) error {
	text := err.Error()
	if types, ok := errors.AsType[*yaml.TypeError](err); ok {
		text = types.Errors[0]
	}
	if at := yamlLine().FindStringSubmatch(text); at != nil {
		line, _ = strconv.Atoi(at[1])
		text = text[len(at[0]):]
	}
	return fmt.Errorf("%s:%d: %s", m.file, line, strings.TrimPrefix(text, "yaml: "))
}

// decode reads a node. The YAML reader refuses excessive aliases and repeated keys.
func (m *manifest) decode(n *yaml.Node, into any) error {
	if n.Kind == 0 {
		return nil
	}
	if err := n.Decode(into); err != nil {
		return m.located(err, n.Line)
	}
	return nil
}

// add adds an object, or those of a list.
func (m *manifest) add(n *yaml.Node, depth int) error {
	o := object{place: place{m.file, n.Line}}
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("%s: not an object of Kubernetes: a mapping with `kind`", o.place)
	}
	if err := m.decode(n, &o); err != nil {
		return err
	}
	if m.count++; m.count > maxObjects {
		return fmt.Errorf("%s: more than %d objects", o.place, maxObjects)
	}
	switch o.Kind {
	case "":
		return fmt.Errorf("%s: an object without `kind`: not a manifest of Kubernetes", o.place)
	case "List", "PodList", "PersistentVolumeList", "PersistentVolumeClaimList":
		if depth == maxDepth {
			return fmt.Errorf("%s: lists within lists", o.place)
		}
		for i := range o.Items {
			item := resolved(&o.Items[i])
			if o.Kind != "List" && value(item, "kind") == nil && item.Kind == yaml.MappingNode {
				item.Content = append(item.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "kind"}, &yaml.Node{Kind: yaml.ScalarNode, Value: strings.TrimSuffix(o.Kind, "List")})
			}
			if err := m.add(item, depth+1); err != nil {
				return err
			}
		}
		return nil
	case "PersistentVolume":
		m.pvs = append(m.pvs, pv{object: o})
		return m.decode(&o.Spec, &m.pvs[len(m.pvs)-1].spec)
	case "PersistentVolumeClaim":
		m.claims = append(m.claims, claim{object: o})
		return m.decode(&o.Spec, &m.claims[len(m.claims)-1].spec)
	}
	path, ok := podPaths[o.Kind]
	if !ok {
		m.others = append(m.others, o.Kind)
		return nil
	}
	spec := &o.Spec
	for _, key := range path {
		if spec = value(spec, key); spec == nil {
			return fmt.Errorf("%s: %s %s has no spec.%s", o.place, o.Kind, o.name(), strings.Join(path, "."))
		}
	}
	p := pod{object: o}
	if err := m.decode(spec, &p.spec); err != nil {
		return err
	}
	if templates := value(&o.Spec, "volumeClaimTemplates"); o.Kind == "StatefulSet" && templates != nil {
		var all []object
		if err := m.decode(templates, &all); err != nil {
			return err
		}
		for _, t := range all {
			p.templates = append(p.templates, t.Metadata.Name)
		}
	}
	m.pods = append(m.pods, p)
	return nil
}

// podPaths has the path of the pods' spec in the spec of each kind that has pods.
var podPaths = map[string][]string{
	"Pod":                   nil,
	"Deployment":            {"template", "spec"},
	"ReplicaSet":            {"template", "spec"},
	"ReplicationController": {"template", "spec"},
	"StatefulSet":           {"template", "spec"},
	"DaemonSet":             {"template", "spec"},
	"Job":                   {"template", "spec"},
	"CronJob":               {"jobTemplate", "spec", "template", "spec"},
}

func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// value returns the value of a key in a mapping, or nil.
func value(n *yaml.Node, key string) *yaml.Node {
	for k, v := range pairs(n) {
		if k.Value == key {
			return v
		}
	}
	return nil
}

// pairs yields the keys and values of a mapping.
func pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(k, v *yaml.Node) bool) {
		if n == nil || resolved(n).Kind != yaml.MappingNode {
			return
		}
		for pair := range slices.Chunk(resolved(n).Content, 2) {
			if !yield(pair[0], resolved(pair[1])) {
				return
			}
		}
	}
}

var quantity = lazily(`^(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E|)$`)

// lazily compiles an expression on first use: children of flexd start often and never need
// it.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// bytesOf returns the bytes of a quantity of Kubernetes; 0 = not understood.
func bytesOf(text string) int64 {
	m := quantity().FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	n, err := strconv.ParseFloat(m[1], 64)
	base := 1000.0
	if strings.HasSuffix(m[2], "i") {
		base = 1024
	}
	if m[2] != "" {
		for range strings.Index("KMGTPE", strings.ToUpper(m[2][:1])) + 1 {
			n *= base
		}
	}
	if err != nil || n >= 1<<63 {
		return 0
	}
	return int64(n)
}
