//go:build vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/procfs"
	testhost "github.com/flexd/flexd/test/host"
)

// The restrictions of examples/flexd.service hold for flexd and its children, which work
// under them, also on loop devices.
func TestUnit(t *testing.T) {
	if testhost.Unit == "" {
		t.Fatal("needs systemd: scripts/test-vm")
	}
	if out, err := exec.Command("systemd-analyze", "security", "--no-pager", "--offline=yes", "--threshold=55", testhost.Unit).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v:\n%s", err, out)
	}

	var images string
	h := newHost(t, func(h *host) {
		images = h.Dir + "/images"
		h.must(os.Mkdir(images, 0o755))
		h.settings.groups = "  - {name: loops, provider: loopdev, directory: " + images + ", create: true, maxSize: 1GiB" + everyNamespace + "}\n"
		h.settings.extra = "statusGroup: disk\n"
	})
	restricted := func(pid int) {
		t.Helper()
		text, err := os.ReadFile(procfs.Process(pid).Path("status"))
		h.must(err)
		var caps uint64
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			switch {
			case key == "NoNewPrivs" && value != "1", key == "Seccomp" && value != "2":
				t.Errorf("%d: %s is %s", pid, key, value)
			case key == "CapBnd":
				fmt.Sscanf(value, "%x", &caps)
			}
		}
		const cannot = 1<<unix.CAP_SYS_MODULE | 1<<unix.CAP_SYS_RAWIO | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SETUID | 1<<unix.CAP_SYS_BOOT | 1<<unix.CAP_BPF
		if caps&(1<<unix.CAP_SYS_ADMIN) == 0 || caps&cannot != 0 {
			t.Errorf("%d: capabilities %x", pid, caps)
		}
		ours, _ := procfs.OwnNamespace("mnt")
		if theirs, err := procfs.Process(pid).Namespace("mnt"); theirs != ours {
			t.Errorf("%d: mount namespace %s, not %s (%v)", pid, theirs, ours, err)
		}
	}
	restricted(h.Pid())
	// What a program that has been taken over would try, and what LVM needs.
	out, err := testhost.Restricted(h.Dir, `
		exec 2>&1
		forbidden() { "$@" && echo "works: $*"; }
		forbidden dd if=/dev/mem of=/dev/null count=1
		forbidden unshare --net true
		forbidden chroot / true
		forbidden nsenter --net=/proc/1/ns/net true
		forbidden insmod /lib/modules/$(uname -r)/kernel/drivers/net/dummy.ko
		forbidden bash -c 'echo >/dev/udp/127.0.0.1/9'
		forbidden date -s 2001-01-01
		dd if=/dev/kmsg of=/dev/null bs=8k count=1 && dd if=/dev/vda of=/dev/null count=1 && dmsetup version >/dev/null || echo refused
		for target in thin-pool snapshot raid mirror cache writecache integrity; do
			dmsetup targets | grep -q "^$target " || echo "refused: $target"
		done
	`)
	if strings.Contains(out, "works:") || strings.Contains(out, "refused") || err != nil {
		t.Errorf("%v: %s", err, out)
	}

	h.settings.extra += "metricsAddress: 127.0.0.1:9809\n"
	h.configure()
	h.must(unix.Kill(h.Pid(), unix.SIGHUP))
	h.eventually("TCP is a problem", func() string {
		if text := h.show(); !strings.Contains(text, "flexd may not use TCP: its systemd unit has to allow it") {
			return text
		}
		return ""
	})

	p, q := podN(1), podN(2)
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		v := h.vol(fs, fs).With("volumegroup", "loops", "size", "304Mi")
		h.ok(h.up(byKubelet, v, p))
		h.ok(h.up(byKubelet, v, q))
		h.write(v, p, "f", "x")
		was := capacity(t, h.PodDir(p, v))
		h.ok(h.call("expandfs", v.Blob(nil), "", h.PodDir(p, v), fmt.Sprint(404*mib), fmt.Sprint(304*mib)))
		if now := capacity(t, h.PodDir(p, v)); now < was+80*mib {
			t.Errorf("%s grew from %d to %d", fs, was, now)
		}
		h.ok(h.unmount(v, p))
		h.restart()
		h.reads(v, q, "f", "x")
		h.end(byKubelet, v, q)
	}
	loops := testhost.Loops{Dir: images}
	h.eventually("loop devices go", func() string { return strings.Join(loops.Active(), " ") })

	// Children are restricted, too, and one that outlives flexd does no harm.
	v := h.slow("slow")
	dir := h.PodDir(p, v)
	h.must(os.MkdirAll(dir, 0o750))
	call := h.begin("mount", dir, v.Blob(&p))
	child := h.freeze("mkfs.ext4")
	restricted(child)
	thaw(child)
	h.restart()
	if a := call.wait(t); !a.ok() {
		h.eventually("kubelet asks again", func() string {
			if a := h.call("mount", dir, v.Blob(&p)); !a.ok() {
				return a.Text
			}
			return ""
		})
	}
	h.end(noAttach, v, p)
}

