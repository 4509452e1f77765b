package cluster

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Thirty pods start at once, each with a volume that must be created, and end at once.
func TestThirtyPods(t *testing.T) {
	each(t, func(t *testing.T, c *cluster) {
		nodes := []*node{c.newNode("a"), c.newNode("b")}
		c.registered("a")
		c.registered("b")
		const pods = 30
		name := func(i int) string { return fmt.Sprint("p-", i) }
		for i := range pods {
			c.claim(name(i), []string{nodes[i%2].name})
		}
		for i := range pods {
			c.run(name(i), name(i))
		}
		for i := range pods {
			c.write(c.started(name(i)), name(i), name(i))
		}
		for i := range pods {
			c.delete(name(i))
		}
		for i := range pods {
			c.ended(name(i))
		}
		c.quiet(nodes...)
		c.expectCalls(map[string]int{
			"controller attach": c.ifAttached(pods), "controller detach": c.ifAttached(pods),
			"a waitforattach": c.ifAttached(pods / 2), "a mountdevice": c.ifAttached(pods / 2), "a unmountdevice": c.ifAttached(pods / 2),
			"b waitforattach": c.ifAttached(pods / 2), "b mountdevice": c.ifAttached(pods / 2), "b unmountdevice": c.ifAttached(pods / 2),
			"a mount": pods / 2, "b mount": pods / 2, "a unmount": pods / 2, "b unmount": pods / 2,
			"controller init": 1, "a init": 1, "b init": 1,
		})
		c.read(c.again("last", name(pods-1)), name(pods-1), name(pods-1))
		c.end("last")
		c.quiet(nodes...)
	})
}

// A volume may have a secret. flexd does not use it, and stores it nowhere on the node.
func TestSecret(t *testing.T) {
	each(t, func(t *testing.T, c *cluster) {
		n := c.newNode("a")
		c.registered("a")
		const value = "it is not to be seen"
		_, err := c.api.CoreV1().Secrets("default").Create(ctx, &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "key"}, Type: "flexd/lvm", StringData: map[string]string{"passphrase": value},
		}, metav1.CreateOptions{})
		c.must(err)
		c.claim("data", []string{"a"}, func(pv *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) {
			pv.Spec.FlexVolume.SecretRef = &v1.SecretReference{Namespace: "default", Name: "key"}
		})
		p := c.again("p", "data")
		c.write(p, "data", "p")
		encoded := base64.StdEncoding.EncodeToString([]byte(value))
		passed := false
		for _, k := range c.calls() {
			passed = passed || strings.Contains(strings.Join(k.Argv, " "), encoded)
		}
		if !passed {
			t.Error("kubelet has not passed the secret")
		}
		c.must(os.Remove(n.calls()))
		c.must(filepath.WalkDir(n.Dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), value) || strings.Contains(string(text), encoded) {
				t.Errorf("%s has the secret, or cannot be read (%v)", path, err)
			}
			return nil
		}))
		c.end("p")
		c.quiet(n)
	})
}
