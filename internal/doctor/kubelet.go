package doctor

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

	"github.com/flexd/flexd/internal/procfs"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// The directories of a kubelet without settings.
const (
	defaultRoot    = "/var/lib/kubelet"
	defaultPlugins = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec"
)

// A kubelet is one that runs on the node, or the one that would if it were started.
type kubelet struct {
	procfs.Details        // Pid 0: it does not run
	kind           string // "kubelet", "k3s", ...
	inside         string // the directory that is / to it
	read           string // where its settings were read
	err            error  // why some may be missing

	rootDir, plugins, attach, node setting
}

// A setting of kubelet, and where it was found.
type setting struct{ value, from string }

func (k *kubelet) String() string {
	if k.Pid == 0 {
		return "no kubelet runs here"
	}
	return fmt.Sprintf("%s (pid %d)", k.kind, k.Pid)
}

// comms are the names of programs that contain a kubelet.
var comms = []string{"kubelet", "kubelite", "hyperkube", "k3s", "k3s-server", "k3s-agent"}

// kubelets returns the kubelets that run, or the one that would, and the ignored processes.
func (h *Host) kubelets() (all []*kubelet, ignored []string, err error) {
	found, err := procfs.Named(h.Root, comms...)
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
		k := &kubelet{Details: d, kind: kindOf(d), inside: d.Path("root")}
		k.settings(h.Root)
		all = append(all, k)
	}
	if len(all) == 0 {
		k := &kubelet{kind: "kubelet", inside: h.Root}
		k.settings(h.Root)
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
		return "rke2's kubelet"
	case strings.Contains(d.Exe, "/k0s/"):
		return "k0s's kubelet"
	}
	return "kubelet"
}

// settings reads the flags, the configuration file and its drop-ins. A flag wins.
func (k *kubelet) settings(root string) {
	var (
		args []string
		file = "" // --config
		dir  = "" // --config-dir
	)
	switch {
	case k.Pid == 0:
		file, k.read = defaultRoot+"/config.yaml", "kubeadm's and the distribution's files"
		if !exists(k.inside + file) {
			file = ""
		}
		for _, name := range []string{"/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet", "/etc/sysconfig/kubelet"} {
			args = append(args, words(k.text(root+name))...)
		}
	case k.kind == "k3s":
		args, dir = k.k3sArgs(root)
	case k.kind == "microk8s":
		name := cmp.Or(flag(k.Args, "kubelet-args-file"), "/var/snap/microk8s/current/args/kubelet")
		k.read = name
		data := filepath.Dir(filepath.Dir(name))
		text := strings.NewReplacer("${SNAP_COMMON}", "/var/snap/microk8s/common", "${SNAP_DATA}", data, "${SNAP}", "/snap/microk8s/current").Replace(k.text(k.inside + name))
		args = words(text)
	default:
		args, k.read = k.Args, "its command line"
	}
	file, dir = cmp.Or(flag(args, "config"), file), cmp.Or(flag(args, "config-dir"), dir)
	conf := k.configuration(file, dir)
	pick := func(flagName, key, otherwise string) setting {
		if v := flag(args, flagName); v != "" {
			return setting{v, "--" + flagName}
		}
		if s, ok := conf[key]; ok {
			return s
		}
		return setting{otherwise, "kubelet's default"}
	}
	k.rootDir = pick("root-dir", "", defaultRoot)
	k.plugins = pick("volume-plugin-dir", "volumePluginDir", defaultPlugins)
	k.attach = pick("enable-controller-attach-detach", "enableControllerAttachDetach", "true")
	k.node = pick("hostname-override", "", "")
	k.rootDir.value, k.plugins.value = filepath.Clean(k.rootDir.value), filepath.Clean(k.plugins.value)
}

