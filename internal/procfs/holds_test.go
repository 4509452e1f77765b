package procfs

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func FuzzParse(f *testing.F) {
	f.Add([]byte("07:03"))
	f.Fuzz(func(t *testing.T, b []byte) {
		hexNumber(string(b))
	})
}

// A process is of a pod if one of its cgroups is.
func FuzzOfPod(f *testing.F) {
	f.Add("0::/kubepods.slice/kubepods-burstable.slice", "12:cpu:/user.slice")
	f.Add("0::/system.slice/kubelet.service", "1:name=systemd:/a/kubepods/b")
	f.Fuzz(func(t *testing.T, a, b string) {
		if OfPod(a+"\n"+b) != (OfPod(a) || OfPod(b)) {
			t.Errorf("%q: %v, %q: %v", a, OfPod(a), b, OfPod(b))
		}
		if OfPod(a) && !OfPod(a+"/below") && !strings.HasSuffix(a, "\n") {
			t.Errorf("%q is a pod's, and not what is below", a)
		}
	})
}

// A search that may read nothing finds nothing, and says so.
func TestSearchCut(t *testing.T) {
	for _, row := range []struct {
		entries int
		cut     bool
	}{{1 << 30, false}, {0, true}} {
		s, seen := NewSearch(row.entries), 0
		s.Each(func(p Process) bool {
			seen++
			s.HoldsDevice(p, map[string]string{"999:999": "it"})
			return true
		})
		if s.Cut() != row.cut || (seen == 0) != row.cut {
			t.Errorf("%v: cut %v, %d processes", row.entries, s.Cut(), seen)
		}
	}
}

// Threads with a table of descriptors each are compared with each other: the comparisons count.
func TestSearchThreads(t *testing.T) {
	const threads = 100
	var begun, all sync.WaitGroup
	end := make(chan struct{})
	begun.Add(threads)
	for range threads {
		all.Go(func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			if err := unix.Unshare(unix.CLONE_FILES); err != nil {
				t.Error(err)
			}
			begun.Done()
			<-end
		})
	}
	begun.Wait()
	s := NewSearch(20 * threads)
	if all := s.tables(Process(os.Getpid())); !s.Cut() {
		t.Errorf("%d threads have tables of their own, and comparing them cost %d", len(all), 20*threads-s.left)
	}
	close(end)
	all.Wait()
}

// A file of procfs can have long lines, and gigabytes of them.
func TestSearchLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "maps")
	line := strings.Repeat("x", 2559) + "\n"
	if err := os.WriteFile(path, []byte(strings.Repeat(line, 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	s, seen := NewSearch(109), 0
	s.lines(path, func(got string) bool {
		seen++
		return got != line
	})
	if seen != 9 || !s.Cut() {
		t.Errorf("%d lines, cut %v", seen, s.Cut())
	}
}

// A process that waits in mmap(2) for a filesystem that hangs has its mappings locked. The search
// waits for them once, and goes on without mappings.
func TestSearchBlocked(t *testing.T) {
	defer func(d time.Duration) { mappingsTimeout = d }(mappingsTimeout)
	mappingsTimeout = time.Millisecond
	end := make(chan struct{})
	defer close(end)
	s := NewSearch(100)
	s.mappings(1, func(own *Search) (string, int) {
		<-end
		own.Over(200) // it has no effect on the search any more
		return "mapped", 1
	})
	asked := false
	how, id := s.mappings(2, func(*Search) (string, int) {
		asked = true
		return "mapped", 2
	})
	if s.Blocked() != 1 || s.Cut() || asked || how != "" || id != 0 {
		t.Errorf("blocked by %d, cut %v, asked %v: %q %d", s.Blocked(), s.Cut(), asked, how, id)
	}
}
