package config

import (
	"fmt"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
)

// callLimit is flexdriver's time limit. flexd has to answer before it.
const callLimit = 5 * time.Minute

// shortestGrace is longer than kubelet's longest pause between two attempts.
const shortestGrace = 5 * time.Minute

// leastCheckMemory is enough for a sparse 15 TiB ext4.
const leastCheckMemory = 256 << 20

// The history has room for thousands of events, and can be searched in a few seconds.
const leastHistory, mostHistory = 1 << 20, 64 << 20

// maxSocketPath is the size of sockaddr_un's path, without its final zero.
const maxSocketPath = 107

// socketDirectory is a directory with room for the name of a socket.
func socketDirectory(s *string) string {
	const most = maxSocketPath - len("/driver.sock")
	if wrong := directory(s); wrong != "" {
		return wrong
	}
	if len(*s) > most {
		return fmt.Sprintf("must have at most %d bytes, since a socket's path has at most %d; not %q", most, maxSocketPath, short(*s))
	}
	return ""
}

// namespaceKey stands for the pod's namespace in the patterns of volumes.
const namespaceKey = "{namespace}"

// maxNamespace is Kubernetes' own limit.
const maxNamespace = 63

// maxVolumes is more than a volume group can have.
const maxVolumes = 1 << 20

// maxNodeName is Kubernetes' own limit.
const maxNodeName = 253

var (
	driverNames = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$`)
	nodeNames   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	namespaces  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	groupNames  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*\$?$`)
	vgNames     = regexp.MustCompile(`^[A-Za-z0-9+_.][A-Za-z0-9+_.-]*$`)
)

// The checks of single values return the error, or "".

func optional(check func(*string) string) func(*string) string {
	return func(s *string) string {
		if *s == "" {
			return ""
		}
		return check(s)
	}
}

func oneOf(words ...string) func(*string) string {
	return func(s *string) string {
		if slices.Contains(words, *s) {
			return ""
		}
		return fmt.Sprintf("must be %s, not %q", strings.Join(words, " or "), short(*s))
	}
}

func driverName(s *string) string {
	if !driverNames.MatchString(*s) {
		return fmt.Sprintf(`must be VENDOR/DRIVER, such as "flexd/lvm", not %q`, short(*s))
	}
	return ""
}

func nodeName(s *string) string {
	if len(*s) > maxNodeName || !nodeNames.MatchString(*s) {
		return fmt.Sprintf("must be a node name as Kubernetes allows it (a-z, 0-9, '-' and '.'), not %q", short(*s))
	}
	return ""
}

func groupName(s *string) string {
	if !groupNames.MatchString(*s) {
		return fmt.Sprintf("must be the name of a group, not %q", short(*s))
	}
	return ""
}

// tcpAddress refuses names: looking one up may hang. The lower ports need a capability that
// flexd does not have.
func tcpAddress(s *string) string {
	a, err := netip.ParseAddrPort(*s)
	switch {
	case err != nil:
		return fmt.Sprintf("must be an IP address and a port, such as 127.0.0.1:9809, [::1]:9809, or 0.0.0.0:9809 for every address of the node; not %q", short(*s))
	case a.Port() < 1024:
		return fmt.Sprintf("must have a port of at least 1024, not %d", a.Port())
	}
	return ""
}

// vgName applies LVM's rule, so that a configuration can change from loopdev to LVM.
func vgName(s *string) string {
	switch {
	case *s == "." || *s == "..":
	case len(*s) > 127:
		return "must have at most 127 characters"
	case vgNames.MatchString(*s):
		return ""
	}
	return fmt.Sprintf("must be a volume group name as LVM allows it (letters, digits and + _ . -, not beginning with '-'), not %q", short(*s))
}

func directory(s *string) string {
	switch {
	case !filepath.IsAbs(*s):
		return fmt.Sprintf("must be an absolute path, not %q", short(*s))
	case strings.ContainsFunc(*s, unicode.IsControl):
		return fmt.Sprintf("must not contain control characters: %q", short(*s))
	case filepath.Clean(*s) == "/":
		return "must not be the root directory"
	case len(*s) > 4095:
		return "is longer than a path can be (4095 bytes)"
	}
	*s = filepath.Clean(*s)
	return ""
}

