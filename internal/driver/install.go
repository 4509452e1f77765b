package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/run"
	"golang.org/x/sys/unix"
)

// Options of an installation.
type Options struct {
	PluginDir string // "" = from kubelet's settings
	Attach    string // "true", "false", "" = as before, or as kubelet attaches
	From      string // the executable
	Replace   bool   // replace another program with the driver's name
	Upgrade   bool   // only where the driver is installed
	NoDaemon  bool   // the controller manager's machine, which has no flexd
}

// An installation is the plan for one place.
type installation struct {
	*place
	from       string // the executable
	text       []byte // its content
	attach     bool
	capability string // the text of the dotfile
	foreign    bool   // another program is there
}

// Install puts the driver into every plugin directory of the node, or the given one.
func (n *Node) Install(ctx context.Context, o Options) error {
	if o.NoDaemon && o.PluginDir == "" {
		o.PluginDir = kubelet.DefaultPlugins
	}
	places, err := n.places(o.PluginDir)
	if err != nil {
		return err
	}
	defer n.unlock()
	var all []*installation
	for _, p := range places {
		if err := p.lock(ctx); err != nil {
			return err
		}
		i, err := p.plan(ctx, o)
		if err != nil {
			return err
		}
		if i != nil {
			all = append(all, i)
		}
	}
	for _, i := range all {
		if err := i.install(ctx); err != nil {
			return err
		}
	}
	return nil
}

// plan examines a place and returns the installation, or nil. It changes nothing.
func (p *place) plan(ctx context.Context, o Options) (*installation, error) {
	i := &installation{place: p, from: o.From}
	_, err := os.Lstat(p.exe)
	there := err == nil
	ours := there && IsOurs(p.exe)
	i.foreign = there && !ours
	p.report("driver", "%s", p.Driver)
	p.describe()
	switch {
	case o.Upgrade && !ours:
		p.say("none: %s: nothing to upgrade", p.exe)
		return nil, nil
	case i.foreign && !o.Replace:
		return nil, refuse("see what it is (file "+p.exe+"); to replace it, and keep a copy that `flexd driver restore` puts back: --replace-driver; or choose another name with driver: in "+p.Path,
			"%s is another program than flexd's driver, so it was not replaced", p.exe)
	}
	if i.text, err = os.ReadFile(o.From); err != nil {
		return nil, refuse("give --from the path of flexdriver; it is installed beside flexd, or in ../lib/flexd", "%v", err)
	}
	if err := p.usable(); err != nil {
		return nil, err
	}
	if !o.NoDaemon {
		if err := p.ready(ours); err != nil {
			return nil, err
		}
	}
	if err := i.chooseAttach(ctx, o); err != nil {
		return nil, err
	}
	return i, nil
}

// usable refuses a plugin directory where programs cannot be written or run.
func (p *place) usable() error {
	dir, rest := existing("", p.plugins)
	if first, _, _ := strings.Cut(rest, "/"); rest != "" && exists(dir+"/"+first) {
		return refuse("see where it leads: ls -l "+dir+"/"+first+"; with --root it must be a relative link", "%s is a symbolic link to a directory that does not exist", dir+"/"+first)
	}
	elsewhere := "set kubelet's volumePluginDir (--volume-plugin-dir) to a directory elsewhere, such as /var/lib/kubelet/volumeplugins, restart kubelet, and run this again"
	err := unix.Access(dir, unix.W_OK)
	if err == nil { // checked here: it may be a mount below a read-only one
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_NOEXEC != 0 {
			return noexec(p.name, elsewhere)
		}
	}
	switch {
	case err == unix.EROFS:
		return refuse(elsewhere, "%s is on a read-only filesystem, so kubelet can have no driver in %s", dir, p.name)
	case err != nil:
		return refuse("run this as root", "%s: %v", dir, err)
	}
	for _, k := range p.kubelets {
		if k.Pid == 0 {
			continue
		}
		table, err := mounttable.ReadFile(k.Path("mountinfo"))
		if err != nil {
			return refuse("run this as root, or again", "the mount table of %s cannot be read: %v", k, err)
		}
		if on := table.Containing(k.Plugins.Value); on != nil && slices.Contains(on.Options, "noexec") {
			return noexec(p.name, elsewhere)
		}
	}
	return nil
}

func noexec(dir, elsewhere string) error {
	return refuse("mount -o remount,exec the filesystem (findmnt -T "+dir+"); or "+elsewhere, "%s is on a mount with noexec: kubelet cannot run a driver there", dir)
}

// ready refuses to install a driver if flexd would refuse every volume. An installed driver
// is upgraded anyway.
func (p *place) ready(installed bool) error {
	again := ", then: flexd config --check " + p.Path + " && systemctl restart flexd && flexd driver install"
	_, missing := p.roots()
	var wrong, remedy string
	switch {
	case len(p.Config.VolumeGroups) == 0:
		wrong, remedy = p.Path+" has no volume group: flexd would refuse every volume", "edit it"+again
	case len(missing) > 0:
		installed = installed || p.kubelets[0].Pid == 0 // a guess
		wrong = fmt.Sprintf("kubelet's root directory is %s, and kubeletRoots in %s has %s: flexd would refuse every mount", strings.Join(missing, ", "), p.Path, strings.Join(p.Config.KubeletRoots, ", "))
		remedy = "set " + p.rootsLine() + again
	default:
		return nil
	}
	if installed {
		p.say("note: %s; %s", wrong, remedy)
		return nil
	}
	return refuse(remedy, "the driver was not installed: %s", wrong)
}

