package mounttable

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const fedora = `21 62 0:20 / /sys rw,nosuid,nodev,noexec,relatime shared:6 - sysfs sysfs rw,seclabel
62 1 253:1 / / rw,relatime shared:1 - ext4 /dev/mapper/ssd-root--f20 rw,seclabel,data=ordered
90 62 7:3 / /var/lib/kubelet/plugins/k\040x/mounts/vg0/a rw,noatime shared:50 master:7 - ext4 /dev/loop3 rw
91 90 7:3 / /var/lib/kubelet/plugins/k\040x/mounts/vg0/a ro,relatime - ext4 /dev/loop3 rw,errors=continue
95 62 0:45 / /mnt/b rw,relatime - btrfs /dev/loop5 rw,space_cache=v2,subvolid=5,subvol=/
96 62 7:9 /sub /mnt/c rw,relatime shared:51 - xfs /dev/loop9 ro,attr2
97 62 0:4 net:[4026531992] /run/netns/x rw shared:60 - nsfs nsfs rw
`

// Ensure that every field of a mount table is read, and that stacked mounts
// come from the bottom to the top.
func TestReadTable(t *testing.T) {
	tab, err := Read(strings.NewReader(fedora))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(tab.All()), 7; got != want {
		t.Fatalf("entries: got %d, want %d", got, want)
	}
	dir := "/var/lib/kubelet/plugins/k x/mounts/vg0/a"
	want := []*Line{{
		ID: 90, Parent: 62, Number: "7:3", Root: "/", Dir: dir, Options: []string{"rw", "noatime"},
		Peer: 50, Type: "ext4", Source: "/dev/loop3", Super: []string{"rw"},
	}, {
		ID: 91, Parent: 90, Number: "7:3", Root: "/", Dir: dir, Options: []string{"ro", "relatime"}, ReadOnly: true,
		Type: "ext4", Source: "/dev/loop3", Super: []string{"rw", "errors=continue"},
	}}
	var got []*Line
	reached, _ := tab.At(dir)
	for _, e := range reached {
		got = append(got, e.Line)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Line{})); diff != "" {
		t.Errorf("At (-want +got):\n%s", diff)
	}
	if got := tab.Of("7:3"); len(got) != 2 {
		t.Errorf("Of(7:3): got %d entries", len(got))
	}
	if e := tab.Of("7:9")[0]; !e.SuperReadOnly || e.ReadOnly || e.Root != "/sub" {
		t.Errorf("7:9: got %+v", e)
	}
	for dir, id := range map[string]int{"/": 62, "/nowhere/at/all": 62, "/mnt/b": 95, "/mnt/b/x/y": 95, "/mnt/bb": 62, dir + "/x": 91} {
		if got := tab.Containing(dir); got == nil || got.ID != id {
			t.Errorf("Containing(%s): got %+v, want mount %d", dir, got, id)
		}
	}
}

