package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/flexvolume"
)

const callSocket = "FLEXD_SERVER_TEST_CALL"

// TestMain makes one call in a process of its own, for TestPeers, or attacks.
func TestMain(m *testing.M) {
	if path := os.Getenv(attackSocket); path != "" {
		attack(path)
		return
	}
	if dir := os.Getenv(dyingDir); dir != "" {
		die(dir)
	}
	path := os.Getenv(callSocket)
	if path == "" {
		os.Exit(m.Run())
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		err = json.NewEncoder(c).Encode(request("c1", "hunter2"))
	}
	var r flexvolume.Reply
	if err == nil {
		r, err = receive(c)
	}
	fmt.Println(r.Answer.Status, r.Answer.Code, r.Answer.Message, err)
}

// A root process that has not what kubelet has gets nothing, and is named.
func TestPeers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root only")
	}
	pod, container := cgroup(t, "flexdtest-kubepods-%d.slice"), cgroup(t, "flexdtest-docker-%d.scope")
	for _, row := range []struct {
		about   string
		command []string
		cgroup  string
		want    string // in the refusal; "" = it may call
	}{
		{"kubelet's child", nil, "", ""},
		{"a kubelet in a container outside of pods", nil, container, ""},
		{"root with no capability but the mount's", []string{"setpriv", "--bounding-set", "-all,+dac_override", "--inh-caps", "-all"}, "", "it has no CAP_SYS_ADMIN"},
		{"root in a user namespace", []string{"unshare", "--user", "--map-root-user"}, "", "it is in another user namespace"},
		{"root in a pid namespace and a user namespace", []string{"unshare", "--user", "--map-root-user", "--pid", "--fork"}, "", "it is in another user namespace"},
		{"a user", []string{"setpriv", "--reuid", "65534", "--clear-groups"}, "", "its uid is not 0"},
		{"a user with capabilities", []string{"setpriv", "--reuid", "65534", "--inh-caps", "+sys_admin", "--ambient-caps", "+sys_admin"}, "", "its uid is not 0"},
		{"a privileged pod", nil, pod, "it runs in a pod"},
	} {
		t.Run(row.about, func(t *testing.T) {
			if row.cgroup == "none" {
				t.Skip("no cgroup can be made here")
			}
			var called atomic.Bool
			d := start(t, func(context.Context, flexvolume.Request, Peer) flexvolume.Answer {
				called.Store(true)
				return flexvolume.Success()
			})
			os.Chmod(d.path, 0o666)
			args := append(row.command, os.Args[0])
			if row.cgroup != "" {
				args = append([]string{"sh", "-c", "echo $$ >" + row.cgroup + `/cgroup.procs && exec "$@"`, "sh"}, args...)
			}
			c := exec.Command(args[0], args[1:]...)
			c.Env = append(os.Environ(), callSocket+"="+d.path)
			out, err := c.CombinedOutput()
			d.stop()
			if row.want == "" {
				if string(out) != "Success   <nil>\n" || !called.Load() {
					t.Errorf("%v: %s", err, out)
				}
				return
			}
			if !strings.HasPrefix(string(out), "Failure not-allowed ") || !strings.Contains(string(out), row.want) || !strings.Contains(string(out), "server.test") || called.Load() {
				t.Errorf("%v: called %v: %s", err, called.Load(), out)
			}
			log := d.log.String()
			for _, word := range []string{row.want, "command=server.test", "pid=", "uid=", "cgroup="} {
				if !strings.Contains(log, word) {
					t.Errorf("%q is missing in the log: %s", word, log)
				}
			}
			if strings.Contains(log, "hunter2") {
				t.Errorf("log: %s", log)
			}
		})
	}
}

// cgroup makes a cgroup until the test ends; "none" = not possible.
func cgroup(t *testing.T, name string) string {
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		dir := top + "/" + fmt.Sprintf(name, os.Getpid())
		if unix.Statfs(top, &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC || os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			for end := time.Now().Add(10 * time.Second); os.Remove(dir) != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			}
		})
		return dir
	}
	return "none"
}

func BenchmarkPeer(b *testing.B) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		b.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), strconv.Itoa(fds[0]))
	defer f.Close()
	defer unix.Close(fds[1])
	c, err := net.FileConn(f)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for b.Loop() {
		if _, refused, err := peerOf(c.(*net.UnixConn)); refused != nil || err != nil {
			b.Fatal(refused, err)
		}
	}
}
