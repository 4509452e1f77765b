package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// fresh runs COMMAND in a mount namespace without the commands of $HIDDEN, as root without CAP_SYS_RESOURCE.
// apt-get cannot install anything; its arguments go to $ASKED.
const fresh = `
mkdir "$PLACE/real" "$PLACE/empty"
for dir in bin sbin; do
	mkdir "$PLACE/real/$dir"
	mount --bind "/usr/$dir" "$PLACE/real/$dir"
	mkdir "$PLACE/empty/$dir"
	(cd "/usr/$dir" && for f in *; do echo "$f"; done) | grep -vxE "$HIDDEN|apt-get" |
		(cd "$PLACE/empty/$dir" && while read -r f; do echo "$PLACE/real/$dir/$f"; done | xargs ln -s -t .)
done
cat >"$PLACE/empty/bin/apt-get" <<'END'
#!/bin/sh
case "$*" in *update*) exit 0 ;; esac
echo "$@" >>"$ASKED"
echo "E: Unable to locate package" >&2
exit 100
END
chmod 755 "$PLACE/empty/bin/apt-get"
for dir in bin sbin; do mount --rbind "$PLACE/empty/$dir" "/usr/$dir"; done
exec setpriv --bounding-set=-sys_resource "$@"
`

// onFresh runs a command on such a machine, and returns its output and the packages requested from apt-get.
func onFresh(t *testing.T, hidden string, command ...string) (output, asked string, err error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	place := t.TempDir()
	c := exec.Command("unshare", append([]string{"--mount", "bash", "-euc", fresh, "bash"}, command...)...)
	c.Dir = "../.."
	c.Env = append(os.Environ(), "PLACE="+place, "ASKED="+place+"/asked", "HIDDEN="+hidden)
	out, err := c.CombinedOutput()
	b, _ := os.ReadFile(place + "/asked")
	for line := range strings.Lines(string(b)) {
		if _, packages, ok := strings.Cut(line, " install "); ok {
			asked += strings.TrimSpace(packages)
		}
	}
	return string(out), asked, err
}

// A fresh Debian has none of these.
const notOnFresh = "gcc|cc|jq|strace|chromium.*|containerd|runc|mdadm|cryptsetup|sfdisk" +
	"|mkfs[.](xfs|btrfs)|xfs_.*|btrfs.*|fsck[.](xfs|btrfs)|(lv|vg|pv).*|lvm|dmsetup"

// If nothing can be installed, the demonstration skips the scenes with missing tools, and lists them at its
// end.
func TestFreshMachine(t *testing.T) {
	t.Parallel()
	out, asked, err := onFresh(t, notOnFresh, "make", "-s", "demo", "BIN="+t.TempDir())
	if err != nil {
		t.Fatalf("make demo: %v\n%s", err, out)
	}
	if asked != "xfsprogs" {
		t.Errorf("apt-get is asked for %q", asked)
	}
	for _, want := range []string{
		"Not installed: xfsprogs\n",
		" claims checked in ",
		"Left out: a volume that grows under its pods, since ",
		"(package xfsprogs)",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

// If even ext4 cannot be made, the error names the packages.
func TestNoFilesystem(t *testing.T) {
	t.Parallel()
	out, asked, err := onFresh(t, notOnFresh+"|mkfs.*|mke2fs|resize2fs", "make", "-s", "demo", "BIN="+t.TempDir())
	if err == nil || asked != "e2fsprogs xfsprogs" || !strings.Contains(out, "mkfs.ext4 is needed (packages e2fsprogs,") {
		t.Errorf("make demo: %v, apt-get is asked for %q, %s", err, asked, out)
	}
}

// The tests need more tools.
func TestToolsOfTests(t *testing.T) {
	t.Parallel()
	const all = "btrfs-progs chromium-headless-shell containerd cryptsetup-bin fdisk gcc jq lvm2 mdadm runc strace xfsprogs libc6-dev"
	out, asked, err := onFresh(t, notOnFresh, "scripts/test-tools")
	if err == nil || asked != all || !strings.Contains(out, "Not installed: "+all) {
		t.Errorf("scripts/test-tools: %v, apt-get is asked for %q, %s", err, asked, out)
	}
}
