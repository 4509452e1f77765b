package flexserve

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Ensure that the death of flexdriver's kubelet is detected, with a pidfd and without.
func TestParentDead(t *testing.T) {
	for _, without := range []bool{false, true} {
		kubelet := exec.Command("sh", "-c", "sleep 60 & echo $!; wait")
		out, err := kubelet.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := kubelet.Start(); err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReader(out).ReadString('\n')
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Kill(pid, syscall.SIGKILL)
		p, wrong := parentOf(pid, kubelet.Process.Pid), parentOf(pid, os.Getpid())
		defer p.close()
		if without {
			p.close()
		}
		if !p.alive(pid) || wrong.alive(pid) {
			t.Errorf("without a pidfd %t: it is its own parent's %t, another's %t", without, p.alive(pid), wrong.alive(pid))
		}
		_ = kubelet.Process.Kill()
		_ = kubelet.Wait()
		for end := time.Now().Add(5 * time.Second); p.alive(pid); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("without a pidfd %t: its kubelet is dead, and it is still its child", without)
			}
		}
	}
	if p := parentOf(0, 0); p != nil || !p.alive(1) {
		t.Error("an unknown process is not dead")
	}
}