// With the installed units, no call fails while flexd is upgraded and restarted repeatedly, and systemd
// restarts a flexd that has stopped to work.
func TestSystemd(t *testing.T) {
	if testhost.Unit == "" {
		t.Fatal("needs systemd: scripts/test-vm")
	}
	h := newHost(t)
	h.stop()
	const units = "/run/systemd/system/"
	log := h.Dir + "/systemd.log"
	install := func(sockets bool) {
		for _, unit := range []string{"flexd.service", "flexd-driver.socket", "flexd-status.socket"} {
			text, err := os.ReadFile(filepath.Join(filepath.Dir(testhost.Unit), unit))
			h.must(err)
			own := strings.NewReplacer(
				"/run/flexd", h.Run,
				"/usr/local/bin/flexd serve --config /etc/flexd/flexd.yaml", h.Flexd()+" serve --config "+h.Config(),
				"WatchdogSec=60", "WatchdogSec=15\nTimeoutAbortSec=1\nStandardError=append:"+log,
				"RequiresMountsFor=/var/lib/flexd /var/lib/kubelet", "",
			).Replace(string(text))
			switch {
			case sockets:
			case unit == "flexd.service":
				own = strings.NewReplacer("Wants=flexd-", "#", "After=flexd-", "#").Replace(own)
			default:
				continue
			}
			h.must(os.WriteFile(units+unit, []byte(own), 0o644))
		}
		h.sh("systemctl", "daemon-reload")
	}
	defer func() {
		h.sh("systemctl", "stop", "flexd-driver.socket", "flexd-status.socket", "flexd.service")
		if text, _ := os.ReadFile(log); t.Failed() || !strings.Contains(string(text), "SIGABRT: abort") {
			t.Errorf("flexd's log: %s", text)
		}
		h.sh("sh", "-c", "rm "+units+"flexd*; systemctl daemon-reload")
		h.start()
	}()
	install(false) // an earlier version
	h.sh("systemctl", "start", "flexd.service")

	v, p := h.vol("a", "ext4"), podN(1)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			h.ok(h.up(noAttach, v, p))
			h.ok(h.unmount(v, p))
		}
	}()
	main := func() string { return h.sh("systemctl", "show", "--value", "-p", "MainPID", "flexd.service") }
	first := main()
	install(true)
	for range 3 {
		h.sh("systemctl", "restart", "flexd.service")
	}
	h.sh("systemctl", "is-active", "flexd-driver.socket", "flexd-status.socket")
	h.sh("systemctl", "stop", "flexd.service") // the next call starts it again
	h.eventually("a call starts flexd", func() string {
		if pid := strings.TrimSpace(main()); pid == "0" || pid == first {
			return pid
		}
		return ""
	})
	hung := strings.TrimSpace(main())
	h.sh("kill", "-STOP", hung)
	h.eventually("systemd restarts it", func() string {
		if pid := strings.TrimSpace(main()); pid == "0" || pid == hung {
			return pid
		}
		return ""
	})
	close(stop)
	<-done
	h.ok(h.up(noAttach, v, p))
	h.write(v, p, "f", "x")
	h.reads(v, p, "f", "x")
	h.end(noAttach, v, p)

	if out, code := h.client("doctor", "--config", h.Config(), "--all"); code != 0 || !strings.Contains(out, "ok      flexd/sockets") {
		t.Errorf("flexd doctor: exit status %d:\n%s", code, out)
	}
	h.sh("systemctl", "stop", "flexd.service")
	out, code := h.client("doctor", "--config", h.Config())
	if pid := strings.TrimSpace(main()); code != 1 || !strings.Contains(out, "systemd listens") || pid != "0" {
		t.Errorf("flexd doctor: exit status %d, and flexd has pid %s:\n%s", code, pid, out)
	}
}
