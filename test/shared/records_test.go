//go:build vm

package shared

import (
	"strings"
	"testing"

	"github.com/flexd/flexd/test/shared/nodes"
)

// records is what each node sees of what the other one has formatted, in the volume's tags.
func records(t *testing.T, a, b *nodes.Node) {
	const tags = "lvs --noheadings -o lv_tags svg/records"
	v := nodes.Volume("records", "32m")
	a.SetUp(web, v)
	if got := b.Sh(tags); !strings.Contains(got, "flexd.fs=ext4") || strings.Contains(got, "formatting") {
		t.Errorf("B sees the tags %q", got)
	}
	if got := a.Flexd("status", "svg/records"); !strings.Contains(got, "(tag flexd.fs=ext4)") {
		t.Errorf("A's status: %s", got)
	}
	unused(a, web, v)

	// Its data is lost while no node has it active.
	a.Sh("lvchange -aey svg/records && blkdiscard -z /dev/svg/records && lvchange -an svg/records")
	got, err := b.Mount(t.Context(), web, v)
	if err != nil || !strings.Contains(got.Message, "its data may be lost") || !strings.Contains(got.Message, "lvchange --deltag flexd.fs=ext4 svg/records") {
		t.Errorf("B: %+v %v", got, err)
	}
	_, remedy, _ := strings.Cut(got.Message, "remove its record: ")
	b.Sh(strings.Replace(remedy, ", and ", " && ", 1))
	b.SetUp(web, v)
	b.TearDown(web, v)
}

// interrupted is a volume whose mkfs A does not survive. The returned function is for B when A's
// locks are free.
func interrupted(t *testing.T, a *nodes.Node) func(b *nodes.Node) {
	v := nodes.Volume("interrupted", "32m")
	a.Sh(`printf '#!/bin/sh\nfor last; do case $last in /dev/*) dev=$last; esac; done
		printf x | dd of=$dev bs=1 seek=4194305 conv=notrunc,fsync; touch /run/within; exec sleep 1000\n' >/run/mkfs
		chmod +x /run/mkfs && mount --bind /run/mkfs $(readlink -f $(command -v mkfs.ext4))`)
	go func() { _, _ = a.Mount(t.Context(), web, v) }()
	a.Sh("for n in $(seq 600); do [ ! -e /run/within ] || exit 0; sleep 0.1; done; exit 1")
	return func(b *nodes.Node) {
		if got := b.Sh("lvs --noheadings -o lv_tags svg/interrupted"); !strings.Contains(got, "flexd.formatting=ext4/") || !strings.Contains(got, "/"+a.Name) {
			t.Errorf("B sees the tags %q", got)
		}
		t.Logf("B has it after %q", b.SetUp(web, v))
		if got := b.Sh("lvs --noheadings -o lv_tags svg/interrupted"); !strings.Contains(got, "flexd.fs=ext4") || strings.Contains(got, "formatting") {
			t.Errorf("B leaves the tags %q", got)
		}
		b.TearDown(web, v)
	}
}
