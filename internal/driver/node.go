// Package driver installs flexdriver in kubelet's plugin directory, and removes it.
//
// Kubelet loads a driver as soon as it appears, and calls `init` again after every event in
// its directory, except those of dotfiles. So the executable is checked first and then
// appears in one rename, and one installation causes one `init`.
package driver

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"golang.org/x/sys/unix"
)

// A Node is where the driver is installed.
type Node struct {
	Root   string // "" = this machine; otherwise the root directory of an image, or of a container's host
	Driver string // VENDOR/NAME
	Config *config.Config
	Path   string // of the configuration
	Kept   string // the directory for replaced programs, without Root
	Runner run.Runner
	Out    io.Writer
	DryRun bool

	kubelets []*kubelet.Instance
	locks    map[string]*os.File // by directory
}

// say prints one line.
func (n *Node) say(format string, a ...any) {
	fmt.Fprintln(n.Out, status.Plain(fmt.Sprintf(format, a...)))
}

func (n *Node) report(what, format string, a ...any) {
	n.say("%-18s %s", what, fmt.Sprintf(format, a...))
}

// act prints a step, and reports whether to take it.
func (n *Node) act(format string, a ...any) bool {
	if n.DryRun {
		format = "would " + format
	}
	n.say(format, a...)
	return !n.DryRun
}

// refuse returns an error with its remedy.
func refuse(remedy, format string, a ...any) error {
	return fmt.Errorf("%s\nwhat to do: %s", fmt.Sprintf(format, a...), remedy)
}

// A place is a plugin directory, with the kubelets that use it.
type place struct {
	*Node
	name, from string // kubelet's path of it, and the source of this setting
	plugins    string // its path here
	kubelets   []*kubelet.Instance

	dir, exe, initFile string // the driver's directory, its executable and init's file
	// Staged files. The dotfile is renamed first: if only newExe exists, the new dotfile is in place.
	newExe, newInitFile string
	outside             string // a staged directory, beside the plugin directory
}

// places finds the plugin directories of the node, or the given one.
func (n *Node) places(given string) ([]*place, error) {
	all, ignored, err := kubelet.Find(n.Root)
	if err != nil && (n.Root == "" || !os.IsNotExist(err)) {
		return nil, refuse("run this on the node itself, as root", "processes cannot be listed: %v", err)
	}
	for _, s := range ignored {
		n.say("note: %s", s)
	}
	n.kubelets = all
	if given != "" {
		if !filepath.IsAbs(given) {
			return nil, refuse("give --plugin-dir", "the plugin directory %s is not an absolute path", given)
		}
		p, err := n.place(filepath.Clean(given), "given", n.Root+filepath.Clean(given))
		p.kubelets = all
		return []*place{p}, err
	}
	var places []*place
	for _, k := range all {
		if k.Err != nil {
			return nil, refuse("run this as root; correct what is named here; or give --plugin-dir and --attach", "the settings of %s cannot be read: %v", k, k.Err)
		}
		from := k.Plugins.From
		if k.Pid == 0 {
			from += "; a guess"
		}
		if !kubelet.Plain(k.Plugins.Value) {
			return nil, refuse("give --plugin-dir", "the plugin directory of %s is not a plain absolute path (%s): %q", k, from, k.Plugins.Value)
		}
		path, err := n.localPath(k, k.Plugins.Value)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(places, func(p *place) bool { return p.plugins == path }); i >= 0 {
			places[i].kubelets = append(places[i].kubelets, k)
			continue
		}
		p, err := n.place(k.Plugins.Value, from, path)
		if err != nil {
			return nil, err
		}
		p.kubelets = []*kubelet.Instance{k}
		places = append(places, p)
	}
	return places, nil
}

// place returns a plugin directory. It refuses one that kubelet would not find, or whose programs are not
// safe to run.
func (n *Node) place(name, from, path string) (*place, error) {
	vendor, base, _ := strings.Cut(n.Driver, "/")
	p := &place{Node: n, name: name, from: from, plugins: path}
	p.dir = path + "/" + vendor + "~" + base
	p.exe, p.initFile = p.dir+"/"+base, p.dir+"/."+base+".init.json"
	p.newExe, p.newInitFile = p.dir+"/."+base+".new", p.dir+"/.."+base+".new.init.json"
	p.outside = filepath.Dir(path) + "/." + vendor + "~" + base + ".new"
	if name == "/" {
		return p, refuse("give --plugin-dir", "the plugin directory cannot be /")
	}
	for _, path := range []string{path, p.kept()} {
		if real := resolve(path); !strings.HasPrefix(real, n.Root+"/") {
			return p, refuse("replace the symbolic link in its path by a relative one", "%s leads out of --root %s, to %s", path, n.Root, real)
		}
	}
	for _, dir := range []string{filepath.Dir(path), path, p.dir} {
		if err := p.checkDir(dir); err != nil {
			return p, err
		}
	}
	for _, file := range []string{p.exe, p.initFile} {
		link, err := os.Lstat(file)
		if err == nil && link.Mode()&os.ModeSymlink != 0 {
			link, err = os.Stat(file)
		}
		if err == nil && !link.Mode().IsRegular() { // reading a pipe would wait
			return p, refuse("see what it is, and move it away", "%s is not a regular file", file)
		}
	}
	return p, nil
}

