//go:build !vm

package mount

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// tmpfs mounts a tmpfs, and returns the id of the mount.
func (r *rig) tmpfs(name, options string) (dir string, id int) {
	r.Helper()
	dir = r.mkdir(name)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir, r.mountID(dir)
}

func (r *rig) mountID(dir string) int {
	r.Helper()
	table, err := mounttable.Own()
	if err != nil || table.Top(dir) == nil {
		r.Fatalf("%s: %v", dir, err)
	}
	return table.Top(dir).ID
}

func (r *rig) gauge() *Gauge { return &Gauge{Runner: r.Runner, Locks: []string{r.lock}} }

// One child reads all filesystems. A filesystem without free space or inodes is full; a mount that is gone or
// covered is not read.
func TestUsage(t *testing.T) {
	need(t)
	r := bareRig(t)
	_, empty := r.tmpfs("empty", "size=64m")
	space, full := r.tmpfs("full", "size=1m")
	inodes, few := r.tmpfs("inodes", "size=1m,nr_inodes=10")
	covered, below := r.tmpfs("covered", "size=1m")
	if err := unix.Mount("tmpfs", covered, "tmpfs", 0, "size=2m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(covered, unix.MNT_DETACH) })
	read := func() map[int]volume.Filling {
		t.Helper()
		found, err := r.gauge().Read(t.Context(), []int{empty, full, few, below, 1 << 30})
		if err != nil || len(found) != 3 || found[empty].Size != 64*mib || found[empty].Full() != "" || found[few].Inodes != 10 {
			t.Fatalf("got %+v, %v", found, err)
		}
		return found
	}
	read()
	os.WriteFile(filepath.Join(space, "file"), make([]byte, 2*mib), 0o600)
	for i := range 20 {
		os.Mkdir(filepath.Join(inodes, fmt.Sprint(i)), 0o700)
	}
	found := read()
	if f := found[full]; f.Full() != "no space is free" || f.Used != mib || f.Free != 0 || f.Size != mib {
		t.Errorf("got %+v", f)
	}
	if f := found[few]; f.Full() != "no inode is free" || f.InodesUsed != 10 {
		t.Errorf("got %+v", f)
	}
	os.Remove(filepath.Join(space, "file"))
	os.Remove(filepath.Join(inodes, "1"))
	if found = read(); found[full].Full() != "" || found[few].Full() != "" {
		t.Errorf("still full: %+v", found)
	}
	if _, err := os.Stat(r.lock); err == nil {
		t.Error("the lock file is left")
	}
}

// A filesystem that does not answer delays no other.
func TestUsageHangs(t *testing.T) {
	need(t)
	r := bareRig(t)
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer fuse.Close()
	dir := r.mkdir("hangs")
	if err := unix.Mount("fuse", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd())); err != nil {
		t.Skip(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	hangs := r.mountID(dir)
	_, well := r.tmpfs("well", "size=1m")
	found, err := r.gauge().Read(t.Context(), []int{hangs, well})
	if err != nil || len(found) != 2 || found[well].Size != mib || found[hangs].Unknown == "" || found[hangs].Full() != "" {
		t.Errorf("got %+v, %v", found, err)
	}
}

// A hungRunner starts children that wait for some of the mounts, and do not end.
type hungRunner struct {
	hangs map[int]bool
	asked [][]int
	done  chan struct{}
}

func (h *hungRunner) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	if strings.HasSuffix(c.Lock, "held") {
		return run.Result{}, &run.LockedError{}
	}
	var ids []int
	if err := json.Unmarshal([]byte(c.Argv[3]), &ids); err != nil {
		return run.Result{}, err
	}
	h.asked = append(h.asked, ids)
	out, stuck := "", false
	for _, id := range ids {
		out += fmt.Sprintf(`{"id":%d}`+"\n", id)
		if h.hangs[id] {
			stuck = true
			continue
		}
		out += fmt.Sprintf(`{"id":%d,"size":%d}`+"\n", id, id)
	}
	if stuck {
		return run.Result{Stdout: []byte(out + `{"id":9`)}, &run.StuckError{Pid: 4711, Since: time.Now(), Done: h.done}
	}
	return run.Result{Stdout: []byte(out)}, nil
}

// A filesystem whose child cannot be killed is not read again before the child has ended; without a free lock
// no child is started.
func TestUsageStuck(t *testing.T) {
	h := &hungRunner{hangs: map[int]bool{2: true, 3: true}, done: make(chan struct{})}
	dir := t.TempDir()
	g := &Gauge{Runner: h, Locks: []string{dir + "/held", dir + "/free"}}
	read := func(asked string) map[int]volume.Filling {
		t.Helper()
		h.asked = nil
		found, err := g.Read(t.Context(), []int{1, 2, 3, 4})
		if err != nil || found[1].Size != 1 || found[4].Size != 4 || fmt.Sprint(h.asked) != asked {
			t.Errorf("got %+v, %v, asked %v, want %s", found, err, h.asked, asked)
		}
		return found
	}
	for _, asked := range []string{"[[1 2 3 4]]", "[[1 4]]", "[[1 4]]"} {
		if found := read(asked); !strings.Contains(found[2].Unknown, "pid 4711") || !strings.Contains(found[3].Unknown, "pid 4711") {
			t.Errorf("got %+v", found)
		}
	}
	h.asked = nil
	if _, err := g.Read(t.Context(), []int{2, 3}); err != nil || h.asked != nil {
		t.Errorf("a child for nothing: %v, %v", h.asked, err)
	}
	h.hangs = nil
	close(h.done)
	for range 1000 {
		g.mu.Lock()
		left := len(g.hung)
		g.mu.Unlock()
		if left == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if found := read("[[1 2 3 4]]"); found[2].Size != 2 {
		t.Errorf("got %+v", found)
	}
	g.Locks = g.Locks[:1]
	if found, err := g.Read(t.Context(), []int{1}); err == nil || len(found) > 0 {
		t.Errorf("no lock is free: %+v, %v", found, err)
	}
}
