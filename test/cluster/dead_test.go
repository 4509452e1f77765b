package cluster

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A node dies, and an administrator sets the out-of-service taint: its pod is deleted, its volume is
// detached, and waits for the node.
func TestNodeDies(t *testing.T) {
	each(t, func(t *testing.T, c *cluster) {
		n, other := c.newNode("a"), c.newNode("b")
		c.registered("a")
		c.registered("b")
		c.claim("data-set-0", []string{"a"})
		c.statefulSet("set", 1)
		p := c.started("set-0")
		c.write(p, "data", "from before")

		n.crash()
		c.notReady("a")
		c.delete("set-0") // as the taint eviction does after the pod's tolerationSeconds
		c.outOfService("a", true)
		c.moved(p)
		c.detached("a")
		c.eventually("the new pod waits for the volume's node", func() string {
			q, err := c.api.CoreV1().Pods("default").Get(ctx, "set-0", metav1.GetOptions{})
			if err != nil || q.Spec.NodeName != "" {
				return fmt.Sprintf("it is on %q (%v)", q.Spec.NodeName, err)
			}
			return ""
		})

		n.boot()
		c.outOfService("a", false)
		q := c.started("set-0")
		c.read(q, "data", "from before")
		c.statefulSet("set", 0)
		c.ended("set-0")
		c.quiet(n, other)
	})
}

// A node is deleted while its kubelet is down: its pods are deleted. When kubelet returns it is a new node,
// and unmounts their volumes.
func TestNodeDeleted(t *testing.T) {
	each(t, func(t *testing.T, c *cluster) {
		n := c.newNode("a")
		c.registered("a")
		c.claim("data", []string{"a"})
		p := c.again("first", "data")
		c.write(p, "data", "first")
		n.killKubelet()
		c.must(c.api.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}))
		c.ended("first")
		if len(n.mounts()) == 0 {
			t.Error("the volume was unmounted while no kubelet ran")
		}
		n.startKubelet()
		c.registered("a")
		q := c.again("second", "data")
		c.read(q, "data", "first")
		c.end("second")
		c.quiet(n)

		// The kubelet that runs: it goes on with its pod until somebody deletes that.
		q = c.again("third", "data")
		c.must(c.api.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}))
		c.ended("third")
		n.killKubelet() // it registers when it starts
		n.startKubelet()
		c.registered("a")
		c.read(c.again("fourth", "data"), "data", "first")
		c.end("fourth")
		c.quiet(n)
	})
}

// notReady waits until the node lifecycle controller has marked a node as not ready.
func (c *cluster) notReady(node string) {
	c.t.Helper()
	c.eventually(node+" is missed", func() string {
		n, err := c.api.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == v1.NodeReady && condition.Status == v1.ConditionUnknown {
				return ""
			}
		}
		return "it is ready"
	})
}

// detached waits until the controller considers no volume attached to a node.
func (c *cluster) detached(node string) {
	c.t.Helper()
	c.eventually("the volume is detached", func() string {
		if attached, _ := c.attached(node); len(attached) > 0 {
			return string(attached[0])
		}
		return ""
	})
}

// outOfService sets or removes the out-of-service taint.
func (c *cluster) outOfService(node string, yes bool) {
	c.t.Helper()
	taints := "null"
	if yes {
		taints = `[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]`
	}
	c.patchNode(node, `{"spec":{"taints":`+taints+`}}`)
}

func (c *cluster) patchNode(node, patch string) {
	c.t.Helper()
	_, err := c.api.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	c.must(err)
}
