package install

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Each installation causes one init by kubelet, and one that changes nothing causes none.
func TestOneInit(t *testing.T) {
	n := newNode(t)
	p := startProber(t, n.plugins())
	for _, step := range []struct {
		what  string
		bin   string
		args  []string
		inits int
		mode  string
	}{
		{"would be installed", one, []string{"--dry-run"}, 0, ""},
		{"installed", one, nil, 1, "false"},
		{"installed again", one, nil, 0, "false"},
		{"upgraded", two, nil, 1, "false"},
		{"upgraded again", two, nil, 0, "false"},
		{"would change its mode", two, []string{"--attach=true", "--dry-run"}, 0, "false"},
		{"changes its mode", two, []string{"--attach=true"}, 1, "true"},
		{"keeps its mode", two, nil, 0, "true"},
		{"changes both", one, []string{"--attach", "false"}, 1, "false"},
	} {
		n.driver(step.bin, step.args...)
		inits := p.settled(step.inits)
		if len(inits) != step.inits {
			t.Errorf("%s: init was asked %d times, want %d: %q", step.what, len(inits), step.inits, inits)
		}
		for _, a := range inits {
			if !strings.Contains(a, `"attach":`+step.mode) {
				t.Errorf("%s: init says %s", step.what, a)
			}
		}
		if step.mode == "" {
			n.nothingElse()
		} else {
			n.installed(step.bin, step.mode)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	if p.failures() > 0 {
		t.Errorf("%d look-ups failed", p.failures())
	}
}

// A plugin directory that is a mount point cannot be renamed into: the driver's directory is made there
// first, and kubelet may call init too early, or twice. Upgrades are as elsewhere.
func TestPluginDirectoryIsAMount(t *testing.T) {
	n := newNode(t)
	n.mount(pluginDir)
	p := startProber(t, n.plugins())
	n.driver(one)
	if inits := p.settled(1); len(inits) < 1 || len(inits) > 2 || !p.knows("flexd~lvm") {
		t.Errorf("init was asked %d times, %q", len(inits), inits)
	}
	n.installed(one, "false")
	n.driver(two, "--attach=true")
	if inits := p.settled(1); len(inits) != 1 {
		t.Errorf("init was asked %d times at an upgrade: %q", len(inits), inits)
	}
	n.installed(two, "true")
}

// Kubelet never sees a driver whose init does not answer as kubelet requires: the old one stays.
func TestBrokenDriver(t *testing.T) {
	for _, broken := range []struct{ name, text, says string }{
		{"no program", "\x7fELF and no more", "another architecture"},
		{"exit status", "#!/bin/sh\necho '{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}'\nexit 3\n", "exit status 3"},
		{"stderr", "#!/bin/sh\necho warning >&2\necho '{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}'\n", "warning"},
		{"two answers", "#!/bin/sh\necho '{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}'\necho '{}'\n", "not one JSON object"},
		{"no capabilities", "#!/bin/sh\necho '{\"status\":\"Success\"}'\n", "nothing of attach:false"},
		{"null", "#!/bin/sh\necho '{\"status\":\"Success\",\"capabilities\":null}'\n", "nothing of attach:false"},
		{"failure", "#!/bin/sh\necho '{\"status\":\"Failure\",\"message\":\"no luck\"}'\n", "no luck"},
		{"another mode", "#!/bin/sh\necho '{\"status\":\"Success\",\"capabilities\":{\"attach\":true}}'\n", "nothing of attach:false"},
		{"silent", "#!/bin/sh\n", "not one JSON object"},
	} {
		t.Run(broken.name, func(t *testing.T) {
			n := newNode(t)
			p := startProber(t, n.plugins())
			bin := t.TempDir()
			if err := os.WriteFile(bin+"/flexdriver", []byte(broken.text), 0o755); err != nil {
				t.Fatal(err)
			}
			attempt := func() {
				t.Helper()
				n.refuses(n.driverCommand(one, "install", "--from", bin+"/flexdriver", "--attach=false"), "init", broken.says)
			}
			attempt()
			n.nothingElse()
			n.driver(one, "--attach=true")
			p.settled(1)
			attempt()
			n.installed(one, "true")
			if inits := p.settled(0); len(inits) > 0 {
				t.Errorf("kubelet asked %q", inits)
			}
		})
	}
}

// If the last rename fails, the mode is restored with the executable.
func TestRollback(t *testing.T) {
	n := newNode(t)
	n.driver(one)
	if err := unix.Mount(n.exe(), n.exe(), "", unix.MS_BIND, ""); err != nil { // renames over it fail
		t.Fatal(err)
	}
	defer unix.Unmount(n.exe(), unix.MNT_DETACH)
	for _, mode := range []string{"true", "false"} {
		out, err := n.driverCommand(two, "install", "--attach="+mode).CombinedOutput()
		if err == nil {
			t.Fatalf("attach:%s succeeds: %s", mode, out)
		}
		contains(t, string(out), "could not be replaced", "findmnt")
		n.installed(one, "false")
	}
}

// Other settings beside the mode stay.
func TestOtherCapabilitiesStay(t *testing.T) {
	n := newNode(t)
	n.driver(one)
	n.write(pluginDir+"/flexd~lvm/.lvm.init.json", "{\n \"attach\" : false,\n \"fsGroup\": false\n}\n")
	n.driver(two, "--attach=true")
	if got, want := n.read(n.dotfile()), "{\n \"attach\" : true,\n \"fsGroup\": false\n}\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	n.installed(two, "true")
}

// Installations that run at once wait for each other; each is whole.
func TestConcurrentInstallations(t *testing.T) {
	n := newNode(t)
	p := startProber(t, n.plugins())
	var all sync.WaitGroup
	said := make([]string, 12)
	for i := range said {
		all.Go(func() {
			c := n.driverCommand([]string{one, two}[i%2], "install", "--attach="+[]string{"true", "false"}[i/2%2])
			out, err := c.CombinedOutput()
			if err != nil {
				t.Errorf("%v: %v\n%s", c.Args, err, out)
			}
			said[i] = string(out)
		})
	}
	all.Wait()
	inits := p.settled(1)
	wrote := 0
	for _, s := range said {
		if !strings.Contains(s, "same: "+n.exe()) {
			wrote++
		}
	}
	if len(inits) < 1 || len(inits) > wrote || p.failures() > 0 { // fewer: one look-up for two events
		t.Errorf("%d installations, %d times init, %d failed look-ups", wrote, len(inits), p.failures())
	}
	n.driver(one, "--attach=true")
	n.installed(one, "true")
}

// An installation that is killed at any moment leaves a whole driver or none; the next one completes it and
// leaves no remains.
func TestKilledInstallation(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	n := newNode(t)
	const rounds = 20
	var whole time.Duration // how long the last one took that was not cut
	cut := 0
	for round := range rounds {
		if round%8 == 0 {
			n.remove()
		}
		bin, mode := []string{one, two}[round%2], []string{"true", "false"}[round/2%2]
		c := n.driverCommand(one, "install", "--from", bin+"/flexdriver", "--attach="+mode)
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration((0.2 + 0.8*random.Float64()) * float64(whole)))
		syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		if c.Wait() != nil {
			cut++
		}
		if _, err := os.Stat(n.exe()); err == nil {
			if got := answered(n.exe()); got != "true" && got != "false" {
				t.Fatalf("round %d: init says %s", round, got)
			}
			if text := n.read(n.exe()); text != n.read(one+"/flexdriver") && text != n.read(two+"/flexdriver") {
				t.Fatalf("round %d: %s is no whole executable", round, n.exe())
			}
		}
		began := time.Now()
		n.driver(bin, "--attach="+mode)
		whole = time.Since(began)
		n.installed(bin, mode)
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d of %d were cut", cut, rounds)
	if cut < rounds/4 {
		t.Errorf("only %d of %d installations were cut", cut, rounds)
	}
}

// An installation that was killed between the new mode and the new executable has
// not reached kubelet: mounted volumes show the mode, and the next one puts it back.
func TestCutModeChange(t *testing.T) {
	n := newNode(t)
	n.driver(one, "--attach=true")
	p := startProber(t, n.plugins())
	// As the kill leaves it: the new dotfile in place, the executable staged.
	n.write(pluginDir+"/flexd~lvm/.lvm.init.json", "{\"attach\": false}\n")
	n.write(pluginDir+"/flexd~lvm/.lvm.new", n.read(two+"/flexdriver"))
	n.mount("/var/lib/kubelet/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/pv1")
	n.mount("/var/lib/kubelet/pods/uid-a/volumes/flexd~lvm/pv1")
	n.refuses(n.driverCommand(two, "install", "--attach=false"), "from attach:true to attach:false")
	n.driver(two)
	n.installed(two, "true")
	if inits := p.settled(1); len(inits) != 1 {
		t.Errorf("init was asked %d times: %q", len(inits), inits)
	}
}

// The remains of killed installations are removed also by one that has nothing to do.
func TestLeftovers(t *testing.T) {
	n := newNode(t)
	n.driver(one)
	p := startProber(t, n.plugins())
	n.write(pluginDir+"/flexd~lvm/..lvm.new.init.json", "{\"attach\": false}\n")
	n.write(filepath.Dir(pluginDir)+"/.flexd~lvm.new/lvm", "half")
	contains(t, n.driver(one), "same: "+n.exe())
	n.installed(one, "false")
	if inits := p.settled(0); len(inits) > 0 {
		t.Errorf("kubelet asked %q", inits)
	}
}

// An installation that is terminated undoes its changes.
func TestSignal(t *testing.T) {
	n := newNode(t)
	bin := t.TempDir()
	started := bin + "/started"
	script := fmt.Sprintf("#!/bin/sh\ntouch %s\nexec sleep 60\n", started)
	if err := os.WriteFile(bin+"/flexdriver", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c := n.driverCommand(one, "install", "--from", bin+"/flexdriver")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(started); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	syscall.Kill(-c.Process.Pid, syscall.SIGTERM)
	signaled := time.Now()
	if err := c.Wait(); err == nil {
		t.Error("a terminated installation succeeds")
	}
	if took := time.Since(signaled); took > 20*time.Second {
		t.Errorf("it took %v to stop", took)
	}
	n.nothingElse()
}
