package loopdev

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A hanging filesystem with many files delays its group for a bounded time, and no other
// directory; when it answers again, its files are read again.
func TestHangingDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKernel().(*daemonKernel)
		disk := make(chan struct{})
		read := func(path, dir string) error {
			_, err := within(k, path, dir, func(string) (bool, error) {
				if strings.HasPrefix(path, "/hangs") {
					<-disk
				}
				return true, nil
			})
			return err
		}
		began := time.Now()
		for i := range 100 {
			if err := read(fmt.Sprint("/hangs/", i), "/hangs"); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("/hangs/%d does not respond", i)) {
				t.Fatal(i, err)
			}
		}
		if took := time.Since(began); took != maxHung*answerTime {
			t.Errorf("100 files took %v", took)
		}
		for _, dir := range []string{"/hangs1", "/hangs2", "/hangs3", "/hangs4"} { // directories of groups
			if err := read(dir, ""); err == nil {
				t.Errorf("%s is read", dir)
			}
		}
		for path, dir := range map[string]string{"/other/a": "/other", "/other": ""} {
			if err := read(path, dir); err != nil {
				t.Error(err)
			}
		}
		close(disk)
		synctest.Wait()
		if err := read("/hangs/99", "/hangs"); err != nil || len(k.hung)+len(k.hungIn) != 0 {
			t.Errorf("afterwards: %v, %v, %v", err, k.hung, k.hungIn)
		}
	})
}
