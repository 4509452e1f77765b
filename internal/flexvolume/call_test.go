package flexvolume

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

const (
	globalDir = "/var/lib/kubelet/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/pv1"
	podDir    = "/var/lib/kubelet/pods/uid-a/volumes/flexd~lvm/pv1"
)

func TestParse(t *testing.T) {
	o := blob(keyName, "pv1")
	want, err := ParseOptions(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want Call
	}{
		{[]string{"init"}, Call{}},
		{[]string{"getvolumename", `{"kubernetes.io/pvOrVolumeName":"pv1"}`}, Call{Name: "pv1", Options: Options{Name: "pv1"}}},
		{[]string{"attach", o, "node1"}, Call{Node: "node1", Name: "pv1", Options: want}},
		{[]string{"detach", "pv1", "node1"}, Call{Node: "node1", Name: "pv1"}},
		{[]string{"waitforattach", "/dev/x", o}, Call{Name: "pv1", Options: want}},
		{[]string{"waitforattach", "", o}, Call{Name: "pv1", Options: want}},
		{[]string{"isattached", o, "node1"}, Call{Node: "node1", Name: "pv1", Options: want}},
		{[]string{"isattached", "node1", o}, Call{Node: "node1", Name: "pv1", Options: want}},
		{[]string{"mountdevice", globalDir, "/dev/x", o}, Call{Dir: globalDir, Name: "pv1", Options: want}},
		{[]string{"mount", podDir, o}, Call{Dir: podDir, Name: "pv1", Options: want}},
		{[]string{"unmount", podDir}, Call{Dir: podDir}},
		{[]string{"unmountdevice", globalDir}, Call{Dir: globalDir}},
		{[]string{"expandvolume", o, globalDir, "2147483648", "1073741824"}, Call{Dir: globalDir, Name: "pv1", Options: want, NewSize: 2 << 30}},
		{[]string{"expandfs", o, "", podDir, "2147483648", "0"}, Call{Dir: podDir, Name: "pv1", Options: want, NewSize: 2 << 30}},
	} {
		tt.want.Verb = tt.args[0]
		got, err := Parse(tt.args[0], tt.args[1:])
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%q: got %+v, %v\nwant %+v", tt.args, got, err, tt.want)
		}
		for _, n := range []int{len(tt.args) - 1, len(tt.args) + 1} { // one too few, one too many
			args := append(append([]string{}, tt.args...), "{}")[:n]
			if len(args) == 0 {
				continue
			}
			if _, err := Parse(args[0], args[1:]); err == nil || !strings.Contains(err.Error(), " arguments, got ") {
				t.Errorf("%q: got %v", args, err)
			}
		}
	}
}

func TestParseTrouble(t *testing.T) {
	o := blob()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"mount", "", o}, "argument 1 of mount (directory): empty"},
		{[]string{"mount", "/", o}, `argument 1 of mount (directory): "/" is not a clean path below /`},
		{[]string{"mount", "var/x", o}, `argument 1 of mount (directory): "var/x" is not absolute`},
		{[]string{"mount", o, "/var/x"}, `argument 1 of mount is a JSON object: the arguments are in another order`},
		{[]string{"expandfs", o, "/dev/x", "/var/x", o, o}, `argument 4 of expandfs is a JSON object: the arguments are in another order`},
		{[]string{"mount", "-x", o}, `argument 1 of mount (directory): "-x" is not absolute`},
		{[]string{"mount", "/var/../etc", o}, `argument 1 of mount (directory): "/var/../etc" is not a clean path below /`},
		{[]string{"mount", "/var/..", o}, `argument 1 of mount (directory): "/var/.." is not a clean path below /`},
		{[]string{"mount", "/var//x", o}, `argument 1 of mount (directory): "/var//x" is not a clean path below /`},
		{[]string{"mount", "/var/x/", o}, `argument 1 of mount (directory): "/var/x/" is not a clean path below /`},
		{[]string{"unmount", "/var/x\x00y"}, `argument 1 of unmount (directory): "/var/x\x00y" holds control characters or invalid UTF-8`},
		{[]string{"unmount", "/var/x\ny"}, `argument 1 of unmount (directory): "/var/x\ny" holds control characters or invalid UTF-8`},
		{[]string{"unmount", "/\xff"}, `argument 1 of unmount (directory): "/\xff" holds control characters or invalid UTF-8`},
		{[]string{"unmountdevice", "/" + strings.Repeat("x", 4095)}, "argument 1 of unmountdevice (directory): longer than 4095 bytes"},
		{[]string{"waitforattach", "/dev/x\n", o}, "argument 1 of waitforattach (device): not a device path"},
		{[]string{"attach", o, ""}, "argument 2 of attach (node name): not a node name"},
		{[]string{"attach", o, "a/b"}, "argument 2 of attach (node name): not a node name"},
		{[]string{"detach", "..", "n"}, "argument 1 of detach (volume name): not a volume name"},
		{[]string{"expandfs", o, "", podDir, "-1", "0"}, `argument 4 of expandfs (new size): "-1" is not a number of bytes`},
		{[]string{"expandfs", o, "", podDir, "1", "1g"}, `argument 5 of expandfs (old size): "1g" is not a number of bytes`},
		{[]string{"expandfs", o, "", podDir, "9223372036854775808", "1"}, `argument 4 of expandfs (new size): "9223372036854775808" is not a number of bytes`},
		{[]string{"expandfs", o, "", podDir, "9223372036854775807", "1"}, `argument 4 of expandfs (new size): "9223372036854775807" is too large`},
		{[]string{"expandfs", o, "", podDir, "", "1"}, `argument 4 of expandfs (new size): "" is not a number of bytes`},
		{[]string{"mount", podDir, "{"}, "options: not a JSON string at byte 1"},
		{[]string{"mount", podDir, `{"volumeID":"lv"}`}, "option volumegroup: missing"},
		{[]string{"attach", `{"volumegroup":"vg"}`, "n"}, "option volumeID: missing"},
		{[]string{"mountdevice", globalDir, "", `{}`}, "option volumegroup: missing"},
		{[]string{"isattached", "a", "b"}, "options: not a JSON object at byte 0"},
	} {
		if _, err := Parse(tt.args[0], tt.args[1:]); err == nil || err.Error() != tt.want {
			t.Errorf("%.80q: got %v\nwant %s", tt.args, err, tt.want)
		}
	}
	for _, verb := range []string{"", "Mount", "mount ", "umount", "version", "--help"} {
		if _, err := Parse(verb, nil); !errors.Is(err, ErrVerb) {
			t.Errorf("%q: got %v", verb, err)
		}
	}
}
