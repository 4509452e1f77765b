package loopdev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

const gib = 1 << 30

// A disk is a filesystem with the directories of volume groups, and the runner of the children that create
// and extend files.
type disk struct {
	Kernel
	mu       sync.Mutex
	files    map[string]FileInfo
	bad      map[string]error // files that cannot be read
	loops    []Loop
	links    string
	dirs     map[string]uint64 // their filesystems
	space    Space             // Free: without the files
	fail     error             // of the next child
	reads    int
	children int
}

func newDisk(t *testing.T) *disk {
	return &disk{links: t.TempDir(), files: map[string]FileInfo{}, dirs: map[string]uint64{"/no/vg0": 1, "/no/vg1": 1}, space: Space{Size: 100 * gib, Free: 90 * gib, Root: 90 * gib}}
}

func (d *disk) provider(l volume.Limits) *Provider {
	p := New(map[string]string{"vg0": "/no/vg0", "vg1": "/no/vg1"}, d.links, d, d)
	p.Limits = func(string) *volume.Limits { return &l }
	return p
}

func (d *disk) Directory(dir string) (string, error) { return dir, nil }

func (d *disk) File(path string) (FileInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev, ok := d.dirs[path]; ok {
		return FileInfo{Exists: true, Dir: true, Inode: Inode{Dev: dev}}, nil
	}
	return d.files[path], d.bad[path]
}

func (d *disk) Files(dir string) (names []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads++
	for file := range d.files {
		if filepath.Dir(file) == dir {
			names = append(names, filepath.Base(file))
		}
	}
	return names, nil
}

func (d *disk) Loops() ([]Loop, error) { return d.loops, nil }

func (d *disk) Loop(name string) (Loop, error) { return fakeLoop(d.loops, name) }

func (d *disk) Space(string) (Space, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.space
	for _, f := range d.files {
		s.Free -= f.Blocks
	}
	return s, nil
}

func (d *disk) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond) // others work meanwhile
	d.mu.Lock()
	defer d.mu.Unlock()
	d.children++
	if err := d.fail; err != nil {
		return run.Result{}, err
	}
	var a createArg
	if err := json.Unmarshal([]byte(c.Argv[len(c.Argv)-1]), &a); err != nil {
		return run.Result{}, err
	}
	f, there := d.files[a.File]
	if !there {
		f = FileInfo{Exists: true, Regular: true, Links: 1, UUID: uuidA, Created: true, Namespace: a.Namespace}
	}
	f.Size = roundUp(a.Size)
	d.files[a.File] = f
	return run.Result{Stdout: []byte(`{"value":{}}`)}, nil
}

// write fills a file, or empties it.
func (d *disk) write(file string, bytes int64) {
	f := d.files[file]
	f.Blocks = bytes
	d.files[file] = f
}

func lv(i any) volume.Name { return volume.Name{VG: "vg0", LV: fmt.Sprint(i)} }

