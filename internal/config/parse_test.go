package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

func TestEmptyIsDefault(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "---\n", "{}\n", "~\n", "log:\nvolumeGroups:\n"} {
		c, err := Parse("flexd.yaml", []byte(text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if d := cmp.Diff(Default(), c); d != "" {
			t.Errorf("%q (-want +got):\n%s", text, d)
		}
	}
}

func TestCommentedIsDefault(t *testing.T) {
	c, err := Parse("flexd.yaml", []byte(Commented()))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Default(), c); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// The comment of volumeGroups shows a whole entry with its defaults.
func TestCommentedEntry(t *testing.T) {
	entry := "volumeGroups:\n"
	for line := range strings.Lines(Commented()) {
		if strings.HasPrefix(line, "#   ") {
			entry += line[1:]
		}
	}
	c, err := Parse("entry", []byte(entry))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, entry)
	}
	want := defaultGroup()
	want.Name, want.Provider, want.Directory, want.Namespaces = "vg0", "loopdev", "/srv/vg0", []string{"*"}
	if d := cmp.Diff([]VolumeGroup{want}, c.VolumeGroups); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestEverything(t *testing.T) {
	c, err := Parse("flexd.yaml", []byte(`
driver: example.com/disk
nodeName: node-1.example.com
kubeletRoots: [/var/lib/kubelet/, "/data//kubelet"]
runDir: /run/other
stateDir: /var/lib/other
statusGroup: adm
metricsAddress: "[::1]:9809"
lease: 1m
callDeadline: 1m30s
releaseOrphansAfter: 2h
maxChecks: 7
checkMemory: 3GiB
historySize: 2MiB
cgroupDir: /host/sys/fs/cgroup/
log: {format: json, level: debug}
volumeGroups:
- name: vg0
  provider: loopdev
  directory: /srv/vg0/
  volumes: [data-*, 'log?']
  namespaces: []
  create: true
  maxSize: 10GiB
  maxVolumes: 100
  maxTotalSize: 1TiB
  perNamespace: {maxVolumes: 10, maxTotalSize: 100GiB}
  reserve: 0%
  overcommit: true
  mountFlags: [noexec, nosuid]
  deactivate: never
- {name: vg1, provider: loopdev, directory: /srv/vg1, maxSize: 0, namespaces: ["*"]}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Kubelet: Kubelet{Driver: "example.com/disk", NodeName: "node-1.example.com",
			KubeletRoots: []string{"/var/lib/kubelet", "/data/kubelet"}, CgroupDir: "/host/sys/fs/cgroup"},
		Files:  Files{RunDir: "/run/other", StateDir: "/var/lib/other", StatusGroup: "adm", HistorySize: 2 << 20},
		Times:  Times{Lease: time.Minute, CallDeadline: 90 * time.Second, ReleaseOrphansAfter: 2 * time.Hour},
		Checks: Checks{MaxChecks: 7, CheckMemory: 3 << 30},
		Log:    Log{LogFormat: "json", LogLevel: "debug"},

		MetricsAddress: "[::1]:9809",
		VolumeGroups: []VolumeGroup{
			{Name: "vg0", Provider: "loopdev", Directory: "/srv/vg0", ThinPoolWarning: 80, Volumes: []string{"data-*", "log?"},
				Namespaces: []string{}, Create: true, MaxSize: 10 << 30, Limit: Limit{100, 1 << 40}, PerNamespace: Limit{10, 100 << 30}, Overcommit: true, MountFlags: []string{"noexec", "nosuid"}, NeverDeactivate: true},
			{Name: "vg1", Provider: "loopdev", Directory: "/srv/vg1", ThinPoolWarning: 80, Reserve: 10, Volumes: []string{"*"}, Namespaces: []string{"*"}, MountFlags: []string{"nodev"}},
		},
	}
	if d := cmp.Diff(want, c); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	g := c.VG("vg0")
	for name, want := range map[string]bool{"data-1": true, "log1": true, "log": false, "xdata-": false} {
		if g.AllowsVolume(name) != want {
			t.Errorf("AllowsVolume(%q) is not %v", name, want)
		}
	}
	if g.AllowsNamespace("default") || !c.VG("vg1").AllowsNamespace("default") || c.VG("vg2") != nil {
		t.Error("namespaces: [] allows none, [*] all")
	}
}

// Each row has a file and all its errors.
func TestRefused(t *testing.T) {
	group := "volumeGroups:\n- name: vg0\n  provider: loopdev\n  namespaces: ['*']\n  directory: /srv/vg0\n"
	for _, row := range []struct{ about, file, want string }{
		{"unknown key", "drivr: a/b\n", `f:1: drivr: unknown key; did you mean "driver"?`},
		{"unknown key of a group", group + "  volume: ['*']\n", `f:6: volumeGroups[0].volume: unknown key; did you mean "volumes"?`},
		{"other spelling", "run_dir: /run/x\n", `f:1: run_dir: unknown key; did you mean "runDir"?`},
		{"nothing near", "replicas: 3\n", `f:1: replicas: unknown key`},
		{"twice", "lease: 1s\nlease: 2s\n", `f:2: lease: is repeated; it is first in line 1`},
		{"merge key", "<<: {lease: 1s}\n", `f:1: <<: unknown key`},
		{"number for a string", "nodeName: 12\n", `f:1: nodeName: must be a string; YAML reads this as something else, so quote it: "12"`},
		{"list for a string", "nodeName: [a]\n", `f:1: nodeName: must be a string, not a list`},
		{"no value", "namespaces:\nrunDir:\n", "f:1: namespaces: unknown key\nf:2: runDir: has no value; remove the key to use its default"},
		{"no list", group + "  volumes:\n", `f:6: volumeGroups[0].volumes: must be a list, not nothing`},
		{"string for a list", "kubeletRoots: /var/lib/kubelet\n", `f:1: kubeletRoots: must be a list: ["/var/lib/kubelet"]`},
		{"no root", "kubeletRoots: []\n", `f:1: kubeletRoots: must name at least one directory`},
		{"list for the file", "- driver\n", "f:1: must be a mapping (lines of `key: value`), not a list"},
		{"word for the file", "driver\n", "f:1: must be a mapping (lines of `key: value`), not \"driver\""},
		{"relative path", strings.Replace(group, "/srv/vg0", "data", 1), `f:5: volumeGroups[0].directory: must be an absolute path, not "data"`},
		{"root directory", "runDir: /..\n", `f:1: runDir: must not be the root directory`},
		{"no unit", "lease: 30\n", `f:1: lease: must be a duration with its unit, such as 30s or 4m30s, not 30`},
		{"negative", "lease: -1s\n", `f:1: lease: must be longer than 0s, not "-1s"`},
		{"too patient", "callDeadline: 4m31s\n", `f:1: callDeadline: must be at most 4m30s: flexdriver gives up after 5m, and a mount that has begun may need 20s more; not 4m31s`},
		{"a grace that kubelet needs", "releaseOrphansAfter: 1m\n", `f:1: releaseOrphansAfter: must be at least 5m, longer than kubelet's retry interval, or never; not 1m`},
		{"a grace without a unit", "releaseOrphansAfter: 60\n", `f:1: releaseOrphansAfter: must be a duration with its unit, such as 30s or 4m30s, not 60`},
		{"port alone", "metricsAddress: \":9809\"\n", `f:1: metricsAddress: must be an IP address and a port, such as 127.0.0.1:9809, [::1]:9809, or 0.0.0.0:9809 for every address of the node, not ":9809"`},
		{"name for an address", "metricsAddress: localhost:9809\n", `f:1: metricsAddress: must be an IP address and a port, such as 127.0.0.1:9809, [::1]:9809, or 0.0.0.0:9809 for every address of the node, not "localhost:9809"`},
		{"port of root", "metricsAddress: 127.0.0.1:80\n", `f:1: metricsAddress: must have a port of at least 1024, not 80`},
		{"unknown unit", group + "  maxSize: 10X\n", `f:6: volumeGroups[0].maxSize: "10X" is not a size such as 500m, 1.5G or 10Gi`},
		{"no size unit", group + "  maxSize: 1073741824\n", `f:6: volumeGroups[0].maxSize: must be a size with its unit, such as 500m, 10G or 1TiB, not 1073741824`},
		{"huge", group + "  maxSize: 8192PiB\n", `f:6: volumeGroups[0].maxSize: "8192PiB" is too large`},
		{"glob", group + "  volumes: ['a[']\n", `f:6: volumeGroups[0].volumes[0]: must be a pattern (* ? [a-z] and \ are special), not "a["`},
		{"glob of a path", strings.Replace(group, "['*']", "[a/b, '', 'a b']", 1), "f:4: volumeGroups[0].namespaces[0]: must match a plain name, so it cannot contain '/': \"a/b\"\n" +
			"f:4: volumeGroups[0].namespaces[1]: must not be empty; \"*\" means all\nf:4: volumeGroups[0].namespaces[2]: must match a plain name, so it cannot contain spaces: \"a b\""},
		{"not a bool", group + "  create: yes\n", `f:6: volumeGroups[0].create: must be true or false, not "yes"`},
		{"create how large", group + "  create: true\n", "f:2: volumeGroups[0].maxSize: is required with `create: true`: the largest size that a pod may request"},
		{"deactivate", group + "  deactivate: false\n", `f:6: volumeGroups[0].deactivate: must be a string; YAML reads this as something else, so quote it: "false"`},
		{"deactivate word", group + "  deactivate: always\n", `f:6: volumeGroups[0].deactivate: must be auto or never, not "always"`},
		{"nothing of a group", "volumeGroups:\n- create: false\n", "f:2: volumeGroups[0].name: is missing (the volume group that pods name in their option volumegroup)\n" +
			"f:2: volumeGroups[0].namespaces: is missing (the namespaces whose pods may use the volumes: [\"*\"] is every namespace, [] none)"},
		{"no namespaces", strings.Replace(group, "  namespaces: ['*']\n", "", 1), `f:2: volumeGroups[0].namespaces: is missing (the namespaces whose pods may use the volumes: ["*"] is every namespace, [] none)`},
		{"braces", group + "  volumes: ['{namespace}.*', '{pod}-*']\n", `f:6: volumeGroups[0].volumes[1]: may have {namespace} in braces only: "{pod}-*"`},
		{"empty group", "volumeGroups:\n-\n", "f:2: volumeGroups[0]: must be a mapping (lines of `key: value`), not nothing"},
		{"name", strings.Replace(group, "vg0", "'-vg'", 1), `f:2: volumeGroups[0].name: must be a name as LVM allows it (letters, digits and + _ . -, not beginning with '-'), not "-vg"`},
		{"group twice", group + "- name: vg0\n  provider: loopdev\n  namespaces: []\n  directory: /srv/../srv/vg0\n", "f:6: volumeGroups[1].name: \"vg0\" is already volumeGroups[0]\n" +
			"f:9: volumeGroups[1].directory: \"/srv/vg0\" is already that of volumeGroups[0]"},
		{"below kubelet", strings.Replace(group, "/srv/vg0", "/var/lib/kubelet/vg0", 1), `f:5: volumeGroups[0].directory: must not be below kubelet's own directory /var/lib/kubelet`},
		{"above kubelet", strings.Replace(group, "/srv/vg0", "/var/lib", 1), `f:5: volumeGroups[0].directory: must not hold kubelet's own directory /var/lib/kubelet`},
		{"in the run directory", strings.Replace(group, "/srv/vg0", "/run/flexd", 1), `f:5: volumeGroups[0].directory: must not lie in the runDir (/run/flexd)`},
		{"one directory for both", "runDir: /var/lib/flexd\n", `f: stateDir: must not be the runDir (/var/lib/flexd): that one is emptied by a reboot`},
		{"state in run", "stateDir: /run/flexd/state\n", `f:1: stateDir: must not lie below the runDir (/run/flexd): that one is emptied by a reboot`},
		{"state in kubelet", "stateDir: /var/lib/kubelet/flexd\n", `f:1: stateDir: must not be below kubelet's own directory /var/lib/kubelet`},
		{"long path of a socket", "runDir: /" + strings.Repeat("x", 95) + "\n", `f:1: runDir: must have at most 95 bytes, since a socket's path has at most 107; not "/` + strings.Repeat("x", 95) + `"`},
		{"level", "log: {level: warn}\n", `f:1: log.level: must be trace, debug, info, warning or error, not "warn"`},
		{"second document", "lease: 1s\n---\nlease: 2s\n", `f:2: a second document begins here; flexd reads exactly one`},
		{"anchor", "lease: &a 1s\n", `f:1: lease: has an anchor (&a); write the value out where it is needed`},
		{"alias", "runDir: &a /run/x\nstateDir: *a\n", "f:1: runDir: has an anchor (&a); write the value out where it is needed\nf:2: stateDir: is an alias (*a); write the value out"},
		{"key that is a list", "? [a]\n: b\n", `f:1: has a key that is not a word`},
		{"tag", "lease: !duration 1s\n", `f:1: lease: must be a duration with its unit, such as 30s or 4m30s, not 1s`},
		{"tab", "log:\n\tformat: text\n", `f:2: not valid YAML: found character that cannot start any token`},
		{"all at once, by line", "log: {colour: on}\nlease: soon\nrunDir: run\n", "f:1: log.colour: unknown key\n" +
			"f:2: lease: must be a duration with its unit, such as 30s or 4m30s, not \"soon\"\nf:3: runDir: must be an absolute path, not \"run\""},
	} {
		t.Run(row.about, func(t *testing.T) {
			_, err := Parse("f", []byte(row.file))
			if err == nil {
				t.Fatal("not refused")
			}
			if d := cmp.Diff(row.want, err.Error()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestAliasBomb(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		p := string(c - 1)
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+p+",", 9) + "]\n"
	}
	start := time.Now()
	if _, err := Parse("bomb", []byte(bomb)); err == nil || time.Since(start) > 20*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := Load("/dev/zero"); err == nil || err.Error() != "/dev/zero: larger than 1 MiB; is this the configuration?" {
		t.Errorf("huge: %v", err)
	}
	if _, err := Load("../../examples/flexd.yaml"); err != nil {
		t.Errorf("the example: %v", err)
	}
}

// An accepted file has the properties that Config documents; the errors of a refused one name lines and keys.
// At most one of two namespaces may use a volume.
func FuzzNamespaces(f *testing.F) {
	f.Add("a", "a-b", "a-b-c", "-*")
	f.Add("team", "am", "team.am.x", ".*")
	f.Fuzz(func(t *testing.T, a, b, lv, rest string) {
		g := &VolumeGroup{Namespaces: []string{"*"}, Volumes: []string{namespacePlaceholder + rest}}
		if len(lv) > 127 || len(rest) > 20 || strings.Contains(rest, namespacePlaceholder) || a == b { // longer names are no LVs
			return
		}
		ofA, ofB := g.AllowsVolumeFor(a, lv), g.AllowsVolumeFor(b, lv)
		if ofA && ofB || ofA && !strings.HasPrefix(lv, a) {
			t.Errorf("%s: %s may use %q: %v; %s: %v", g.Volumes, a, lv, ofA, b, ofB)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(Commented()))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("{volumeGroups: [{name: a, namespaces: [a]}]}"))
	f.Add([]byte("{volumeGroups: [{name: a, provider: loopdev, directory: /d, create: true, maxSize: 1KiB, namespaces: [a]}]}"))
	f.Add([]byte("? - a\n  - {b: !!binary eA==}\n: |\n  text\n--- >\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data)
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, "f:") {
					t.Fatalf("a line that does not name the file: %q", line)
				}
			}
			return
		}
		for _, p := range append([]string{c.RunDir, c.StateDir}, c.KubeletRoots...) {
			if !filepath.IsAbs(p) || filepath.Clean(p) != p {
				t.Fatalf("path %q", p)
			}
		}
		if c.Lease <= 0 || c.CallDeadline <= 0 || c.CallDeadline > callLimit || c.NodeName == "" {
			t.Fatalf("%+v", c)
		}
		for _, g := range c.VolumeGroups {
			if g.Name == "" || g.Provider == "" || (g.Provider == "loopdev") != filepath.IsAbs(g.Directory) || g.MaxSize < 0 || g.Create && g.MaxSize == 0 {
				t.Fatalf("%+v", g)
			}
		}
		var any yaml.Node
		if yaml.Unmarshal(data, &any) != nil {
			t.Fatal("accepted what is not YAML")
		}
	})
}

// Ensure that the keys of LVM are read, and that invalid values are refused.
func TestLVM(t *testing.T) {
	const head = "volumeGroups:\n- name: vg0\n  namespaces: [a]\n  provider: lvm\n"
	c, err := Parse("f", []byte("lvmFilter: ['r|^/dev/sdz$|']\n"+head+"  thinPoolWarning: 65%\n  layout: {type: raid10, stripes: 2, stripeSize: 64KiB, mirrors: 1, pvTag: fast}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if want := (Layout{Type: "raid10", Stripes: 2, StripeSize: 64 << 10, Mirrors: 1, PVTag: "fast"}); c.VolumeGroups[0].Layout != want || c.VolumeGroups[0].ThinPoolWarning != 65 || len(c.LVMFilter) != 1 {
		t.Errorf("got %+v", c)
	}
	if c, err := Parse("f", []byte(head+"  zero: all\n")); err != nil || !c.VolumeGroups[0].ZeroAll {
		t.Errorf("got %+v %v", c, err)
	}
	if c, err := Parse("f", []byte(head+"  thinPool: pool\n")); err != nil || c.VolumeGroups[0].ThinPool != "pool" || c.LVMFilter != nil {
		t.Errorf("got %+v %v", c, err)
	}
	if c, err := Parse("f", []byte(head+"  thinPool: pool\n  overcommit: false\n  reserve: 5%\n")); err != nil || c.VolumeGroups[0].Overcommit || c.VolumeGroups[0].Reserve != 5 {
		t.Errorf("got %+v %v", c, err)
	}
	if c, err := Parse("f", []byte(head+"  thinPool: pool\n")); err != nil || !c.VolumeGroups[0].Overcommit || c.VolumeGroups[0].Reserve != 10 {
		t.Errorf("got %+v %v", c, err)
	}
	for text, key := range map[string]string{
		head + "  reserve: 5%\n":      "volumeGroups[0].reserve: is for the provider loopdev and for a thinPool",
		head + "  overcommit: true\n": "volumeGroups[0].overcommit: is for the provider loopdev and for a thinPool",
		"volumeGroups:\n- {name: v, directory: /srv/v, namespaces: [a], shared: true}\n":            "volumeGroups[0].shared: is for the provider lvm only",
		head + "  shared: true\n  thinPool: p\n":                                                    "volumeGroups[0].thinPool: is not possible with `shared: true`",
		head + "  shared: true\n  deactivate: never\n":                                              "volumeGroups[0].deactivate: must be auto with `shared: true`",
		"volumeGroups:\n- {name: " + strings.Repeat("v", 45) + ", shared: true, namespaces: [a]}\n": "volumeGroups[0].name: must have at most 44 characters with `shared: true`",
		head + "  watchdog: none\n":                                                                 "volumeGroups[0].watchdog: is for a volume group with `shared: true` only",
		head + "  shared: true\n  watchdog: off\n":                                                  "volumeGroups[0].watchdog: must be required or none",
		head + "  thinPool: p\n  reserve: 101%\n":                                                   "volumeGroups[0].reserve: must be a percentage from 0% to 100%",
		head + "  maxVolumes: 0\n":                                                                  "volumeGroups[0].maxVolumes: must be a number from 1 to",
		head + "  perNamespace: {maxVolume: 1}\n":                                                   `volumeGroups[0].perNamespace.maxVolume: unknown key; did you mean "maxVolumes"?`,
		head + "  perNamespace: {maxTotalSize: 5}\n":                                                "volumeGroups[0].perNamespace.maxTotalSize: must be a size with its unit",
		head + "  directory: /srv\n":                                                                "directory",
		head + "  thinPoolWarning: 80\n":                                                            "thinPoolWarning",
		head + "  thinPoolWarning: 0%\n":                                                            "thinPoolWarning",
		head + "  thinPoolWarning: 101%\n":                                                          "thinPoolWarning",
		"volumeGroups:\n- {name: v, provider: loopdev, directory: /srv/v, namespaces: [a], thinPoolWarning: 90%}\n": "thinPoolWarning",
		head + "  zero: none\n": "zero",
		head + "  zero: true\n": "zero",
		"volumeGroups:\n- {name: v, provider: loopdev, directory: /srv/v, namespaces: [a], zero: all}\n": "zero",
		head + "  thinPool: -x\n":                                                                          "thinPool",
		head + "  thinPool: p\n  layout: {type: linear}\n":                                                 "layout",
		head + "  layout: {type: mirror}\n":                                                                "type",
		head + "  layout: {stripes: 2}\n":                                                                  "stripes",
		head + "  layout: {type: striped, stripes: 0}\n":                                                   "stripes",
		head + "  layout: {type: striped, stripeSize: 5KiB}\n":                                             "stripeSize",
		head + "  layout: {mirrors: 1}\n":                                                                  "mirrors",
		head + "  layout: {type: raid10, mirrors: 2}\n":                                                    "layout.mirrors: must be 1",
		head + "  layout: {type: raid10, stripes: 1}\n":                                                    "layout.stripes: must be at least 2",
		head + "  layout: {type: raid6, stripes: 2}\n":                                                     "layout.stripes: must be at least 3",
		head + "  layout: {type: raid5, stripes: 1}\n":                                                     "layout.stripes: must be at least 2",
		head + "  layout: {type: raid0, stripes: 1}\n":                                                     "layout.stripes: must be at least 2",
		"lvmFilter: ['/dev/sdz']\n":                                                                        "lvmFilter",
		"volumeGroups:\n- {name: v, provider: loopdev, directory: /srv/v, namespaces: [a], thinPool: p}\n": "thinPool",
	} {
		if _, err := Parse("f", []byte(text)); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

// Each volume belongs to at most one namespace.
func TestNamespaceInVolumes(t *testing.T) {
	g := VolumeGroup{Namespaces: []string{"team", "team-*", "a"}, Volumes: []string{"{namespace}-*", "shared", "{namespace}.*"}}
	for _, row := range []struct {
		ns, lv string
		want   bool
	}{
		{"a", "a-data", true},
		{"a", "a-my-data", true}, // a-my may not use the group
		{"a", "team-data", false},
		{"a", "shared", true},
		{"team", "team-data", true},
		{"team", "team-b-data", false},
		{"team-b", "team-b-data", true},
		{"team-b", "team-data", false},
		{"team", "team-b.data", false},
		{"team-b", "team-b.my-data", true},
		{"team", "team.my-data", true},
		{"*", "team-data", false},
		{"t*", "team-data", false},
		{"[a-z]", "a-data", false},
		{"", "-data", false},
		{"", "team-data", false},
		{"team", "{namespace}-data", false},
	} {
		if got := g.AllowsVolumeFor(row.ns, row.lv); got != row.want {
			t.Errorf("%q and %q: %v", row.ns, row.lv, got)
		}
	}
	for lv, want := range map[string]bool{"a-x": true, "b-x": false, "team-z-x": true, "shared": true, "x": false} {
		if g.AllowsVolume(lv) != want {
			t.Errorf("%q: not %v", lv, want)
		}
	}
	if !g.Restricted() || !(&VolumeGroup{Namespaces: []string{"*"}, Volumes: g.Volumes}).Restricted() || (&VolumeGroup{Namespaces: []string{"*"}, Volumes: []string{"*"}}).Restricted() {
		t.Error("restricted")
	}
}

// A group with a directory has the provider loopdev, any other lvm.
func TestDefaultProvider(t *testing.T) {
	c, err := Parse("f", []byte("volumeGroups:\n- {name: a, namespaces: [], directory: /srv/a}\n- {name: b, namespaces: []}\n- {name: c, namespaces: [], provider: lvm}\n"))
	if err != nil || c.VolumeGroups[0].Provider != "loopdev" || c.VolumeGroups[1].Provider != "lvm" || c.VolumeGroups[2].Provider != "lvm" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := Parse("f", []byte("volumeGroups:\n- {name: b, namespaces: [], thinPool: p, directory: /x}\n")); err == nil {
		t.Error("a thin pool of files")
	}
	if _, err := Parse("f", []byte("volumeGroups:\n- {name: b, namespaces: [], provider: loopdev}\n")); err == nil || !strings.Contains(err.Error(), "directory: is missing") {
		t.Error(err)
	}
}
