//go:build vm

package reboot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/umount"
)

// The status of a VM that systemd has shut down, so that nothing was mounted or active at the
// end; and of one with a volume that hung, in which flexd was stopped.
const (
	rebooted = 43
	hung     = 44
)

const (
	systemUnits = "/run/systemd/system/"
	stopped     = place + "/stopped" // what kubelet's stop says
	acked       = place + "/acked"   // how many lines the container has synced
)

// kubeletUnits are the units in which kubelet may run.
var kubeletUnits = map[bool]string{true: "kubelet.service", false: "snap.microk8s.daemon-kubelite.service"}

// boot starts flexd and kubelet's unit by systemd, as they are started at boot. LVM's
// own unit is enabled that at shutdown unmounts and deactivates all that it finds.
func (l *life) boot() {
	l.Helper()
	examples, err := filepath.Abs("../../examples")
	l.must(err)
	replace := strings.NewReplacer(
		"/usr/local/bin/flexd serve --config /etc/flexd/flexd.yaml", l.Flexd()+" serve --config "+l.Config(),
		"/var/lib/flexd /var/lib/kubelet", place,
		"KillMode=process", "KillMode=process\nStandardError=append:"+l.Log)
	kubelet := kubeletUnits[l.attach]
	enabled := []string{"flexd.service", kubelet, "blk-availability.service"}
	for _, unit := range []string{"flexd.service", "flexd-driver.socket", "flexd-status.socket"} {
		text, err := os.ReadFile(examples + "/" + unit)
		l.must(err)
		l.must(os.WriteFile(systemUnits+unit, []byte(replace.Replace(string(text))), 0o644))
	}
	for _, unit := range []string{"blk-availability.service", "systemd-reboot.service"} {
		l.must(os.Symlink("/lib/systemd/system/"+unit, systemUnits+unit))
	}
	l.must(os.WriteFile(systemUnits+kubelet, []byte(`[Service]
ExecStart=/bin/sleep infinity
ExecStop=/bin/sh /run/kubelet-stop
KillMode=process
TimeoutStopSec=20
[Install]
WantedBy=multi-user.target
`), 0o644))
	l.must(os.WriteFile("/run/kubelet-stop", nil, 0o644))
	l.run("systemctl", "daemon-reload")
	l.run("systemctl", append([]string{"enable"}, enabled...)...)
	l.run("systemctl", "start", "multi-user.target")
	ready, started := l.since("flexd.service", "ActiveEnter"), l.since(kubelet, "ExecMainStart")
	if ready == 0 || started < ready {
		l.Errorf("flexd was ready at %d µs, and %s started at %d", ready, kubelet, started)
	}
}

// since is one of systemd's timestamps of a unit.
func (l *life) since(unit, what string) (microseconds int64) {
	l.Helper()
	fmt.Sscan(l.run("systemctl", "show", "--value", "-p", what+"TimestampMonotonic", unit), &microseconds)
	return microseconds
}

// contain starts a container: a process in a mount namespace of its own that writes and
// syncs lines, and that only the end of the shutdown ends. It copies what it has
// synced to acked.
func (l *life) contain(dir string) {
	l.Helper()
	l.must(os.WriteFile(systemUnits+"container.service", []byte(`[Unit]
DefaultDependencies=no
[Service]
PrivateMounts=yes
ExecStart=/bin/sh -c 'mount --bind `+dir+` /mnt && n=0 && while n=$((n+1)); do echo $n >>/mnt/lines && sync /mnt/lines && echo $n >`+acked+` && sleep .05; done'
`), 0o644))
	l.run("systemctl", "daemon-reload")
	l.run("systemctl", "start", "container.service")
	l.soon("the container writes", func() bool { return l.acked() > 0 })
}

func (l *life) acked() (n int) {
	text, _ := os.ReadFile(acked)
	fmt.Sscan(string(text), &n)
	return n
}