// checkDir refuses a directory that others may write, and links, except for the directory
// above the plugin directory. The directory may be missing.
func (p *place) checkDir(dir string) error {
	st, err := os.Lstat(dir)
	if err == nil && dir == filepath.Dir(p.plugins) {
		st, err = os.Stat(dir)
	}
	switch {
	case os.IsNotExist(err):
		return nil
	case err != nil:
		return refuse("run this as root", "%v", err)
	case st.Mode()&os.ModeSymlink != 0:
		return refuse("make it a directory; to have it elsewhere, bind-mount it, or set kubelet's volumePluginDir to "+resolve(dir),
			"%s is a symbolic link: kubelet does not follow it and would not see the driver, or not its changes", dir)
	case !st.IsDir():
		return refuse("see what it is, and move it away", "%s is not a directory", dir)
	}
	if wrong, remedy := Unsafe(dir, st); wrong != "" {
		return refuse(remedy, "%s", wrong)
	}
	return nil
}

// Unsafe returns why a file that root runs, or its directory, is not safe.
func Unsafe(path string, st os.FileInfo) (wrong, remedy string) {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid != uint32(os.Geteuid()) && sys.Uid != 0 {
		return fmt.Sprintf("%s belongs to uid %d, who could make root run anything", path, sys.Uid), "chown root:root " + path
	}
	if st.Mode()&os.ModeSticky != 0 { // such as /tmp, whose mode must not change
		remedy = "choose another directory"
	}
	if st.Mode().Perm()&0o022 != 0 {
		return fmt.Sprintf("%s has mode %#o: others than root could make root run anything", path, st.Mode().Perm()), cmp.Or(remedy, "chmod go-w "+path)
	}
	return "", ""
}

// existing returns the nearest directory of a path that exists, and the rest.
func existing(prefix, path string) (dir, rest string) {
	for dir = path; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(prefix + dir); err == nil || dir == "/" {
			return dir, strings.TrimPrefix(path[len(dir):], "/")
		}
	}
}

// resolve follows the links in the existing part of a path.
func resolve(path string) string {
	dir, rest := existing("", path)
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	return filepath.Join(dir, rest)
}

// localPath returns this process's path of a directory of a kubelet, which may run in a container.
func (n *Node) localPath(k *kubelet.Instance, path string) (string, error) {
	dir, rest := existing(k.Inside, path)
	theirs, err := os.Stat(k.Inside + dir)
	if err != nil {
		return "", refuse("run this as root, or again", "the directories of %s cannot be read, or it has just ended: %v", k, err)
	}
	same := func(candidate string) bool {
		st, err := os.Stat(candidate)
		return err == nil && os.SameFile(st, theirs)
	}
	if k.Pid == 0 || same(n.Root+dir) {
		return n.Root + path, nil
	}
	table, err := mounttable.ReadFile(k.Path("mountinfo"))
	if err != nil {
		return "", err
	}
	own, err := mounttable.Own()
	if err != nil {
		return "", err
	}
	// An overlay is the container's own filesystem, and ends with the container.
	if on := table.Containing(dir); on != nil && on.Type != "overlay" {
		below := filepath.Join(on.Root, strings.TrimPrefix(dir, on.Dir))
		for _, e := range own.Of(on.Number) {
			if rel, ok := strings.CutPrefix(below, strings.TrimSuffix(e.Root, "/")); ok && (rel == "" || rel[0] == '/') {
				if c := filepath.Join(e.Dir, rel); strings.HasPrefix(c, n.Root+"/") && same(c) {
					return filepath.Join(c, rest), nil
				}
			}
		}
	}
	return "", refuse("bind a directory of the host there, such as /var/lib/kubelet/volumeplugins at the same path, restart kubelet, and run this again; or give --plugin-dir the path here that leads to kubelet's",
		"%s runs in a container whose directory %s is another one than here, and is at no path here", k, path)
}

