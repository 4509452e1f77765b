package doctor

import (
	"maps"
	"strings"
	"testing"

	"github.com/flexd/flexd/internal/status"
)

// sharedNode is a sound node with a shared volume group, whose programs print this.
func sharedNode(t *testing.T, files tree, prints tools) *Host {
	h := on(t, merged(sound(t), process(901, "/usr/sbin/lvmlockd", "--foreground", "--adopt", "1"), process(902, "/usr/sbin/sanlock", "daemon"), tree{"proc/902/status": "Name:\tsanlock\nUid:\t990\t990\t990\t990\nNSpid:\t902\n"}, process(903, "/usr/sbin/wdmd"),
		tree{"sys/class/watchdog/watchdog0/identity": "i6300ESB timer\n"}, files))
	out := h.Runner.(tools)
	delete(out, "systemctl show")
	out["systemctl show flexd.service"] = "ActiveState=active\nResult=success\nNRestarts=0\nNeedDaemonReload=no\nUnitFileState=enabled\nBefore=multi-user.target x.service\n"
	for _, unit := range []string{"lvmlockd", "sanlock", "wdmd"} {
		out["systemctl show "+unit+".service"] = "UnitFileState=enabled\n"
	}
	out["lvm vgs"] = strings.Replace(out["lvm vgs"], `"vg_lock_type":""`, `"vg_lock_type":"sanlock"`, 1)
	out["lvm lvmconfig"] = "global {\n\tuse_lvmlockd=1\n\tlvmlockctl_kill_command=\"/usr/local/bin/flexd lockspace-lost\"\n}\nlocal {\n\tsystem_id=\"\"\n\thost_id=7\n}\n"
	out["sanlock client status -D"] = sanlockStatus
	out["lvmlockctl --info --dump"] = lockspaceOf("vg0", "")
	maps.Copy(out, prints)
	return h
}

const sanlockStatus = `daemon 4c1f.node-1
    our_host_name=4c1f.node-1
    use_watchdog=1
    monotime=700
    version_str=3.8.5
p -1 helper
p -1 listener
p 901 lvmlockd
    flags=10
s lvm_vg0:7:/dev/mapper/vg0-lvmlock:0
    list=spaces
    space_dead=0
    killing_pids=0
    io_timeout=10
    sector_size=512
    align_size=1048576
    acquire_last_success=500
    renewal_last_result=1
    renewal_last_attempt=690
    renewal_last_success=690
`

const (
	heldLock   = "r lvm_vg0:lv1:/dev/mapper/vg0-lvmlock:70254592:3 p 901\n    list=held\n"
	orphanLock = "r lvm_vg0:lv2:/dev/mapper/vg0-lvmlock:71303168:3 p 900 ORPHAN\n    list=orphan\n"
)

func lockspaceOf(vg, more string) string {
	line := "info=structs unused_action_count=0\ninfo=client pid=9 name=lvmlockctl\n" +
		"info=ls ls_name=lvm_" + vg + " vg_name=" + vg + " vg_uuid=x lm_type=sanlock host_id=7 create_fail=0 create_done=1 kill_vg=0 drop_vg=0 sanlock_gl_enabled=1\n"
	for word := range strings.FieldsSeq(more) {
		key, _, _ := strings.Cut(word, "=")
		for old := range strings.FieldsSeq(line) {
			if strings.HasPrefix(old, key+"=") {
				line = strings.Replace(line, old, word, 1)
			}
		}
	}
	return line
}

func TestSharedGroup(t *testing.T) {
	t.Parallel()
	for _, e := range sharedNode(t, nil, nil).Examine(t.Context()).Examinations {
		if e.Result != status.ResultOK && e.Result != status.ResultSkipped || e.Area == "lvm" && e.Name != "thin-pools" && e.Result != status.ResultOK {
			t.Errorf("%+v", e)
		}
	}
}

