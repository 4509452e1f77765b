//go:build vm

package node

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/flexd/flexd/test/host"
)

// notTyped are commands of the pages that this machine cannot run, with the reason.
var notTyped = map[string]string{
	"make build":        "it was built outside",
	"vgrename UUID vg1": "the page does not know the uuid",
}

// pages runs the commands of the pages about a node's life, in their order. A line that begins with "# " is a
// command, and the following lines are compared with its output. Only this flow uses the pages' disks and
// group.
func (f *flow) pages() {
	f.attach("false")
	f.Chdir(f.TempDir())
	before := read("/etc/flexd/flexd.yaml")
	r := &reader{flow: f}
	for _, r.page = range []string{"getting-started.md", "operations.md"} {
		for _, c := range commandsOf(read(module + "/docs/" + r.page)) {
			r.typed(c)
		}
	}
	f.must(command("vgremove", "-ffy", "fast"))
	f.must(os.WriteFile("/etc/flexd/flexd.yaml", []byte(before), 0o600))
	f.must(f.flexd.end(syscall.SIGTERM))
	f.must(f.startFlexd())
}

// A shownCommand is a command of a page, and what the page shows after it.
type shownCommand struct{ line, shown string }

func commandsOf(text string) (all []shownCommand) {
	open := false // in a block, after its first command
	for line := range strings.Lines(text) {
		code, indented := strings.CutPrefix(line, "    ")
		typed, prompt := strings.CutPrefix(code, "# ")
		switch {
		case indented && prompt:
			all, open = append(all, shownCommand{line: strings.TrimSpace(typed)}), true
		case open && (indented || line == "\n"):
			all[len(all)-1].shown += code
		default:
			open = false
		}
	}
	return all
}

var (
	disksOfPages = strings.NewReplacer("/dev/sdb", "/dev/vdc", "/dev/sdc", "/dev/vdd", "vg0", "own0")
	archives     = regexp.MustCompile(`/etc/lvm/archive/\S+\.vg`)
)

// A reader runs the commands of the pages.
type reader struct {
	*flow
	page  string
	diary []string // what the pod has written to its volume, and must find there
}

// typed runs a command of a page, or does what stands for it here.
func (f *reader) typed(c shownCommand) {
	f.Helper()
	line := disksOfPages.Replace(c.line)
	f.Logf("%s: %s", f.page, line)
	words := strings.Fields(line)
	switch {
	case notTyped[c.line] != "":
		return
	case words[0] == "cat": // the reader has made the file with an editor
		text := c.shown
		if words[1] == "/etc/flexd/flexd.yaml" {
			text += "lease: 2s\n"
		}
		f.must(os.WriteFile(words[1], []byte(disksOfPages.Replace(text)), 0o600))
		return
	case strings.HasPrefix(line, "kubectl apply -f"):
		f.must(os.WriteFile(manifests+"/.web", []byte(staticPod.Replace(read(words[3]))), 0o600))
		f.must(os.Rename(manifests+"/.web", manifests+"/web.yaml"))
		f.diary = append(f.diary, "web starts")
		f.runs("web", f.diary...)
		return
	case strings.HasPrefix(line, "kubectl delete pod"):
		f.forget("web")
		f.ended("web")
		f.diary = append(f.diary, "web ends")
		return
	case line == "scripts/install.sh":
		f.must(install("first")) // a downgrade: flexdKilledAndUpgraded was before
		f.must(f.flexd.end(syscall.SIGTERM))
		f.must(f.startFlexd())
		return
	case words[0] == "systemctl":
		if words[1] != "start" {
			f.must(f.flexd.end(syscall.SIGTERM))
		}
		if words[1] != "stop" {
			f.must(f.startFlexd())
		}
		return
	}
	if strings.HasPrefix(line, "vgcfgrestore -f") { // the page's is not this machine's
		found, err := exec.Command("sh", "-c", `grep -l "before.*lvremove -y own0/web'" /etc/lvm/archive/own0_* | tail -1`).Output()
		f.must(err)
		line = archives.ReplaceAllString(line, strings.TrimSpace(string(found)))
	}
	if record := strings.ReplaceAll(line, "VGUUID_LVUUID", "*"); record != line {
		line, f.diary = record, nil // the next volume of that name is another one
	}
	shown := disksOfPages.Replace(c.shown)
	for end := time.Now().Add(soon); ; time.Sleep(100 * time.Millisecond) {
		shell := exec.Command("sh", "-c", line)
		shell.Env = append(os.Environ(), "LVM_SUPPRESS_FD_WARNINGS=1")
		out, err := shell.CombinedOutput()
		if words[0] == "flexd" && (words[1] == "doctor" || words[1] == "explain") {
			err = nil // of this machine; and one is refused
		}
		printed := strings.ReplaceAll(string(out), "web-node-1", "web")
		if err == nil && (strings.TrimSpace(shown) == "" || host.Alike(shown, printed)) {
			return
		}
		if words[0] != "flexd" || time.Now().After(end) { // what flexd has not observed yet, it shows later
			f.Fatalf("%s: %s: %v\nthe page shows\n%s\nand this is printed:\n%s", f.page, line, err, host.Normal(shown), host.Normal(printed))
		}
	}
}

// staticPod makes a static pod of the page's.
var staticPod = strings.NewReplacer(
	"name: web\nspec:\n", "name: web\n  namespace: default\n  uid: uid-web\nspec:\n  hostNetwork: true\n",
	"  nodeSelector:\n    kubernetes.io/hostname: node-1\n", "",
	"image: nginx\n", "image: localhost/pod:1\n      imagePullPolicy: Never\n      command: [/pod, web]\n",
)
