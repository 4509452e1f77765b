package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A host is a node on this machine: a process 1 with its own mount namespace, where
// the installer's directories are empty and systemctl is a script; and a pod with the image.
type host struct {
	*testing.T
	pid   string // of the node's process 1
	image string // the root of the container
	log   int    // how much of the log of systemctl was read
}

const systemctl = `#!/bin/sh
echo "$*" >>/run/systemctl
case "$*" in
'-q is-active flexd') [ -e /run/active ] ;;
'-q enable --now flexd') touch /run/active ;;
esac
`

const boot = `set -e
for dir in /etc /run /usr/local /usr/libexec /var/lib; do mount -t tmpfs none $dir; done
mkdir -p /run/systemd/system /usr/local/bin
cat >/usr/local/bin/systemctl
chmod 755 /usr/local/bin/systemctl
echo up
exec sleep infinity
`

func newHost(t *testing.T) *host {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	h := &host{T: t, image: t.TempDir()}
	h.makeImage()
	node := exec.Command("unshare", "--fork", "--pid", "--mount-proc", "--kill-child", "sh", "-c", boot)
	node.Stdin = strings.NewReader(systemctl)
	node.Stderr = os.Stderr
	node.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	up, err := node.StdoutPipe()
	h.must(err)
	h.must(node.Start())
	t.Cleanup(func() {
		node.Process.Kill()
		node.Wait()
	})
	_, err = up.Read(make([]byte, 1))
	h.must(err)
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", node.Process.Pid))
	h.must(err)
	h.pid = strings.TrimSpace(string(children))
	return h
}

// makeImage unpacks the image of the Containerfile.
func (h *host) makeImage() {
	h.Helper()
	const repository = "../../.."
	built := repository + "/bin/image/test"
	make := exec.Command("make", "-s", "-C", repository, "image", "ARCH=amd64", "BIN=bin/image/test")
	make.Env = append(os.Environ(), "MAKEFLAGS=")
	if out, err := make.CombinedOutput(); err != nil {
		h.Fatalf("make image: %v\n%s", err, out)
	}
	out, err := exec.Command("sh", "-c", `tar -C "$1" -xf "$0" && for blob in "$1"/blobs/sha256/*; do
		! gzip -t "$blob" 2>/dev/null || tar -C "$1" -xzf "$blob"; done; mkdir "$1/proc" "$1/config"`, built+"/image/flexd.tar", h.image).CombinedOutput()
	if err != nil {
		h.Fatalf("%v\n%s", err, out)
	}
}

// pod runs setup in a container on the node.
func (h *host) pod(options, setup string) (string, error) {
	c := exec.Command("nsenter", "-t", h.pid, "-m", "-p", "unshare", "--mount", "sh", "-c", fmt.Sprintf(
		`mount --rbind /proc %[1]s/proc && exec env NODE_NAME=node-1 unshare %[2]s chroot %[1]s /bin/setup %[3]s`, h.image, options, setup))
	out, err := c.CombinedOutput()
	return string(out), err
}

func (h *host) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

func (h *host) ok(setup string, words ...string) {
	h.Helper()
	out, err := h.pod("", setup)
	if err != nil {
		h.Fatalf("setup %s: %v\n%s", setup, err, out)
	}
	h.says(out, words)
}

func (h *host) refuses(setup string, words ...string) {
	h.Helper()
	out, err := h.pod("", setup)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		h.Fatalf("setup %s: %v\n%s", setup, err, out)
	}
	h.says(out, words)
}

func (h *host) says(out string, words []string) {
	h.Helper()
	for _, w := range words {
		if !strings.Contains(out, w) {
			h.Errorf("%q is missing in:\n%s", w, out)
		}
	}
}

// path returns the path of a file of the node.
func (h *host) path(file string) string { return "/proc/" + h.pid + "/root" + file }

func (h *host) config(key, text string) {
	h.Helper()
	h.must(os.WriteFile(filepath.Join(h.image, "config", key), []byte(text), 0o644))
}

// untouched checks that nothing of flexd is on the node except a configuration.
func (h *host) untouched(config bool) {
	h.Helper()
	for file, there := range map[string]bool{configFile: config, driver: false, "/usr/local/bin/flexd": false, configFile + ".before": false, "/var/lib/flexd-setup": false} {
		if _, err := os.Stat(h.path(file)); (err == nil) != there || err != nil && !errors.Is(err, fs.ErrNotExist) {
			h.Errorf("%s: %v", file, err)
		}
	}
}

// called checks the calls of systemctl since the last time.
func (h *host) called(want ...string) {
	h.Helper()
	text, _ := os.ReadFile(h.path("/run/systemctl"))
	got := strings.TrimSpace(strings.ReplaceAll(string(text[h.log:]), "\n", "; "))
	h.log = len(text)
	if want := strings.TrimSpace(strings.Join(append(want, ""), "; ")); got != want {
		h.Errorf("systemctl was called with %s not with %s", got, want)
	}
}

