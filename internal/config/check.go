package config

import (
	"fmt"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
)

// The limits of numbers.
var (
	anyDuration limit[time.Duration]
	anySize     limit[int64]

	// callDeadline is shorter than flexdriver's 5m: after the deadline a call still waits for a committed mount
	// (commitGrace of internal/reconcile).
	callDeadline = limit[time.Duration]{"at most 4m30s: flexdriver gives up after 5m, and a mount that has begun may need 20s more", func(d time.Duration) bool { return d <= callLimit }}
	orphanGrace  = limit[time.Duration]{"at least 5m, longer than kubelet's retry interval, or never", func(d time.Duration) bool { return d >= 5*time.Minute }}
	// historySize has space for thousands of events; a search takes a few seconds.
	historySize = limit[int64]{"from 1MiB to 64MiB, or 0", func(n int64) bool { return n == 0 || n >= 1<<20 && n <= 64<<20 }}
	// checkMemory is enough for a sparse 15 TiB ext4.
	checkMemory = limit[int64]{"at least 256MiB, or fsck cannot check even a small filesystem", func(n int64) bool { return n >= 256<<20 }}
	stripeSize  = limit[int64]{"a power of two of at least 4KiB", func(n int64) bool { return n >= 4096 && n&(n-1) == 0 }}
)

const callLimit = 4*time.Minute + 30*time.Second

// maxSocketPath is the size of sockaddr_un's path, without its final zero.
const maxSocketPath = 107

// namespacePlaceholder stands for the pod's namespace in the patterns of volumes.
const namespacePlaceholder = "{namespace}"

// maxNamespace is Kubernetes' own limit.
const maxNamespace = 63

// maxVolumes exceeds LVM's own limit.
const maxVolumes = 1 << 20

// maxNodeName is Kubernetes' own limit.
const maxNodeName = 253

var (
	driverNames = lazily(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$`)
	nodeNames   = lazily(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	namespaces  = lazily(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	groupNames  = lazily(`^[A-Za-z0-9_][A-Za-z0-9_.-]*\$?$`)
	vgNames     = lazily(`^[A-Za-z0-9+_.][A-Za-z0-9+_.-]*$`)
)

// lazily compiles an expression on first use: children of flexd start often and need none.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// The rules of strings.
var (
	driverName = rule{form: `VENDOR/DRIVER, such as "flexd/lvm"`, is: func(s string) bool { return driverNames().MatchString(s) }}
	nodeName   = rule{form: "a node name as Kubernetes allows it (a-z, 0-9, '-' and '.')", is: func(s string) bool { return len(s) <= maxNodeName && nodeNames().MatchString(s) }}
	groupName  = rule{form: "the name of a group", is: func(s string) bool { return groupNames().MatchString(s) }}
	// tcpAddress allows no host name: its look-up may hang.
	tcpAddress = rule{"an IP address and a port, such as 127.0.0.1:9809, [::1]:9809, or 0.0.0.0:9809 for every address of the node",
		func(s string) bool { _, err := netip.ParseAddrPort(s); return err == nil }, unprivilegedPort}
	directory       = rule{"an absolute path", filepath.IsAbs, usableDirectory}
	socketDirectory = rule{"an absolute path", filepath.IsAbs, shortDirectory}
	// lvmName is the rule for groups, pools and tags, including loopdev's groups, so that a
	// configuration can change to LVM.
	lvmName = rule{"a name as LVM allows it (letters, digits and + _ . -, not beginning with '-')",
		func(s string) bool { return s != "." && s != ".." && vgNames().MatchString(s) }, longName}
	// lvmFilter is a or r, and a pattern between two equal delimiters.
	lvmFilter = rule{form: `as in LVM's own filter, such as "r|^/dev/sdz$|"`, is: func(v string) bool {
		return len(v) >= 3 && (v[0] == 'a' || v[0] == 'r') && v[1] == v[len(v)-1] && strings.ContainsRune("|/#!%,:;", rune(v[1])) && !strings.ContainsFunc(v, unicode.IsControl)
	}}
	glob       = rule{"a pattern (* ? [a-z] and \\ are special)", validGlob, plainGlob}
	volumeGlob = rule{glob.form, validGlob, func(s *string) string {
		if strings.ContainsAny(strings.ReplaceAll(*s, namespacePlaceholder, ""), "{}") {
			return fmt.Sprintf("may have %s in braces only: %q", namespacePlaceholder, short(*s))
		}
		return plainGlob(s)
	}}
)

// optional also allows an empty value.
func optional(r rule) rule {
	is, refuse := r.is, r.refuse
	r.is = func(s string) bool { return s == "" || is(s) }
	r.refuse = func(s *string) string {
		if *s == "" || refuse == nil {
			return ""
		}
		return refuse(s)
	}
	return r
}

func oneOf(words ...string) rule {
	last := len(words) - 1
	return rule{form: strings.Join(words[:last], ", ") + " or " + words[last], is: func(s string) bool { return slices.Contains(words, s) }}
}

// unprivilegedPort refuses ports that need a capability.
func unprivilegedPort(s *string) string {
	if a, err := netip.ParseAddrPort(*s); err == nil && a.Port() < 1024 {
		return fmt.Sprintf("must have a port of at least 1024, not %d", a.Port())
	}
	return ""
}

func longName(s *string) string {
	if len(*s) > 127 {
		return "must have at most 127 characters"
	}
	return ""
}