// Of 1,000 volumes of 60 GiB on a filesystem with 90 GiB free one is created, and a refusal starts no child.
// With overcommit each must fit by itself.
func TestPromises(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t)
		p := d.provider(volume.Limits{Reserve: 10})
		var refusal error
		created := 0
		for i := range 1000 {
			if err := p.Create(t.Context(), "", lv(i), 60*gib, "a"); err == nil {
				created++
			} else if refusal = err; volume.CodeOf(err) != volume.NoSpace {
				t.Fatal(err)
			}
		}
		if created != 1 || d.children != 1 || d.reads > 10 {
			t.Errorf("%d created, %d children, %d times all files were read; %v", created, d.children, d.reads, refusal)
		}
		for _, word := range []string{"/no/vg0", "60 GiB wanted", "100 GiB", "1 volumes", "reserve: 10%", "smaller size", "overcommit: false"} {
			if !strings.Contains(refusal.Error(), word) {
				t.Errorf("no %s in: %v", word, refusal)
			}
		}
		for _, row := range []struct {
			what string
			do   func()
			size int64 // that is allowed, and 4 KiB more is not; of 90 GiB 10 are reserved, and 60 are for the volume
		}{
			{"reserved", func() {}, 20 * gib},
			{"a damaged file counts as before, and one that was never read does not count", func() {
				d.files["/no/vg0/backup"] = FileInfo{}
				d.bad = map[string]error{"/no/vg0/0": unix.EBADMSG, "/no/vg0/backup": unix.ENOTCONN}
			}, 20 * gib},
			{"it can be read again", func() { d.bad = nil; delete(d.files, "/no/vg0/backup") }, 20 * gib},
			{"written: the reserved space is used", func() { d.write("/no/vg0/0", 60*gib) }, 20 * gib},
			{"half of that is discarded", func() { d.write("/no/vg0/0", 30*gib) }, 20 * gib},
			{"used otherwise", func() { d.space.Free -= 5 * gib }, 15 * gib},
			{"a file that is no volume", func() {
				d.files["/no/vg0/image"] = FileInfo{Exists: true, Regular: true, Links: 1, Size: 1 << 50, Blocks: gib}
			}, 14 * gib},
			{"a volume that an operator made", func() {
				d.files["/no/vg0/by-hand"] = FileInfo{Exists: true, Regular: true, Links: 1, UUID: uuidB, Size: 4 * gib}
			}, 10 * gib},
			{"another group on the filesystem", func() {
				d.files["/no/vg1/x"] = FileInfo{Exists: true, Regular: true, Links: 1, UUID: uuidB, Size: 4 * gib, Blocks: gib}
			}, 6 * gib},
			{"another group on another filesystem", func() { d.dirs["/no/vg1"] = 2; d.space.Free += gib }, 10 * gib},
			{"a volume with a hard link", func() {
				linked := FileInfo{Exists: true, Regular: true, Links: 2, Inode: Inode{1, 7}, UUID: uuidB, Size: 2 * gib}
				d.files["/no/vg0/linked"], d.files["/no/vg0/link"] = linked, linked
			}, 8 * gib},
			{"a deleted file with a device, and one of another node", func() {
				delete(d.files, "/no/vg0/linked")
				delete(d.files, "/no/vg0/link")
				d.loops = []Loop{
					{Name: "loop0", Seq: 1, BackingFile: "/no/vg0/linked", Deleted: true, Size: 2 * gib},
					{Name: "loop1", Seq: 2, BackingFile: "/no/vg0/linked", Deleted: true, Size: 2 * gib},
				}
				p.known[1], p.known[2] = identity{uuidB, Inode{1, 7}}, identity{uuidA, Inode{1, 8}}
				p.save(1, p.known[1])
			}, 8 * gib},
			{"a device whose file was moved", func() { d.loops[0].BackingFile, d.loops[0].Deleted = "/no/backup/linked", false }, 8 * gib},
			{"a device of a new file", func() {
				d.loops[0].BackingFile = "/no/vg0/by-hand"
			}, 10 * gib},
			{"removed", func() { delete(d.files, "/no/vg0/0"); d.space.Free += 0 }, 70 * gib},
		} {
			row.do()
			time.Sleep(filesAge)
			if s, err := p.Space(t.Context(), "vg0", 1<<50); err != nil || s.Largest != row.size || s.Size != 100*gib || s.Refused != nil {
				t.Errorf("%s: %+v, %v", row.what, s, err)
			}
			if p.CanCreate(t.Context(), lv("new"), row.size+unit, "a") == nil || p.CanCreate(t.Context(), lv("new"), row.size, "a") != nil {
				t.Error("its creation is not foreseen")
			}
			if err := p.Create(t.Context(), "", lv("new"), row.size+unit, "a"); err == nil {
				t.Fatalf("%s: %d bytes more are allowed", row.what, unit)
			}
			if err := p.Create(t.Context(), "", lv("new"), row.size, "a"); err != nil {
				t.Errorf("%s: %v", row.what, err)
			}
			delete(d.files, "/no/vg0/new")
		}
		p = d.provider(volume.Limits{Reserve: 10, Overcommit: true})
		for i, want := range []bool{true, true, false} {
			if err := p.Create(t.Context(), "", lv(fmt.Sprint("over", i)), []int64{70 * gib, 70 * gib, 80 * gib}[i], ""); (err == nil) != want {
				t.Errorf("overcommit: %v", err)
			}
		}
		d.space.Inodes, d.space.InodeFree = 1000, 100
		time.Sleep(filesAge)
		if err := p.Create(t.Context(), "", lv("inode"), gib, ""); volume.CodeOf(err) != volume.NoSpace || !strings.Contains(err.Error(), "inode") {
			t.Errorf("no inode: %v", err)
		}
		if s, err := p.Space(t.Context(), "vg0", 1<<50); err != nil || s.Largest != 0 || !strings.Contains(s.Refused.Error(), "inode") {
			t.Errorf("no inode: %+v, %v", s, err)
		}
	})
}