// IsOurs reports whether an executable is built from cmd/flexdriver: it contains the path of the
// package.
func IsOurs(exe string) bool {
	f, err := kubelet.Open(exe)
	if err != nil {
		return false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64<<20))
	return err == nil && bytes.Contains(text, fmt.Appendf(nil, "path\t%s/cmd/flexdriver\n", "github.com/flexd/flexd"))
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(x, y)
}

// lock excludes other installations and removals in the plugin directory. The lock is on
// the directory above it, which kubelet does not watch.
func (p *place) lock(ctx context.Context) error {
	above := resolve(filepath.Dir(p.plugins))
	if p.DryRun || p.locks[above] != nil {
		return nil
	}
	f, err := os.Open(above)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for began := time.Now(); ; {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			if p.locks == nil {
				p.locks = map[string]*os.File{}
			}
			p.locks[above] = f
			return nil
		} else if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return fmt.Errorf("%s: %w", above, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Since(began) > time.Minute {
			f.Close()
			return refuse("see what it waits for: fuser -v "+above, "another installation has held the lock of %s for a minute", above)
		}
	}
}

func (n *Node) unlock() {
	for _, f := range n.locks {
		f.Close()
	}
	n.locks = nil
}

// mounted returns the mount points of the driver's volumes, here and in the kubelets'
// namespaces.
func (n *Node) mounted() (dirs []string, err error) {
	vendor, name, _ := strings.Cut(n.Driver, "/")
	look := func(file, prefix string) error {
		table, err := mounttable.ReadFile(file)
		if err != nil {
			return refuse("run this as root, or again", "the mount table %s cannot be read: %v", file, err)
		}
		for _, e := range table.All() {
			dir, below := strings.CutPrefix(strings.TrimSuffix(e.Dir, "//deleted"), prefix)
			_, pod, isPod := strings.Cut(dir, "/pods/")
			_, global, isGlobal := strings.Cut(dir, "/plugins/kubernetes.io/flexvolume/"+vendor+"/"+name+"/mounts/")
			isPod = isPod && strings.Contains(pod, "/volumes/"+vendor+"~"+name+"/")
			if below && (isPod || isGlobal && global != "") && !slices.Contains(dirs, prefix+dir) {
				dirs = append(dirs, prefix+dir)
			}
		}
		return nil
	}
	err = look("/proc/self/mountinfo", n.Root)
	for _, k := range n.kubelets {
		if err == nil && k.Pid != 0 {
			err = look(k.Path("mountinfo"), "")
		}
	}
	slices.Sort(dirs)
	return dirs, err
}

// roots returns the root directories of the kubelets, and those that the configuration lacks.
func (n *Node) roots() (all, missing []string) {
	for _, k := range n.kubelets {
		dir := k.RootDir.Value
		if slices.Contains(all, dir) {
			continue
		}
		all = append(all, dir)
		if n.Config != nil && !slices.ContainsFunc(n.Config.KubeletRoots, func(r string) bool { return r == dir || resolve(n.Root+r) == resolve(n.Root+dir) }) {
			missing = append(missing, dir)
		}
	}
	return all, missing
}

// describe reports the kubelets and the driver of a place.
func (p *place) describe() {
	for _, k := range p.kubelets {
		if k.Pid == 0 {
			p.report("kubelet", "none runs here now: what follows is a guess, for %s, from %s", k.Kind, k.Read)
		} else {
			p.report("kubelet", "%s; its settings are from %s", k, k.Read)
		}
		p.report("root directory", "%s (%s)", k.RootDir.Value, k.RootDir.From)
	}
	for _, k := range p.kubelets {
		if dir, _ := existing(p.Root, p.Config.RunDir); k.Pid != 0 && !sameFile(p.Root+dir, k.Inside+dir) {
			p.report("to do", "%s runs in a container without %s of the host: bind it, or the directory above, into the container at the same path, and restart it", k, dir)
		}
	}
	p.report("plugin directory", "%s (%s)", p.name, p.from)
	if p.plugins != p.Root+p.name {
		p.report("", "which is %s here", p.plugins)
	}
	for _, k := range p.kubelets {
		if p.from != "given" || k.Pid == 0 || k.Err != nil {
			continue
		}
		if its, err := p.localPath(k, k.Plugins.Value); err == nil && resolve(its) != resolve(p.plugins) {
			p.say("note: %s has its drivers in %s and not in the given directory", k, k.Plugins.Value)
		}
	}
}
