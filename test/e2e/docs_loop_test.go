//go:build !vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// notTyped are the commands that the test does not run, with the reason.
var notTyped = []struct{ prefix, why string }{
	{"make ", "test/docs looks that the targets exist, and runs of tests do not nest"},
	{"go test", "runs of tests do not nest"},
	{"scripts/install.sh", "test/install types it"},
	{"scripts/uninstall.sh", "test/install types it"},
	{"flexd driver", "test/install types it"},
	{"scripts/vm", "make test-vm types it"},
	{"scripts/test", "runs of tests do not nest"},
	{"vi ", "needs a person"},
	{"systemctl ", "the unit's test in the virtual machine, and test/install, type it"},
	{"ssh ", "needs another machine"},
	{"kubectl ", "needs an API server"},
	{`touch "/var/lib/flexd/udev`, "needs LVM"},
	{"flexd release --yes", "TestOrphans types it"},
}

// notCompared are blocks that are no output of a command above them, by their first words.
var notCompared = []struct{ prefix, why string }{
	{"kubelet ─exec", "a picture"},
	{"enableControllerAttachDetach:", "kubelet's configuration"},
	{"apiVersion:", "test/docs parses it"},
	{"metricsAddress:", "a part of a configuration"},
	{"[Service]", "a part of a unit"},
	{"driver: kubernetes.io/lvm", "a configuration"},
	{"releaseOrphansAfter:", "a part of a configuration"},
	{"vg0/data  orphaned-pod", "TestOrphans compares it"},
	{"error   kubelet/root-directory", "needs a kubelet with other settings"},
	{"GROUP   STATE", "its values need LVM"},
	{"tar -xf flexd-", "test/packages types it"},
	{"apt install lvm2-lockd", "needs nodes with one disk"},
	{"- {name: svg", "a part of a configuration"},
	{"vgcreate --shared", "likewise; test/shared types it"},
	{"{ echo lvmlockd adopt_version", "likewise"},
	{"vgchange -y --lock-type none", "needs nodes with one disk"},
	{"lvmlockctl_kill_command =", "a part of lvm.conf; test/shared has it"},
	{"1 lvcreate -aey", "the input of scripts/vm-nodes"},
}

var (
	remark  = regexp.MustCompile(`\s+# .*| {2,}# .*`)
	options = regexp.MustCompile(`\[([^]]*)\]`)
	several = regexp.MustCompile(`\S+(?:\|\S+)+`)
)

// variants returns the commands that a reader may type for a command of a page: with and without each option,
// and each alternative, with real names.
func variants(command string, names *strings.Replacer) []string {
	command = strings.TrimSpace(remark.ReplaceAllString(command, ""))
	command = strings.ReplaceAll(command, "...", "")
	if m := options.FindString(command); m != "" {
		without := strings.Replace(command, m, "", 1)
		with := strings.Replace(command, m, m[1:len(m)-1], 1)
		return append(variants(without, names), variants(with, names)...)
	}
	if m := several.FindString(command); m != "" {
		var all []string
		for one := range strings.SplitSeq(m, "|") {
			all = append(all, variants(strings.Replace(command, m, one, 1), names)...)
		}
		return all
	}
	return []string{names.Replace(command)}
}