func usableDirectory(s *string) string {
	switch {
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

// shortDirectory leaves space for the name of a socket.
func shortDirectory(s *string) string {
	const most = maxSocketPath - len("/driver.sock")
	if wrong := usableDirectory(s); wrong != "" {
		return wrong
	}
	if len(*s) > most {
		return fmt.Sprintf("must have at most %d bytes, since a socket's path has at most %d; not %q", most, maxSocketPath, short(*s))
	}
	return ""
}

func validGlob(s string) bool { _, err := path.Match(s, ""); return err == nil }

func plainGlob(s *string) string {
	switch {
	case *s == "":
		return `must not be empty; "*" means all`
	case strings.Contains(*s, "/"):
		return fmt.Sprintf("must match a plain name, so it cannot contain '/': %q", short(*s))
	case strings.ContainsFunc(*s, func(c rune) bool { return unicode.IsControl(c) || unicode.IsSpace(c) }):
		return fmt.Sprintf("must match a plain name, so it cannot contain spaces: %q", short(*s))
	}
	return ""
}

// check applies the rules for several keys. A key with an error has
// its default here, so errors are not reported twice.
func (r *reader) check(c *Config) {
	if c.NodeName == "" {
		r.wrong("nodeName", "the host has no name; set it to this node's name in Kubernetes")
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
		for _, k := range r.groupSchema(&g) {
			needed := k.without == required || k.name == "directory" && g.Provider == "loopdev"
			if _, there := r.lines[at+"."+k.name]; needed && !there && r.clean(at) {
				r.wrong(at+"."+k.name, fmt.Sprintf("is missing (%s)", k.meaning()))
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

// sharedName is the length of sanlock's names, 48, without LVM's prefix lvm_. LVM truncates longer ones.
const sharedName = 44

// checkProvider refuses keys of the other provider, and an impossible layout.
func (r *reader) checkProvider(g VolumeGroup, at string) {
	l := g.Layout
	for _, key := range []string{"reserve", "overcommit"} {
		if _, there := r.lines[at+"."+key]; there && g.Provider == "lvm" && g.ThinPool == "" {
			r.wrong(at+"."+key, "is for the provider loopdev and for a thinPool: a thick volume has all its space from the start")
		}
	}
	switch {
	case g.Shared && g.Provider != "lvm":
		r.wrong(at+".shared", "is for the provider lvm only: nothing locks a file against another node")
	case g.Shared && len(g.Name) > sharedName:
		r.wrong(at+".name", fmt.Sprintf("must have at most %d characters with `shared: true`: sanlock knows no more of it (vgrename)", sharedName))
	case g.Shared && g.ThinPool != "":
		r.wrong(at+".thinPool", "is not possible with `shared: true`: LVM locks a thin pool with all its volumes as one, so only one node could use any of them")
	case g.Shared && g.NeverDeactivate:
		r.wrong(at+".deactivate", "must be auto with `shared: true`: an active volume is locked for every other node")
	case !g.Shared && g.WatchdogNone:
		r.wrong(at+".watchdog", "is for a volume group with `shared: true` only")
	case g.Provider == "lvm" && g.Directory != "":
		r.wrong(at+".directory", "is for the provider loopdev only")
	case g.Provider != "lvm" && g.ThinPool != "":
		r.wrong(at+".thinPool", "is for the provider lvm only")
	case g.Provider != "lvm" && g.ThinPoolWarning != defaultGroup().ThinPoolWarning:
		r.wrong(at+".thinPoolWarning", "is for the provider lvm only")
	case g.Provider != "lvm" && l != (Layout{}):
		r.wrong(at+".layout", "is for the provider lvm only")
	case g.Provider != "lvm" && g.ZeroAll:
		r.wrong(at+".zero", "is for the provider lvm only: new files are zero anyway")
	case g.ThinPool != "" && l != (Layout{}):
		r.wrong(at+".layout", "is for thick volumes; with a thinPool the pool's layout applies")
	case l.Stripes > 1 && (l.Type == "" || l.Type == "linear" || l.Type == "raid1"):
		r.wrong(at+".layout.stripes", "need a striped type, such as striped")
	case l.Stripes > 0 && l.Stripes < minStripes[l.Type]:
		r.wrong(at+".layout.stripes", fmt.Sprintf("must be at least %d for the type %s", minStripes[l.Type], l.Type))
	case l.Mirrors > 1 && l.Type == "raid10":
		r.wrong(at+".layout.mirrors", "must be 1 for the type raid10")
	case l.Mirrors > 0 && l.Type != "raid1" && l.Type != "raid10":
		r.wrong(at+".layout.mirrors", "need the type raid1 or raid10")
	}
}

// minStripes are LVM's minimums.
var minStripes = map[string]int{"raid0": 2, "raid5": 2, "raid6": 3, "raid10": 2}

// wrong reports an error of the key with the full name at, in its line or that of its parent.
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

// clean reports whether the key has no error yet.
func (r *reader) clean(at string) bool {
	return !slices.ContainsFunc(r.errors, func(e *Error) bool { return e.Key == at })
}

// within reports whether dir is root or below it. It follows no symbolic links, since a file may
// be checked on another machine.
func within(dir, root string) bool {
	return dir == root || strings.HasPrefix(dir, root+"/")
}

// DriverProblem returns the error in the name of a driver, or "".
func DriverProblem(name string) string {
	if driverName.is(name) {
		return ""
	}
	return fmt.Sprintf("must be %s, not %q", driverName.form, short(name))
}
