// Package growth holds what flexd does to a rule: no part of it grows faster than
// the number of volumes and mounts. It counts how often each piece of the code runs
// for a few volumes and for five times as many, and measures no time.
package growth

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flexd/flexd/internal/hosttest"
	"github.com/flexd/flexd/internal/loopdev"
)

const (
	few    = 20
	factor = 5
	// limit is how much more often a piece may run for factor times as much. What is
	// quadratic runs 25 times as often.
	limit = 3 * factor
	// enough is how often a piece must run before it counts.
	enough = 100 * few
)

// volumes is set, to their number, in the process whose code is counted.
const volumes = "FLEXD_GROWTH_VOLUMES"

func TestGrowth(t *testing.T) {
	if os.Getenv(volumes) != "" {
		t.Skip("this is the process that is counted")
	}
	t.Parallel()
	dir := t.TempDir()
	bin := filepath.Join(dir, "growth.test")
	const internal = "github.com/flexd/flexd/internal/"
	packages := internal + strings.Join([]string{"mount", "mounttable", "procfs", "sysfs", "devmapper", "kubelet", "asw", "join", "volume", "dsw", "reconcile", "status", "loopdev", "lvm"}, ","+internal)
	build := exec.Command("go", "test", "-c", "-vet=off", "-covermode=atomic", "-coverpkg="+packages, "-o", bin, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	small, large := count(t, bin, dir, few), count(t, bin, dir, factor*few)
	if len(small) == 0 {
		t.Fatal("nothing was counted")
	}
	for piece, n := range large {
		// How often callers share what one of them read is chance.
		if base := max(small[piece], enough/factor); small[piece] > 0 && n > limit*base {
			t.Errorf("%s runs %d times for %d volumes, and %d times for %d", piece, small[piece], few, n, factor*few)
		}
	}
}

// count returns how often each piece of the code runs for that many volumes.
func count(t *testing.T, bin, dir string, n int) map[string]int {
	t.Helper()
	text := filepath.Join(dir, fmt.Sprint(n))
	run := exec.Command(bin, "-test.run", "^TestCounted", "-test.coverprofile", text)
	run.Env = append(os.Environ(), fmt.Sprintf("%s=%d", volumes, n))
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f, err := os.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	counts := map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// FILE:LINE.COLUMN,LINE.COLUMN STATEMENTS COUNT
		if part := strings.Fields(lines.Text()); len(part) == 3 {
			counts[part[0]], _ = strconv.Atoi(part[2])
		}
	}
	return counts
}

// TestCounted is what is counted: a table that changes, with a look at all volumes
// and their plans; surveys, orphans, and the documents of status; then the calls for
// as many pods.
func TestCounted(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv(volumes))
	if err != nil {
		return // it is played by TestGrowth
	}
	tmp := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		e := hosttest.NewSim(t, tmp)
		defer e.Close()
		e.Patient = true // what follows costs nothing
		e.Crash()
		for i := range n {
			file := e.File(fmt.Sprint("data", i))
			e.Sim.AddFile(hosttest.File{State: hosttest.Whole, Type: "ext4", Bytes: 8 << 20,
				FileInfo: loopdev.FileInfo{UUID: fmt.Sprintf("aaaaaaaa-0000-4000-8000-%012d", i), Size: 8 << 20}}, file)
			e.Sim.Activate(file)
			for _, dir := range []string{
				fmt.Sprintf("%s/plugins/kubernetes.io/flexvolume/flexd/lvm/mounts/pv%d", e.Root, i),
				fmt.Sprintf("%s/pods/u%d/volumes/flexd~lvm/pv%d", e.Root, i, i),
			} {
				if err := e.Sim.MountElsewhere(file, dir); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range 10 * n {
			if err := e.Sim.MountTmpfs(fmt.Sprintf("%s/pods/u%d/volumes/kubernetes.io~empty-dir/%d", e.Root, i%n, i)); err != nil {
				t.Fatal(err)
			}
		}
		e.Begin()
		e.Settle(time.Minute)
		if claims := len(e.Claims()); claims != 2*n {
			t.Fatalf("%d claims", claims)
		}
		// Each mount gets a cover, and each volume something to report.
		if err := e.Sim.MountTmpfs(e.Root + "/pods"); err != nil {
			t.Fatal(err)
		}
		e.Settle(time.Minute)
		for range 3 {
			e.Node().Check(t.Context())
			e.Node().List()
			e.Node().VolumeDetail(hosttest.VG, "data0")
		}
		if err := e.Sim.Umount(e.Root + "/pods"); err != nil {
			t.Fatal(err)
		}
		e.Settle(time.Minute)
		pods(t, e, n)
	})
}

// pods gives volumes to as many pods and takes them away, each call for all of them at
// once.
func pods(t *testing.T, e *hosttest.Env, n int) {
	k := hosttest.NewKubelet(e, true)
	each := func(call func(p hosttest.Pod) error) {
		var calls sync.WaitGroup
		for i := range n {
			calls.Go(func() {
				if err := call(hosttest.Pod{UID: fmt.Sprint("p", i), Volume: fmt.Sprint("pod", i), LV: fmt.Sprint("pod", i), FSType: "ext4"}); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		e.Settle(time.Minute)
	}
	for i := range n {
		e.Sim.AddFile(hosttest.File{State: hosttest.Whole, Type: "ext4", Bytes: 8 << 20,
			FileInfo: loopdev.FileInfo{UUID: fmt.Sprintf("bbbbbbbb-0000-4000-8000-%012d", i), Size: 8 << 20}}, e.File(fmt.Sprint("pod", i)))
	}
	each(func(p hosttest.Pod) error { return k.Insist("attach", k.Blob(p, false), e.Config.NodeName) })
	for range 2 { // the second time all is done
		each(k.Up)
	}
	each(k.Down)
	each(func(p hosttest.Pod) error { return k.Insist("detach", p.Volume, e.Config.NodeName) })
}
