package host

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/flexd/flexd/internal/devmapper"
)

// lvm are the volumes of a real group.
type lvm struct {
	disks []string // none: the group is there already
	made  bool     // by this program: otherwise the group and the disks belong to the user
}

// Disks are those that a test may overwrite: FLEXD_TEST_DISKS, a list with
// commas.
func Disks() []string {
	return strings.FieldsFunc(os.Getenv("FLEXD_TEST_DISKS"), func(c rune) bool { return c == ',' })
}

func (l *lvm) prepare() error {
	if len(l.disks) == 0 {
		return nil
	}
	_, err := command("vgcreate", append([]string{"-q", VG}, l.disks...)...)
	l.made = err == nil
	return err
}

func (l *lvm) config() string { return "provider: lvm" }

// Active lists what device-mapper has of the group, parts of volumes included.
func (l *lvm) Active() (paths []string) {
	if !l.made {
		return nil
	}
	all, err := devmapper.New().List()
	if err != nil {
		return []string{err.Error()}
	}
	for _, d := range all {
		// A "-" of the group's own name is doubled.
		if name, ours := strings.CutPrefix(d.Name, VG+"-"); ours && !strings.HasPrefix(name, "-") {
			paths = append(paths, "/dev/mapper/"+d.Name)
		}
	}
	return paths
}

// Release deactivates the group.
func (l *lvm) Release() {
	command("vgchange", "-q", "-an", VG)
	// What LVM does not know, a change that was cut may have left.
	for _, path := range l.Active() {
		command("dmsetup", "remove", path)
	}
}

// Remove makes the disks blank for LVM, whatever volumes there are.
func (l *lvm) Remove() error {
	if !l.made {
		return nil
	}
	_, err := command("pvremove", append([]string{"-q", "-q", "-ff", "-y"}, l.disks...)...)
	archived, _ := filepath.Glob("/etc/lvm/archive/" + VG + "_*.vg")
	for _, f := range append(archived, "/etc/lvm/backup/"+VG) {
		os.Remove(f)
	}
	return err
}

// command runs a command of LVM and returns what it printed.
func command(name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), err
}
