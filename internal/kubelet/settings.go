package kubelet

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/flexd/flexd/internal/procfs"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// Kubelet's default directories.
const (
	DefaultRoot    = "/var/lib/kubelet"
	DefaultPlugins = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec"
)

// An Instance is a kubelet that runs on the node, or that would run if it were started.
type Instance struct {
	procfs.Details        // Pid 0: it does not run
	Kind           string // "kubelet", "k3s", ...
	Inside         string // the path of its root directory here
	Read           string // the sources of its settings
	Err            error  // why some settings may be missing

	RootDir, Plugins, Attach, NodeName Setting
}

// A Setting is a setting of kubelet, with its source.
type Setting struct{ Value, From string }

func (k *Instance) String() string {
	if k.Pid == 0 {
		return "no kubelet runs here"
	}
	return fmt.Sprintf("%s (pid %d)", k.Kind, k.Pid)
}

// Names are the names of programs that contain a kubelet.
var Names = []string{"kubelet", "kubelite", "hyperkube", "k3s", "k3s-server", "k3s-agent"}

// Find returns the kubelets that run on the node with the root directory root, or the one that would run,
// and the ignored processes.
func Find(root string) (all []*Instance, ignored []string, err error) {
	found, err := procfs.Named(root, Names...)
	for _, d := range found {
		role := ""
		if len(d.Args) > 1 {
			role = d.Args[1]
		}
		switch {
		case d.Comm == "hyperkube" && role != "kubelet", d.Comm == "k3s" && role != "server" && role != "agent":
			continue
		case d.Foreign != "":
			if len(ignored) < 10 { // every user can start many
				ignored = append(ignored, fmt.Sprintf("process %d is named %s and ignored: %s", d.Pid, d.Comm, d.Foreign))
			}
			continue
		}
		k := &Instance{Details: d, Kind: kindOf(d), Inside: d.Path("root")}
		k.settings(root)
		all = append(all, k)
	}
	if len(all) == 0 {
		k := &Instance{Kind: installed(root), Inside: root}
		k.settings(root)
		all = append(all, k)
	}
	return all, ignored, err
}

func kindOf(d procfs.Details) string {
	switch {
	case strings.HasPrefix(d.Comm, "k3s"):
		return "k3s"
	case d.Comm == "kubelite":
		return "microk8s"
	case strings.Contains(d.Exe, "/rke2/"):
		return rke2
	case strings.Contains(d.Exe, "/k0s/"):
		return k0s
	}
	return "kubelet"
}

const rke2, k0s = "rke2's kubelet", "k0s's kubelet"

// installed returns the kind of kubelet by the files of a node.
func installed(root string) string {
	for _, d := range []struct{ path, kind string }{
		{microk8sArgs, "microk8s"},
		{"/etc/systemd/system/k3s.service", "k3s"}, {"/etc/systemd/system/k3s-agent.service", "k3s"}, {k3sConfig, "k3s"},
		{"/var/lib/rancher/rke2", rke2}, {"/etc/rancher/rke2", rke2},
		{"/var/lib/k0s", k0s}, {"/etc/systemd/system/k0sworker.service", k0s}, {"/etc/systemd/system/k0scontroller.service", k0s},
	} {
		if exists(root + d.path) {
			return d.kind
		}
	}
	return "kubelet"
}

const (
	microk8sArgs = "/var/snap/microk8s/current/args/kubelet"
	k3sConfig    = "/etc/rancher/k3s/config.yaml"
)

// settings reads the flags, the configuration file and its drop-ins. A flag wins.
func (k *Instance) settings(root string) {
	var (
		args []string
		file = "" // --config
		dir  = "" // --config-dir
	)
	rootDir, plugins, defaults := DefaultRoot, DefaultPlugins, "kubelet's default"
	switch {
	case k.Pid == 0 && k.Kind == rke2:
		plugins, k.Read, defaults = "/var/lib/kubelet/volumeplugins", "its files", "rke2's default"
	case k.Pid == 0 && k.Kind == k0s:
		rootDir, plugins, k.Read, defaults = "/var/lib/k0s/kubelet", "/usr/libexec/k0s/kubelet-plugins/volume/exec", "its files", "k0s's default"
	case k.Pid == 0 && k.Kind == "kubelet":
		file, k.Read = DefaultRoot+"/config.yaml", "kubeadm's and the distribution's files"
		if !exists(k.Inside + file) {
			file = ""
		}
		for _, name := range []string{"/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet", "/etc/sysconfig/kubelet"} {
			args = append(args, words(k.text(root+name))...)
		}
	case k.Kind == "k3s":
		args, dir = k.k3sArgs(root)
	case k.Kind == "microk8s":
		name := cmp.Or(Flag(k.Args, "kubelet-args-file"), microk8sArgs)
		k.Read = name
		data := filepath.Dir(filepath.Dir(name))
		text := strings.NewReplacer("${SNAP_COMMON}", "/var/snap/microk8s/common", "${SNAP_DATA}", data, "${SNAP}", "/snap/microk8s/current").Replace(k.text(k.Inside + name))
		args = words(text)
	default:
		args, k.Read = k.Args, "its command line"
	}
	file, dir = cmp.Or(Flag(args, "config"), file), cmp.Or(Flag(args, "config-dir"), dir)
	conf := k.configuration(file, dir)
	pick := func(flagName, key, otherwise string) Setting {
		if v := Flag(args, flagName); v != "" {
			return Setting{v, "--" + flagName}
		}
		if s, ok := conf[key]; ok {
			return s
		}
		return Setting{otherwise, defaults}
	}
	k.RootDir = pick("root-dir", "", rootDir)
	k.Plugins = pick("volume-plugin-dir", "volumePluginDir", plugins)
	k.Attach = pick("enable-controller-attach-detach", "enableControllerAttachDetach", "true")
	k.NodeName = pick("hostname-override", "", "")
	k.RootDir.Value, k.Plugins.Value = filepath.Clean(k.RootDir.Value), filepath.Clean(k.Plugins.Value)
}

