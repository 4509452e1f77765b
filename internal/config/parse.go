package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Parse reads and checks a configuration. The name is for errors only. An
// empty document is Default.
func Parse(name string, data []byte) (*Config, error) {
	if len(data) > maxBytes {
		return nil, fmt.Errorf("%s: larger than 1 MiB; is this the configuration?", name)
	}
	r := &reader{file: name, lines: map[string]int{}}
	c := defaults()
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

func (r *reader) groups(n *node, at string, c *Config) {
	if null(n) { // a section whose groups are all commented out
		return
	}
	r.sequence(n, at, func(n *node, at string) {
		g := defaultGroup()
		r.mapping(n, at, r.groupSchema(&g))
		if _, there := r.lines[at+".overcommit"]; !there {
			g.Overcommit = g.ThinPool != ""
		}
		if _, there := r.lines[at+".provider"]; !there {
			if g.Provider = "lvm"; g.Directory != "" {
				g.Provider = "loopdev"
			}
		}
		c.VolumeGroups = append(c.VolumeGroups, g)
	})
}

// document returns the root of the single document in data, or nil if there is
// none or if it cannot be read.
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

var yamlLine = lazily(`^line (\d+): `)

// syntax reports an error of the YAML parser in the form of the other errors.
func (r *reader) syntax(err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if m := yamlLine().FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	r.fail(line, "", "not valid YAML: "+oneLine(text))
}
