// Package udev has the rule that excludes flexd's volumes from udev's own rules. Those
// read every block device: the label of a filesystem becomes a link in /dev/disk, and the
// members of a RAID or a volume group are started. Pods write the contents of flexd's volumes, and
// must not choose names and devices of the host.
package udev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// file is the rule's name: it runs after the rules that name LVM's devices (10 and 11), and before
// those that read the devices (13). Debian's names are 55, 56 and 60; these rules keep the flags.
const file = "12-flexd.rules"

// Installed is the file of the rule that flexd installs.
const Installed = "/etc/udev/rules.d/" + file

// dirs are udev's directories of rules. Of files with the same name it reads the first.
var dirs = []string{"/etc/udev/rules.d", "/run/udev/rules.d", "/usr/local/lib/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d"}

// Links returns the directory with an entry for each LVM volume that a pod has used, named by the uuid of
// its device.
func Links(stateDir string) string { return filepath.Join(stateDir, "udev") }

// Rule returns the rule for the configured directories. It recognizes an LVM device
// by its file in Links, a loop device by the directory of its backing file.
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

// A thick snapshot is a device above the data of its origin ("-real"), and shows its contents.
// The second half sets the variables that the rules of device-mapper, LVM, systemd, md, btrfs and
// multipath read.
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

// pattern returns a pattern for the files below a directory. The kernel shows their paths without symlinks.
// Quoting differs between versions of udev, so * replaces unusual characters.
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

// Running reports whether udev runs on the host with the root directory root.
func Running(root string) bool {
	_, err := os.Stat(root + "/run/udev/control")
	return err == nil
}

// Problem returns the error in the rule that udev reads, or "" if there is none, or no udev.
func Problem(root, rule string) string {
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

// OtherStateDir returns the state directory of another flexd whose rule is installed, or "". One rule cannot
// serve two.
func OtherStateDir(root, stateDir string) string {
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

// Install writes the rule, unless it exists. udev reads it within three seconds, or
// at `udevadm control --reload`.
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
