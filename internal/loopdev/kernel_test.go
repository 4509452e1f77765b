package loopdev

import (
	"fmt"
	"testing"
)

// Only some files of a directory that hangs are read at a time, and no other directory is affected.
func TestHangingFiles(t *testing.T) {
	k := &fakeKernel{files: map[string]FileInfo{}, bad: map[string]error{}}
	for _, dir := range []string{"/srv/hangs", "/srv/other"} {
		for i := range 100 {
			file := fmt.Sprintf("%s/v%d", dir, i)
			k.files[file] = FileInfo{Exists: true, Regular: true}
			if dir == "/srv/hangs" {
				k.bad[file] = &hangError{file}
			}
		}
	}
	p := New(map[string]string{"hangs": "/srv/hangs", "other": "/srv/other"}, t.TempDir(), &fakeRunner{}, k)
	for dir, want := range map[string]struct{ asked, visited, unread int }{"hangs": {maxHung, 0, 100}, "other": {100, 100, 0}} {
		before, visited := k.asked.Load(), 0
		unread, err := p.each(dir, "/srv/"+dir, func(string, string, FileInfo) { visited++ })
		if asked := int(k.asked.Load() - before); err != nil || asked != want.asked || visited != want.visited || len(unread) != want.unread {
			t.Errorf("%s: %d files asked, %d visited, %d unread, %v", dir, asked, visited, len(unread), err)
		}
	}
}
