package nodes

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/flexd/flexd/test/host"
)

// Configuration is that of all nodes, as far as it is not about their paths. {node} is the name.
const configuration = `nodeName: {node}
kubeletRoots: ["{at}/kubelet"]
runDir: /run/flexd
stateDir: {at}/state
log: {level: debug}
volumeGroups:
  - {name: ` + Group + `, shared: true, create: true, maxSize: 1GiB, namespaces: ["*"]}
`

// Install puts flexd and flexdriver, and flexd's configuration with more lines, on the node's
// disk, where they are after the next boot, too.
func (n *Node) Install(lines string) {
	n.T.Helper()
	n.Sh(fmt.Sprintf("set -e; mkdir -p %[1]s/bin %[1]s/kubelet $(dirname %[2]s); ln -sf %[3]s/flexd %[1]s/bin/flexd; ln -sf %[3]s/flexdriver %[2]s", n.At.Dir, n.At.Driver, n.bin))
	text := strings.NewReplacer("{node}", n.Name, "{at}", n.At.Dir).Replace(configuration) + lines
	if err := n.Write(context.Background(), n.At.Config(), text); err != nil {
		n.T.Errorf("%v", err)
	}
}

// Serve starts flexd, and returns when it answers.
func (n *Node) Serve() {
	n.T.Helper()
	n.Sh(fmt.Sprintf(`setsid %[1]s serve --config %[2]s </dev/null >>%[3]s 2>&1 &
		for n in $(seq 200); do %[1]s status --socket %[4]s >/dev/null 2>&1 && exit; kill -0 $! || break; sleep 0.2; done; tail %[3]s; exit 1`,
		n.At.Flexd(), n.At.Config(), n.At.Log, n.At.StatusSocket()))
}

// Call is a call of flexdriver as kubelet makes it.
func (n *Node) Call(ctx context.Context, args ...string) (host.Answer, error) {
	c := n.At.Command(ctx, args...)
	r, err := n.Run(ctx, append(append([]string{"env", "-i", "-C", "/"}, c.Env...), c.Args...)...)
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("%s: flexdriver %v: status %d: %s%s", n.Name, args, r.Status, r.Stdout, r.Stderr)
	}
	if err != nil {
		return host.Answer{}, err
	}
	return host.Parse([]byte(r.Stdout + r.Stderr))
}

// Mount is one attempt of kubelet, without attach, to mount a volume for a pod.
func (n *Node) Mount(ctx context.Context, p host.Pod, v host.Volume) (host.Answer, error) {
	dir := n.At.PodDir(p, v)
	if _, err := n.Shell(ctx, "mkdir -p "+dir); err != nil {
		return host.Answer{}, err
	}
	return n.Call(ctx, "mount", dir, v.Blob(&p))
}

// Unmount is one attempt of kubelet to unmount it.
func (n *Node) Unmount(ctx context.Context, p host.Pod, v host.Volume) (host.Answer, error) {
	return n.Call(ctx, "unmount", n.At.PodDir(p, v))
}

// SetUp mounts a volume for a pod, however often kubelet must try, and returns the failures.
func (n *Node) SetUp(p host.Pod, v host.Volume) (failures []string) {
	n.T.Helper()
	return n.until(func(ctx context.Context) (host.Answer, error) { return n.Mount(ctx, p, v) })
}

// TearDown unmounts it.
func (n *Node) TearDown(p host.Pod, v host.Volume) (failures []string) {
	n.T.Helper()
	return n.until(func(ctx context.Context) (host.Answer, error) { return n.Unmount(ctx, p, v) })
}

func (n *Node) until(call func(context.Context) (host.Answer, error)) (failures []string) {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
	defer cancel()
	for {
		a, err := call(ctx)
		if err != nil {
			n.T.Errorf("%v; after %q; then:\n%s", err, failures, n.Sh("ps -eo pid,stat,etimes,wchan,args --ppid 2 -N; tail -n 300 /run/flexd.log"))
			return failures
		}
		if a.Status == "Success" {
			return failures
		}
		failures = append(failures, a.Message)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// Flexd runs a command of flexd that asks the one that runs, such as status, and returns what
// it prints.
func (n *Node) Flexd(name string, args ...string) string {
	n.T.Helper()
	return n.Sh(strings.Join(append([]string{n.At.Flexd(), name, "--socket", n.At.StatusSocket()}, args...), " "))
}

// Volume is an ext4 on a volume of the group, which is made with a size if that is not "".
func Volume(lv, size string) host.Volume {
	v := host.Volume{Name: "pv-" + lv, FSType: "ext4", Options: map[string]string{"volumegroup": Group, "volumeID": lv}}
	if size != "" {
		v.Options["size"] = size
	}
	return v
}
