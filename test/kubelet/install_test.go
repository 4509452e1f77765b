package kubelet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// release installs the given release of flexdriver, as an operator does.
func (n *node) release(number int) {
	n.t.Helper()
	bin := fmt.Sprintf("%s/release-%d", n.Dir, number)
	n.must(os.Mkdir(bin, 0o755))
	text, err := os.ReadFile(built + "/flexdriver")
	n.must(err)
	// What follows the last section is nothing to the kernel, but makes it another file.
	n.must(os.WriteFile(bin+"/flexdriver", fmt.Appendf(text, "release %d", number), 0o755))
	c := exec.Command(built+"/flexd", "driver", "install", "--controller-manager", "--plugin-dir", n.plugins, "--from", bin+"/flexdriver",
		fmt.Sprint("--attach=", n.mode != noAttach))
	if out, err := c.CombinedOutput(); err != nil {
		n.t.Fatalf("flexd driver install: %v\n%s", err, out)
	}
}

// A kubelet that runs finds the driver as soon as it has been put there, and
// each further release while pods come and go: one init each time, and nothing
// else is to be seen of it (no call fails: node.expected).
//
// The modes take turns, before the other tests: a first installation looks at all
// mounts of this namespace to find out in which mode kubelet has made them.
func TestInstall(t *testing.T) {
	for _, m := range modes {
		t.Run(string(m), func(t *testing.T) {
			n := newNode(t, m, func(n *node) { n.later = true })
			n.claim("early", 16*mib)
			early := pod("early", "early")
			n.want(early)
			n.eventually("kubelet knows no such driver", func() string {
				if err := n.ask("Start", early.UID, nil); err == nil || !strings.Contains(err.Error(), "no volume plugin matched") {
					return fmt.Sprint(err)
				}
				return ""
			})
			n.release(0)
			n.started(early)
			inits := func() int { return len(n.trace().by("kubelet 1").of("init")) }
			if got := inits(); got != 1 {
				t.Errorf("%d calls of init after the first installation", got)
			}

			stop := make(chan struct{})
			var load sync.WaitGroup
			finish := sync.OnceFunc(func() { close(stop); load.Wait() })
			t.Cleanup(finish)
			for i := range 3 {
				lv := fmt.Sprint("lv-", i)
				n.claim(lv, 16*mib)
				load.Go(func() {
					for round := 0; ; round++ {
						select {
						case <-stop:
							return
						default:
						}
						p := pod(fmt.Sprintf("web-%d-%d", i, round), lv)
						n.run(p)
						n.end(p)
					}
				})
			}
			rounds := times(5)
			for round := 1; round <= rounds; round++ {
				time.Sleep(300 * time.Millisecond)
				n.release(round)
				n.eventually("kubelet calls init", func() string {
					if got := inits(); got < round+1 {
						return fmt.Sprint(got, " times")
					}
					return ""
				})
			}
			time.Sleep(time.Second)
			finish()
			if got := inits(); got != rounds+1 {
				t.Errorf("%d calls of init after %d installations", got, rounds+1)
			}
			names, err := filepath.Glob(filepath.Dir(n.Driver) + "/[^.]*")
			n.must(err)
			if len(names) != 1 {
				t.Errorf("kubelet sees %v", names)
			}
		})
	}
}
