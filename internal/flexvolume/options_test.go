package flexvolume

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// blob returns kubelet's JSON object of the pairs and a volume.
func blob(pairs ...string) string {
	m := map[string]string{KeyVG: "vg", KeyLV: "lv"}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestParseOptions(t *testing.T) {
	all := `{"kubernetes.io/fsType":"xfs","kubernetes.io/mounterArgs.FsGroup":"1234","kubernetes.io/pod.name":"a",` +
		`"kubernetes.io/pod.namespace":"ns","kubernetes.io/pod.uid":"uid-a","kubernetes.io/pvOrVolumeName":"pv1",` +
		`"kubernetes.io/readwrite":"ro","kubernetes.io/secret/password":"c2VjcmV0","kubernetes.io/serviceAccount.name":"sa",` +
		`"kubernetes.io/some.later.key":"\u003cx\u003e","mkfsOptions":"-m reflink=1","mountOptions":"wsync,noatime,nodev,inode64,wsync",` +
		`"size":"100m","volumeID":"vol-1","volumegroup":"kubevg"}`
	for _, tt := range []struct {
		name, blob string
		want       Options
	}{
		{"all that kubelet sends to mount", all, Options{
			VG: "kubevg", LV: "vol-1", Size: 100 << 20, FSType: "xfs", ReadOnly: true, Name: "pv1",
			Pod:         Pod{Name: "a", Namespace: "ns", UID: "uid-a"},
			MkfsOptions: []string{"-m", "reflink=1"}, Attrs: []string{"noatime", "nodev"}, Super: []string{"inode64", "wsync"},
		}},
		{"a reconstructed spec", `{"kubernetes.io/fsType":"","kubernetes.io/pvOrVolumeName":"v1","kubernetes.io/readwrite":"rw"}`, Options{Name: "v1"}},
		{"nothing", ` { } `, Options{}},
		{"the old key of fsGroup", blob("kubernetes.io/fsGroup", "7"), Options{VG: "vg", LV: "lv"}},
		{"both keys of fsGroup", blob("kubernetes.io/fsGroup", "7", "kubernetes.io/mounterArgs.FsGroup", "8"), Options{VG: "vg", LV: "lv"}},
		{"ro by mountOptions", blob("mountOptions", "ro", "kubernetes.io/readwrite", "rw"), Options{VG: "vg", LV: "lv", ReadOnly: true}},
		{"rw by mountOptions is no more than kubelet allows", blob("mountOptions", "rw", "kubernetes.io/readwrite", "ro"), Options{VG: "vg", LV: "lv", ReadOnly: true}},
		{"empty options are not given", blob("size", "", "mkfsOptions", "", "mountOptions", ""), Options{VG: "vg", LV: "lv"}},
		{"escapes", `{"volumegroup":"v\u0067","volumeID":"l\u0076"}`, Options{VG: "vg", LV: "lv"}},
		{"a surrogate pair in a secret", `{"kubernetes.io/secret/k":"\ud83d\ude00"}`, Options{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseOptions(tt.blob)
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, tt.want)
			}
		})
	}
}

// secret is a value that must appear nowhere.
const secret = "c2VjcmV0LXZhbHVl"