// k3sArgs returns kubelet's flags, which k3s hides from its own command line: it has them
// from its unit and its configuration. dir has the drop-ins that k3s writes.
func (k *kubelet) k3sArgs(root string) (args []string, dir string) {
	const conf = "/etc/rancher/k3s/config.yaml"
	own := slices.Clone(k.Args)
	files := []string{conf}
	if more, err := filepath.Glob(k.inside + conf + ".d/*.yaml"); err == nil {
		for _, name := range more {
			files = append(files, strings.TrimPrefix(name, k.inside))
		}
	}
	for _, unit := range []string{"k3s", "k3s-agent"} {
		_, rest, _ := strings.Cut(k.text(root+"/etc/systemd/system/"+unit+".service"), "\nExecStart=")
		own = append(own, words(strings.ReplaceAll(rest, "\\\n", " "))...)
	}
	data := cmp.Or(flag(own, "data-dir"), flag(own, "d"), "/var/lib/rancher/k3s")
	for i, word := range own {
		if v, ok := strings.CutPrefix(word, "--kubelet-arg="); ok {
			args = append(args, "--"+v)
		} else if word == "--kubelet-arg" && i+1 < len(own) {
			args = append(args, "--"+own[i+1])
		}
	}
	for _, name := range files {
		var c map[string]yaml.Node
		if err := yaml.Unmarshal([]byte(k.text(k.inside+name)), &c); err != nil {
			k.err = invalid(name)
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
	k.read = "k3s's unit, " + strings.Join(files, ", ")
	return args, data + "/agent/etc/kubelet.conf.d"
}

// configuration reads kubelet's configuration, in which later files win.
func (k *kubelet) configuration(file, dir string) map[string]setting {
	var files []string
	if file != "" {
		files = append(files, file)
	}
	if dir != "" {
		_ = filepath.WalkDir(k.inside+dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && strings.HasSuffix(path, ".conf") && len(files) < 100 {
				files = append(files, strings.TrimPrefix(path, k.inside))
			}
			return nil
		})
	}
	found := map[string]setting{}
	for _, name := range files {
		k.read += ", " + name
		if name == file && !exists(k.inside+name) {
			k.err = fmt.Errorf("kubelet's configuration %s cannot be read", name)
		}
		var c map[string]yaml.Node // JSON is YAML
		if err := yaml.Unmarshal([]byte(k.text(k.inside+name)), &c); err != nil {
			k.err = invalid(name)
		}
		for _, key := range []string{"volumePluginDir", "enableControllerAttachDetach"} {
			if n, ok := c[key]; ok && n.Kind == yaml.ScalarNode && n.Value != "" {
				found[key] = setting{n.Value, key + " in " + name}
			}
		}
	}
	k.read = strings.TrimPrefix(k.read, ", ")
	return found
}

// invalid does not quote the file, which may have a token.
func invalid(name string) error { return fmt.Errorf("%s is not valid YAML", name) }

// text returns a file, "" if there is none.
func (k *kubelet) text(name string) string {
	text, err := readFile(name)
	if err != nil && !os.IsNotExist(err) {
		k.err = err
	}
	return text
}

// attaches reports whether kubelet attaches volumes itself.
func (k *kubelet) attaches() bool {
	return slices.Contains([]string{"false", "False", "FALSE", "f", "F", "0"}, k.attach.value)
}

// readFile reads a file of at most 1 MiB.
func readFile(name string) (string, error) {
	f, err := open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 1<<20))
	return string(text), err
}

// open opens a regular file. It does not wait for the writer of a pipe.
func open(name string) (*os.File, error) {
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

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// flag returns the value of the last flag of that name. Kubelet reads _ as -.
func flag(args []string, name string) (value string) {
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

var comment = regexp.MustCompile(`(?m)^\s*#.*`)

// words splits a file with flags: VARIABLE="--flag ...", one a line, or the command of a unit.
func words(text string) (all []string) {
	for _, w := range strings.Fields(comment.ReplaceAllString(text, "")) {
		if name, rest, ok := strings.Cut(w, "="); ok && !strings.HasPrefix(w, "-") && !strings.ContainsAny(name, `/'"`) {
			w = rest // NAME=
		}
		all = append(all, strings.Trim(w, `"'`))
	}
	return all
}
