package e2e

import (
	"bufio"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// The reader of flexd's log ends, as in `flexd serve | tee`: flexd continues.
func TestLogReaderGone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.stop()
	c := exec.Command(h.Flexd(), "serve", "--config", h.Config())
	out, err := c.StdoutPipe()
	h.must(err)
	c.Stderr = c.Stdout
	h.must(c.Start())
	for lines := bufio.NewScanner(out); lines.Scan() && !strings.Contains(lines.Text(), "flexd is ready"); {
	}
	h.must(out.Close())
	v, p := h.vol("a", "ext4"), podN(1)
	h.ok(h.up(noAttach, v, p))
	h.ok(h.unmount(v, p))
	h.must(c.Process.Signal(syscall.SIGTERM))
	if err := c.Wait(); err != nil {
		t.Errorf("flexd ended: %v", err)
	}
	h.start()
}