func TestParseOptionsTrouble(t *testing.T) {
	for _, tt := range []struct{ name, blob, want string }{
		{"empty", "", "options: not a JSON object at byte 0"},
		{"not JSON", "hello", "options: not a JSON object at byte 0"},
		{"an array", `["a"]`, "options: not a JSON object at byte 0"},
		{"a string", `"a"`, "options: not a JSON object at byte 0"},
		{"null", `null`, "options: not a JSON object at byte 0"},
		{"cut off", `{"volumegroup":"vg"`, `options: the JSON object is cut off or malformed after the key "volumegroup" at byte 19`},
		{"cut off in a value", `{"volumegroup":"v`, "option volumegroup: the JSON string is cut off at byte 17"},
		{"two values", `{} {}`, "options: text after the JSON value at byte 3"},
		{"a trailing comma", `{"size":"1g",}`, "options: not a JSON string at byte 13"},
		{"a BOM", "\ufeff{}", "options: not a JSON object at byte 0"},
		{"a key twice", `{"size":"1g","size":"2g"}`, `options: the key "size" is given twice`},
		{"a key twice, once escaped", `{"size":"1g","siz\u0065":"2g"}`, `options: the key "size" is given twice`},
		{"a secret twice", `{"kubernetes.io/secret/a":"` + secret + `","kubernetes.io/secret/a":"` + secret + `"}`, `options: the key "kubernetes.io/secret/a" is given twice`},
		{"a number", `{"size":100}`, "option size: its value is not a string"},
		{"a bool", `{"volumeID":true}`, "option volumeID: its value is not a string"},
		{"null value", `{"volumeID":null}`, "option volumeID: its value is not a string"},
		{"nested", `{"mountOptions":{"ro":"1"}}`, "option mountOptions: its value is not a string"},
		{"nested array", `{"mkfsOptions":["-m","0"]}`, "option mkfsOptions: its value is not a string"},
		{"a secret that is no string", `{"kubernetes.io/secret/a":["` + secret + `"]}`, "option kubernetes.io/secret/a: malformed"},
		{"invalid UTF-8 in a value", "{\"size\":\"\xff\"}", "option size: invalid UTF-8 at byte 10"},
		{"invalid UTF-8 in a secret", "{\"kubernetes.io/secret/a\":\"" + secret + "\xff\"}", "option kubernetes.io/secret/a: malformed"},
		{"invalid UTF-8 in a key", "{\"\xff\":\"\"}", "options: invalid UTF-8 at byte 3"},
		{"half a surrogate pair", `{"size":"\ud83d"}`, "option size: a bad \\u escape in a JSON string at byte 15"},
		{"a newline in a string", "{\"size\":\"1\n\"}", "option size: a control character in a JSON string at byte 10"},
		{"10 MiB", `{"size":"` + strings.Repeat("1", 10<<20) + `"}`, "options: longer than 1 MiB"},
		{"an unknown key", blob("vg", secret), "option vg: unknown; flexd knows volumegroup, volumeID, size, mkfsOptions, mountOptions"},
		{"a wrong case", blob("VolumeGroup", secret), `option VolumeGroup: unknown; flexd knows volumegroup, volumeID, size, mkfsOptions, mountOptions; did you mean "volumegroup"?`},
		{"an unknown key that is a trap", blob("a\nb", secret), `option "a\nb": unknown; flexd knows volumegroup, volumeID, size, mkfsOptions, mountOptions`},
		{"an unknown filesystem", blob("kubernetes.io/fsType", "ntfs"), `option kubernetes.io/fsType: "ntfs" is not one of ext4, xfs, btrfs`},
		{"a filesystem with an option", blob("kubernetes.io/fsType", "ext4 -d /"), `option kubernetes.io/fsType: "ext4 -d /" is not one of ext4, xfs, btrfs`},
		{"a wrong readwrite", blob("kubernetes.io/readwrite", "yes"), `option kubernetes.io/readwrite: "yes" is neither ro nor rw`},
		{"a wrong group", blob("kubernetes.io/mounterArgs.FsGroup", "-1"), `option kubernetes.io/mounterArgs.FsGroup: "-1" is not a group id`},
		{"a wrong old group", blob("kubernetes.io/fsGroup", "root"), `option kubernetes.io/fsGroup: "root" is not a group id`},
		{"a volume name with a slash", blob("kubernetes.io/pvOrVolumeName", "../x"), `option kubernetes.io/pvOrVolumeName: "../x" is not a name`},
		{"a namespace with a newline", blob("kubernetes.io/pod.namespace", "a\nb"), `option kubernetes.io/pod.namespace: "a\nb" is not a name`},
		{"a bare size", blob("size", "100"), `option size: "100" has no unit; write "100m" for MiB or "100b" for bytes`},
		{"a flag of mkfs that is not allowed", blob("mkfsOptions", "-F"), `option mkfsOptions: "-F" is not allowed for ext4`},
		{"another filesystem's flag of mkfs", blob("kubernetes.io/fsType", "xfs", "mkfsOptions", "-m 0"), `option mkfsOptions: "-m 0" is not allowed for xfs`},
		{"a mount option that is not allowed", blob("mountOptions", "loop"), `option mountOptions: "loop" is not allowed for ext4`},
		{"a typo in a mount option", blob("mountOptions", "notime"), `option mountOptions: "notime" is not allowed for ext4; did you mean "noatime"?`},
		{"a value of a mount option", blob("mountOptions", "commit=x"), `option mountOptions: "commit=x" is not allowed for ext4`},
		{"another filesystem's mount option", blob("kubernetes.io/fsType", "btrfs", "mountOptions", "wsync"), `option mountOptions: "wsync" is not allowed for btrfs`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseOptions(tt.blob)
			names := Options{VG: got.VG, LV: got.LV, Name: got.Name, Pod: got.Pod}
			if err == nil || err.Error() != tt.want || !reflect.DeepEqual(got, names) {
				t.Errorf("got %+v, %v\nwant %s", got, err, tt.want)
			}
			for _, name := range []string{got.VG, got.LV, got.Name, got.Pod.Name, got.Pod.Namespace} {
				if strings.ContainsAny(name, "/\n\x00") {
					t.Errorf("an invalid name: %q", name)
				}
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error contains a secret: %v", err)
			}
		})
	}
}

