//go:build vm && node

package shared

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/test/shared/nodes"
)

// TestKubelet has whole kubelets with containerd on two nodes: a pod moves from one to the other,
// which then dies. Static pods stand for a scheduler, which may be early.
func TestKubelet(t *testing.T) {
	kubelet := abs("../../bin/node/kubelet")
	two := start(t, nodes.Settings{Nodes: 2, Disk: "1G", Options: []string{"-m", "2048", "-f", kubelet}})
	nodes.Together(two, func(n *nodes.Node) {
		n.Install("")
		n.Serve()
		runKubelet(n, kubelet)
	})
	if t.Failed() {
		return
	}
	a, b := two[0], two[1]

	want(a)
	awaits(a, "starts", "web starts")
	want(b)
	await(b, "the pod on node-2 waits for node-1", b.At.Flexd()+" status --socket "+b.At.StatusSocket()+" svg/data | grep 'waits for.*node-1'")
	a.Sh("rm /srv/node/manifests/web.yaml")
	awaits(b, "moves", "web starts", "web ends", "web starts")

	b.Kill()
	want(a)
	died := time.Now()
	awaits(a, "is taken over", "web starts", "web ends", "web starts", "web starts")
	t.Logf("a pod writes on node-1 %.0f s after node-2's death", time.Since(died).Seconds())
	a.Sh("rm /srv/node/manifests/web.yaml")
	await(a, "the volume is inactive", "! dmsetup ls | grep -q svg-data")
}

func abs(path string) string { path, _ = filepath.Abs(path); return path }

// runKubelet starts containerd and kubelet.
func runKubelet(n *nodes.Node, kubelet string) {
	n.T.Helper()
	for name, replace := range map[string]*strings.Replacer{
		"containerd.toml": strings.NewReplacer("version = 2\n", "version = 2\nroot = \"/srv/node/containerd\"\n"),
		"kubelet.yaml":    strings.NewReplacer("staticPodPath: /etc/kubernetes/manifests", "staticPodPath: /srv/node/manifests\nvolumePluginDir: /srv/node/plugins"),
		"pod.yaml":        strings.NewReplacer("vg0", nodes.Group, "NAME", "web", "VOLUME", "data"),
	} {
		text, err := os.ReadFile("../node/testdata/" + name)
		if err == nil {
			err = n.Write(context.Background(), "/srv/node/"+name, replace.Replace(string(text)))
		}
		if err != nil {
			n.T.Errorf("%v", err)
			return
		}
	}
	n.Sh(`set -e; mkdir -p /srv/node/manifests; echo "+cpuset +cpu +io +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
		setsid containerd --config /srv/node/containerd.toml </dev/null >/run/containerd.log 2>&1 &
		for n in $(seq 300); do [ -S /run/containerd/containerd.sock ] && break; sleep 0.2; done
		ctr -n k8s.io images import ` + abs("../../bin/node/pod.tar") + ` || { tail /run/containerd.log; exit 1; }
		setsid ` + kubelet + ` --config=/srv/node/kubelet.yaml --root-dir=/srv/node/kubelet --hostname-override=` + n.Name + ` </dev/null >/run/kubelet.log 2>&1 &`)
}

// want makes kubelet run the pod.
func want(n *nodes.Node) {
	n.T.Helper()
	n.Sh("cp /srv/node/pod.yaml /srv/node/manifests/.web && mv /srv/node/manifests/.web /srv/node/manifests/web.yaml")
}

// awaits waits until the pod runs on a node, where the volume has what pods wrote.
func awaits(n *nodes.Node, what string, diary ...string) {
	n.T.Helper()
	const data = "/srv/node/kubelet/pods/uid-web/volumes/flexd~lvm/data"
	await(n, "the pod "+what, "[ \"$(cat "+data+"/log)\" = '"+strings.Join(diary, "\n")+"' ] && cat "+data+"/web.beat")
}

// await waits until a command of the shell works.
func await(n *nodes.Node, what, command string) {
	n.T.Helper()
	var err error
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		if _, err = n.Try(command); err == nil {
			return
		}
	}
	out, _ := n.Try("tail -n 30 /run/kubelet.log")
	n.T.Errorf("%s: not within 5 minutes: %s: %v\n%s", n.Name, what, err, out)
}