// k3sArgs returns kubelet's flags from k3s's unit and configuration: k3s hides them in its
// command line. dir has the drop-ins that k3s writes.
func (k *Instance) k3sArgs(root string) (args []string, dir string) {
	own := slices.Clone(k.Args)
	files := []string{k3sConfig}
	if more, err := filepath.Glob(k.Inside + k3sConfig + ".d/*.yaml"); err == nil {
		for _, name := range more {
			files = append(files, strings.TrimPrefix(name, k.Inside))
		}
	}
	for _, unit := range []string{"k3s", "k3s-agent"} {
		_, rest, _ := strings.Cut(k.text(root+"/etc/systemd/system/"+unit+".service"), "\nExecStart=")
		own = append(own, words(strings.ReplaceAll(rest, "\\\n", " "))...)
	}
	data := cmp.Or(Flag(own, "data-dir"), Flag(own, "d"), "/var/lib/rancher/k3s")
	for i, word := range own {
		if v, ok := strings.CutPrefix(word, "--kubelet-arg="); ok {
			args = append(args, "--"+v)
		} else if word == "--kubelet-arg" && i+1 < len(own) {
			args = append(args, "--"+own[i+1])
		}
	}
	for _, name := range files {
		var c map[string]yaml.Node
		if err := yaml.Unmarshal([]byte(k.text(k.Inside+name)), &c); err != nil {
			k.Err = invalid(name)
		}
		for _, key := range []string{"kubelet-arg", "kubelet-arg+"} {
			n := c[key]
			for _, v := range append(n.Content, &n) {
				if v.Kind == yaml.ScalarNode {
					args = append(args, "--"+v.Value)
				}
			}
		}
		if n, ok := c["data-dir"]; ok && n.Value != "" {
			data = n.Value
		}
	}
	k.Read = "k3s's unit, " + strings.Join(files, ", ")
	return args, data + "/agent/etc/kubelet.conf.d"
}

// configuration reads kubelet's configuration, in which later files win.
func (k *Instance) configuration(file, dir string) map[string]Setting {
	var files []string
	if file != "" {
		files = append(files, file)
	}
	if dir != "" {
		_ = filepath.WalkDir(k.Inside+dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && strings.HasSuffix(path, ".conf") && len(files) < 100 {
				files = append(files, strings.TrimPrefix(path, k.Inside))
			}
			return nil
		})
	}
	found := map[string]Setting{}
	for _, name := range files {
		k.Read += ", " + name
		if name == file && !exists(k.Inside+name) {
			k.Err = fmt.Errorf("kubelet's configuration %s cannot be read", name)
		}
		var c map[string]yaml.Node // JSON is YAML
		if err := yaml.Unmarshal([]byte(k.text(k.Inside+name)), &c); err != nil {
			k.Err = invalid(name)
		}
		for _, key := range []string{"volumePluginDir", "enableControllerAttachDetach"} {
			var value string
			if n, ok := c[key]; ok && n.Decode(&value) == nil && value != "" {
				found[key] = Setting{value, key + " in " + name}
			}
		}
	}
	k.Read = strings.TrimPrefix(k.Read, ", ")
	return found
}

// invalid does not quote the file, which may contain a token.
func invalid(name string) error { return fmt.Errorf("%s is not valid YAML", name) }

// text returns a file, "" if there is none.
func (k *Instance) text(name string) string {
	text, err := ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		k.Err = err
	}
	return text
}

// Attaches reports whether kubelet attaches volumes itself.
func (k *Instance) Attaches() bool {
	return slices.Contains([]string{"false", "False", "FALSE", "f", "F", "0"}, k.Attach.Value)
}

// ReadFile reads a file of at most 1 MiB.
func ReadFile(name string) (string, error) {
	f, err := Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 1<<20))
	return string(text), err
}

// Open opens a regular file. It does not wait for the writer of a pipe.
func Open(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return f, nil
}

// Flag returns the value of the last flag of that name. Kubelet reads _ as -.
func Flag(args []string, name string) (value string) {
	for i, a := range args {
		if !strings.HasPrefix(a, "-") {
			continue
		}
		key, v, ok := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if strings.ReplaceAll(key, "_", "-") != name {
			continue
		}
		if ok {
			value = v
		} else if i+1 < len(args) {
			value = args[i+1]
		}
	}
	return strings.Trim(value, `"'`)
}

var comment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^\s*#.*`) })

var plain = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(/[A-Za-z0-9_.@:+~-]+)+$`) })

// Plain reports whether a path is absolute, clean, and without characters that need quoting.
func Plain(path string) bool { return plain().MatchString(path) && path == filepath.Clean(path) }

// words splits a file of flags (VARIABLE="--flag ...", or one per line), or the command of a unit.
func words(text string) (all []string) {
	for _, w := range strings.Fields(comment().ReplaceAllString(text, "")) {
		if name, rest, ok := strings.Cut(w, "="); ok && !strings.HasPrefix(w, "-") && !strings.ContainsAny(name, `/'"`) {
			w = rest // NAME=
		}
		all = append(all, strings.Trim(w, `"'`))
	}
	return all
}