// Every command in a block of the README and of the pages is run as written, in a mount namespace with flexd
// in its usual places, and its output is compared with the page.
func TestDocs(t *testing.T) {
	t.Parallel()
	need(t, "curl", "mkfs.xfs")
	blocks := docBlocks(t)
	var compared []string
	shown := func(t *testing.T, page, first, printed string) {
		t.Helper()
		compared = append(compared, page+showsAs(t, blocks, page, first, printed))
	}
	t.Run("README", func(t *testing.T) {
		h := newHost(t, func(h *host) {
			h.settings.groups = "  - {name: demo, " + h.group("demo") + ", create: true, maxSize: 2GiB}\n"
		})
		v := h.vol("data", "xfs").With("volumegroup", "demo", "size", "640Mi")
		web, report := podNamed("default/web-0", 1), podNamed("default/report", 2)
		h.ok(h.up(noAttach, v, web))
		h.ok(h.up(noAttach, v, report))
		scratch, batch := h.slow("scratch1").With("volumegroup", "demo", "size", "1Gi"), podNamed("jobs/batch", 2)
		dir := h.PodDir(batch, scratch)
		h.must(os.MkdirAll(dir, 0o750))
		b := h.begin("mount", dir, scratch.Blob(&batch))
		mkfs := h.freeze("mkfs.ext4")
		shown(t, "README.md", "VOLUME", h.show())
		thaw(mkfs)
		h.ok(b.wait(t))
		h.end(noAttach, scratch, batch)
		h.end(noAttach, v, web, report)
	})
	t.Run("explain", func(t *testing.T) {
		h := newHost(t, func(h *host) { h.settings.vg = "create: true, maxSize: 10GiB, namespaces: [default, 'team-*']" })
		pods, err := os.ReadFile("../../examples/pod.yaml")
		h.must(err)
		manifest := strings.NewReplacer("metadata:\n  name: web", "metadata: {name: web,\n  namespace: default}", "metadata:\n  name: report", "metadata: {name: db,\n  namespace: kube-system}").Replace(string(pods))
		one, two, _ := strings.Cut(manifest, "\n---\n")
		manifest = one + "\n---\n" + strings.ReplaceAll(two, "volumeID: default.web", "volumeID: db")
		h.must(os.WriteFile(h.Dir+"/pod.yaml", []byte(manifest), 0o600))
		out, _ := h.client("explain", "--attach", "false", h.Dir+"/pod.yaml")
		shown(t, "docs/explain.md", "Pod default/web", strings.ReplaceAll(out, h.Dir+"/", ""))
	})
	h := newHost(t, func(h *host) { h.settings.vg = "create: true, maxSize: 10GiB" })
	v, web, report := h.vol("data", "ext4").With("size", "64Mi"), podNamed("default/web-0", 1), podNamed("default/report-x7k2p", 2)
	h.ok(h.up(byKubelet, v, web))
	h.ok(h.up(byKubelet, readOnly(v), report))
	var big answer
	for range 10 {
		big = h.up(noAttach, h.vol("big", "ext4").With("size", "50Gi"), podNamed("default/web-1", 2))
		h.refused(big)
	}
	shown(t, "docs/troubleshooting.md", "MountVolume", `MountVolume.SetUp failed for volume "data" : mount command failed, status: Failure, reason: `+strings.ReplaceAll(big.Message, "big", "data"))
	events, _ := h.client("events")
	shown(t, "docs/status.md", "TIME", events)
	_, call, _ := strings.Cut(events, ", call ")

	file := h.Dir + "/wrong.yaml"
	h.must(os.WriteFile(file, []byte("#\n#\n#\n#\nvolumeGroups:\n  - name: vg0\n    directory: data\n    volume: [x]\n    namespaces: ['*']\n    provider: loopdev\n"), 0o600))
	typed := h.typeAll(t, blocks, strings.NewReplacer("VG/LV", "vg0/data", "DIRECTORY", h.PodDir(web, v), "UUID", "-/"+h.story("data").UUID,
		"COMMAND", "status", "FILE", file, "TARGET", "vg0/data", "CALLID", call[:12]))
	shown(t, "docs/configuration.md", "flexd: flexd.yaml", strings.ReplaceAll(typed["flexd config --check FILE"], file, "flexd.yaml"))

	fresh := h.slow("fresh").With("size", "10Gi")
	h.must(os.MkdirAll(h.GlobalDir(fresh), 0o750))
	device := h.ok(h.call("waitforattach", "", fresh.Blob(nil))).Device
	b := h.begin("mountdevice", h.GlobalDir(fresh), device, fresh.Blob(nil))
	mkfs := h.freeze("mkfs.ext4")
	shown(t, "docs/status.md", "VOLUME", h.show("--state", "mounted", "--state", "working"))
	h.must(syscall.Kill(mkfs, syscall.SIGKILL))
	b.wait(t)
	h.end(byKubelet, v, web, report)

	for _, b := range blocks {
		listed := slices.ContainsFunc(notCompared, func(n struct{ prefix, why string }) bool {
			return strings.HasPrefix(strings.TrimSpace(b.shown), n.prefix)
		})
		if b.shown != "" && !listed && !slices.Contains(compared, b.page+b.shown) {
			t.Errorf("%s: this is not compared with anything:\n%s", b.page, b.shown)
		}
	}
}

// podNamed returns a pod; status shows pods in the order of their uids.
func podNamed(full string, n int) pod {
	namespace, name, _ := strings.Cut(full, "/")
	return pod{Namespace: namespace, Name: name, UID: fmt.Sprint("uid-", n)}
}

// follows reports whether a command runs until it is interrupted.
func follows(line string) bool {
	return strings.HasSuffix(line, " -w") || strings.HasSuffix(line, " -f")
}

