//go:build vm

package reboot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
)

// The lives of a node whose disk was full of another tenant's lines.
const (
	zeroing  = "zeroing" // ends with a power cut while a new volume is zeroed
	writing  = "writing" // completes it, and ends with one while files of a volume are written that was not zeroed
	reading  = "reading" // reads these files
	zeroSize = 320 << 20 // of a volume of up to 256 MiB, the places of labels are all of it
	oldLine  = "a line of the old tenant\n"
)

// TestZeroCut cuts the power while a volume is zeroed: it is no volume then, and all of it
// is zero before it becomes one. Where only labels are zeroed, the files of the new tenant
// have none of the old one's lines.
func TestZeroCut(t *testing.T) {
	if life := os.Getenv(whichLife); life != "" {
		zeroLife(t, life)
		return
	}
	m := machine{dir: t.TempDir(), test: "TestZeroCut"}
	m.boot(t, zeroing, wasCut)
	m.boot(t, writing, wasCut)
	m.boot(t, reading, 0)
}

func zeroLife(t *testing.T, life string) {
	l := newLife(t, false)
	l.must(os.WriteFile("/sys/block/vda/queue/discard_max_bytes", []byte("0"), 0)) // mkfs would discard the old lines
	if life == zeroing {
		l.run("mkfs.ext4", "-q", "/dev/vdb")
		l.run("vgcreate", "-q", host.VG, "/dev/vda")
		l.run("lvcreate", "-q", "-y", "-Wn", "-Zn", "-L", "680m", "-n", "old", host.VG)
		l.fillWith("old", oldLine)
		l.run("lvremove", "-q", "-y", host.VG+"/old")
	}
	l.must(os.MkdirAll(place, 0o755))
	l.must(unix.Mount("/dev/vdb", place, "ext4", 0, ""))
	var err error
	l.Node, err = host.Reopen(os.Getenv("FLEXD_TEST_BIN"), lease, place, "/run/flexd")
	l.must(err)
	l.must(os.WriteFile(filepath.Dir(l.Driver)+"/.lvm.init.json", []byte(`{"attach": false}`), 0o644))
	l.zeroWhat("all")
	switch life {
	case zeroing:
		l.start()
		go func() { l.setUp(stays, "zeroed") }()
		for !l.zeroStopped("zeroed") {
			time.Sleep(time.Millisecond)
		}
		l.cut()
	case writing:
		if tags := l.run("lvs", "--noheadings", "-o", "lv_tags", host.VG+"/zeroed"); !strings.Contains(tags, "flexd.creating") {
			l.Fatalf("the tags of the volume whose creation was cut: %s", tags)
		}
		l.run("lvchange", "-ay", host.VG+"/zeroed")
		if n := l.oldLines("zeroed"); n == 0 || n == zeroSize/len(oldLine) {
			l.Errorf("it has %d old lines: it was not cut in the middle", n)
		}
		l.start()
		l.setUp(stays, "zeroed")
		if n := l.oldLines("zeroed"); n > 0 {
			l.Errorf("it has %d old lines", n)
		}
		dir := l.podDir(stays, "zeroed")
		l.call("Success", "expandfs", l.volume("zeroed").Blob(nil), "", dir, fmt.Sprint(zeroSize+32<<20), fmt.Sprint(zeroSize))
		var fs unix.Statfs_t
		l.must(unix.Statfs(dir, &fs))
		if n := l.oldLines("zeroed"); n > 0 || int64(fs.Blocks)*fs.Bsize < zeroSize {
			l.Errorf("extended it has %d old lines, and a filesystem of %d bytes", n, int64(fs.Blocks)*fs.Bsize)
		}
		l.tearDown(stays, "zeroed")
		l.must(l.Signal(syscall.SIGTERM))
		l.zeroWhat("labels")
		l.start()
		l.setUp(stays, "labels")
		l.writeMany(l.podDir(stays, "labels"))
		l.cut()
	case reading:
		l.start()
		l.setUp(stays, "labels")
		n, size := 0, 0
		dir := l.podDir(stays, "labels")
		l.must(filepath.Walk(dir, func(path string, fi os.FileInfo, err error) error {
			if err != nil || !fi.Mode().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			if n, size = n+1, size+len(b); bytes.Contains(b, []byte(oldLine)) {
				l.Errorf("%s has lines of the old tenant", path)
			}
			return err
		}))
		if n == 0 || size == 0 {
			l.Errorf("%d files with %d bytes: this proves nothing", n, size)
		}
		if l.oldLines("labels") == 0 {
			l.Error("the device has no old line: this proves nothing")
		}
		l.tearDown(stays, "labels")
	}
}

