package mounttable

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Ensure that a table finds the mount that a lookup of each directory reaches, as the kernel does, after
// mounts, binds, moves and propagation.
func TestLookup(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	base := t.TempDir()
	onThread(t, func() {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		hidden, copies := 0, 0
		for round := range 12 {
			h, c := lookupRound(t, rnd, filepath.Join(base, fmt.Sprint(round)))
			hidden, copies = hidden+h, copies+c
		}
		t.Logf("%d hidden entries, %d copies that a mount took away", hidden, copies)
		if hidden == 0 || copies == 0 {
			t.Error("nothing was hidden, or nothing was copied")
		}
	})
}

// Ensure that a process in another namespace sees a mount at its own name of the directory, whatever is at
// other paths of the same filesystem there.
func TestOtherTable(t *testing.T) {
	const dir, disk = "/data/kubelet/pods/1/v", " rw - ext4 /dev/loop1 rw\n"
	own := func(shared, mounted string) string {
		return "1 0 253:1 / / rw" + shared + " - ext4 /dev/sda rw\n" + mounted
	}
	const peers, slave = " shared:7", " master:7"
	kubelets := func(options, mounted string) string {
		return "50 40 0:99 / / rw - overlay none rw\n51 50 253:1 /data/kubelet /var/lib/kubelet rw" + options + " - ext4 /dev/sda rw\n" + mounted
	}
	const (
		ours   = "9 1 7:1 / /data/kubelet/pods/1/v" + disk
		theirs = "59 51 7:1 / /var/lib/kubelet/pods/1/v" + disk
		// The host's root, as it was when the container started.
		host    = "52 50 253:1 / /host rw - ext4 /dev/sda rw\n53 52 7:1 / /host/data/kubelet/pods/1/v" + disk
		between = "52 40 253:1 /x /x rw shared:8 master:7 - ext4 /dev/sda rw\n"
		live    = "52 50 253:1 / /host rw master:7 - ext4 /dev/sda rw\n"
	)
	for _, row := range []struct {
		what, own, other string
		appears, shows   bool
	}{
		{"nothing is shared", own("", ours), kubelets("", ""), false, false},
		{"shared", own(peers, ours), kubelets(peers, theirs), false, true},
		{"a slave", own(peers, ours), kubelets(slave, theirs), false, true},
		{"a slave of a slave", own(peers, ""), kubelets(" master:8", between), true, false},
		{"a slave of a slave, which it does not see", own(peers, ""), kubelets(" master:8 propagate_from:7", ""), true, false},
		{"a slave of a slave of another", own(peers, ""), kubelets(" master:8", strings.Replace(between, "master:7", "master:6", 1)), false, false},
		{"slaves of each other", own(peers, ""), kubelets(" master:8", strings.Replace(between, "master:7", "master:9", 1)+"53 40 253:1 /y /y rw shared:9 master:8 - ext4 /dev/sda rw\n"), false, false},
		{"before the mount", own(peers, ""), kubelets(slave, ""), true, false},
		{"unmounted there", own(peers, ours), kubelets(slave, ""), false, false},
		{"a private copy", own(peers, ours), kubelets("", theirs), false, true},
		{"mounted over there", own(peers, ours), kubelets(slave, theirs+"60 59 7:2 / /var/lib/kubelet/pods/1/v rw - ext4 /dev/loop2 rw\n"), false, false},
		{"another volume there", own(peers, ours), kubelets(slave, "59 51 7:2 / /var/lib/kubelet/pods/1/v rw - ext4 /dev/loop2 rw\n"), false, false},
		{"a stale copy elsewhere", own(peers, ours), kubelets("", host), false, false},
		{"propagation elsewhere", own(peers, ""), kubelets("", live), false, false},
		{"its directory is a link to that", own(peers, ""), "50 40 0:99 / / rw - overlay none rw\n" + live, true, false},
		{"a link to a copy", own(peers, ours), "50 40 0:99 / / rw - overlay none rw\n" + host, false, true},
		{"another filesystem", own(peers, ours), "50 40 0:99 / / rw - overlay none rw\n", false, false},
	} {
		tab, err := Read(strings.NewReader(row.own))
		if err != nil {
			t.Fatal(row.what, err)
		}
		other, err := Read(strings.NewReader(row.other))
		if err != nil {
			t.Fatal(row.what, err)
		}
		if got := tab.Appears(dir, other, "/var/lib/kubelet/pods/1/v", nil); got != row.appears {
			t.Errorf("%s: a mount appears: %v", row.what, got)
		}
		if got := tab.Shows(dir, other, "/var/lib/kubelet/pods/1/v"); got != row.shows {
			t.Errorf("%s: the mount is seen: %v", row.what, got)
		}
	}
}

// A pod can make a line of the node's table very long: it moves a bind-mounted directory, such as a subPath,
// into a deep tree.
func TestLongLine(t *testing.T) {
	base := t.TempDir()
	onThread(t, func() {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			t.Fatal(err)
		}
		pod, bound := filepath.Join(base, "pod"), filepath.Join(base, "bound")
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		must(os.Mkdir(pod, 0o755))
		must(os.Mkdir(bound, 0o755))
		must(unix.Mount("tmpfs", pod, "tmpfs", 0, "size=8m"))
		must(os.Mkdir(pod+"/x", 0o755))
		must(unix.Mount(pod+"/x", bound, "", unix.MS_BIND, ""))
		at, err := unix.Open(pod, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(err)
		name, want := strings.Repeat("\\ \n#", 50), ""
		for len(want) < 100<<10 {
			must(unix.Mkdirat(at, name, 0o755))
			below, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			must(err)
			must(unix.Close(at))
			at, want = below, want+"/"+name
		}
		must(unix.Renameat(unix.AT_FDCWD, pod+"/x", at, "x"))
		must(unix.Close(at))
		tab := threadTable(t)
		if e := tab.Top(bound); e == nil || e.Root != want+"/x" || e.Type != "tmpfs" || !slices.ContainsFunc(e.Super, func(o string) bool { return o == "size=8192k" }) {
			t.Errorf("the mount at %s is %.200q", bound, fmt.Sprint(e))
		}
		if e := tab.Top(pod); e == nil || e.Root != "/" {
			t.Errorf("the mount at %s is %v", pod, e)
		}
	})
}

