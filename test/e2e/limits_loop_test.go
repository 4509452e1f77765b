//go:build !vm

package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A namespace requests 1,000 inline volumes of 60 GiB in a group with far less, partly at once: all created
// volumes fit when they are full. flexd restarts in between, and the limits change. Nothing of the refused
// volumes remains.
func TestLimits(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.btrfs")
	const volumes, together = 1000, 200
	var (
		dir  string
		undo []func()
	)
	h := newHost(t, func(h *host) {
		dir = h.Dir + "/disk"
		h.disk(dir, "size=75g,nr_inodes=2000")
		h.settings.groups = "  - {name: big, provider: loopdev, directory: " + dir + ", create: true, maxSize: 100GiB, namespaces: ['*']}\n"
	})
	ask := func(from, to int, size string) (created []string, refusals map[string]int) {
		var (
			all sync.WaitGroup
			mu  sync.Mutex
		)
		refusals = map[string]int{}
		turn := make(chan struct{}, together)
		for i := from; i < to; i++ {
			all.Go(func() {
				turn <- struct{}{}
				defer func() { <-turn }()
				p := podN(i)
				v := h.vol(fmt.Sprint("v", i), "ext4").With("volumegroup", "big", "volumeID", fmt.Sprint("v", i), "size", size)
				a := h.up(noAttach, v, p)
				mu.Lock()
				defer mu.Unlock()
				if a.Status == "Success" {
					created = append(created, fmt.Sprint("v", i))
					undo = append(undo, func() { h.ok(h.unmount(v, p)) })
					return
				}
				_, why, _ := strings.Cut(a.Message, "mount: create: ")
				refusals[why]++
			})
		}
		all.Wait()
		return created, refusals
	}
	files := func() (n int) {
		entries, err := os.ReadDir(dir)
		h.must(err)
		return len(entries)
	}
	locks := func() string {
		left := h.files(h.Run + "/lanes/*")
		return strings.Join(left, " ")
	}

	created, refusals := ask(0, volumes, "60Gi")
	if len(created) != 1 || files() != 1 || len(refusals) != 1 {
		t.Errorf("created %q, %d files, %v", created, files(), refusals)
	}
	for why := range refusals {
		for _, words := range []string{"60 GiB wanted", "reserved for its 1 volumes", "reserve: 10%", "free space on the filesystem of " + dir, "use a smaller size"} {
			if !strings.Contains(why, words) {
				t.Errorf("no %q in: %s", words, why)
			}
		}
	}
	h.eventually("the lock files are those of the volume that is mounted", func() string {
		if s := locks(); strings.Count(s, "/lanes/") > 1 {
			return s
		}
		return ""
	})
	h.kill()
	h.settings.groups = strings.Replace(h.settings.groups, "create: true", "create: true, maxVolumes: 5, perNamespace: {maxVolumes: 3, maxTotalSize: 70GiB}", 1)
	h.configure()
	h.start()
	if created, refusals = ask(volumes, volumes+together, "16Mi"); len(created) != 2 || files() != 3 {
		t.Errorf("created %q, %d files, %v", created, files(), refusals)
	}
	h.refused(h.up(noAttach, h.vol("x", "ext4").With("volumegroup", "big", "size", "16Mi"), podN(1)), "big/x: mount",
		"perNamespace.maxVolumes of volume group big is 3", "flexd has created 3 for namespace default", "remove volumes that are not needed")
	other := podN(1)
	other.Namespace = "other"
	h.ok(h.up(noAttach, h.vol("x", "btrfs").With("volumegroup", "big", "size", "128Mi"), other))
	h.refused(h.call("waitforattach", "", h.vol("y", "ext4").With("volumegroup", "big", "size", "16Mi").Blob(nil)), "big/y: waitforattach", "kubelet passes the namespace only at mount")

	// Lowered below what exists: that is used as before, and nothing is added.
	h.kill()
	h.settings.groups = strings.Replace(h.settings.groups, "maxVolumes: 5", "maxVolumes: 1", 1)
	h.configure()
	h.start()
	x := h.vol("x", "btrfs").With("volumegroup", "big", "size", "128Mi") // the kernel can extend it
	h.ok(h.unmount(x, other))
	h.ok(h.up(noAttach, x, other))
	h.refused(h.up(noAttach, h.vol("z", "ext4").With("volumegroup", "big", "size", "16Mi"), other), "maxVolumes of volume group big is 1, and flexd has created 4")
	h.refused(h.call("expandfs", x.Blob(nil), "", h.PodDir(other, x), fmt.Sprint(int64(71)<<30), "0"), "perNamespace.maxTotalSize")
	var st unix.Stat_t
	h.must(unix.Stat(dir+"/x", &st))
	if st.Size != 128*mib {
		t.Errorf("x has %d bytes", st.Size)
	}
	h.ok(h.unmount(x, other))
	for _, f := range undo {
		f()
	}
}