// rootsLine returns the line of the configuration with the root directories of all kubelets.
func (n *Node) rootsLine() string {
	all, _ := n.roots()
	var quoted []string
	for _, dir := range all {
		if !kubelet.Plain(dir) {
			return "kubeletRoots, which needs the root directory of kubelet"
		}
		quoted = append(quoted, `"`+dir+`"`)
	}
	return "kubeletRoots: [" + strings.Join(quoted, ", ") + "]"
}

var attachKey = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`("attach"\s*:\s*)(?:true|false)`) })

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// plainFile reports whether a file has the mode, is not a link, and only root may write it.
func plainFile(path string, mode fs.FileMode) bool {
	st, err := os.Lstat(path)
	if err != nil || st.Mode() != mode {
		return false
	}
	wrong, _ := Unsafe(path, st)
	return wrong == ""
}

func (i *installation) upToDate() bool {
	if !plainFile(i.exe, 0o755) || !plainFile(i.initFile, 0o644) || exists(i.newExe) {
		return false
	}
	now, err := os.ReadFile(i.exe)
	initFile, err2 := os.ReadFile(i.initFile)
	return err == nil && err2 == nil && bytes.Equal(now, i.text) && string(initFile) == i.capability
}

func (i *installation) install(ctx context.Context) (err error) {
	if i.upToDate() {
		if !i.DryRun {
			i.unstage(false)
		}
		i.say("same: %s", i.exe)
		return nil
	}
	if i.foreign && i.act("keep a copy of %s in %s", i.dir, i.kept()) {
		if err := i.keep(); err != nil {
			return err
		}
	}
	verb := "write"
	if exists(i.exe) {
		verb = "replace"
	}
	if !i.act("%s %s (%s)", verb, i.exe, strings.TrimSpace(i.capability)) {
		return nil
	}
	made := false
	defer func() { i.unstage(made && err != nil) }()
	if !exists(i.plugins) {
		if err := os.MkdirAll(i.plugins, 0o755); err != nil { // #nosec G301 -- as kubelet makes it
			return err
		}
		if err := i.lock(ctx); err != nil {
			return err
		}
	}
	i.unstage(false)
	if !exists(i.dir) {
		// A first installation: the whole directory in one rename from outside, unless the
		// plugin directory is a mount point.
		if err := os.Mkdir(i.outside, 0o755); err == nil { // #nosec G301
			base := filepath.Base(i.exe)
			if err := i.stage(ctx, i.outside+"/"+base, i.outside+"/."+base+".init.json"); err != nil {
				return err
			}
			if err = os.Rename(i.outside, i.dir); err == nil {
				return i.finish(i.plugins)
			}
			i.unstage(false)
		}
		if err := os.Mkdir(i.dir, 0o755); err != nil { // #nosec G301
			return err
		}
		made = true
	}
	if err := i.stage(ctx, i.newExe, i.newInitFile); err != nil {
		return err
	}
	old, err := os.ReadFile(i.initFile)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	changes := err != nil || string(old) != i.capability || !plainFile(i.initFile, 0o644)
	if changes {
		if err := os.Rename(i.newInitFile, i.initFile); err != nil {
			return err
		}
	}
	if err := os.Rename(i.newExe, i.exe); err != nil {
		if changes && old == nil {
			_ = os.Remove(i.initFile)
		} else if changes {
			err = errors.Join(err, write(i.newInitFile, old, 0o644), os.Rename(i.newInitFile, i.initFile))
		}
		return refuse(fmt.Sprintf("see what holds it: findmnt %s; lsattr %[1]s", i.exe), "%s could not be replaced; the driver and its mode are unchanged: %v", i.exe, err)
	}
	return i.finish(i.dir)
}

// finish makes an installation durable.
func (p *place) finish(dir string) error {
	p.relabel()
	return syncDir(dir)
}

// stage writes the new driver and its dotfile under hidden names.
func (i *installation) stage(ctx context.Context, exe, initFile string) error {
	if err := errors.Join(write(initFile, []byte(i.capability), 0o644), write(exe, i.text, 0o755), syncDir(filepath.Dir(exe))); err != nil {
		return err
	}
	c, err := i.init(ctx, exe)
	if err == nil && (c == nil || c.Attach == nil || *c.Attach != i.attach) {
		err = fmt.Errorf("it says nothing of attach:%t", i.attach)
	}
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted: nothing was changed")
	case err != nil:
		return refuse(fmt.Sprintf("see that %s is flexdriver, for this machine's architecture; if it complains of its .init.json, correct or remove %s", i.from, i.initFile),
			"the new driver does not answer init as kubelet needs it, so nothing was changed: %v", err)
	}
	return nil
}

// unstage removes the staged files of this or an interrupted installation.
func (p *place) unstage(dir bool) {
	_ = os.Remove(p.newExe)
	_ = os.Remove(p.newInitFile)
	_ = os.RemoveAll(p.outside)
	if dir {
		_ = os.Remove(p.dir)
	}
}

// relabel sets the SELinux labels of the plugin directory, with which kubelet may run the driver.
func (p *place) relabel() {
	if p.Root != "" || !exists("/sys/fs/selinux/enforce") {
		return
	}
	if _, err := p.Runner.Run(context.Background(), run.Cmd{Step: "restorecon", Argv: []string{"restorecon", "-R", p.dir}, Deadline: 10 * time.Second}); err != nil {
		p.say("note: the labels of %s were not set: %v", p.dir, err)
	}
}

// write writes a whole file and makes it durable.
func write(path string, text []byte, mode fs.FileMode) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
