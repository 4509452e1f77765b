package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/status"
	"github.com/flexd/flexd/internal/udev"
	"github.com/google/go-cmp/cmp"
)

// flexdriver is an executable of cmd/flexdriver.
var flexdriver string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "doctor-")
	if err == nil {
		flexdriver = dir + "/flexdriver"
		var out []byte
		if out, err = exec.Command("go", "build", "-o", flexdriver, "../../cmd/flexdriver").CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// A tree is the files of a node: "-> TARGET" is a link, "dir" a directory, "flexdriver" the
// driver, a path that ends in * is executable, "" removes it.
type tree map[string]string

func (files tree) write(t *testing.T, root string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, strings.TrimSuffix(name, "*"))
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if text == "flexdriver" {
			err = os.Link(flexdriver, path)
		} else if target, ok := strings.CutPrefix(text, "-> "); err == nil && ok {
			err = os.Symlink(strings.ReplaceAll(target, "ROOT", root), path)
		} else if err == nil && text == "dir" {
			err = os.Mkdir(path, 0o755)
		} else if err == nil && text != "" {
			mode := fs.FileMode(0o644)
			if strings.HasSuffix(name, "*") {
				mode = 0o755
			}
			err = os.WriteFile(path, []byte(text), mode)
		}
		if err != nil {
			t.Fatal(name, err)
		}
	}
	for name, text := range files {
		if _, other := files[strings.TrimSuffix(name, "*")]; text == "" && (!other || !strings.HasSuffix(name, "*")) {
			if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// process returns the files of a process in /proc.
func process(pid int, args ...string) tree {
	dir := fmt.Sprintf("proc/%d/", pid)
	comm := filepath.Base(args[0])
	return tree{
		dir + "comm":      comm + "\n",
		dir + "cmdline":   strings.Join(args, "\x00") + "\x00",
		dir + "stat":      fmt.Sprintf("%d (%s) S 1%s\n", pid, comm, strings.Repeat(" 0", 40)),
		dir + "status":    "Name:\t" + comm + "\nUid:\t0\t0\t0\t0\nNSpid:\t" + fmt.Sprint(pid) + "\n",
		dir + "cgroup":    "0::/system.slice/x.service\n",
		dir + "exe":       "-> " + args[0],
		dir + "root":      "-> ROOT",
		dir + "ns/mnt":    "-> mnt:[1]",
		dir + "ns/user":   "-> user:[1]",
		dir + "mountinfo": mountinfo,
	}
}

const mountinfo = `20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
21 20 0:20 / /run rw,nosuid shared:2 - tmpfs tmpfs rw
`

func merged(all ...tree) tree {
	m := tree{}
	for _, files := range all {
		maps.Copy(m, files)
	}
	return m
}

const plugins = "usr/libexec/kubernetes/kubelet-plugins/volume/exec"

// sound is a node without anything wrong.
func sound(t *testing.T) tree {
	rule, err := udev.Rule("/var/lib/flexd", nil)
	if err != nil {
		t.Fatal(err)
	}
	return merged(
		process(812, "/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml"),
		process(900, "/usr/local/bin/flexd", "serve", "--config", "/etc/flexd/flexd.yaml"),
		tree{
			"proc/self/ns/mnt": "-> mnt:[1]", "proc/self/ns/user": "-> user:[1]", "proc/self/mountinfo": mountinfo,
			"sys/block/nvme0n1/device": "-> ../../nvme-subsys0", "sys/block/nvme0n1/queue/iostats": "0\n", "sys/block/dm-0/queue/iostats": "0\n",
			"proc/self/net/unix":          "Num\n0: 2 0 10000 0001 01 7 /run/flexd/driver.sock\n0: 2 0 10000 0001 01 8 /run/flexd/status.sock\n",
			"proc/sys/kernel/osrelease":   "6.1.0-test\n",
			"proc/filesystems":            "nodev\tproc\n\text4\n\txfs\n\tbtrfs\n",
			"sys/module/dm_mod/x":         "x",
			"sys/module/dm_thin_pool/x":   "x",
			"dev/mapper/control":          "x",
			"var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\n", "var/lib/kubelet/pods": "dir", "var/lib/flexd": "dir",
			"sys/fs/cgroup/cgroup.procs": "1\n", "sys/fs/cgroup/cgroup.controllers": "cpu\n", "sys/fs/cgroup/kubepods.slice": "dir",
			plugins + "/flexd~lvm/lvm*":           "flexdriver",
			plugins + "/flexd~lvm/.lvm.init.json": `{"attach": false}`,
			"etc/flexd/flexd.yaml":                "x",
			"run/systemd/system":                  "dir", "run/udev/control": "x", "etc/udev/rules.d/12-flexd.rules": rule,
			"usr/local/bin/flexd*":                             "x",
			"usr/local/lib/systemd/system/flexd.service":       "[Service]\nExecStart=/usr/local/bin/flexd serve --config /etc/flexd/flexd.yaml\nKillMode=process\n",
			"usr/local/lib/systemd/system/flexd-driver.socket": "[Socket]\nListenStream=/run/flexd/driver.sock\n",
			"usr/local/lib/systemd/system/flexd-status.socket": "[Socket]\nListenStream=/run/flexd/status.sock\n",
		})
}

// tools are what programs print.
type tools map[string]string

func (o tools) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	line := strings.Join(c.Argv, " ")
	for begin, out := range o {
		if !strings.HasPrefix(line, begin) && !strings.HasSuffix(c.Argv[0], begin) {
			continue
		}
		switch out {
		case "missing":
			return run.Result{}, &fs.PathError{Op: "exec", Path: c.Argv[0], Err: fs.ErrNotExist}
		case "hangs":
			return run.Result{}, &run.StuckError{Step: c.Step, Pid: 7}
		}
		return run.Result{Stdout: []byte(out)}, nil
	}
	return run.Result{}, errors.New("no such program in this test: " + line)
}

func soundTools() tools {
	return tools{
		"lvm vgs":        `{"report": [{"vg": [{"vg_name":"vg0", "vg_attr":"wz--n-", "vg_lock_type":"", "vg_missing_pv_count":"0"}]}]}`,
		"lvm lvmconfig":  "devices {\n\tuse_devicesfile=0\n\tdevicesfile=\"system.devices\"\n\tfilter=[\"a|.*|\"]\n\tglobal_filter=[\"a|.*|\"]\n}\nactivation {\n\tmonitoring=1\n\tthin_pool_autoextend_threshold=100\n}\nglobal {\n\tuse_lvmlockd=0\n}\n",
		"lvm version":    "  LVM version:     2.03.16(2) (2022-05-18)\n",
		"thin_check":     "0.9.0\n",
		"blkid":          "blkid from util-linux 2.38.1\n",
		"wipefs":         "wipefs from util-linux 2.38.1\n",
		"mkfs.ext4":      "mke2fs 1.47.0\n",
		"e2fsck":         "e2fsck 1.47.0\n",
		"mkfs.xfs":       "mkfs.xfs version 6.1.0\n",
		"mkfs.btrfs":     "mkfs.btrfs, part of btrfs-progs v6.2\n",
		"systemctl show": "ActiveState=active\nResult=success\nNRestarts=0\nNeedDaemonReload=no\nUnitFileState=enabled\nBefore=multi-user.target x.service\n",
		"/lvm":           `{"status":"Success","message":"v1"}`,
	}
}

func soundConfig() *config.Config {
	c := config.Default()
	c.NodeName = "node-1"
	c.VolumeGroups = []config.VolumeGroup{{Name: "vg0", Provider: "lvm"}}
	return c
}

// on returns a node with these files and sockets on which a daemon answers.
func on(t *testing.T, files tree) *Host {
	t.Helper()
	root := t.TempDir()
	files.write(t, root)
	for _, name := range []string{"driver.sock", "status.sock"} {
		path := filepath.Join(root, "run/flexd", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Skip(err) // the path is too long
		}
		t.Cleanup(func() { l.Close() })
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &Host{
		Root: root, ConfigPath: "/etc/flexd/flexd.yaml", Config: soundConfig(), Socket: root + "/run/flexd/status.sock",
		Runner: soundTools(), Version: "v1", Limit: time.Minute,
		Rule:    func() (string, error) { return udev.Rule("/var/lib/flexd", nil) },
		Machine: func() error { return nil },
		Ask: func(path string) ([]byte, error) {
			return map[string][]byte{"/version": []byte(`{"version":"v1"}`), "/healthz": []byte(`{"status":"ok","reasons":[]}`), "/v1/volumes": []byte(`{}`)}[path], nil
		},
	}
}

func TestSoundNode(t *testing.T) {
	t.Parallel()
	files := sound(t)
	files["proc/self/net/unix"] = strings.Repeat("0: 2 0 10000 0001 01 9 /a/users/socket\n", 50000) + files["proc/self/net/unix"]
	h := on(t, files)
	h.Config.VolumeGroups[0].ThinPool = "pool"
	before := listing(t, h.Root)
	d := h.Examine(t.Context())
	if after := listing(t, h.Root); after != before {
		t.Errorf("it changed files:\n%s", cmp.Diff(before, after))
	}
	for _, e := range d.Examinations {
		if e.Result != status.ResultOK && e.Result != status.ResultSkipped || e.Why == "" || e.Evidence == "" {
			t.Errorf("%+v", e)
		}
	}
	if d.Result != status.ResultOK || len(d.Examinations) < len(checks) {
		t.Errorf("%s, %d examinations", d.Result, len(d.Examinations))
	}
}

// listing returns the files of a tree, with their sizes and times.
func listing(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err == nil {
			fmt.Fprintln(&all, path, st.Mode(), st.Size(), st.ModTime().UnixNano())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// Files of any content give findings with an evidence, and no panic.
func TestGarbage(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	files := sound(t)
	h := on(t, files)
	h.Runner.(tools)["lvm vgs"], h.Runner.(tools)["lvm lvmconfig"] = `{"report":[{}]}`, "=\n=="
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(h.Root, strings.TrimSuffix(name, "*"))
		st, err := os.Lstat(path)
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		switch at := rnd.IntN(len(text)); rnd.IntN(4) {
		case 0:
			text = text[:at]
		case 1:
			text = slices.Insert(slices.Clone(text), at, '\x00', '\xff', '\n', '{', '=')
		case 2:
			text = bytes.Repeat([]byte("- ["), 10000)
		case 3:
			text = nil
		}
		if err = os.Remove(path); err == nil { // the driver has other links
			err = os.WriteFile(path, text, st.Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range h.Examine(t.Context()).Examinations {
			if e.Evidence == "" || strings.Contains(e.Evidence, "did not end") || strings.Contains(e.Evidence, "bug") {
				t.Errorf("%s: %+v", name, e)
			}
		}
	}
}

// Each deviation from a sound node is found by one check, with a remedy.
func TestDeviations(t *testing.T) {
	t.Parallel()
	k := func(args ...string) tree { return process(812, append([]string{"/usr/bin/kubelet"}, args...)...) }
	private := strings.ReplaceAll(mountinfo, " shared:1", "")
	const service = "usr/local/lib/systemd/system/flexd.service"
	for _, row := range []struct {
		name   string
		files  tree
		change func(*Host)
		want   string // "AREA/NAME RESULT EVIDENCE"
		remedy string
	}{
		{"another root directory", merged(k("--root-dir", "/data/kubelet"), tree{"data/kubelet": "dir"}), nil, "kubelet/root-directory error /data/kubelet (--root-dir)", `kubeletRoots: ["/data/kubelet"]`},
		{"a second kubelet", merged(process(813, "/usr/bin/kubelet", "--root-dir=/two"), tree{"two": "dir"}), nil, "kubelet/root-directory error kubelet (pid 813): kubelet's root directory is /two", `kubeletRoots: ["/var/lib/kubelet", "/two"]`},
		{"a configuration that is no file", tree{"var/lib/kubelet/config.yaml": "dir"}, nil, "kubelet/process unknown not a regular file", "correct"},
		{"a node name", k("--hostname-override=Other"), nil, "kubelet/node-name warning other", "nodeName: other"},
		{"a container without propagation", tree{"proc/812/ns/mnt": "-> mnt:[2]", "proc/812/mountinfo": private}, nil, "kubelet/mount-propagation error does not appear", "rshared"},
		{"a container whose mounts stay there", tree{"proc/812/ns/mnt": "-> mnt:[2]", "proc/812/mountinfo": strings.ReplaceAll(mountinfo, "shared:1", "master:1")}, nil, "kubelet/mount-propagation error does not appear in flexd's", "rshared, not rslave"},
		{"a link on a private mount", merged(k("--root-dir=/link"), tree{"link": "-> ROOT/var/lib/kubelet", "proc/900/mountinfo": private}), nil, "kubelet/mount-propagation warning /link is a link", "make-rshared"},
		{"another directory in the container", tree{"proc/812/ns/mnt": "-> mnt:[2]", "proc/812/root": "-> ROOT/c", "c/var/lib/kubelet/config.yaml": "{}", "c/" + plugins + "/x": "dir"}, nil, "kubelet/root-directory error another directory", "bind"},
		{"a container without flexd's sockets", tree{"proc/812/ns/mnt": "-> mnt:[2]", "proc/812/root": "-> ROOT/c", "c/var/lib": "-> ROOT/var/lib", "c/usr": "-> ROOT/usr", "c/run": "dir"}, nil, "flexd/sockets error without /run/flexd of the host", "bind /run/flexd"},
		{"a setting that cannot be read", tree{"var/lib/kubelet/config.yaml": "a: [\n"}, nil, "kubelet/process unknown config.yaml", "correct"},
		{"no plugin directory", tree{plugins: ""}, nil, "driver/plugin-directory error does not exist", "flexd driver install"},
		{"a plugin directory elsewhere", merged(k("--volume-plugin-dir=/opt/x/"), tree{"opt/x": "dir"}), nil, "driver/executable error /opt/x/flexd~lvm/lvm does not exist", "flexd driver install"},
		{"noexec", tree{"proc/812/mountinfo": mountinfo + "22 20 8:2 / /usr rw,noexec shared:3 - ext4 /dev/sda2 rw\n"}, nil, "driver/plugin-directory error noexec", "remount,exec"},
		{"a linked plugin directory", merged(k("--volume-plugin-dir=/l"), tree{"l": "-> ROOT/opt", "opt": "dir"}), nil, "driver/plugin-directory error symbolic link", "make it a directory"},
		{"not executable", tree{plugins + "/flexd~lvm/lvm*": "", plugins + "/flexd~lvm/lvm": "x"}, nil, "driver/executable error not executable", "flexd driver install"},
		{"another program", tree{plugins + "/flexd~lvm/lvm*": "#!/bin/sh\n"}, nil, "driver/executable error is not flexd's driver", "--replace-driver"},
		{"init fails", tree{plugins + "/flexd~lvm/.lvm.init.json": "{"}, nil, "driver/executable error init fails", "flexd driver install"},
		{"an interrupted installation", tree{plugins + "/flexd~lvm/.lvm.new": "x"}, nil, "driver/executable warning interrupted", "completes or undoes"},
		{"attach:true, and the controller attaches", tree{plugins + "/flexd~lvm/.lvm.init.json": `{"attach": true}`}, nil, "driver/attach-mode warning controller manager", "--controller-manager"},
		{"attach:true with another name", tree{plugins + "/a~b/b*": "x", plugins + "/a~b/.b.init.json": `{"attach": true}`}, func(h *Host) { h.Config.Driver = "a/b" }, "driver/attach-mode warning controller manager", "--controller-manager --driver a/b"},
		{"attach:true in a group with namespaces", merged(k("--enable-controller-attach-detach=false"), tree{plugins + "/flexd~lvm/.lvm.init.json": `{"attach": true}`}), func(h *Host) {
			h.Config.VolumeGroups[0].Create, h.Config.VolumeGroups[0].Namespaces = true, []string{"a"}
		}, "driver/attach-mode warning creates no volume", "--attach=false"},
		{"a shell driver", tree{plugins + "/old~lvm/lvm*": "#!/bin/bash\nlvcreate\n"}, nil, "driver/other-drivers warning old~lvm/lvm is another", "drain"},
		{"a hidden directory", tree{plugins + "/.new/x": "x"}, nil, "driver/other-drivers warning hidden", "ls -la"},
		{"a driver without a program", tree{plugins + "/a~b": "dir"}, nil, "driver/other-drivers warning a~b/b is missing", "move"},
		{"volumes of a driver that was removed", tree{"proc/900/mountinfo": mountinfo + "30 20 8:3 / /var/lib/kubelet/pods/u/volumes/a~b/v rw shared:9 - ext4 /dev/sdb rw\n"}, nil, "driver/other-drivers warning volumes of a~b", "install that driver"},
		{"a CSI driver", tree{"var/lib/kubelet/plugins/topolvm.io": "dir"}, nil, "driver/other-drivers warning CSI", "other volume groups"},
		{"no configuration", nil, func(h *Host) { h.ConfigErr = errors.New("no file") }, "flexd/configuration error no file", "flexd config"},
		{"a configuration that only root may read", nil, func(h *Host) { h.ConfigErr = fmt.Errorf("x: %w", fs.ErrPermission) }, "flexd/configuration unknown permission denied", ""},
		{"no groups", nil, func(h *Host) { h.Config.VolumeGroups = nil }, "flexd/configuration warning no volume groups", "volumeGroups"},
		{"no directory", nil, func(h *Host) { h.Machine = func() error { return errors.New("no directory /x") } }, "flexd/configuration error /x", "not mounted"},
		{"another runDir", nil, func(h *Host) { h.Config.RunDir = "/run/other" }, "flexd/configuration error FLEXD_SOCKET", "FLEXD_SOCKET=/run/other"},
		{"a runDir on a disk", nil, func(h *Host) { h.Config.RunDir = "/var/run2" }, "flexd/directories warning survive", "tmpfs"},
		{"a group at a mount point", tree{"srv/vg": "dir", "proc/900/mountinfo": mountinfo + "30 20 8:3 / /srv/vg rw shared:9 - ext4 /dev/sdb rw\n"}, func(h *Host) {
			h.Config.VolumeGroups = append(h.Config.VolumeGroups, config.VolumeGroup{Name: "vg1", Provider: "loopdev", Directory: "/srv/vg"})
		}, "flexd/directories warning /srv/vg of volume group vg1 is a mount point", "subdirectory"},
		{"a stateDir in memory", nil, func(h *Host) { h.Config.StateDir = "/run/state" }, "flexd/directories error lost", "stateDir"},
		{"no daemon", tree{"proc/900/comm": ""}, func(h *Host) { h.Socket += "x" }, "flexd/daemon error not running", "systemctl start"},
		{"a stopped daemon, whose socket would start it", tree{"proc/900/comm": ""}, func(h *Host) { h.Ask = func(string) ([]byte, error) { panic("asked") } }, "flexd/daemon error systemd listens", "systemctl start"},
		{"an earlier unit", tree{"usr/local/lib/systemd/system/flexd-driver.socket": ""}, nil, "flexd/unit warning no flexd-driver.socket", "scripts/install.sh"},
		{"a socket elsewhere", tree{"etc/systemd/system/flexd-driver.socket.d/a.conf": "[Socket]\nListenStream=/x\n"}, nil, "flexd/unit error a.conf: ListenStream=/x", "ListenStream=/run/flexd/driver.sock in /etc/systemd/system/flexd-driver.socket.d/path.conf, then: systemctl daemon-reload; systemctl stop flexd-driver.socket; systemctl restart flexd"},
		{"another socket", nil, func(h *Host) { h.Socket += "x" }, "flexd/daemon error flexd runs (process 900", "--socket"},
		{"a daemon that does not answer", nil, func(h *Host) { h.Ask = func(string) ([]byte, error) { return nil, errors.New("timeout") } }, "flexd/daemon error timeout", "systemctl restart"},
		{"a degraded daemon", nil, func(h *Host) {
			h.Ask = func(string) ([]byte, error) { return []byte(`{"status":"degraded","reasons":["vg0 hangs"]}`), nil }
		}, "flexd/daemon error degraded: vg0 hangs", "flexd check"},
		{"a failing daemon", nil, func(h *Host) {
			h.Ask = func(string) ([]byte, error) {
				return []byte(`{"status":"failing","reasons":["stuck"]}`), errors.New("503")
			}
		}, "flexd/daemon error failing: stuck", "flexd check"},
		{"problems", nil, func(h *Host) {
			h.Ask = func(string) ([]byte, error) { return []byte(`{"problems":["not in force"]}`), nil }
		}, "flexd/daemon error not in force", "flexd status"},
		{"garbage", nil, func(h *Host) { h.Ask = func(string) ([]byte, error) { return []byte("<html>"), nil } }, "flexd/daemon error does not answer well", "systemctl restart"},
		{"an open socket", nil, func(h *Host) { _ = os.Chmod(h.Root+"/run/flexd/driver.sock", 0o666) }, "flexd/sockets error 0666", "systemctl restart"},
		{"a dead socket", tree{"proc/self/net/unix": "Num\n0: /run/flexd/status.sock\n"}, nil, "flexd/sockets error no process listens", "systemctl restart"},
		{"no unit", tree{service: ""}, nil, "flexd/unit warning at boot", "scripts/install.sh"},
		{"a drop-in with a mount namespace", tree{"etc/systemd/system/flexd.service.d/x.conf": "[Service]\nPrivateTmp=yes\n"}, nil, "flexd/unit error flexd.service.d/x.conf: PrivateTmp=yes", "daemon-reload"},
		{"a drop-in for all services", tree{"usr/lib/systemd/system/service.d/y.conf": "[Service]\nProtectSystem=strict\n", "etc/systemd/system/flexd.service.d/z.conf": "[Service]\nPrivateTmp=no\n"}, nil, "flexd/unit error /service.d/y.conf: ProtectSystem=strict", "daemon-reload"},
		{"another unit", tree{"etc/systemd/system/flexd.service": "[Service]\nExecStart=/no/flexd serve\n"}, nil, "flexd/unit error KillMode", "KillMode=process"},
		{"no such program", tree{service: "[Service]\nKillMode=process\nExecStart=/no/flexd serve\n"}, nil, "flexd/unit error no such program", "scripts/install.sh"},
		{"a unit that changed", nil, func(h *Host) { h.Runner.(tools)["systemctl show"] = "NeedDaemonReload=yes\n" }, "flexd/unit warning changed", "daemon-reload"},
		{"a unit that fails", nil, func(h *Host) {
			h.Runner.(tools)["systemctl show"] = "ActiveState=failed\nResult=exit-code\nNRestarts=5\n"
		}, "flexd/unit error failed (exit-code, 5 restarts)", "journalctl"},
		{"a kubelet that ends after flexd", tree{"proc/812/cgroup": "0::/system.slice/my-kubelet.service/main\n"}, nil, "flexd/unit warning my-kubelet.service, which is not in Before=", "order.conf"},
		{"systemd hangs", nil, func(h *Host) { h.Runner.(tools)["systemctl show"] = "hangs" }, "flexd/unit unknown pid 7", ""},
		{"an older driver", nil, func(h *Host) { h.Runner.(tools)["/lvm"] = `{"status":"Not supported"}` }, "flexd/versions warning flexdriver older", "scripts/install.sh"},
		{"a replaced executable", tree{"proc/900/exe": "-> /usr/local/bin/flexd (deleted)"}, nil, "flexd/versions warning replaced", "systemctl restart"},
		{"another flexd beside", merged(process(899, "/x/flexd", "serve", "--config=/x.yaml"), tree{"proc/900/exe": "-> /usr/local/bin/flexd (deleted)"}), nil, "flexd/versions warning (pid 900)", "systemctl restart"},
		{"no rule", tree{"etc/udev/rules.d/12-flexd.rules": ""}, nil, "flexd/udev-rule error missing", "flexd udev --install"},
		{"no group", nil, func(h *Host) { h.Config.VolumeGroups[0].Name = "vg1" }, "lvm/volume-groups error vg1", "vgs"},
		{"a missing disk", nil, func(h *Host) {
			h.Runner.(tools)["lvm vgs"] = `{"report":[{"vg":[{"vg_name":"vg0","vg_missing_pv_count":"1"}]}]}`
		}, "lvm/volume-groups error 1 missing", "reconnect"},
		{"a read-only group", nil, func(h *Host) {
			h.Runner.(tools)["lvm vgs"] = `{"report":[{"vg":[{"vg_name":"vg0","vg_attr":"rz--n-","vg_missing_pv_count":"0"}]}]}`
		}, "lvm/volume-groups warning vg0 is read-only", "vgcfgrestore -f FILE vg0"},
		{"LVM hangs", nil, func(h *Host) { h.Runner.(tools)["lvm vgs"] = "hangs" }, "lvm/volume-groups unknown pid 7", "dmesg"},
		{"a volume_list", nil, func(h *Host) { h.Runner.(tools)["lvm lvmconfig"] = "\tvolume_list=[\"root\"]\n" }, "lvm/devices error volume_list", "lvm.conf"},
		{"a devices file", tree{"etc/lvm/devices/system.devices": "# x\nIDTYPE=sys_wwid\n"}, func(h *Host) {
			h.Runner.(tools)["lvm lvmconfig"] = "use_devicesfile=1\ndevicesfile=\"system.devices\"\n"
			h.Config.LVMFilter = []string{"a|.*|"}
		}, "lvm/devices warning lists 1 disks", "lvmdevices"},
		{"a disk without counts", tree{"sys/block/sda/device": "-> ../../../0:0:0:0", "sys/block/sda/queue/iostats": "0\n"}, nil, "lvm/devices warning counts no requests to sda", "echo 1 > /sys/block/sda/queue/iostats"},
		{"a shared group", nil, func(h *Host) {
			h.Runner.(tools)["lvm vgs"] = `{"report":[{"vg":[{"vg_name":"vg0","vg_lock_type":"sanlock"}]}]}`
		}, "lvm/lvmlockd error lvmlockd does not run", "lockstart"},
		{"no dmeventd", nil, func(h *Host) {
			h.Runner.(tools)["lvm lvmconfig"] = "monitoring=1\nthin_pool_autoextend_threshold=70\n"
			h.Config.VolumeGroups[0].ThinPool = "pool"
		}, "lvm/thin-pools warning dmeventd does not run", "lvm2-monitor"},
		{"a stranger's dmeventd", merged(process(950, "/x/dmeventd"), tree{"proc/950/status": "Uid:\t1\t1\t1\t1\nNSpid:\t950\n"}), func(h *Host) {
			h.Runner.(tools)["lvm lvmconfig"] = "monitoring=1\nthin_pool_autoextend_threshold=70\n"
			h.Config.VolumeGroups[0].ThinPool = "pool"
		}, "lvm/thin-pools warning dmeventd does not run", "lvm2-monitor"},
		{"no lvm", nil, func(h *Host) { h.Runner.(tools)["lvm version"] = "missing" }, "tools/programs error lvm is not", "apt-get install lvm2"},
		{"no xfs", nil, func(h *Host) { h.Runner.(tools)["mkfs.xfs"] = "missing" }, "tools/programs warning mkfs.xfs", "xfsprogs"},
		{"an old kernel", tree{"proc/sys/kernel/osrelease": "5.10.0\n"}, nil, "kernel/version error Linux 5.10.0", "5.15"},
		{"no module", tree{"proc/filesystems": "\text4\n\txfs\n", "lib/modules/6.1.0-test/modules.dep": "kernel/fs/x/x.ko.xz:\n"}, nil, "kernel/filesystems warning btrfs", "fsType"},
		{"no device-mapper", tree{"sys/module/dm_mod": "", "dev/mapper/control": "", "lib/modules/6.1.0-test/modules.dep": "x.ko:\n"}, nil, "kernel/block-devices error dm_mod", "linux-modules-extra-6.1.0-test"},
		{"no control groups", tree{"sys/fs/cgroup/kubepods.slice": ""}, nil, "kernel/control-groups warning kubepods", "cgroupDir"},
		{"a kubelet that anybody started", tree{"proc/812/status": "Uid:\t1\t1\t1\t1\nNSpid:\t812\n"}, nil, "kubelet/process warning ignored: root did not start it", "systemctl"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			h := on(t, merged(sound(t), row.files))
			if row.change != nil {
				row.change(h)
			}
			check(t, h, row.want, row.remedy)
		})
	}
}

// check fails unless a check has this result: "AREA/NAME RESULT EVIDENCE".
func check(t *testing.T, h *Host, want, remedy string) {
	t.Helper()
	f := strings.SplitN(want, " ", 3)
	d := h.Examine(t.Context())
	if strings.Contains(fmt.Sprint(d), "which is a bug") {
		t.Errorf("%+v", d)
	}
	for _, e := range d.Examinations {
		if e.Area+"/"+e.Name == f[0] && e.Result == f[1] && strings.Contains(e.Evidence, f[2]) && strings.Contains(strings.Join(e.Remedy, "\n"), remedy) {
			return
		}
	}
	t.Errorf("not %q with the remedy %q:", want, remedy)
	for _, e := range d.Examinations {
		if e.Result != status.ResultOK && e.Result != status.ResultSkipped || e.Area+"/"+e.Name == f[0] {
			t.Logf("%s/%s %s %s %q", e.Area, e.Name, e.Result, e.Evidence, e.Remedy)
		}
	}
}

// The settings of each distribution's kubelet.
func TestKubelets(t *testing.T) {
	t.Parallel()
	standard := "/" + plugins
	for _, row := range []struct {
		name  string
		files tree
		want  string // kind, root directory, plugin directory, attach
	}{
		{"none", nil, "kubelet /var/lib/kubelet " + standard + " true"},
		{"none, k0s", tree{"var/lib/k0s": "dir"}, "k0s's kubelet /var/lib/k0s/kubelet /usr/libexec/k0s/kubelet-plugins/volume/exec true"},
		{"none, rke2", tree{"etc/rancher/rke2": "dir"}, "rke2's kubelet /var/lib/kubelet /var/lib/kubelet/volumeplugins true"},
		{"none, k3s", tree{"etc/systemd/system/k3s-agent.service": "x", "etc/rancher/k3s/config.yaml": "kubelet-arg: volume-plugin-dir=/opt/k3s\n"}, "k3s /var/lib/kubelet /opt/k3s true"},
		{"none, microk8s", tree{"var/snap/microk8s/current/args/kubelet": "--root-dir=${SNAP_COMMON}/var/lib/kubelet\n"}, "microk8s /var/snap/microk8s/common/var/lib/kubelet " + standard + " true"},
		{"none, kubeadm", tree{"var/lib/kubelet/kubeadm-flags.env": `KUBELET_KUBEADM_ARGS="--a=b --volume-plugin-dir=/opt/v"` + "\n", "var/lib/kubelet/config.yaml": "enableControllerAttachDetach: false\n"}, "kubelet /var/lib/kubelet /opt/v false"},
		{"kubeadm", merged(process(5, "/usr/bin/kubelet", "--config=/k.yaml"), tree{"k.yaml": "volumePluginDir: \"/opt/v/\" # why\nx: {volumePluginDir: /no}\n"}), "kubelet /var/lib/kubelet /opt/v true"},
		{"JSON", merged(process(5, "/usr/bin/kubelet", "--config", "/k.json"), tree{"k.json": `{"volumePluginDir":"/opt/j","enableControllerAttachDetach":false}`}), "kubelet /var/lib/kubelet /opt/j false"},
		{"drop-ins", merged(process(5, "/usr/bin/kubelet", "--config=/k.yaml", "--config-dir=/k.d"), tree{"k.yaml": "volumePluginDir: /a\n", "k.d/20.conf": "volumePluginDir: /c\n", "k.d/10.conf": "volumePluginDir: /b\n", "k.d/30.yaml": "volumePluginDir: /d\n"}), "kubelet /var/lib/kubelet /c true"},
		{"a flag wins", merged(process(5, "/usr/bin/kubelet", "--config=/k.yaml", "--volume_plugin_dir=/f"), tree{"k.yaml": "volumePluginDir: /a\n"}), "kubelet /var/lib/kubelet /f true"},
		{"k0s", merged(process(5, "/var/lib/k0s/bin/kubelet", "--root-dir=/var/lib/k0s/kubelet", "--config=/var/lib/k0s/kubelet-config.yaml"), tree{"var/lib/k0s/kubelet-config.yaml": "volumePluginDir: /usr/libexec/k0s/kubelet-plugins/volume/exec\n"}), "k0s's kubelet /var/lib/k0s/kubelet /usr/libexec/k0s/kubelet-plugins/volume/exec true"},
		{"rke2", process(5, "/var/lib/rancher/rke2/data/v1/bin/kubelet", "--volume-plugin-dir=/var/lib/kubelet/volumeplugins"), "rke2's kubelet /var/lib/kubelet /var/lib/kubelet/volumeplugins true"},
		{"k3s", merged(process(5, "/usr/local/bin/k3s-server", "server"), tree{
			"etc/rancher/k3s/config.yaml":                                       "token: secret\nkubelet-arg:\n  - root-dir=/data/kubelet\n",
			"etc/rancher/k3s/config.yaml.d/a.yaml":                              "kubelet-arg+: enable-controller-attach-detach=false\n",
			"etc/systemd/system/k3s.service":                                    "[Service]\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--kubelet-arg=v=2' \\\n",
			"var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf": "volumePluginDir: /opt/k3s\n",
		}), "k3s /data/kubelet /opt/k3s false"},
		{"k3s, a unit", merged(process(5, "/usr/local/bin/k3s", "agent"), tree{"etc/systemd/system/k3s-agent.service": "[Service]\nExecStart=/usr/local/bin/k3s agent --data-dir /d '--kubelet-arg=volume-plugin-dir=/opt/u'\n", "d/agent/etc/kubelet.conf.d/x.conf": "enableControllerAttachDetach: false\n"}), "k3s /var/lib/kubelet /opt/u false"},
		{"k3s kubectl", process(5, "/usr/local/bin/k3s", "kubectl"), "kubelet /var/lib/kubelet " + standard + " true"},
		{"microk8s", merged(process(5, "/snap/microk8s/1/kubelite", "--kubelet-args-file=/var/snap/microk8s/1/args/kubelet"), tree{"var/snap/microk8s/1/args/kubelet": "# --root-dir=/no\n--root-dir=${SNAP_COMMON}/var/lib/kubelet\n--volume-plugin-dir=\"${SNAP_DATA}/v\"\n"}), "microk8s /var/snap/microk8s/common/var/lib/kubelet /var/snap/microk8s/1/v true"},
		{"hyperkube", process(5, "/hyperkube", "kubelet", "--root-dir=/h"), "kubelet /h " + standard + " true"},
		{"in a container", merged(process(5, "/usr/bin/kubelet", "--config=/k.yaml"), tree{"proc/5/root": "-> ROOT/c", "c/k.yaml": "volumePluginDir: /in\n", "k.yaml": "volumePluginDir: /out\n"}), "kubelet /var/lib/kubelet /in true"},
		{"in a pod", merged(process(5, "/usr/bin/kubelet", "--root-dir=/no"), tree{"proc/5/cgroup": "0::/kubepods.slice/x\n"}), "kubelet /var/lib/kubelet " + standard + " true"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			merged(tree{"proc/self/ns/user": "-> user:[1]"}, row.files).write(t, root)
			all, _, err := kubelet.Find(root)
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			k := all[0]
			if got := strings.Join([]string{k.Kind, k.RootDir.Value, k.Plugins.Value, k.Attach.Value}, " "); got != row.want || k.Err != nil {
				t.Errorf("%s, want %s (%v)", got, row.want, k.Err)
			}
			if strings.Contains(fmt.Sprint(*k), "secret") {
				t.Error("a secret is kept")
			}
		})
	}
}

// A check that hangs is unknown, and delays no other.
func TestHang(t *testing.T) {
	h := on(t, sound(t))
	h.Limit = 100 * time.Millisecond
	stop := make(chan struct{})
	defer close(stop)
	h.Rule = func() (string, error) { <-stop; return "", nil }
	d := h.Examine(t.Context())
	for _, e := range d.Examinations {
		if e.Name == "udev-rule" && (e.Result != status.ResultUnknown || !strings.Contains(e.Evidence, "did not end")) {
			t.Errorf("%+v", e)
		}
	}
	if d.Result != status.ResultUnknown {
		t.Error(d.Result)
	}
}