// Ensure that a covered mount is below the one that covers it, also when the
// kernel lists them the other way round.
func TestStackOrder(t *testing.T) {
	tab, err := Read(strings.NewReader(
		"62 1 253:1 / / rw - ext4 /dev/sda rw\n" +
			"92 91 7:3 / /m rw - ext4 /dev/loop3 rw\n" +
			"91 90 7:2 / /m rw - ext4 /dev/loop2 rw\n" +
			"90 62 7:1 / /m rw - ext4 /dev/loop1 rw\n"))
	if err != nil {
		t.Fatal(err)
	}
	var ids []int
	reached, _ := tab.At("/m")
	for _, e := range reached {
		ids = append(ids, e.ID)
	}
	if diff := cmp.Diff([]int{90, 91, 92}, ids); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Ensure that Over returns the mount that hides another one.
func TestOver(t *testing.T) {
	tab, err := Read(strings.NewReader(
		"62 1 253:1 / / rw - ext4 /dev/sda rw\n" +
			"70 62 253:1 /k /k rw - ext4 /dev/sda rw\n" +
			"71 70 7:1 / /k/a/b rw - ext4 /dev/loop1 rw\n" +
			"72 71 7:2 / /k/a/b rw - ext4 /dev/loop2 rw\n" + // covers 71 where that is
			"73 72 7:3 / /k/a/b/c rw - ext4 /dev/loop3 rw\n" +
			"80 62 7:4 / /o/a rw - ext4 /dev/loop4 rw\n" +
			"81 62 0:40 / /o rw - tmpfs none rw\n" +
			"82 81 7:5 / /o/a rw - ext4 /dev/loop5 rw\n" +
			"83 62 0:41 / /o2 rw - tmpfs none rw\n" + // beside /o
			"90 62 253:1 /s /s rw - ext4 /dev/sda rw\n" +
			"91 90 7:6 / /s/a rw - ext4 /dev/loop6 rw\n" +
			"92 90 253:1 /s /s rw - ext4 /dev/sda rw\n" + // on itself, without what is mounted below
			"93 91 7:7 / /s/a/b rw - ext4 /dev/loop7 rw\n" +
			"99 55 7:8 / /elsewhere rw - ext4 /dev/loop8 rw\n")) // its parent is out of sight
	if err != nil {
		t.Fatal(err)
	}
	over := map[int]int{71: 72, 90: 92, 80: 81, 91: 92, 93: 92}
	for _, e := range tab.All() {
		got := 0
		if m := tab.Over(e); m != nil {
			got = m.ID
		}
		if want := over[e.ID]; got != want {
			t.Errorf("over %d at %s: got %d, want %d", e.ID, e.Dir, got, want)
		}
	}
}

// Ensure that a table with an invalid or incomplete line is an error, never a partial table.
func TestReadTableNeverPartial(t *testing.T) {
	for _, bad := range []string{
		"",
		fedora[:len(fedora)-1],
		fedora[:len(fedora)-30],
		fedora + "\n",
		fedora + "98 62 7:3 / /mnt rw\n",
		fedora + "98 62 7:3 / /mnt rw shared:1 ext4 /dev/x rw\n",
		fedora + "x 62 7:3 / /mnt rw - ext4 /dev/x rw\n",
		fedora + "98 62 a:b / /mnt rw - ext4 /dev/x rw\n",
		fedora + "98 62 73 / /mnt rw - ext4 /dev/x rw\n",
		fedora + "98 62 7:3 / mnt rw - ext4 /dev/x rw\n",
		fedora + "98 62 7:3 / /mnt " + strings.Repeat("x", 100_000) + " - ext4 /dev/x rw\n",
	} {
		if tab, err := Read(strings.NewReader(bad)); err == nil || tab != nil {
			t.Errorf("no error for a table ending in %.80q", bad[max(0, len(bad)-80):])
		}
	}
}

type fakeSys struct {
	nodes       map[string]string
	filesystems []*Btrfs
}

func (f fakeSys) numberOf(path string) string { return f.nodes[path] }
func (f fakeSys) btrfs() []*Btrfs             { return f.filesystems }

// onDevices is a btrfs on devices with these numbers.
func onDevices(numbers ...string) *Btrfs {
	b := &Btrfs{FSID: "fsid of " + numbers[0]}
	for _, n := range numbers {
		b.Devices = append(b.Devices, BtrfsDevice{"loop" + n, n})
	}
	return b
}

// Ensure that a btrfs is found by each of its devices, for any name in the table.
func TestOfDeviceBtrfs(t *testing.T) {
	tab, err := Read(strings.NewReader(fedora))
	if err != nil {
		t.Fatal(err)
	}
	s := fakeSys{nodes: map[string]string{"/dev/loop5": "7:5"}, filesystems: []*Btrfs{onDevices("7:5", "7:6")}}
	// A scan in a container's /dev gave the btrfs the name of the device of another filesystem.
	if got := tab.devices(fakeSys{}).Of("7:10", "/dev/loop5"); len(got) != 0 {
		t.Errorf("by the name of another device: %v", got)
	}
	for _, row := range []struct {
		number, path string
		want         int
	}{
		{"7:3", "/dev/loop3", 2},
		{"7:5", "/dev/loop5", 1},
		{"7:5", "/dev/disk/by-id/x", 1},
		{"7:6", "/dev/loop6", 1},
		{"7:8", "/dev/loop8", 0},
	} {
		if got := len(tab.devices(s).Of(row.number, row.path)); got != row.want {
			t.Errorf("%s %s: got %d entries, want %d", row.number, row.path, got, row.want)
		}
	}
}

// countingSys is a host with n btrfs that counts reads.
type countingSys struct{ n, reads int }

func (c *countingSys) numberOf(path string) string {
	c.reads++
	return "253:" + strings.TrimPrefix(path, "/dev/dm-")
}

func (c *countingSys) btrfs() (all []*Btrfs) {
	for i := range c.n {
		c.reads += 2 // a directory and a file
		all = append(all, onDevices(fmt.Sprint("253:", i)))
	}
	return all
}

// At each mount event the mounts of every volume are looked up. The cost is not the product of the numbers of
// volumes and btrfs.
func TestDevicesReadOnce(t *testing.T) {
	const n = 400
	var text strings.Builder
	text.WriteString("1 0 0:1 / / rw - tmpfs none rw\n")
	for i := range n {
		for k := range 2 { // of pods
			fmt.Fprintf(&text, "%d 1 0:%d / /m/%d-%d rw - btrfs /dev/dm-%d rw\n", 2*i+k+10, i+100, i, k, i)
		}
	}
	tab, err := Read(strings.NewReader(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	s := &countingSys{n: n}
	devices := tab.devices(s)
	for i := range n {
		number := fmt.Sprint("253:", i)
		of := devices.Of(number, fmt.Sprintf("/dev/mapper/vg0-v%d", i))
		if len(of) != 2 || of[0].Dir != fmt.Sprintf("/m/%d-0", i) || devices.SourceNumber(of[1]) != number {
			t.Fatalf("%s: %v", number, of)
		}
	}
	if s.reads > 3*n {
		t.Errorf("%d files are read for %d btrfs", s.reads, n)
	}
}

// Ensure that the source name of a btrfs counts only if it leads to a device of a btrfs.
func TestSourceNumber(t *testing.T) {
	s := fakeSys{nodes: map[string]string{"/dev/vg0/data": "253:0", "/dev/vg0/new": "253:1"}, filesystems: []*Btrfs{onDevices("253:0")}}
	for _, row := range []struct{ fs, source, want string }{
		{"btrfs", "/dev/vg0/data", "253:0"},
		{"btrfs", "/dev/vg0/new", ""}, // the name of another volume by now
		{"btrfs", "/dev/vg0/gone", ""},
		{"ext4", "/dev/vg0/data", ""},
	} {
		e := &Entry{Line: &Line{Type: row.fs, Source: row.source}}
		if got := (&Table{btrfs: []*Entry{e}}).devices(s).SourceNumber(e); got != row.want {
			t.Errorf("%s from %s: got %q, want %q", row.fs, row.source, got, row.want)
		}
	}
}

// Ensure that long lines parse like short ones.
func TestShorten(t *testing.T) {
	table := func() []string {
		tab, err := Read(strings.NewReader(fedora + `97 62 7:5 /a\134040\040\011\012#\134 /mnt/b\040c rw master:1 - ext4 /dev/x\040y rw,a=b\054` + "\n"))
		if err != nil {
			t.Fatal(err)
		}
		return outline(tab)
	}
	short := table()
	defer func(n int) { maxLine = n }(maxLine)
	maxLine = 0
	if diff := cmp.Diff(short, table()); diff != "" {
		t.Errorf("(-short +long):\n%s", diff)
	}
	for _, broken := range []string{"\n", "1 0 0:1 / /\n", "1 0 0:1 / / rw ext4 a rw x y z\n"} {
		if _, err := Read(strings.NewReader(broken)); err == nil {
			t.Errorf("%q is read", broken)
		}
	}
}

// Ensure that this machine's own table parses.
func TestReadTableReal(t *testing.T) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tab, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if tab.Containing("/") == nil {
		t.Error("nothing is mounted at /")
	}
}

func FuzzReadTable(f *testing.F) {
	f.Add([]byte(fedora))
	f.Add([]byte("1 1 0:2 / / rw - rootfs none rw\n"))
	f.Add([]byte("1 2 0:1 / / rw - ext4 a rw\n2 1 0:1 / / rw - ext4 b rw\n")) // an id that was given again
	f.Add([]byte("1 0 0:1 / / rw - ext4 a rw\n2 1 0:1 / / rw - ext4 b rw\n3 1 0:1 / / rw - ext4 c rw\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		tab, err := Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		if lines := bytes.Count(text, []byte("\n")); lines != len(tab.All()) {
			t.Fatalf("%d entries of %d lines", len(tab.All()), lines)
		}
		n := 0
		for _, e := range tab.All() {
			reached, hidden := tab.At(e.Dir)
			at := append(reached, hidden...)
			if len(at) == 0 || len(tab.Of(e.Number)) == 0 {
				t.Fatalf("not indexed: %+v", e)
			}
			tab.Over(e)
			if at[0] == e {
				n += len(at)
			}
		}
		if n != len(tab.All()) {
			t.Fatalf("%d of %d entries are reachable by directory", n, len(tab.All()))
		}
	})
}

// bigTable returns a table like that of a busy node.
func bigTable(n int) []byte {
	var b bytes.Buffer
	b.WriteString("62 1 253:1 / / rw,relatime shared:1 - ext4 /dev/mapper/root rw\n")
	for i := range n {
		fmt.Fprintf(&b, "%d 62 253:%d / /var/lib/kubelet/pods/0f4b4cd6-98a1-4a4e-8f4e-%012d/volumes/flexd~lvm/pvc-%06d rw,relatime shared:%d - ext4 /dev/mapper/vg0-lv%d rw,seclabel\n",
			100+i, i%1000, i, i, 100+i, i%1000)
	}
	return b.Bytes()
}

// BenchmarkRead reads the table of a node with 1,000 mounts, of which one changes between two reads: with a
// new Reader, and with the same.
func BenchmarkRead(b *testing.B) {
	whole := bigTable(1000)
	texts := [][]byte{whole, whole[:bytes.LastIndexByte(whole[:len(whole)-1], '\n')+1]}
	memory := new(Reader)
	for name, read := range map[string]func(io.Reader) (*Table, error){"anew": Read, "memory": memory.Read} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := read(bytes.NewReader(texts[i%2])); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Ensure that a Reader returns the same tables as Read, after any changes, and after a bad line.
func TestReaderRemembers(t *testing.T) {
	line := func(id int) string {
		return fmt.Sprintf("%d 1 7:%d / /mnt/%d rw shared:%d - ext4 /dev/loop%d rw,x=%d\n", id, id%3, id%7, id, id%3, id%2)
	}
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	r, ids := new(Reader), []int{}
	for round := range 200 {
		switch i := len(ids); {
		case i > 0 && rnd.IntN(3) == 0:
			ids = slices.Delete(ids, i/2, i/2+1)
		default:
			ids = append(ids, 10+round)
		}
		text := "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
		for _, id := range ids {
			text += line(id)
		}
		if rnd.IntN(5) == 0 {
			if _, err := r.Read(strings.NewReader(text + "no mount\n")); err == nil {
				t.Fatal("a bad line was read")
			}
		}
		got, err := r.Read(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		want, err := Read(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(outline(want), outline(got)); diff != "" {
			t.Fatalf("round %d (-without memory +with):\n%s", round, diff)
		}
	}
}

func outline(t *Table) (all []string) {
	ids := func(entries []*Entry) (ids []int) {
		for _, e := range entries {
			ids = append(ids, e.ID)
		}
		return ids
	}
	for _, e := range t.All() {
		reached, _ := t.At(e.Dir)
		all = append(all, fmt.Sprint(e.ID, e.Parent, e.Number, e.Root, e.Dir, e.Options, e.Peer, e.Type, e.Source, e.Super, ids(reached), ids(t.Of(e.Number))))
	}
	return all
}

func TestNames(t *testing.T) {
	var n names
	want := map[string]int{}
	for round := range 40 {
		old, oldLen := n, n.len()
		var fresh []string
		for i := range round * round {
			fresh = append(fresh, fmt.Sprint("name ", i*round%997))
		}
		n = n.with(fresh)
		if old.len() != oldLen {
			t.Fatal("shared names were changed")
		}
		for _, s := range fresh {
			i := n.of(s)
			if was, ok := want[s]; i < 0 || i >= n.len() || ok && was != i {
				t.Fatalf("%s is %d, was %d", s, i, was)
			}
			want[s] = i
		}
	}
	taken := map[int]string{}
	for s := range want {
		if other, ok := taken[n.of(s)]; ok {
			t.Errorf("%s and %s have one number", s, other)
		}
		taken[n.of(s)] = s
	}
	if n.of("unknown") != -1 || len(want) != n.len() {
		t.Errorf("%d names, want %d", n.len(), len(want))
	}
}

// Ensure that the path of a directory has each known directory on it, in order, also in trees that share
// memory.
func TestTree(t *testing.T) {
	var (
		trees []tree
		known []map[string]bool
		seen  = map[string]bool{"/": true}
		text  = func(tr tree, numbers []int) (dirs []string) {
			for _, i := range numbers {
				for dir := range seen {
					if tr.of(dir) == i {
						dirs = append(dirs, dir)
					}
				}
			}
			return dirs
		}
	)
	var tr tree
	for round := range 12 {
		var fresh []string
		for i := range 1 + round*20 {
			dir := fmt.Sprintf("/a/b%d/c%d//deleted", i%7, i*round)
			fresh = append(fresh, dir)
			for i := range dir {
				if i > 0 && dir[i] == '/' {
					seen[dir[:i]] = true
				}
			}
			seen[dir] = true
		}
		tr = tr.with(fresh)
		trees, known = append(trees, tr), append(known, maps.Clone(seen))
	}
	for i, tr := range trees {
		if tr.len() != len(known[i]) || len(tr.parents) != tr.len() {
			t.Errorf("%d directories, %d parents, want %d", tr.len(), len(tr.parents), len(known[i]))
		}
		long := "/a" + strings.Repeat("/x", 4096)
		if deep := (tree{tr.names, slices.Clip(tr.parents)}).with([]string{long}); deep.len() > tr.len()+1 {
			t.Errorf("tree %d: a mount point that no lookup reaches has %d numbers", i, deep.len()-tr.len())
		}
		for _, dir := range []string{"/", "/a/b1", "/a/b3/c15//deleted", "/a/b3/c15//deleted/x/y", "/b", "", "x"} {
			var want []string
			for j := range len(dir) + 1 {
				if j > 1 && (j == len(dir) || dir[j] == '/') && known[i][dir[:j]] {
					want = append(want, dir[:j])
				}
			}
			numbers, whole := tr.path(dir, nil)
			if got := text(tr, numbers); !slices.Equal(got, want) || whole != known[i][dir] {
				t.Errorf("tree %d: %q has the path %q (whole: %v), want %q", i, dir, got, whole, want)
			}
		}
	}
}