// Lock the main thread to the main goroutine: /proc/self is about that thread, and onThread must not move it
// to another mount namespace.
func init() { runtime.LockOSThread() }

// onThread runs f on a new thread, which ends with it.
func onThread(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		f()
	}()
	<-done
}

// lookupRound makes random mounts below root and compares table and kernel.
func lookupRound(t *testing.T, rnd *rand.Rand, root string) (hidden, copies int) {
	dirs := []string{root, root + "/a", root + "/a/b", root + "/a/b/c", root + "/d", root + "/d/e"}
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Error(err)
		return 0, 0
	}
	unix.Mount("none", root, "tmpfs", 0, "size=64k")
	unix.Mount("", root, "", unix.MS_SHARED, "")
	for _, d := range dirs {
		os.MkdirAll(d, 0o755)
	}
	for range 30 {
		dir, other := dirs[rnd.IntN(len(dirs))], dirs[rnd.IntN(len(dirs))]
		switch rnd.IntN(10) {
		case 0, 1, 2:
			unix.Mount("none", dir, "tmpfs", 0, "size=64k")
		case 3:
			unix.Mount(dir, dir, "", unix.MS_BIND, "")
		case 4:
			unix.Mount(other, dir, "", unix.MS_BIND, "")
		case 5:
			if len(threadTable(t).All()) < 300 {
				unix.Mount(other, dir, "", unix.MS_BIND|unix.MS_REC, "")
			}
		case 6:
			unix.Mount("", dir, "", []uintptr{unix.MS_SHARED, unix.MS_PRIVATE, unix.MS_SLAVE}[rnd.IntN(3)], "")
		case 7:
			unix.Mount(other, dir, "", unix.MS_MOVE, "")
		default:
			copies += unmountOne(t, dir)
		}
		for _, d := range dirs {
			os.MkdirAll(d, 0o755) // in what is on top now
		}
		hidden += compareLookups(t, dirs)
	}
	for _, d := range slices.Backward(dirs) {
		for unix.Unmount(d, unix.MNT_DETACH) == nil {
		}
	}
	return hidden, copies
}

// unmountOne unmounts the mount at dir, and expects that its copies are unmounted with it.
func unmountOne(t *testing.T, dir string) int {
	before := threadTable(t)
	e := before.Top(dir)
	if e == nil || unix.Unmount(dir, unix.UMOUNT_NOFOLLOW) != nil { // busy is as good: something is mounted on it
		return 0
	}
	after, copies := threadTable(t), 0
	for _, c := range before.Of(e.Number) {
		if c == e || !Follows(before, e, before, c, nil) {
			continue
		}
		copies++
		if x := after.ids()[c.ID]; x != nil && x.Dir == c.Dir && !mountedOn(before, c) {
			t.Errorf("%s was unmounted, and what counts as its copy stays:\n%s%s\nbefore:\n%s\nafter:\n%s", dir, e.text, c.text, textOf(before), textOf(after))
		}
	}
	return copies
}

// mountedOn reports whether something is mounted on c; then the kernel keeps c.
func mountedOn(tab *Table, c *Entry) bool {
	return slices.ContainsFunc(tab.All(), func(m *Entry) bool { return m.Parent == c.ID && m != c })
}

func compareLookups(t *testing.T, dirs []string) (hidden int) {
	t.Helper()
	tab := threadTable(t)
	for _, dir := range dirs {
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &st); err != nil {
			t.Fatal(dir, err)
		}
		on, isRoot := tab.Containing(dir), st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
		if on == nil || uint64(on.ID) != st.Mnt_id || (tab.Top(dir) != nil) != isRoot {
			t.Fatalf("%s: the table says %+v, the kernel mount %d (its root: %v)\n%s", dir, on, st.Mnt_id, isRoot, textOf(tab))
		}
		reached, unreached := tab.At(dir)
		for _, e := range slices.Concat(reached, unreached) {
			if e.Dir != dir {
				t.Fatalf("%+v is at %s", e.Line, dir)
			}
			if over := tab.Over(e); (over == nil) != (e == tab.Top(dir)) {
				t.Fatalf("over %s: %+v\n%s", e.text, over, textOf(tab))
			}
		}
		hidden += len(unreached)
	}
	return hidden
}

// threadTable returns the mount table of this thread.
func threadTable(t *testing.T) *Table {
	t.Helper()
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tab, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func textOf(tab *Table) string {
	var b strings.Builder
	for _, e := range tab.All() {
		b.WriteString(e.text)
	}
	return b.String()
}

// Ensure that the cost of a lookup depends on the depth of the path, not on the number of mounts.
func TestLookupVisits(t *testing.T) {
	cost := func(n int) int64 {
		tab, err := Read(strings.NewReader(string(bigTable(n))))
		if err != nil {
			t.Fatal(err)
		}
		all := tab.All()
		before := tab.Visits()
		for _, e := range all {
			tab.At(e.Dir)
			tab.Top(e.Dir)
			tab.Containing(e.Dir + "/x")
			tab.Over(e)
		}
		return tab.Visits() - before
	}
	if small, large := cost(1000), cost(10_000); large > 11*small {
		t.Errorf("1,000 mounts: %d entries visited, 10,000 mounts: %d", small, large)
	}
}