// zeroWhat configures `zero`.
func (l *life) zeroWhat(what string) {
	l.Helper()
	l.must(l.Configure(host.Settings{Lease: lease, Groups: "  - {name: " + host.VG + ", create: true, maxSize: 8GiB, namespaces: ['*'], provider: lvm, zero: " + what + "}\n"}))
}

func (l *life) cut() {
	l.Helper()
	l.must(exec.Command("vm-cut", strconv.Itoa(wasCut)).Run())
	l.Fatal("the power was cut, and the machine runs")
}

// zeroStopped stops the child that zeroes a volume in the middle of it.
func (l *life) zeroStopped(lv string) bool {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	l.must(err)
	for _, path := range all {
		text, _ := os.ReadFile(path)
		if !bytes.Contains(text, []byte("\x00child\x00zero\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		l.must(err)
		for syscall.Kill(pid, syscall.SIGSTOP) == nil {
			begun := !l.oldAt(lv, 100<<20)
			if begun {
				if !l.oldAt(lv, zeroSize-(50<<20)) {
					l.Fatal("it was zeroed before it could be stopped")
				}
				return true
			}
			if syscall.Kill(pid, syscall.SIGCONT) != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	return false
}

// oldAt reports whether an old line is at that place of the disk.
func (l *life) oldAt(lv string, at int64) bool {
	out, err := exec.Command("dd", "if="+l.device(lv), "iflag=direct", "bs=4096", "count=1", "status=none", fmt.Sprintf("skip=%d", at/4096)).Output()
	return err != nil || bytes.Contains(out, []byte(oldLine))
}

func (l *life) fillWith(lv, line string) {
	l.Helper()
	f, err := os.OpenFile(l.device(lv), os.O_WRONLY, 0)
	l.must(err)
	defer f.Close()
	b := bytes.Repeat([]byte(line), 1<<20/len(line)*25)
	for err == nil {
		_, err = f.Write(b)
	}
	if !errors.Is(err, unix.ENOSPC) {
		l.Fatal(err)
	}
	l.must(f.Sync())
}

func (l *life) oldLines(lv string) (n int) {
	l.Helper()
	f, err := os.Open(l.device(lv))
	l.must(err)
	defer f.Close()
	b := make([]byte, 1<<20)
	for {
		k, err := f.Read(b)
		n += bytes.Count(b[:k], []byte(oldLine))
		if err == io.EOF {
			return n
		}
		l.must(err)
	}
}

// writeMany writes files in many ways, until the kernel has written part of them.
func (l *life) writeMany(dir string) {
	l.Helper()
	for i := range 200 {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		l.must(err)
		switch i % 4 {
		case 0: // blocks without data
			l.must(unix.Fallocate(int(f.Fd()), 0, 0, 256<<10))
			_, err = f.WriteAt([]byte("new\n"), 100<<10)
		case 1: // a hole
			_, err = f.WriteAt([]byte("new\n"), 300<<10)
		case 2:
			_, err = f.Write(bytes.Repeat([]byte("new\n"), 64<<10))
		case 3: // a short file grows
			_, err = f.Write([]byte("new\n"))
			l.must(err)
			err = f.Truncate(200 << 10)
		}
		l.must(err)
		if i%10 == 0 { // commits the journal, with the others' metadata
			l.must(f.Sync())
		}
		l.must(f.Close())
	}
}
