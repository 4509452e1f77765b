package procfs

import (
	"os"
	"testing"
	"time"
)

func TestReadStat(t *testing.T) {
	const rest = " D 7 8 8 0 -1 4194564 0 0 0 0 0 0 0 0 20 0 1 0 250 0 0 0 0 0 0 0 0 256 0\n"
	for _, name := range []string{"(mount)", "(a) S 1 (b)", "()", "(\n)"} {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/stat", []byte("12 "+name+rest), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readStat(dir)
		want := taskStat{state: 'D', parent: 7, flags: 4194564, started: 2500 * time.Millisecond, pending: 256}
		if got != want || err != nil {
			t.Errorf("%q: %+v, %v; want %+v", name, got, err, want)
		}
	}
	if parent, err := Process(os.Getpid()).Parent(); parent != os.Getppid() || err != nil {
		t.Errorf("parent %d, %v; want %d", parent, err, os.Getppid())
	}
	if _, err := readStat(t.TempDir()); err == nil {
		t.Error("no error for a process that has ended")
	}
}
