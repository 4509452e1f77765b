package mount

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/mounttable"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// The limits of the children that read how full filesystems are. A child skips a filesystem
// that does not answer within usageWait, and stops at the maxHung'th.
const (
	usageDeadline = 10 * time.Second
	usageWait     = 500 * time.Millisecond
	maxHung       = 4
	maxUsages     = 8192 // mounts; their ids fit into one argument
)

// A Gauge reads how full mounted filesystems are. One child reads all of them. A filesystem that
// hangs blocks its child, and is not read again before that child has ended. There are at most as
// many children as locks, those of an earlier flexd included.
type Gauge struct {
	Runner run.Runner
	Locks  []string

	mu   sync.Mutex
	hung map[int]string // guarded by mu: by mount id: which child waits for it
}

// Read returns the fillings of mounts, by their ids in flexd's mount table. A mount that is
// gone is omitted.
func (g *Gauge) Read(ctx context.Context, ids []int) (map[int]volume.Filling, error) {
	found := map[int]volume.Filling{}
	var ask []int
	g.mu.Lock()
	for _, id := range ids {
		if why := g.hung[id]; why != "" {
			found[id] = volume.Filling{Unknown: why}
		} else if len(ask) < maxUsages {
			ask = append(ask, id)
		}
	}
	g.mu.Unlock()
	if len(ask) == 0 {
		return found, nil // without a child
	}
	lock, out, err := g.run(ctx, ask)
	waiting := parseUsages(out, found)
	if stuck, ok := errors.AsType[*run.StuckError](err); ok {
		g.recordHang(stuck, waiting, found)
		return found, nil
	}
	for _, id := range waiting { // the child could end, all the same
		found[id] = volume.Filling{Unknown: "the filesystem does not respond"}
	}
	if lock != "" {
		_ = run.RemoveLock(lock)
	}
	return found, err
}

// run runs a child under the first free lock.
func (g *Gauge) run(ctx context.Context, ids []int) (lock string, out []byte, err error) {
	for _, lock := range g.Locks {
		res, err := g.Runner.Run(ctx, run.Cmd{Step: "statfs", Argv: run.Self("usage", ids), Lock: lock, Deadline: usageDeadline, MaxOut: 4 << 20})
		if _, locked := errors.AsType[*run.LockedError](err); !locked {
			return lock, res.Stdout, err
		}
	}
	return "", nil, fmt.Errorf("%d earlier children hang", len(g.Locks))
}

// recordHang remembers the mounts that a child waits for until it has ended.
func (g *Gauge) recordHang(child *run.StuckError, waiting []int, found map[int]volume.Filling) {
	why := fmt.Sprintf("the filesystem does not respond: pid %d has waited for it since %s", child.Pid, child.Since.Format(time.TimeOnly))
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hung == nil {
		g.hung = map[int]string{}
	}
	for _, id := range waiting {
		g.hung[id] = why
		found[id] = volume.Filling{Unknown: why}
	}
	go func() {
		<-child.Done
		g.mu.Lock()
		defer g.mu.Unlock()
		maps.DeleteFunc(g.hung, func(_ int, w string) bool { return w == why })
	}()
}

// A usage is a line that the child prints: one before it reads a mount, and one with the result.
type usage struct {
	ID int `json:"id"`
	*volume.Filling
}

// parseUsages adds the results to found, and returns the mounts that have none.
func parseUsages(out []byte, found map[int]volume.Filling) (waiting []int) {
	begun := map[int]bool{}
	for line := range bytes.Lines(out) {
		var u usage
		if json.Unmarshal(line, &u) != nil { // the last line of a child that was killed
			continue
		}
		if u.Filling == nil {
			begun[u.ID] = true
			continue
		}
		delete(begun, u.ID)
		if u.Size > 0 || u.Unknown != "" {
			found[u.ID] = *u.Filling
		}
	}
	return slices.Collect(maps.Keys(begun))
}

// usages is the child that reads how full filesystems are. It prints each result at once, because
// it may be unable to end if one of them hangs.
func usages(arg []byte) int {
	var ids []int
	if err := json.Unmarshal(arg, &ids); err != nil {
		return answer(nil, err)
	}
	table, err := mounttable.Own()
	if err != nil {
		return answer(nil, err)
	}
	dirs := map[int]string{}
	for _, e := range table.All() {
		dirs[e.ID] = e.Dir
	}
	say := func(u usage) {
		b, _ := json.Marshal(u)
		_, _ = os.Stdout.Write(append(b, '\n'))
	}
	late := time.NewTimer(usageWait)
	hung := 0
	for _, id := range ids {
		if hung == maxHung {
			break
		}
		say(usage{ID: id})
		result := make(chan volume.Filling, 1)
		go func() { result <- fillingOf(id, dirs[id]) }()
		late.Reset(usageWait)
		select {
		case f := <-result:
			say(usage{id, &f})
		case <-late.C:
			hung++
		}
	}
	return 0
}

// fillingOf reads a filesystem at a directory, if a lookup reaches the mount.
func fillingOf(id int, dir string) (f volume.Filling) {
	fail := func(err error) volume.Filling { return volume.Filling{Unknown: fmt.Sprintf("%s: %v", dir, err)} }
	if dir == "" {
		return f
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return f
	}
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	var at unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &at); err != nil || at.Mnt_id != uint64(id) {
		return f // covered, or gone
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fail(err)
	}
	block := int64(cmp.Or(st.Frsize, st.Bsize))
	sector, _ := liveSector(fmt.Sprintf("/proc/self/fd/%d", fd), &st)
	return volume.Filling{
		Size: int64(st.Blocks) * block, Used: int64(st.Blocks-st.Bfree) * block, Free: int64(st.Bavail) * block,
		Inodes: st.Files, InodesUsed: st.Files - min(st.Ffree, st.Files), Sector: sector,
	}
}
