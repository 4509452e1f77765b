package doctor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/procfs"
)

// A group is a volume group, as LVM reports it.
type group struct {
	Name    string `json:"vg_name"`
	Attr    string `json:"vg_attr"`
	Lock    string `json:"vg_lock_type"`
	Missing string `json:"vg_missing_pv_count"`
}

// plainOutput overrides settings of the host's lvm.conf that add text to a command's output.
const plainOutput = `log{prefix="" command_names=0 report_command_log=0}`

// readGroups reports the groups without locks: it does not wait for a command that hangs.
func (n *node) readGroups() ([]group, error) {
	res, err := n.lvm("vgs", "--config", plainOutput, "--readonly", "--shared", "--reportformat", "json", "-o", "vg_name,vg_attr,vg_lock_type,vg_missing_pv_count")
	if err != nil {
		return nil, err
	}
	var r struct {
		Report []struct {
			VG []group `json:"vg"`
		} `json:"report"`
	}
	if err := json.Unmarshal([]byte(res), &r); err != nil || len(r.Report) == 0 {
		return nil, fmt.Errorf("the report of vgs does not parse: %v", err)
	}
	return r.Report[0].VG, nil
}

// readLVMSettings returns the settings in force, as LVM writes them: key=value.
func (n *node) readLVMSettings() (map[string]string, error) {
	out, err := n.lvm("lvmconfig", "--typeconfig", "full", "devices", "activation", "global", "local")
	settings := map[string]string{}
	for line := range strings.Lines(out) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			settings[key] = value
		}
	}
	return settings, err
}

func (n *node) groups() (all []finding) {
	names := n.lvmGroups()
	if len(names) == 0 {
		return skipped("no group of LVM is configured")
	}
	there, err := n.vgs()
	if err != nil {
		return []finding{unknown("the volume groups cannot be read: "+err.Error(), "vgs", "a disk that hangs: dmesg | tail")}
	}
	// unhidden returns the command that shows what LVM would see without its settings.
	unhidden := func(list, what string) string {
		return list + " --devicesfile '' --config 'devices{filter=[\"a|.*|\"]}' " + what + " (shows whether the devices file or a filter hides its disks, see lvm/devices)"
	}
	var fine []string
	for _, name := range names {
		var found []group
		for _, g := range there {
			if g.Name == name {
				found = append(found, g)
			}
		}
		switch g := append(found, group{})[0]; {
		case len(found) == 0:
			all = append(all, failed("LVM does not see a volume group "+name,
				"vgs; pvs -a (see whether it has another name)",
				unhidden("vgs", name),
				"remove "+name+" from volumeGroups in "+n.ConfigPath))
		case len(found) > 1:
			all = append(all, failed(fmt.Sprintf("%d volume groups are named %s", len(found), name), "vgs -o vg_name,vg_uuid,pv_name", "vgrename the copy by its uuid"))
		case g.Missing != "" && g.Missing != "0":
			all = append(all, failed(fmt.Sprintf("volume group %s has %s missing disks", name, g.Missing), "pvs; lvs -a -o +devices "+name,
				unhidden("pvs", "-S vg_name="+name), "reconnect the disks"))
		case strings.Contains(g.Attr, "x"):
			all = append(all, failed("volume group "+name+" is exported", "vgimport "+name+" (if no other machine uses it)"))
		case strings.HasPrefix(g.Attr, "r"):
			all = append(all, warning("volume group "+name+" is read-only: flexd cannot create or extend volumes",
				"vgcfgbackup -f FILE "+name+"; add \"WRITE\" to the status of the group in FILE; vgcfgrestore -f FILE "+name))
		default:
			fine = append(fine, name)
		}
	}
	if len(fine) > 0 {
		all = append(all, well("LVM sees %s", strings.Join(fine, ", ")))
	}
	return all
}

