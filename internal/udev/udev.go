// Package udev has the rule that excludes flexd's volumes from udev's own rules. These
// read every block device: the label of a filesystem becomes a link in /dev/disk, and the
// members of a RAID or a volume group are started. The contents of flexd's volumes are
// those of pods, which must not choose such names.
package udev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// file is the rule's name: after the rules that name LVM's devices (10 and 11), and before
// those that read the devices (13). Debian calls them 55, 56 and 60, which keep the flags.
const file = "12-flexd.rules"

// Installed is the file of the rule that flexd installs.
const Installed = "/etc/udev/rules.d/" + file

// dirs are udev's: of equal names it reads the first.
var dirs = []string{"/etc/udev/rules.d", "/run/udev/rules.d", "/usr/local/lib/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d"}

// Links is the directory in which each of LVM's volumes that a pod has used has a link with
// the uuid of its device.
func Links(stateDir string) string { return filepath.Join(stateDir, "udev") }

// Rule returns the rule for the configured directories. The device of an LVM volume is
// recognized by its link, a loop device by the directory of its file.
func Rule(stateDir string, loopDirs []string) (string, error) {
	links := Links(stateDir)
	if strings.ContainsFunc(links, unusual) {
		return "", fmt.Errorf("stateDir %q: a udev rule allows only letters, digits and ./_-+@: in this path", stateDir)
	}
	var loops []string
	for _, dir := range loopDirs {
		loops = append(loops, pattern(dir))
	}
	text := strings.ReplaceAll(head, "LINKS", links)
	if len(loops) > 0 {
		text += fmt.Sprintf("KERNEL==\"loop*\", ATTR{loop/backing_file}==\"%s\", GOTO=\"flexd_volume\"\n", strings.Join(loops, "|"))
	}
	return text + tail, nil
}

// A thick snapshot is a device above the data of its origin ("-real"), whose contents it
// shows. The second half sets what the rules of device-mapper, LVM, systemd, md, btrfs and
// multipath look at.
const (
	head = `# Written by flexd (flexd udev). Other rules do not look into the volumes of pods.
SUBSYSTEM!="block", GOTO="flexd_end"
ACTION=="remove", GOTO="flexd_end"
KERNEL=="dm-*", ATTR{dm/uuid}=="LVM-?*", TEST=="LINKS/$attr{dm/uuid}", GOTO="flexd_volume"
KERNEL=="dm-*", ATTR{dm/uuid}=="LVM-?*", PROGRAM=="/bin/sh -c 'for f in $sys$devpath/slaves/*/dm/uuid; do read u <$$f && [ -f LINKS/$${u%%-real} ] && exit; done; exit 1'", GOTO="flexd_volume"
`
	tail = `GOTO="flexd_end"

LABEL="flexd_volume"
ENV{SYSTEMD_READY}="0"
ENV{DM_UDEV_DISABLE_DISK_RULES_FLAG}="1"
ENV{DM_UDEV_DISABLE_OTHER_RULES_FLAG}="1"
ENV{UDEV_DISABLE_PERSISTENT_STORAGE_RULES_FLAG}="1"

LABEL="flexd_end"
`
)

// pattern matches the files below a directory, as the kernel shows them: without symlinks.
// No quoting suits every version of udev, so it matches any other text in place of unusual
// characters.
func pattern(dir string) string {
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	var b strings.Builder
	for _, c := range dir {
		if !unusual(c) {
			b.WriteRune(c)
		} else if !strings.HasSuffix(b.String(), "*") {
			b.WriteByte('*')
		}
	}
	return b.String() + "/*"
}

func unusual(c rune) bool {
	return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("./_-+@:", c))
}

// Running reports whether udev runs on the host whose root is root.
func Running(root string) bool {
	_, err := os.Stat(root + "/run/udev/control")
	return err == nil
}

// Wrong returns what is wrong with the rule that udev reads; "" if nothing is, or if there
// is no udev.
func Wrong(root, rule string) string {
	if !Running(root) {
		return ""
	}
	for _, dir := range dirs {
		path := dir + "/" + file
		text, err := os.ReadFile(root + path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err.Error()
		case string(text) != rule:
			return path + " is not the rule for this configuration"
		}
		return ""
	}
	return Installed + " is missing"
}

// Other returns the state directory of another flexd that has run here and whose rule is
// installed, "" if there is none. One rule cannot serve two.
func Other(root, stateDir string) string {
	text, _ := os.ReadFile(root + Installed)
	_, rest, _ := strings.Cut(string(text), `TEST=="`)
	links, _, _ := strings.Cut(rest, "/$attr{")
	if links == "" || links == Links(stateDir) {
		return ""
	}
	if _, err := os.Stat(root + links); err != nil {
		return ""
	}
	return filepath.Dir(links)
}

// Install writes the rule, unless it is there. udev reads it at the latest after three
// seconds, or at `udevadm control --reload`.
func Install(root, rule string) (changed bool, err error) {
	path := root + Installed
	if text, err := os.ReadFile(path); err == nil && string(text) == rule {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // #nosec G301 -- as udev makes it
		return false, err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+file)
	if err != nil {
		return false, err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(rule)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	return err == nil, err
}