func (h *host) same(a, b string) {
	h.Helper()
	if out, err := exec.Command("cmp", a, b).CombinedOutput(); err != nil {
		h.Errorf("%v: %s", err, out)
	}
}

const driver = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexd~lvm/lvm"

// The DaemonSet installs, upgrades and removes flexd on a node, and its refusals change
// nothing.
func TestSetup(t *testing.T) {
	h := newHost(t)
	h.refuses("", "usage: setup install")
	h.refuses("install", "/etc/flexd/flexd.yaml of this node (the ConfigMap has no configuration for it) has no volume group")
	h.config("flexd.yaml", "# volumeGroups: []\n")
	h.refuses("install", "flexd.yaml of the ConfigMap has no volume group: nothing is installed")
	h.config("flexd.yaml", "volumeGroup: [{name: vg0}]\n")
	h.refuses("install", "flexd.yaml of the ConfigMap", "volumeGroup", "nothing was changed on this node")
	h.config("flexd.yaml", "volumeGroups: [{name: files, provider: loopdev, directory: /srv/missing, namespaces: [default]}]\n")
	h.refuses("install", "no directory /srv/missing", "nothing was changed")
	h.untouched(false)
	h.config("flexd.yaml", "volumeGroups: [{name: vg0, namespaces: [default]}]\n")
	h.refuses("install --attach=perhaps", "true or false")
	h.untouched(false)
	if out, err := h.pod("--fork --pid --mount-proc="+h.image+"/proc", "install"); err == nil || !strings.Contains(out, "hostPID: true") {
		t.Errorf("in a pid namespace: %v\n%s", err, out)
	}
	if out, err := h.pod("setpriv --bounding-set=-sys_admin", "install"); err == nil || !strings.Contains(out, "privileged: true") {
		t.Errorf("without privileges: %v\n%s", err, out)
	}
	h.must(os.Rename(h.path("/run/systemd"), h.path("/run/none")))
	h.refuses("install", "this node does not run systemd", "nodeSelector")
	h.must(os.Rename(h.path("/run/none"), h.path("/run/systemd")))
	h.untouched(false)
	h.called()

	h.ok("install --attach=true", "attach             true (as --attach says)")
	h.called("daemon-reload", "-q is-active flexd", "-q enable --now flexd")
	h.same(h.image+"/bin/flexd", h.path("/usr/local/bin/flexd"))
	h.same(h.image+"/bin/flexdriver", h.path(driver))
	text, err := os.ReadFile(h.path(configFile))
	h.must(err)
	if string(text) != marker+"volumeGroups: [{name: vg0, namespaces: [default]}]\n" {
		t.Errorf("the configuration is\n%s", text)
	}
	h.ok("install", "same: "+driver, "same: /usr/local/bin/flexd\n")
	h.called("-q is-active flexd")

	// An administrator has moved it away as the installer does.
	before := h.path(configFile + ".before")
	h.must(os.WriteFile(before, []byte("theirs"), 0o600))
	h.ok("install", "same: "+driver)
	h.called("-q is-active flexd")
	if text, _ := os.ReadFile(before); string(text) != "theirs" {
		h.Errorf("%s was removed", before)
	}
	h.must(os.Remove(before))

	h.config("node-1.yaml", "volumeGroups: [{name: vg1, namespaces: [default]}]\n")
	h.ok("install", "write /etc/flexd/flexd.yaml")
	h.called("daemon-reload", "-q is-active flexd", "restart flexd")
	h.config("node-1.yaml", "volumeGroups: []\n")
	h.refuses("install", "node-1.yaml of the ConfigMap has no volume group")

	h.config("node-1.yaml", "volumeGroups: [{name: vg2, namespaces: [default]}]\n")
	own := "volumeGroups: [{name: own, namespaces: [default]}]\n"
	h.must(os.WriteFile(h.path(configFile), []byte(own), 0o600))
	h.refuses("install", "has a configuration of its own", "remove node-1.yaml from the ConfigMap")
	h.must(os.Remove(h.image + "/config/node-1.yaml"))
	h.must(os.Remove(h.image + "/config/flexd.yaml"))
	h.ok("install", "keep: /etc/flexd/flexd.yaml")
	if text, _ := os.ReadFile(h.path(configFile)); string(text) != own {
		t.Errorf("the configuration is\n%s", text)
	}
	h.called("-q is-active flexd")

	h.ok("uninstall", "remove "+driver)
	h.untouched(true)
	h.ok("uninstall --purge")
	h.untouched(false)
}