// lvmFilter checks the form of an element of LVM's filters: a or r, and a pattern between
// two equal delimiters.
func lvmFilter(s *string) string {
	v := *s
	if len(v) < 3 || v[0] != 'a' && v[0] != 'r' || v[1] != v[len(v)-1] || !strings.ContainsRune("|/#!%,:;", rune(v[1])) || strings.ContainsFunc(v, unicode.IsControl) {
		return fmt.Sprintf(`must be as in LVM's own filter, such as "r|^/dev/sdz$|", not %q`, short(v))
	}
	return ""
}

func glob(s *string) string {
	switch _, err := path.Match(*s, ""); {
	case *s == "":
		return `must not be empty; "*" means all`
	case strings.Contains(*s, "/"):
		return fmt.Sprintf("must match a plain name, so it cannot contain '/': %q", short(*s))
	case strings.ContainsFunc(*s, func(c rune) bool { return unicode.IsControl(c) || unicode.IsSpace(c) }):
		return fmt.Sprintf("must match a plain name, so it cannot contain spaces: %q", short(*s))
	case err != nil:
		return fmt.Sprintf("is not a pattern (* ? [a-z] and \\ are special): %q", short(*s))
	}
	return ""
}

func volumeGlob(s *string) string {
	if strings.ContainsAny(strings.ReplaceAll(*s, namespaceKey, ""), "{}") {
		return fmt.Sprintf("may have %s in braces only: %q", namespaceKey, short(*s))
	}
	return glob(s)
}

// check applies the rules for more than one key. A key with an error of its own still has
// its default here, so nothing is reported twice.
func (r *reader) check(c *Config) {
	if c.NodeName == "" {
		r.wrong("nodeName", "the host has no name; set it to this node's name in Kubernetes")
	}
	if c.CallDeadline >= callLimit {
		r.wrong("callDeadline", fmt.Sprintf("must be less than 5m, when flexdriver gives up, not %s", c.CallDeadline))
	}
	if c.ReleaseOrphansAfter > 0 && c.ReleaseOrphansAfter < shortestGrace {
		r.wrong("releaseOrphansAfter", fmt.Sprintf("must be at least 5m, longer than kubelet's retry interval, or never; not %s", c.ReleaseOrphansAfter))
	}
	if c.MaxChecks < 1 && r.clean("maxChecks") {
		r.wrong("maxChecks", "must be at least 1")
	}
	if c.HistorySize != 0 && (c.HistorySize < leastHistory || c.HistorySize > mostHistory) && r.clean("historySize") {
		r.wrong("historySize", "must be from 1MiB to 64MiB, or 0: the history is lost at a restart")
	}
	if c.CheckMemory < leastCheckMemory && r.clean("checkMemory") {
		r.wrong("checkMemory", "must be at least 256MiB, or fsck cannot check even a small filesystem")
	}
	r.checkDirs(c)
	r.checkGroups(c)
}

func (r *reader) checkDirs(c *Config) {
	if len(c.KubeletRoots) == 0 && r.clean("kubeletRoots") {
		r.wrong("kubeletRoots", "must name at least one directory")
	}
	switch {
	case c.RunDir == c.StateDir:
		r.wrong("stateDir", fmt.Sprintf("must not be the runDir (%s): that one is emptied by a reboot", c.RunDir))
	case within(c.StateDir, c.RunDir):
		r.wrong("stateDir", fmt.Sprintf("must not lie below the runDir (%s): that one is emptied by a reboot", c.RunDir))
	}
	for _, root := range c.KubeletRoots {
		for _, d := range []struct{ key, dir string }{{"runDir", c.RunDir}, {"stateDir", c.StateDir}} {
			if within(d.dir, root) {
				r.wrong(d.key, fmt.Sprintf("must not be below kubelet's own directory %s", root))
			}
		}
	}
}

