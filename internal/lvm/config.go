package lvm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/run"
)

// DefaultFilter keeps out devices that must not hang a command of LVM or give it
// somebody else's volumes: those of guests, of networks, and files. Volumes
// below volumes are kept out by scan_lvs.
var DefaultFilter = []string{"r|^/dev/loop|", "r|^/dev/nbd|", "r|^/dev/drbd|"}

const configDeadline = 20 * time.Second

// A configuration is what every command is given by --config. LVM would let our
// filter take the place of the host's, which may keep out the legs of a
// multipath device: so the host's is read once, and stands behind ours.
type configuration struct {
	filter []string // as configured; nil = the default and the host's

	mu       sync.Mutex
	elements []string // guarded by mu: quoted, nil = not known yet
}

func (c *configuration) get(ctx context.Context, r run.Runner) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.elements != nil {
		return c.elements, nil
	}
	filter := quoted(c.filter)
	if c.filter == nil {
		host, err := hostFilter(ctx, r)
		if err != nil {
			return nil, err
		}
		filter = append(quoted(DefaultFilter), host...)
	}
	c.elements = filter
	return filter, nil
}

// configFor is what a command for a group is given. LVM looks at every disk that it
// may, whichever group it is asked about: the disks of others that hang are kept
// out, else all groups would hang with them.
func (p *Provider) configFor(ctx context.Context, g *group) (string, error) {
	filter, err := p.config.get(ctx, p.Runner)
	if err != nil {
		return "", err
	}
	filter = append(quoted(reject(p.hanging(g))), filter...)
	return "devices{scan_lvs=0 filter=[" + strings.Join(filter, ",") + "]}", nil
}

// hanging returns the disks that were other groups' when these were read last, and
// are suspended now, or whose group has a command that hangs.
func (p *Provider) hanging(mine *group) (paths []string) {
	p.mu.Lock()
	others := slices.Collect(maps.Values(p.groups))
	p.mu.Unlock()
	for _, g := range others {
		g.mu.Lock()
		known, blocked := g.known, g.block != nil
		g.mu.Unlock()
		if g == mine || known == nil {
			continue
		}
		for _, pv := range known.PVs {
			if !pv.Missing && (blocked || p.suspended(pv.Path)) {
				paths = append(paths, pv.Path)
			}
		}
	}
	slices.Sort(paths)
	return paths
}

// suspended says whether a disk is a device of device-mapper that is suspended.
func (p *Provider) suspended(path string) bool {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return false
	}
	m, err := p.DM.Device(Key{Number: number(st.Rdev)})
	return err == nil && m.Suspended
}

// reject returns the elements of a filter that keep disks out. A path with a
// character that may mean something else in a pattern is none that is given to
// disks.
func reject(paths []string) (elements []string) {
	for _, path := range paths {
		if strings.Trim(path, pathCharacters) == "" {
			elements = append(elements, "r|^"+strings.NewReplacer(".", "[.]", "+", "[+]").Replace(path)+"$|")
		}
	}
	return elements
}

const pathCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_.+:=@#-"

// hostFilter returns the elements of the host's own filter, quoted.
func hostFilter(ctx context.Context, r run.Runner) ([]string, error) {
	res, err := r.Run(ctx, run.Cmd{Step: "lvmconfig", Argv: []string{"lvm", "lvmconfig", "devices/filter"}, Deadline: configDeadline})
	if err != nil {
		var exit *run.ExitError
		if errors.As(err, &exit) && exit.Err == nil && strings.Contains(string(res.Stderr), "devices/filter not found") {
			return nil, nil
		}
		return nil, fmt.Errorf("the host's device filter cannot be read: %w", err)
	}
	host, ok := parseFilter(string(res.Stdout))
	if !ok {
		return nil, fmt.Errorf("the host's device filter does not parse: %.200q", res.Stdout)
	}
	return host, nil
}

// parseFilter reads what lvmconfig prints: filter=["a|x|","r|y|"], or one alone.
func parseFilter(s string) ([]string, bool) {
	s, ok := strings.CutPrefix(strings.TrimSpace(s), "filter=")
	if !ok {
		return nil, false
	}
	if inner, ok := strings.CutPrefix(s, "["); ok {
		if s, ok = strings.CutSuffix(inner, "]"); !ok {
			return nil, false
		}
	}
	var all []string
	for s = strings.TrimSpace(s); s != ""; {
		end := 1
		for ; end < len(s) && s[end] != '"'; end++ {
			if s[end] == '\\' {
				end++
			}
		}
		if s[0] != '"' || end >= len(s) {
			return nil, false
		}
		all = append(all, s[:end+1])
		s = strings.TrimSpace(s[end+1:])
		if s != "" {
			if s[0] != ',' {
				return nil, false
			}
			s = strings.TrimSpace(s[1:])
		}
	}
	return all, true
}

func quoted(all []string) []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
	}
	return out
}
