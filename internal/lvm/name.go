package lvm

import (
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/volume"
)

// checkName applies LVM's rules for names, so that no name is taken for an option or a path.
func checkName(s string) error {
	wrong := strings.ContainsFunc(s, func(r rune) bool { return !isNameRune(r) })
	if s == "" || s == "." || s == ".." || len(s) > 127 || s[0] == '-' || wrong {
		return volume.Errorf(volume.Invalid, "%.140q is not a valid LVM name", s)
	}
	return nil
}

func isNameRune(r rune) bool { return alphanumeric(r) || strings.ContainsRune("+_.-", r) }

// parseDMName parses the name of an LVM device in device-mapper: dashes within the names of
// the group and of the volume are doubled. layer is the suffix of LVM's hidden devices, such as
// "tpool" or "real".
func parseDMName(s string) (name volume.Name, layer string, ok bool) {
	const dash = "\x00" // which no name contains
	parts := strings.Split(strings.ReplaceAll(s, "--", dash), "-")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return volume.Name{}, "", false
	}
	for i, part := range parts {
		parts[i] = strings.ReplaceAll(part, dash, "-")
	}
	if len(parts) == 3 {
		layer = parts[2]
	}
	return volume.Name{VG: parts[0], LV: parts[1]}, layer, true
}

// LVM's uuids are 32 letters and digits, shown in groups of 6-4-4-4-4-4-6.
const uuidLength = 32

// IsUUID reports whether an identity has the form of an LVM volume's, also in the notes of an
// earlier version.
func IsUUID(id volume.UUID) bool {
	_, _, ok := split(id)
	return ok || isUUID(string(id))
}

// identity returns flexd's identity of a volume.
func identity(vg, lv string) volume.UUID { return volume.UUID(vg + "_" + lv) }

func split(id volume.UUID) (vg, lv string, ok bool) {
	vg, lv, _ = strings.Cut(string(id), "_")
	return vg, lv, isUUID(vg) && isUUID(lv)
}

// isUUID reports whether a text has the form of an LVM uuid.
func isUUID(id string) bool {
	s := strings.ReplaceAll(id, "-", "")
	return len(s) == uuidLength && isAlphanumeric(s) && grouped(s) == id
}

// DeviceUUID returns the device-mapper uuid of a volume; "" if it is not LVM's.
func DeviceUUID(id volume.UUID) string {
	if _, _, ok := split(id); !ok {
		return ""
	}
	return dmUUID(id)
}

// dmUUID returns the device-mapper uuid of a volume.
func dmUUID(id volume.UUID) string {
	return "LVM-" + ungrouped.Replace(string(id))
}

var ungrouped = strings.NewReplacer("-", "", "_", "") // made once, as each look uses it

// selection is the expression by which LVM's commands select a volume.
func selection(id volume.UUID) string {
	vg, lv, _ := split(id)
	return "(vg_uuid=" + vg + " && lv_uuid=" + lv + ")"
}

// parseDMUUID returns the volume of a device. Hidden devices, which have a suffix, are not volumes.
func parseDMUUID(s string) (volume.UUID, bool) {
	rest, ok := strings.CutPrefix(s, "LVM-")
	if !ok || len(rest) != 2*uuidLength || !isAlphanumeric(rest) {
		return "", false
	}
	return identity(grouped(rest[:uuidLength]), grouped(rest[uuidLength:])), true
}

// grouped returns a uuid in LVM's form.
func grouped(s string) string {
	return s[:6] + "-" + s[6:10] + "-" + s[10:14] + "-" + s[14:18] + "-" + s[18:22] + "-" + s[22:26] + "-" + s[26:]
}

func isAlphanumeric(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !alphanumeric(r) })
}

func alphanumeric(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
}