func (r *reader) checkGroups(c *Config) {
	names, dirs := map[string]int{}, map[string]int{}
	for i, g := range c.VolumeGroups {
		at := fmt.Sprintf("volumeGroups[%d]", i)
		for _, need := range []struct{ key, value, hint string }{
			{"name", g.Name, "the volume group that pods name in their options"},
			{"directory", g.Directory, "where the volumes' files are kept"},
			{"namespaces", "", `those whose pods may use the volumes; ["*"] if every namespace may`},
		} {
			if need.key == "directory" && g.Provider != "loopdev" {
				continue
			}
			if _, there := r.lines[at+"."+need.key]; !there && r.clean(at) {
				r.wrong(at+"."+need.key, fmt.Sprintf("is missing (%s)", need.hint))
			}
		}
		r.checkProvider(g, at)
		if g.Create && g.MaxSize == 0 && r.clean(at+".maxSize") {
			r.wrong(at+".maxSize", "is required with `create: true`: the largest size that a pod may request")
		}
		if first, twice := names[g.Name]; twice && g.Name != "" {
			r.wrong(at+".name", fmt.Sprintf("%q is already volumeGroups[%d]", g.Name, first))
		} else {
			names[g.Name] = i
		}
		if g.Directory == "" {
			continue
		}
		if first, twice := dirs[g.Directory]; twice {
			r.wrong(at+".directory", fmt.Sprintf("%q is already that of volumeGroups[%d]", g.Directory, first))
		} else {
			dirs[g.Directory] = i
		}
		for _, root := range c.KubeletRoots {
			switch {
			case within(g.Directory, root):
				r.wrong(at+".directory", fmt.Sprintf("must not be below kubelet's own directory %s", root))
			case within(root, g.Directory):
				r.wrong(at+".directory", fmt.Sprintf("must not hold kubelet's own directory %s", root))
			}
		}
		for _, own := range []struct{ key, dir string }{{"runDir", c.RunDir}, {"stateDir", c.StateDir}} {
			if within(g.Directory, own.dir) {
				r.wrong(at+".directory", fmt.Sprintf("must not lie in the %s (%s)", own.key, own.dir))
			}
		}
	}
}

// checkProvider refuses keys of the other provider, and an impossible layout.
func (r *reader) checkProvider(g VolumeGroup, at string) {
	l := g.Layout
	for _, key := range []string{"reserve", "overcommit"} {
		if _, there := r.lines[at+"."+key]; there && g.Provider == "lvm" && g.ThinPool == "" {
			r.wrong(at+"."+key, "is for the provider loopdev and for a thinPool: a thick volume has all its space from the start")
		}
	}
	switch {
	case g.Provider == "lvm" && g.Directory != "":
		r.wrong(at+".directory", "is for the provider loopdev only")
	case g.Provider != "lvm" && g.ThinPool != "":
		r.wrong(at+".thinPool", "is for the provider lvm only")
	case g.Provider != "lvm" && g.ThinPoolWarning != blankGroup().ThinPoolWarning:
		r.wrong(at+".thinPoolWarning", "is for the provider lvm only")
	case g.Provider != "lvm" && l != (Layout{}):
		r.wrong(at+".layout", "is for the provider lvm only")
	case g.Provider != "lvm" && g.ZeroAll:
		r.wrong(at+".zero", "is for the provider lvm only: new files are zero anyway")
	case g.ThinPool != "" && l != (Layout{}):
		r.wrong(at+".layout", "is for thick volumes; with a thinPool the pool's layout applies")
	case l.Stripes > 1 && (l.Type == "" || l.Type == "linear" || l.Type == "raid1"):
		r.wrong(at+".layout.stripes", "need a striped type, such as striped")
	case l.StripeSize != 0 && (l.StripeSize < 4096 || l.StripeSize&(l.StripeSize-1) != 0):
		r.wrong(at+".layout.stripeSize", "must be a power of two of at least 4KiB")
	case l.Mirrors > 0 && l.Type != "raid1" && l.Type != "raid10":
		r.wrong(at+".layout.mirrors", "need the type raid1 or raid10")
	}
}

// wrong reports an error of a key by its full name, with its line or that of its parent.
func (r *reader) wrong(at, text string) {
	for k := at; ; {
		if line, ok := r.lines[k]; ok && k != "" {
			r.fail(line, at, text)
			return
		}
		cut := strings.LastIndexByte(k, '.')
		if cut < 0 {
			r.fail(0, at, text)
			return
		}
		k = k[:cut]
	}
}

// clean reports whether this key has no error yet.
func (r *reader) clean(at string) bool {
	return !slices.ContainsFunc(r.errors, func(e *Error) bool { return e.Key == at })
}

// within reports whether dir is root or below it, textually: it follows no symbolic link,
// since a file may be checked on another machine.
func within(dir, root string) bool {
	return dir == root || strings.HasPrefix(dir, root+"/")
}
