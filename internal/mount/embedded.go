package mount

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flexd/flexd/internal/volopts"
	"github.com/flexd/flexd/internal/volume"
)

// defaultErrors makes the kernel stop writing to an ext4 after an error, despite the setting in the
// superblock, unless the request asks for another behaviour. xfs and btrfs have no such
// option: xfs shuts down and btrfs becomes read-only, always.
func defaultErrors(l MountSpec) []string {
	if l.FSType != "ext4" || slices.ContainsFunc(l.Super, func(o string) bool { return strings.HasPrefix(o, "errors=") }) {
		return nil
	}
	return []string{"errors=remount-ro"}
}

// embeddedAllowed refuses an ext4 whose superblock adds mount options that no request may ask
// for: the kernel applies them without showing them to flexd.
func embeddedAllowed(sb superblock, d volume.Device) error {
	var bad []string
	for _, o := range sb.MountOptions {
		if err := volopts.CheckSuper(sb.Type, o); err != nil {
			bad = append(bad, fmt.Sprintf("%q", o))
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return &Refusal{
		What: fmt.Sprintf("the superblock of the %s on %s adds mount options that are not allowed: %s", sb.Type, describeDevice(d), strings.Join(bad, ", ")),
		Hint: "the owner of the node can remove them: " + handle(d).Command("tune2fs -E mount_opts= -o ^debug,^uid16,^nobarrier,^journal_data_writeback -e remount-ro DEV"),
		Why:  volume.NotAllowed,
	}
}