// typeAll runs the commands, and returns the first output of each.
func (h *host) typeAll(t *testing.T, blocks []docBlock, names *strings.Replacer) map[string]string {
	t.Helper()
	used := map[string]bool{}
	printed := map[string]string{}
	examples, err := filepath.Abs("../../examples")
	h.must(err)
	var script strings.Builder
	fmt.Fprintf(&script, `set -e
mount -t tmpfs none /mnt && cp -a /etc /mnt/ && mount --bind /mnt/etc /etc && mkdir -p /etc/flexd && cp %s /etc/flexd/flexd.yaml
mount -t tmpfs none /run && mkdir /run/flexd && mount --bind %s /run/flexd
mount -t tmpfs none /var/lib && mkdir /var/lib/node_exporter
export PATH=%s:$PATH
cd %s
set +e
`, h.Config(), h.Run, filepath.Dir(h.Flexd()), examples)
	manifest := strings.NewReplacer("FILE", "pod.yaml")
	type one struct{ page, command, line string }
	var all []one
	for _, b := range blocks {
		for _, command := range b.commands {
			command = strings.TrimSpace(remark.ReplaceAllString(command, ""))
			if i := slices.IndexFunc(notTyped, func(n struct{ prefix, why string }) bool { return strings.HasPrefix(command, n.prefix) }); i >= 0 {
				used[notTyped[i].prefix] = true
				continue
			}
			names := names
			if strings.Contains(command, " explain ") {
				names = manifest
			}
			for _, line := range variants(command, names) {
				all = append(all, one{b.page, command, line})
				limit := "60"
				if follows(line) {
					limit = "-s INT 1"
				}
				fmt.Fprintf(&script, "timeout %s sh -c '%s' >%s/typed.%d 2>&1 <pod.yaml; echo $? >%[3]s/status.%d\n", limit, strings.ReplaceAll(line, "'", `'\''`), h.Dir, len(all)-1, len(all)-1)
			}
		}
	}
	for _, n := range notTyped {
		if !used[n.prefix] {
			t.Errorf("no page has a command %q", n.prefix)
		}
	}
	if len(all) < 20 {
		t.Fatalf("only %q", all)
	}
	enter := append(h.unshared("private", "true"), "bash", "-c", script.String())
	if out, err := exec.Command(enter[0], enter[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i, c := range all {
		out, _ := os.ReadFile(fmt.Sprint(h.Dir, "/typed.", i))
		code, _ := os.ReadFile(fmt.Sprint(h.Dir, "/status.", i))
		may := []string{"0"}
		switch {
		case strings.HasPrefix(c.line, "flexd check"), strings.HasPrefix(c.line, "flexd release "), strings.HasPrefix(c.line, "flexd config --check"):
			may = []string{"0", "1"} // the pods live; no file is given that is right
		case strings.HasPrefix(c.line, "flexd doctor"):
			may = []string{"0", "1", "3"} // of this machine
		case strings.HasPrefix(c.line, "flexd explain"):
			may = []string{"0", "1"} // node-1 has not the group, or the limit, of the example
		case follows(c.line):
			may = []string{"0", "124", "130"}
		}
		if !slices.Contains(may, strings.TrimSpace(string(code))) || len(out) == 0 && !follows(c.line) && !strings.Contains(c.line, "-o /var") && !strings.Contains(c.line, "--install") {
			t.Errorf("%s: %s: exit status %s: %s", c.page, c.line, code, out)
		}
		if printed[c.command] == "" {
			printed[c.command] = string(out)
		}
	}
	return printed
}

var (
	span     = regexp.MustCompile("`flexd ([a-z]+(?:-[a-z]+)*)([^`]*)`")
	switches = regexp.MustCompile(`(?: |\[)(--?[a-z]+(?:-[a-z]+)*)`)
)

// Commands and flags that the text of a page mentions exist.
func TestCommandsInText(t *testing.T) {
	t.Parallel()
	need(t)
	help := map[string]string{} // of each command
	pages := pagesOf(t)
	mentioned := 0
	for page, text := range pages {
		for _, m := range span.FindAllStringSubmatch(text, -1) {
			command := m[1]
			if strings.HasPrefix(m[2], " not ") {
				continue // a message: "flexd is not running"
			}
			if _, ok := help[command]; !ok {
				out, err := exec.Command(built+"/flexd", "help", command).CombinedOutput()
				if err != nil {
					t.Errorf("%s: %s: %v: %s", page, m[0], err, out)
				}
				help[command] = string(out)
			}
			mentioned++
			for _, f := range switches.FindAllStringSubmatch(m[2], -1) {
				if !regexp.MustCompile(`(^|[\s,])` + f[1] + `\b`).MatchString(help[command]) {
					t.Errorf("%s: %s: flexd %s has no flag %s:\n%s", page, m[0], command, f[1], help[command])
				}
			}
		}
	}
	if mentioned < 50 {
		t.Errorf("only %d commands", mentioned)
	}
}
