package config

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Parse reads and checks a configuration. The name is used in errors only. An
// empty document means Default.
func Parse(name string, data []byte) (*Config, error) {
	r := &reader{file: name, lines: map[string]int{}}
	c := blank()
	if doc := r.document(data); doc != nil {
		r.mapping(doc, "", r.schema(c))
	}
	c.derive()
	r.check(c)
	if err := r.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// schema lists the keys of the file, in the order in which `flexd config`
// prints them.
func (r *reader) schema(c *Config) []key {
	return []key{
		{"driver", r.text(&c.Driver, driverName)},
		{"nodeName", r.text(&c.NodeName, optional(nodeName))},
		{"kubeletRoots", r.list(&c.KubeletRoots, directory)},
		{"runDir", r.text(&c.RunDir, socketDirectory)},
		{"stateDir", r.text(&c.StateDir, directory)},
		{"statusGroup", r.text(&c.StatusGroup, optional(groupName))},
		{"metricsAddress", r.text(&c.MetricsAddress, optional(tcpAddress))},
		{"historySize", r.size(&c.HistorySize)},
		{"lease", r.duration(&c.Lease)},
		{"callDeadline", r.duration(&c.CallDeadline)},
		{"releaseOrphansAfter", r.durationOrNever(&c.ReleaseOrphansAfter)},
		{"maxChecks", r.count(&c.MaxChecks, 1024)},
		{"checkMemory", r.size(&c.CheckMemory)},
		{"cgroupDir", r.text(&c.CgroupDir, directory)},
		{"log", func(n *yaml.Node, at string) {
			if !null(n) { // a section whose keys are all commented out
				r.mapping(n, at, r.logSchema(c))
			}
		}},
		{"lvmFilter", r.list(&c.LVMFilter, lvmFilter)},
		{"volumeGroups", func(n *yaml.Node, at string) { r.groups(n, at, c) }},
	}
}

func (r *reader) logSchema(c *Config) []key {
	return []key{
		{"format", r.text(&c.LogFormat, oneOf("text", "json"))},
		{"level", r.text(&c.LogLevel, oneOf("trace", "debug", "info", "warning", "error"))},
	}
}

func (r *reader) groupSchema(g *VolumeGroup) []key {
	deactivate, zero := "auto", "labels"
	return []key{
		{"name", r.text(&g.Name, vgName)},
		{"provider", r.text(&g.Provider, oneOf("lvm", "loopdev"))},
		{"directory", r.text(&g.Directory, directory)},
		{"thinPool", r.text(&g.ThinPool, vgName)}, // LVM has one rule for both names
		{"thinPoolWarning", r.percent(&g.ThinPoolWarning, 1)},
		{"layout", func(n *yaml.Node, at string) {
			if !null(n) {
				r.mapping(n, at, r.layoutSchema(&g.Layout))
			}
		}},
		{"zero", func(n *yaml.Node, at string) {
			r.text(&zero, oneOf("labels", "all"))(n, at)
			g.ZeroAll = zero == "all"
		}},
		{"volumes", r.list(&g.Volumes, volumeGlob)},
		{"namespaces", r.list(&g.Namespaces, glob)},
		{"create", r.truth(&g.Create)},
		{"maxSize", r.size(&g.MaxSize)},
		{"maxVolumes", r.count(&g.MaxVolumes, maxVolumes)},
		{"maxTotalSize", r.size(&g.MaxTotalSize)},
		{"perNamespace", func(n *yaml.Node, at string) {
			if !null(n) {
				r.mapping(n, at, []key{
					{"maxVolumes", r.count(&g.PerNamespace.MaxVolumes, maxVolumes)},
					{"maxTotalSize", r.size(&g.PerNamespace.MaxTotalSize)},
				})
			}
		}},
		{"reserve", r.percent(&g.Reserve, 0)},
		{"overcommit", r.truth(&g.Overcommit)},
		{"mountFlags", r.list(&g.MountFlags, oneOf("nosuid", "nodev", "noexec"))},
		{"deactivate", func(n *yaml.Node, at string) {
			r.text(&deactivate, oneOf("auto", "never"))(n, at)
			g.NeverDeactivate = deactivate == "never"
		}},
	}
}

func (r *reader) layoutSchema(l *Layout) []key {
	return []key{
		{"type", r.text(&l.Type, oneOf("linear", "striped", "raid0", "raid1", "raid5", "raid6", "raid10"))},
		{"stripes", r.count(&l.Stripes, 128)},
		{"stripeSize", r.size(&l.StripeSize)},
		{"mirrors", r.count(&l.Mirrors, 9)},
		{"pvTag", r.text(&l.PVTag, vgName)},
	}
}

func (r *reader) groups(n *yaml.Node, at string, c *Config) {
	if null(n) { // a section whose groups are all commented out
		return
	}
	r.sequence(n, at, func(n *yaml.Node, at string) {
		g := blankGroup()
		r.mapping(n, at, r.groupSchema(&g))
		if _, there := r.lines[at+".overcommit"]; !there {
			g.Overcommit = g.ThinPool != "" // it is what thin pools are for
		}
		if _, there := r.lines[at+".provider"]; !there {
			if g.Provider = "lvm"; g.Directory != "" {
				g.Provider = "loopdev"
			}
		}
		c.VolumeGroups = append(c.VolumeGroups, g)
	})
}

// document returns the root of the one document in data, or nil when there is
// none or it cannot be read.
func (r *reader) document(data []byte) *yaml.Node {
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		r.syntax(err)
		return nil
	}
	switch err := dec.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		r.syntax(err)
		return nil
	default:
		r.fail(second.Line, "", "a second document begins here; flexd reads exactly one")
		return nil
	}
	if len(doc.Content) != 1 || null(doc.Content[0]) {
		return nil
	}
	return doc.Content[0]
}

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// syntax reports an error of the YAML parser in the form of the other errors.
func (r *reader) syntax(err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	r.fail(line, "", "not valid YAML: "+oneLine(text))
}
