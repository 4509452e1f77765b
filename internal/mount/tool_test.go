package mount

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ensure that programs that parse a pod's data are not protected from the OOM killer, and that their memory
// is limited.
func TestToolLimits(t *testing.T) {
	r := newRig(t, 64*mib)
	r.format("ext4")
	before, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	if os.WriteFile("/proc/self/oom_score_adj", []byte("-900"), 0) != nil { // it takes CAP_SYS_RESOURCE; more needs none
		if err := os.WriteFile("/proc/self/oom_score_adj", []byte("300"), 0); err != nil {
			t.Fatal(err)
		}
	}
	defer os.WriteFile("/proc/self/oom_score_adj", before, 0)
	said := filepath.Join(r.dir, "said")
	for _, program := range []string{"e2fsck", "mkfs.ext4"} {
		r.tool(program, "sleep 0.2\n(cat /proc/self/oom_score_adj; ulimit -v) > "+said+"\nexit 1")
	}
	r.Memory = 300 * mib
	verify := func(program string) {
		t.Helper()
		b, _ := os.ReadFile(said)
		if got := strings.Fields(string(b)); len(got) != 2 || got[0] != "0" || got[1] != "307200" {
			t.Errorf("%s: OOM score and KiB of memory: %q", program, got)
		}
		os.Remove(said)
	}
	if err := r.Check(t.Context(), r.lock, r.dev, "ext4"); err != nil {
		t.Error(err)
	}
	verify("e2fsck")
	r.sh("blkdiscard", "-z", r.dev.Path)
	if err := r.Format(t.Context(), r.lock, Formatting{Device: r.dev, Type: "ext4"}, yes); err == nil {
		t.Error("mkfs succeeded")
	}
	verify("mkfs.ext4")
}