// A refused call still has the valid names of its volume and pod, in any order of the keys.
func TestNamesOfRefused(t *testing.T) {
	got, err := ParseOptions(`{"size":"100","volumegroup":"vg","kubernetes.io/pod.name":"web","bad":"x","volumeID":"lv","kubernetes.io/pod.namespace":"../x"}`)
	if want := (Options{VG: "vg", LV: "lv", Pod: Pod{Name: "web"}}); err == nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// Of the names that pod authors may write only LVM's own are accepted.
func TestNames(t *testing.T) {
	for _, name := range []string{"a", "vol-1", "A_b.c+d", "_x", ".x", "..x", "x-", strings.Repeat("n", 127), "mysnapshot", "pv_move"} {
		if o, err := ParseOptions(blob(KeyVG, name, KeyLV, name)); err != nil || o.LV != name || o.VG != name {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
	bad := []string{
		"", "/", "a/b", "../x", "/etc/passwd", ".", "..", "-", "-a", "--help", "a b", " a", "a\tb", "a\nb", "a\x00b", "a\"b", "a'b",
		"a`b", "a$b", "a;b", "a|b", "a&b", "a\\b", "a*b", "a@b", "a:b", "a=b", "a,b", "a%b", "ä", "名", "\u202ea", "a\u00a0b",
		strings.Repeat("n", 128), strings.Repeat("n", 4096), strings.Repeat("../", 1400),
	}
	for _, name := range bad {
		for _, key := range []string{KeyVG, KeyLV} {
			_, err := ParseOptions(blob(key, name))
			if err == nil || !strings.HasPrefix(err.Error(), "option "+key+": ") || len(err.Error()) > 300 || !IsPrintable(err.Error()) {
				t.Errorf("%s=%.40q: got %v", key, name, err)
			}
		}
	}
	hidden := []string{
		"pvmove0", "snapshot0", "snapshot", "lvmlock", "lvol0_pmspare", "pool_tdata", "pool_tmeta", "m_mlog", "m_mimage_0", "r_rimage_1",
		"r_rmeta_0", "c_cdata", "c_cmeta", "c_corig", "c_cvol", "c_cpool", "v_vorigin", "v_vdata", "w_wcorig", "i_imeta", "i_iorig",
	}
	for _, name := range hidden {
		_, err := ParseOptions(blob(KeyLV, name))
		if err == nil || !strings.HasPrefix(err.Error(), "option volumeID: ") {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err := ParseOptions(blob(KeyVG, name)); err != nil { // only LVs are hidden
			t.Errorf("VG %s: %v", name, err)
		}
	}
}