// 200 concurrent creations and extensions together do not exceed a limit, with failures and restarts of
// flexd; failures return their space.
func TestLimitsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := volume.Limits{Group: volume.Limit{MaxVolumes: 15, MaxTotalSize: 15 * gib}, Namespace: volume.Limit{MaxVolumes: 10, MaxTotalSize: 10 * gib}}
		d := newDisk(t)
		d.fail = errors.New("no")
		p := d.provider(limits)
		for life := range 3 {
			var all sync.WaitGroup
			for i := range 200 {
				all.Go(func() {
					_ = p.Create(t.Context(), "", lv(fmt.Sprint(life, "-", i)), gib/2+rand.Int64N(gib), []string{"a", "b"}[i%2])
				})
			}
			all.Wait()
			if d.fail != nil {
				if len(d.files) != 0 || len(p.pending) != 0 {
					t.Fatalf("%d files, %d pending", len(d.files), len(p.pending))
				}
				d.fail = nil
			}
			for file, f := range maps.Clone(d.files) {
				all.Go(func() {
					_ = p.Extend(t.Context(), "", volume.LV{Name: lv(filepath.Base(file))}, volume.Device{}, f.Size+rand.Int64N(gib))
				})
			}
			all.Wait()
			var u volume.Usage
			for _, f := range d.files {
				u.Add(f.Namespace, volume.Amount{Volumes: 1, Size: f.Size})
			}
			if u.All.Volumes > 15 || u.All.Size > 15*gib {
				t.Errorf("life %d: in all %+v", life, u.All)
			}
			for ns, a := range u.ByNamespace {
				if a.Volumes > 10 || a.Size > 10*gib {
					t.Errorf("life %d: namespace %s has %+v", life, ns, a)
				}
			}
			if life > 0 && u.All.Volumes < 10 {
				t.Errorf("life %d: only %+v", life, u.All)
			}
			if s := p.groups["vg0"]; s.usage.All != u.All || len(p.pending) != 0 {
				t.Errorf("life %d: counted %+v, there is %+v; %d pending", life, s.usage.All, u.All, len(p.pending))
			}
			if life > 0 {
				p = d.provider(limits)
			}
		}
	})
}

// The limit is reduced below the existing volumes: nothing is created or extended until enough is removed. A
// child that does not end keeps its share.
func TestLimitLowered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t)
		p := d.provider(volume.Limits{})
		for i := range 5 {
			if err := p.Create(t.Context(), "", lv(i), gib, "a"); err != nil {
				t.Fatal(err)
			}
		}
		p = d.provider(volume.Limits{Namespace: volume.Limit{MaxVolumes: 3, MaxTotalSize: 4 * gib}})
		grow := func() error {
			return p.Extend(t.Context(), "", volume.LV{Name: lv(0)}, volume.Device{}, gib+unit)
		}
		if err := grow(); err == nil || !strings.Contains(err.Error(), "perNamespace.maxTotalSize") {
			t.Errorf("extend: %v", err)
		}
		if err := p.Extend(t.Context(), "", volume.LV{Name: lv(0)}, volume.Device{}, gib); err != nil {
			t.Errorf("an interrupted extension is not completed: %v", err)
		}
		for i := 5; i > 3; i-- {
			if err := p.Create(t.Context(), "", lv("new"), unit, "a"); err == nil || !strings.Contains(err.Error(), fmt.Sprint("has created ", i, " for namespace a")) {
				t.Errorf("with %d: %v", i, err)
			}
			delete(d.files, fmt.Sprint("/no/vg0/", i-1))
			time.Sleep(filesAge)
		}
		if err := grow(); err != nil {
			t.Errorf("extend: %v", err)
		}
		delete(d.files, "/no/vg0/2")
		time.Sleep(filesAge)

		done := make(chan struct{})
		d.fail = &run.StuckError{Done: done}
		if err := p.Create(t.Context(), "", lv("stuck"), gib, "a"); !errors.Is(err, d.fail) {
			t.Error(err)
		}
		d.fail = nil
		time.Sleep(2 * filesAge)
		if err := p.Create(t.Context(), "", lv("new"), unit, "a"); err == nil {
			t.Error("the share of a child that may still succeed is given away")
		}
		close(done)
		synctest.Wait()
		if err := p.Create(t.Context(), "", lv("new"), unit, "a"); err != nil {
			t.Error(err)
		}
	})
}

// TestNameOf: a group's own directory is asked first, so that another group's directory that hangs delays no call.
func TestNameOf(t *testing.T) {
	d := &askedDirectories{disk: newDisk(t)}
	p := New(map[string]string{"vg0": "/no/vg0", "vg1": "/no/vg1", "vg2": "/no/vg2"}, d.links, d, d)
	for vg := range p.dirs {
		d.asked = nil
		if name := p.nameOf("/no/" + vg + "/a"); name != (volume.Name{VG: vg, LV: "a"}) || !slices.Equal(d.asked, []string{"/no/" + vg}) {
			t.Errorf("%s: got %v after questions for %v", vg, name, d.asked)
		}
	}
	if name := p.nameOf("/no/other/a"); name != (volume.Name{}) {
		t.Errorf("got %v", name)
	}
}

// An askedDirectories is a disk that keeps the directories it is asked for.
type askedDirectories struct {
	*disk
	asked []string
}

func (d *askedDirectories) Directory(dir string) (string, error) {
	d.asked = append(d.asked, dir)
	return dir, nil
}
