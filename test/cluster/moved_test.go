package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Two nodes have volume groups with the same name, and a pod requests a volume of one on the other.
func TestTwoNodes(t *testing.T) {
	each(t, func(t *testing.T, c *cluster) {
		a, b := c.newNode("a"), c.newNode("b")
		c.registered("a")
		c.registered("b")

		// The scheduler keeps the pod of a StatefulSet where its volume is.
		c.claim("data-kept-0", []string{"a"})
		c.statefulSet("kept", 1)
		p := c.started("kept-0")
		c.write(p, "data", "kept")
		c.cordon("a", true)
		c.moveAway(p)
		c.eventually("no node has the volume", func() string {
			p, err := c.api.CoreV1().Pods("default").Get(ctx, "kept-0", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			for _, condition := range p.Status.Conditions {
				if condition.Type == v1.PodScheduled && condition.Reason == v1.PodReasonUnschedulable {
					return ""
				}
			}
			return p.Spec.NodeName
		})
		c.cordon("a", false)
		p = c.started("kept-0")
		c.read(p, "data", "kept")

		// Without nodeAffinity it goes to the other node, where the name means another volume:
		// an empty one, if flexd may create it.
		c.claim("data-moved-0", nil)
		c.cordon("b", true)
		c.statefulSet("moved", 1)
		p = c.started("moved-0")
		c.write(p, "data", "left behind")
		c.cordon("b", false)
		c.cordon("a", true)
		c.moveAway(p)
		p = c.started("moved-0")
		if _, err := os.Stat(c.dirOf(p, "data") + "/data"); p.Spec.NodeName != "b" || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is on %s: %v", p.Name, p.Spec.NodeName, err)
		}
		c.write(p, "data", "begun again")
		c.cordon("a", false)
		c.cordon("b", true)
		c.moveAway(p)
		c.read(c.started("moved-0"), "data", "left behind")
		c.cordon("b", false)
		c.statefulSet("kept", 0)
		c.statefulSet("moved", 0)
		c.ended("kept-0", "moved-0")
		c.quiet(a, b)

		// Two pods on two nodes want it at the same time.
		c.claim("wanted", nil)
		c.bound("wanted")
		c.runOn("a", "here", "wanted")
		p = c.started("here")
		c.write(p, "wanted", "a's")
		c.runOn("b", "there", "wanted")
		if c.mode == attachTrue { // the controller attaches a ReadWriteOnce volume to one node
			c.warned("there", "FailedAttachVolume", "Multi-Attach error")
			c.end("here")
		}
		// Each flexd knows its own volume of that name.
		q := c.started("there")
		c.write(q, "wanted", "b's")
		if c.mode == attachFalse {
			c.read(p, "wanted", "a's")
		}
		c.end("here", "there")
		c.quiet(a, b)
		c.runOn("a", "back", "wanted")
		c.read(c.started("back"), "wanted", "a's")
		c.end("back")

		// With nodeAffinity kubelet refuses what did not ask the scheduler.
		c.claim("here-only", []string{"a"})
		c.bound("here-only")
		c.runOn("b", "elsewhere", "here-only")
		c.warned("elsewhere", "FailedMount", "NodeAffinity check failed")
		c.end("elsewhere")
		if _, err := os.Stat(b.Dir + "/vg0/here-only"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a volume of another node: %v", err)
		}
		c.quiet(a, b)
	})
}

// statefulSet makes a StatefulSet whose pods each have a volume "data", or changes its number of pods.
func (c *cluster) statefulSet(name string, replicas int32) {
	c.t.Helper()
	class := ""
	labels := map[string]string{"app": name}
	spec := podSpec()
	spec.RestartPolicy = v1.RestartPolicyAlways
	spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: appsv1.StatefulSetSpec{
		ServiceName: name, Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		VolumeClaimTemplates: []v1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: &class,
			Resources: v1.VolumeResourceRequirements{Requests: capacity()},
		}}},
	}}
	_, err := c.api.AppsV1().StatefulSets("default").Create(ctx, s, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		patch := []byte(`{"spec":{"replicas":` + string(rune('0'+replicas)) + `}}`)
		_, err = c.api.AppsV1().StatefulSets("default").Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	c.must(err)
}

// moveAway deletes a pod and waits until it has a successor.
func (c *cluster) moveAway(p *v1.Pod) {
	c.t.Helper()
	c.delete(p.Name)
	c.moved(p)
}

// moved waits until a pod has a successor.
func (c *cluster) moved(p *v1.Pod) {
	c.t.Helper()
	c.eventually(p.Name+" is replaced", func() string {
		q, err := c.api.CoreV1().Pods("default").Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if q.UID == p.UID {
			return "it is still there"
		}
		return ""
	})
}

// cordon sets whether the scheduler may place pods on a node.
func (c *cluster) cordon(node string, yes bool) {
	c.t.Helper()
	patch := `{"spec":{"unschedulable":false}}`
	if yes {
		patch = `{"spec":{"unschedulable":true}}`
	}
	c.patchNode(node, patch)
}

// bound waits until a claim has its volume, which the scheduler needs to place a pod.
func (c *cluster) bound(claim string) {
	c.t.Helper()
	c.eventually(claim+" is bound", func() string {
		pvc, err := c.api.CoreV1().PersistentVolumeClaims("default").Get(ctx, claim, metav1.GetOptions{})
		if err == nil && pvc.Status.Phase == v1.ClaimBound {
			return ""
		}
		return fmt.Sprint(pvc.Status.Phase, err)
	})
}

// warned waits for an event about a pod, and returns its message.
func (c *cluster) warned(pod, reason, text string) (message string) {
	c.t.Helper()
	c.eventually("a warning about "+pod, func() string {
		events, err := c.api.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		var all []string
		for _, e := range events.Items {
			if e.InvolvedObject.Name == pod && e.Type == v1.EventTypeWarning {
				if e.Reason == reason && strings.Contains(e.Message, text) {
					message = e.Message
					return ""
				}
				all = append(all, e.Reason+": "+e.Message)
			}
		}
		return fmt.Sprintf("not among %d: %s", len(all), strings.Join(all, "\n"))
	})
	return message
}
