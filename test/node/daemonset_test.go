//go:build vm

package node

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"
)

// daemonSet installs, upgrades and removes flexd with the pods of examples/kubernetes on a
// node with systemd that had none, while a pod has a volume.
func (f *flow) daemonSet() {
	f.must(f.flexd.end(syscall.SIGTERM))
	f.must(command(module+"/scripts/uninstall.sh", "--purge"))
	f.must(importImages("first/image/flexd.tar", "next/image/flexd.tar"))
	config, err := os.ReadFile("testdata/flexd.yaml")
	f.must(err)
	f.must(os.MkdirAll(configMap, 0o755))
	f.must(os.WriteFile(configMap+"/node-1.yaml", config, 0o644))
	// There is no journal.
	const logs = "/run/systemd/system/flexd.service.d"
	f.must(os.MkdirAll(logs, 0o755))
	f.must(os.WriteFile(logs+"/log.conf", []byte("[Service]\nStandardError=append:"+flexdLog+"\n"), 0o644))

	f.apply("daemonset.yaml", "first")
	f.ready()
	f.must(command("cmp", built("first")+"/flexdriver", plugin))
	f.want("served", "served")
	f.runs("served", "served starts")
	f.mountedAt(global, podDir("served"))
	f.await("an event in the log of the pod", func() bool { return strings.Contains(f.podLog("events"), vg+"/served") })

	f.apply("daemonset.yaml", "next")
	f.await("the upgrade", func() bool {
		version, _ := ask("/version")
		return strings.Contains(version, `"next"`)
	})
	f.ready()
	f.must(command("cmp", built("next")+"/flexdriver", plugin))
	f.writes("served")
	f.holds("served", "served starts")

	f.apply("remove.yaml", "next")
	f.await("the refusal to remove a driver that is in use", func() bool {
		return strings.Contains(f.podLog("uninstall"), podDir("served"))
	})
	f.writes("served")
	f.well()
	f.forget("served")
	f.ended("served")
	f.ready()
	for _, gone := range []string{filepath.Dir(plugin), "/usr/local/bin/flexd", "/usr/local/lib/systemd/system/flexd.service"} {
		if _, err := os.Stat(gone); !os.IsNotExist(err) {
			f.Errorf("%s: %v", gone, err)
		}
	}
	if out, err := ask("/version"); err == nil {
		f.Errorf("flexd runs: %s", out)
	}
	f.must(command("lvs", vg+"/served"))
	f.forget("flexd")
}

// configMap is the directory that stands for the ConfigMap: a static pod cannot have one.
const configMap = "/etc/flexd-configmap"

// apply gives kubelet the pod of a DaemonSet, as a static one, with the image of that version.
func (f *flow) apply(manifest, version string) {
	f.Helper()
	text, err := os.ReadFile(module + "/examples/kubernetes/" + manifest)
	f.must(err)
	var set struct {
		Spec struct {
			Template struct {
				Metadata map[string]any
				Spec     map[string]any
			}
		}
	}
	text = []byte(strings.NewReplacer("registry.example.com/flexd:VERSION", "localhost/flexd:"+version,
		"configMap: {name: flexd, optional: true}", "hostPath: {path: "+configMap+"}").Replace(string(text)))
	f.must(yaml.Unmarshal(text, &set))
	pod := set.Spec.Template
	pod.Metadata["name"], pod.Metadata["namespace"] = "flexd", "flexd"
	text, err = yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": pod.Metadata, "spec": pod.Spec})
	f.must(err)
	f.must(os.WriteFile(manifests+"/.flexd", text, 0o644))
	f.must(os.Rename(manifests+"/.flexd", manifests+"/flexd.yaml"))
}

// podLog is what a container of the pod has written.
func (f *flow) podLog(container string) string {
	var all strings.Builder
	logs, _ := filepath.Glob("/var/log/pods/flexd_flexd-node-1_*/" + container + "/*.log")
	for _, log := range logs {
		all.WriteString(read(log))
	}
	return all.String()
}

// ready waits until kubelet says so of the only pod of the DaemonSet.
func (f *flow) ready() {
	f.Helper()
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	f.await("the readiness of the pod", func() bool {
		resp, err := client.Get("https://127.0.0.1:10250/pods")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var list struct {
			Items []struct {
				Metadata struct{ Namespace string }
				Status   struct {
					Conditions []struct{ Type, Status string }
				}
			}
		}
		f.must(json.NewDecoder(resp.Body).Decode(&list))
		pods, ready := 0, 0
		for _, pod := range list.Items {
			if pod.Metadata.Namespace != "flexd" {
				continue
			}
			pods++
			for _, c := range pod.Status.Conditions {
				if c.Type == "Ready" && c.Status == "True" {
					ready++
				}
			}
		}
		return pods == 1 && ready == 1
	})
}
