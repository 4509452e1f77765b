package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/run"
)

// DefaultFilter rejects devices that could hang an LVM command or contain volumes of
// guests: network devices and files. scan_lvs excludes volume groups inside of logical
// volumes.
var DefaultFilter = []string{"r|^/dev/loop|", "r|^/dev/nbd|", "r|^/dev/drbd|"}

const configDeadline = 20 * time.Second

// A configuration is passed to every command with --config. It replaces the host's filter, and so
// contains it, because the host's filter may reject the paths of a multipath device. The host's filter
// is read again after a change of the host's files: an added disk would be missing otherwise.
type configuration struct {
	filter []string // as configured; nil = DefaultFilter and the host's filter

	reading  chan struct{} // a semaphore of size 1 for the fields below; a reader may start a command
	files    string        // the state of the host's files before elements and file were read
	elements []string      // of the filter, quoted; nil = not known yet
	file     *string       // the devices file that the host uses, "" = none, nil = not known yet
}

// take waits until no other caller reads the configuration.
func (c *configuration) take(ctx context.Context) (release func(), err error) {
	select {
	case c.reading <- struct{}{}:
		return func() { <-c.reading }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// A scope limits the disks that a command may read.
type scope struct {
	config   string
	devices  []string // LVM sees only these disks; nil = all
	excluded []string // disks that do not respond
	unsure   []string // the excluded disks that may belong to the group
	silent   []string // those that no report of a group has, and that LVM would read if they responded
}

// plainOutput overrides settings of the host's lvm.conf that add text to each line of output.
const plainOutput = `log{silent=0 prefix="" command_names=0 report_command_log=0}`

// words returns the options of a command, with additional configuration.
func (s scope) words(more string) []string {
	words := []string{"--config", s.config + more}
	for _, path := range s.devices {
		words = append(words, "--devices", path)
	}
	return words
}

// forgetChanged drops the cached values if the host's files have changed. The caller has the
// semaphore.
func (c *configuration) forgetChanged(lvmDir string) {
	paths, _ := filepath.Glob(filepath.Join(lvmDir, "*.conf")) // lvm.conf, lvmlocal.conf, those of host tags
	var files strings.Builder
	for _, path := range paths {
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		fmt.Fprintln(&files, path, st.Dev, st.Ino, st.Size, st.Ctim, err)
	}
	if c.files != files.String() {
		c.files, c.elements, c.file = files.String(), nil, nil
	}
}

func (c *configuration) get(ctx context.Context, r run.Runner, lvmDir string) ([]string, error) {
	release, err := c.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	c.forgetChanged(lvmDir)
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

// scopeOf returns the scope of a command for a group. For a command on any group, LVM reads the
// labels of all accepted disks, so scopeOf excludes other disks that do not respond. With a devices
// file LVM ignores filters: then the command gets only the known disks of its group, or the disks in
// the file that respond.
func (p *Provider) scopeOf(ctx context.Context, g *group) (scope, error) {
	filter, err := p.config.get(ctx, p.Runner, p.lvmDir)
	if err != nil {
		return scope{}, err
	}
	list, _ := p.DM.List()
	others, unknown := p.hanging(g, list)
	s := scope{unsure: unknown, silent: unknown, excluded: slices.Concat(others, unknown, p.hangingPools(list))}
	if len(s.excluded) > 0 {
		entries, err := p.devicesEntries(ctx)
		if err != nil {
			return scope{}, err
		}
		if entries != nil {
			s.unsure = s.excluded // the names in the file may be outdated
			if s.devices = g.disks(); len(s.devices) == 0 {
				s.devices = without(entries, s.excluded)
			}
			if len(s.devices) == 0 { // without --devices LVM would read all disks
				return scope{}, s.incomplete()
			}
		}
	}
	if s.devices == nil {
		s.silent = slices.DeleteFunc(slices.Clone(unknown), func(path string) bool { return rejects(filter, p.allNames([]string{path})) })
	}
	filter = append(quoted(reject(p.allNames(s.excluded))), filter...)
	hints := ""
	if g.ignoresHints() {
		hints = ` hints="none"`
	}
	s.config = "devices{scan_lvs=0 filter=[" + strings.Join(filter, ",") + "]" + hints + "} " + plainOutput
	return s, nil
}

// ignoresHints reports whether LVM must read the labels of all disks. By default it reads only the disks in
// /run/lvm/hints, and a command that ran while a disk failed has written that file without the disk: until another
// disk comes or goes, LVM would not find it again.
func (g *group) ignoresHints() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.unhint
}

// ignoreHints makes all later commands read the labels of all disks. It reports whether the earlier ones did not.
func (g *group) ignoreHints() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.unhint
	g.unhint = true
	return !before
}

// incomplete returns the error of a command that did not find all disks of its group, perhaps
// because its scope excludes them.
func (s scope) incomplete() error {
	unsure := strings.Join(s.unsure, ", ")
	if len(s.devices) > 0 {
		return fmt.Errorf("PVs are missing among %s: LVM reads only these disks while others do not respond: %s; look at them and at dmesg", strings.Join(s.devices, ", "), unsure)
	}
	return fmt.Errorf("PVs are missing, and LVM does not read these disks, which do not respond: %s; look at them and at dmesg", unsure)
}

// reject returns the elements of a filter that reject disks. It skips paths with special characters
// of patterns: no disk has such a path.
func reject(paths []string) (elements []string) {
	for _, path := range paths {
		if strings.Trim(path, pathCharacters) == "" {
			elements = append(elements, "r|^"+strings.NewReplacer(".", "[.]", "+", "[+]").Replace(path)+"$|")
		}
	}
	return elements
}

const pathCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_.+:=@#-"

// lvmconfig returns settings of the host's LVM; known is false if they are not set, or if this LVM
// is too old for them.
func lvmconfig(ctx context.Context, r run.Runner, words ...string) (text string, known bool, err error) {
	res, err := r.Run(ctx, run.Cmd{Step: "lvmconfig", Argv: append([]string{"lvm", "lvmconfig"}, words...), Deadline: configDeadline})
	said := string(res.Stderr)
	if exit, ok := errors.AsType[*run.ExitError](err); ok && exit.Err == nil && strings.Contains(said, "Configuration node") && strings.Contains(said, "not found") {
		return "", false, nil
	}
	return string(res.Stdout), true, err
}

// hostFilter returns the elements of the host's own filter, quoted.
func hostFilter(ctx context.Context, r run.Runner) ([]string, error) {
	text, known, err := lvmconfig(ctx, r, "devices/filter")
	switch {
	case err != nil:
		return nil, fmt.Errorf("the host's device filter cannot be read: %w", err)
	case !known:
		return nil, nil
	}
	host, ok := parseFilter(text)
	if !ok {
		return nil, fmt.Errorf("the host's device filter does not parse: %.200q", text)
	}
	return host, nil
}

// devicesFile returns the name of the devices file that the host uses; "" = none.
func (c *configuration) devicesFile(ctx context.Context, r run.Runner) (string, error) {
	release, err := c.take(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	if c.file != nil {
		return *c.file, nil
	}
	text, _, err := lvmconfig(ctx, r, "--typeconfig", "full", "devices/use_devicesfile", "devices/devicesfile") // known since LVM 2.03.12
	if err != nil {
		return "", fmt.Errorf("cannot read whether the host has a devices file: %w", err)
	}
	name := ""
	if strings.Contains(text, "use_devicesfile=1") {
		if _, rest, ok := strings.Cut(text, `devicesfile="`); ok {
			name, _, _ = strings.Cut(rest, `"`)
		}
	}
	c.file = &name
	return name, nil
}

// devicesEntries returns the disks that the devices file names; nil = the host uses none.
func (p *Provider) devicesEntries(ctx context.Context) ([]string, error) {
	file, err := p.config.devicesFile(ctx, p.Runner)
	if err != nil || file == "" {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(p.lvmDir, "devices", file)) // #nosec G304 -- LVM's configuration names it
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the devices file cannot be read: %w", err)
	}
	entries := []string{}
	for line := range strings.Lines(string(text)) {
		for word := range strings.FieldsSeq(line) {
			if name, ok := strings.CutPrefix(word, "DEVNAME="); ok && strings.HasPrefix(name, "/") && line[0] != '#' {
				entries = append(entries, name)
			}
		}
	}
	return entries, nil
}

// parseFilter parses the output of lvmconfig: filter=["a|x|","r|y|"], or one alone.
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