func (l *life) soon(what string, now func() bool) {
	l.Helper()
	for end := time.Now().Add(time.Minute); !now(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			l.Fatalf("not within a minute: %s", what)
		}
	}
}

// reboot ends this life by systemd. When kubelet stops it unmounts the volumes of a pod, in
// the order of its directories, after all that does not wait for it has been stopped.
func (l *life) reboot(dirs ...string) {
	if l.Failed() {
		return
	}
	script := "exec >>" + stopped + " 2>&1\nrunning() { systemctl list-jobs --no-legend | grep -v " + kubeletUnits[l.attach] + " | grep ' running'; }\n" +
		"while running; do sleep .1; done\n"
	for _, dir := range dirs {
		verb := "unmount"
		if strings.HasPrefix(filepath.Base(filepath.Dir(dir)), "mounts") {
			verb = "unmountdevice"
		}
		script += fmt.Sprintf("grep -q ' %s ' /proc/self/mountinfo || echo not mounted: %s\n%s %s %s && rmdir %s\n", dir, dir, l.Driver, verb, dir, dir)
	}
	l.must(os.WriteFile("/run/kubelet-stop", []byte(script+"echo kubelet ended\n"), 0o644))
	l.must(os.WriteFile("/usr/lib/systemd/system-shutdown/report", fmt.Appendf(nil, `#!/bin/sh
. /run/vm/conf
left=$(grep -E ' - (ext4|xfs) ' /proc/self/mountinfo; ls /sys/block | grep dm-)
read -r up rest </proc/uptime
code=%d
[ -z "$left" ] || code=1
echo "exit $code $up" >$status
echo "$left" >/dev/console
`, rebooted), 0o755))
	l.run("systemctl", "start", "--job-mode=replace-irreversibly", "--no-block", "reboot.target")
	time.Sleep(time.Hour) // systemd ends this process
}

// hang ends the life while a volume hangs that kubelet unmounts: flexd's unit stops as ever, and
// leaves the child behind. Then the power is cut, since systemd waits for the filesystem for minutes.
func (l *life) hang() {
	l.must(os.WriteFile(systemUnits+"below.service", fmt.Appendf(nil, `[Unit]
Before=flexd.service
[Service]
ExecStart=/bin/sleep infinity
ExecStop=/bin/sh -c 'flexd=$(systemctl show --value -p Result flexd.service); echo flexd: $flexd; [ $flexd = success ] && /run/vm/vm-cut %d; /run/vm/vm-cut 1'
StandardOutput=file:/dev/console
`, hung), 0o644))
	l.run("systemctl", "daemon-reload")
	l.run("systemctl", "start", "below.service")
	l.setUp(stays, "wanted")
	dir := l.podDir(stays, "wanted")
	l.write(dir+"/dirty", unsynced, false)
	l.run("dmsetup", "suspend", "--nolockfs", "--noflush", "--noudevsync", host.VG+"-wanted")
	l.reboot(dir)
}

// stoppedWell checks how the machine was shut down: what kubelet did, and that the container's
// volume needs no recovery and has all its lines.
func (l *life) stoppedWell() {
	l.Helper()
	text, err := os.ReadFile(stopped)
	l.must(err)
	want, lv, fsType, clean := "kubelet ended\n", "wanted", l.fsType, "norecovery"
	if l.attach {
		want, lv, fsType, clean = strings.Repeat(`{"status":"Success"}`+"\n", 2)+want, "unwanted", "ext4", "noload"
	}
	if string(text) != want {
		l.Errorf("at the shutdown kubelet's stop said\n%s\nnot\n%s", text, want)
	}
	l.must(unix.Mount(l.device(lv), "/mnt", fsType, unix.MS_RDONLY, clean))
	lines, err := os.ReadFile("/mnt/lines")
	l.must(err)
	if n := strings.Count(string(lines), "\n"); n == 0 || n < l.acked() {
		l.Errorf("%s has %d lines of the container, which had synced %d", lv, n, l.acked())
	}
	l.must(umount.Plain("/mnt"))
}