func TestSharedDeviations(t *testing.T) {
	t.Parallel()
	lvmconfig := func(old, now string) tools {
		return tools{"lvm lvmconfig": strings.Replace("use_lvmlockd=1\nlvmlockctl_kill_command=\"/usr/local/bin/flexd lockspace-lost\"\nhost_id=7\n", old, now, 1)}
	}
	gone := func(pid string) tree {
		return tree{"proc/" + pid + "/comm": "x\n", "proc/" + pid + "/stat": pid + " (x) S 1" + strings.Repeat(" 0", 40) + "\n"}
	}
	for _, row := range []struct {
		name   string
		files  tree
		prints tools
		want   string // "AREA/NAME RESULT EVIDENCE"
		remedy string
	}{
		{"LVM without lvmlockd", nil, lvmconfig("use_lvmlockd=1", "use_lvmlockd=0"), "lvm/lvmlockd error use_lvmlockd=0", "lvm.conf"},
		{"no lvmlockd", gone("901"), nil, "lvm/lvmlockd error lvmlockd does not run", "lockstart"},
		{"lvmlockd is not enabled", nil, tools{"systemctl show lvmlockd.service": "UnitFileState=disabled\n"}, "lvm/lvmlockd warning after a boot", "systemctl enable lvmlockd.service"},
		{"no sanlock", gone("902"), tools{"sanlock client status -D": "missing"}, "lvm/sanlock error sanlock does not run", "systemctl enable --now wdmd sanlock"},
		{"sanlock's timeout", nil, nil, "lvm/sanlock ok io_timeout 10 s for vg0: the volumes of a node that died can be used elsewhere after about 140 s", ""},
		{"sanlock is not enabled", nil, tools{"systemctl show sanlock.service": "UnitFileState=disabled\n"}, "lvm/sanlock warning after a boot", "systemctl enable sanlock.service"},
		{"sanlock hangs", nil, tools{"sanlock client status -D": "hangs"}, "lvm/sanlock unknown pid 7", "journalctl -u sanlock"},
		{"sanlock without the watchdog", nil, tools{"sanlock client status -D": strings.Replace(sanlockStatus, "use_watchdog=1", "use_watchdog=0", 1)}, "lvm/sanlock error use_watchdog=0", "/etc/default/sanlock"},
		{"no wdmd", gone("903"), nil, "lvm/watchdog error wdmd does not run", "systemctl enable --now wdmd"},
		{"no watchdog", tree{"sys/class/watchdog/watchdog0": ""}, nil, "lvm/watchdog error the kernel has no watchdog", "modprobe softdog"},
		{"no host id", nil, lvmconfig("host_id=7", "host_id=0"), `lvm/host-id error "0"`, "/etc/lvm/lvmlocal.conf"},
		{"a large host id", nil, lvmconfig("host_id=7", "host_id=2001"), `lvm/host-id error "2001"`, "/etc/lvm/lvmlocal.conf"},
		{"another host id", nil, lvmconfig("host_id=7", "host_id=8"), "lvm/host-id warning started with host id 7", "lockstop"},
		{"no lockspace", nil, tools{"lvmlockctl --info --dump": "info=structs x=1\n", "sanlock client status -D": sanlockStatus[:strings.Index(sanlockStatus, "s lvm_")]}, "lvm/lockspaces warning not started", "vgchange --lockstart vg0"},
		{"a lockspace that lvmlockd lost", nil, tools{"lvmlockctl --info --dump": "info=structs x=1\n", "sanlock client status -D": sanlockStatus + orphanLock}, "lvm/lockspaces error with locks (1), and lvmlockd does not know it", "lvmlockd.adopt"},
		{"a lock that lvmlockd lost", nil, tools{"sanlock client status -D": sanlockStatus + heldLock + orphanLock}, "lvm/lockspaces error ORPHAN", "sanlock client release -r lvm_vg0:lv2:/dev/mapper/vg0-lvmlock:71303168 -O 1 -p $(pidof lvmlockd)"},
		{"lvmlockd that adopts nothing", process(901, "/usr/sbin/lvmlockd", "--foreground"), nil, "lvm/lvmlockd warning without --adopt 1", "ExecStart=/sbin/lvmlockd --foreground --adopt 1"},
		{"one without locks", nil, tools{"lvmlockctl --info --dump": "info=structs x=1\n"}, "lvm/lockspaces error lvmlockd does not know", "sanlock client rem_lockspace -s lvm_vg0:7:/dev/mapper/vg0-lvmlock:0; vgchange"},
		{"a lockspace that sanlock lost", nil, tools{"sanlock client status -D": sanlockStatus[:strings.Index(sanlockStatus, "s lvm_")]}, "lvm/lockspaces error sanlock has lost it", "lvmlockctl --drop vg0"},
		{"lost locks", nil, tools{"lvmlockctl --info --dump": lockspaceOf("vg0", "kill_vg=1")}, "lvm/lockspaces error are lost", "lvmlockctl --drop vg0"},
		{"a lockspace that did not start", nil, tools{"lvmlockctl --info --dump": lockspaceOf("vg0", "create_fail=1")}, "lvm/lockspaces error did not start", "log_dump"},
		{"a lockspace that starts", nil, tools{"lvmlockctl --info --dump": lockspaceOf("vg0", "create_done=0")}, "lvm/lockspaces warning being started", "gets"},
		{"no global lock", nil, tools{"lvmlockctl --info --dump": lockspaceOf("vg0", "sanlock_gl_enabled=0")}, "lvm/lockspaces warning no volume group has the global lock", "--gl-enable vg0"},
		{"two global locks", nil, tools{"lvmlockctl --info --dump": lockspaceOf("vg0", "") + lockspaceOf("vg1", "")}, "lvm/lockspaces error vg0, vg1", "--gl-disable vg1"},
		{"lvmlockd hangs", nil, tools{"lvmlockctl --info --dump": "hangs"}, "lvm/lockspaces unknown pid 7", "journalctl -u lvmlockd"},
		{"no kill command", nil, lvmconfig("/usr/local/bin/flexd lockspace-lost", ""), "lvm/kill-command warning not set", "lockspace-lost"},
		{"another kill command", nil, lvmconfig("/usr/local/bin/flexd lockspace-lost", "/sbin/kill-vg"), "lvm/kill-command warning /sbin/kill-vg", "lockspace-lost"},
		{"a kill command without a path", nil, lvmconfig("/usr/local/bin/flexd", "flexd"), "lvm/kill-command error whole path", "/flexd lockspace-lost"},
		{"a kill command that is missing", nil, lvmconfig("/usr/local/bin/flexd", "/opt/flexd"), "lvm/kill-command error no /opt/flexd", "/flexd lockspace-lost"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			check(t, sharedNode(t, row.files, row.prints), row.want, row.remedy)
		})
	}
}