func (n *node) devices() (all []finding) {
	if len(n.lvmGroups()) == 0 {
		return skipped("no group of LVM is configured")
	}
	s, err := n.lvmSet()
	if err != nil {
		return []finding{unknown("LVM's configuration cannot be read: "+err.Error(), "lvmconfig --validate")}
	}
	evidence := fmt.Sprintf("filter=%s, global_filter=%s", s["filter"], s["global_filter"])
	file := "/etc/lvm/devices/" + strings.Trim(s["devicesfile"], `"`)
	if s["use_devicesfile"] == "1" && exists(n.Root+file) {
		text, _ := kubelet.ReadFile(n.Root + file)
		evidence = fmt.Sprintf("%s lists %d disks, and LVM ignores all filters and other disks", file, strings.Count(text, "\nIDTYPE="))
		if n.Config.LVMFilter != nil {
			all = append(all, warning(evidence+": lvmFilter of "+n.ConfigPath+" has no effect", "lvmdevices (lists them); lvmdevices --adddev DISK", "remove lvmFilter from "+n.ConfigPath))
		}
	}
	if list := s["volume_list"]; list != "" {
		for _, name := range n.lvmGroups() {
			if !strings.Contains(list, `"`+name+`"`) && !strings.Contains(list, `"@`) {
				all = append(all, failed(fmt.Sprintf("activation/volume_list=%s does not have %s: its volumes cannot be activated", list, name), fmt.Sprintf("add %q to volume_list in /etc/lvm/lvm.conf", name)))
			}
		}
	}
	for _, disk := range n.uncounted() {
		all = append(all, warning("the kernel counts no requests to "+disk+" (queue/iostats is 0): while it hangs, LVM's commands in other groups hang, too",
			"echo 1 > /sys/block/"+disk+"/queue/iostats", "grep -r iostats /etc/udev/rules.d /usr/lib/udev/rules.d (finds the rule that sets it to 0)"))
	}
	return append(all, well("%s", evidence))
}

// uncounted returns the disks with queue/iostats=0, except those with NVMe multipath: in Linux 6.1 only
// their paths count requests.
func (n *node) uncounted() (names []string) {
	all, _ := filepath.Glob(n.Root + "/sys/block/*/device") // no device-mapper, which counts
	for _, device := range all {
		dir := filepath.Dir(device)
		target, _ := os.Readlink(device)
		value, _ := kubelet.ReadFile(dir + "/queue/iostats")
		if strings.TrimSpace(value) == "0" && !strings.HasPrefix(filepath.Base(target), "nvme-subsys") {
			names = append(names, filepath.Base(dir))
		}
	}
	return names
}

// daemons returns the processes of the node itself with that name.
func (n *node) daemons(name string) ([]procfs.Details, error) {
	all, err := procfs.Named(n.Root, name)
	return slices.DeleteFunc(all, func(d procfs.Details) bool { return d.Foreign != "" && d.Foreign != procfs.Unreadable }), err
}

// pools returns the configured thin pools.
func (n *node) pools() (names []string) {
	for _, g := range n.Config.VolumeGroups {
		if g.ThinPool != "" {
			names = append(names, g.Name+"/"+g.ThinPool)
		}
	}
	return names
}

func (n *node) thinPools() []finding {
	pools := n.pools()
	if len(pools) == 0 {
		return skipped("no thin pool is configured")
	}
	s, err := n.lvmSet()
	if err != nil {
		return []finding{unknown("LVM's configuration cannot be read: " + err.Error())}
	}
	list, limit := strings.Join(pools, ", "), s["thin_pool_autoextend_threshold"]
	if limit == "100" || limit == "" {
		return []finding{well("%s: LVM does not extend pools (thin_pool_autoextend_threshold=100); flexd warns when one fills up", list)}
	}
	dmeventd, err := n.daemons("dmeventd")
	if err == nil && (len(dmeventd) == 0 || s["monitoring"] == "0") {
		return []finding{warning(fmt.Sprintf("%s: LVM is to extend pools at %s %%, but dmeventd does not run (monitoring=%s)", list, limit, s["monitoring"]), "systemctl enable --now lvm2-monitor", "lvchange --monitor y "+pools[0])}
	}
	return []finding{well("%s: dmeventd extends pools at %s %%", list, limit)}
}
