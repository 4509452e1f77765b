package devmapper

import (
	"errors"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// Ensure that the kernel's answers are parsed, and not read beyond their end.
func TestReply(t *testing.T) {
	b := make(reply, 1024)
	if err := b.ask(dmStatusTable, Key{Number: "253:1000"}); err != nil {
		t.Fatal(err)
	}
	if got := b.head().Number; got != "253:1000" {
		t.Errorf("got %s", got)
	}
	copy(b[48:], "vg0-data\x00")
	copy(b[176:], "LVM-x\x00")
	ne.PutUint32(b[24:], 2)
	ne.PutUint32(b[28:], dmReadOnly|dmSuspended|dmActivePresent)
	ne.PutUint32(b[20:], 2)
	at := dmHeader
	for i, params := range []string{"8:0 2048", "error"} {
		s := b[at:]
		ne.PutUint64(s, uint64(i)*8)
		ne.PutUint64(s[8:], 8)
		copy(s[24:], []string{"linear", "error"}[i])
		copy(s[dmSpec:], params)
		next := align8(at - dmHeader + dmSpec + len(params) + 1)
		ne.PutUint32(s[20:], uint32(next))
		at = dmHeader + next
	}
	ne.PutUint32(b[12:], uint32(at-2)) // the last is aligned beyond the end
	want := Mapped{Name: "vg0-data", UUID: "LVM-x", Number: "253:1000", Open: 2, Suspended: true, ReadOnly: true, Live: true}
	if got := b.head(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	got, err := b.targets()
	if err != nil || !reflect.DeepEqual(got, []Target{{"linear", 0, 4096, "8:0 2048"}, {"error", 4096, 4096, "error"}}) {
		t.Errorf("got %+v %v", got, err)
	}
	ne.PutUint32(b[20:], 3)
	if got, err := b.targets(); err == nil {
		t.Errorf("got %+v", got)
	}
	// Without a live table the kernel leaves the size at the end of its own header.
	ne.PutUint32(b[20:], 0)
	ne.PutUint32(b[12:], 305)
	if got, err := b.targets(); err != nil || got != nil {
		t.Errorf("no table: got %+v %v", got, err)
	}
}

// The dependencies of a device are parsed, and not read beyond their end.
func TestDeps(t *testing.T) {
	b := make(reply, dmHeader+24)
	_ = b.ask(0, Key{})
	ne.PutUint32(b[dmHeader:], 2)
	ne.PutUint64(b[dmHeader+8:], 253<<8|3)
	ne.PutUint64(b[dmHeader+16:], 253<<8|4)
	if got, err := b.deps(); err != nil || !reflect.DeepEqual(got, []string{"253:3", "253:4"}) {
		t.Errorf("got %q %v", got, err)
	}
	ne.PutUint32(b[dmHeader:], 3)
	if got, err := b.deps(); err == nil {
		t.Errorf("got %q", got)
	}
}

// A control device that appears later is used: dm_mod may be loaded after flexd has started.
func TestControlLate(t *testing.T) {
	defer func(file string) { controlFile = file }(controlFile)
	controlFile = t.TempDir() + "/control"
	k := New()
	if _, err := k.List(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("without it: %v", err)
	}
	if err := os.WriteFile(controlFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := k.List(); !errors.Is(err, unix.ENOTTY) { // as of any file
		t.Errorf("with it: %v", err)
	}
}

// Only the table of a thin device may lack its pool.
func TestHidesPool(t *testing.T) {
	for _, c := range []struct {
		target Target
		want   bool
	}{
		{Target{Type: "thin", Params: "253:3 1"}, false},
		{Target{Type: "thin", Params: "Fail"}, true},
		{Target{Type: "thin", Params: "-"}, true},
		{Target{Type: "linear", Params: "8:0 2048"}, false},
		{Target{Type: "error"}, false},
	} {
		if got := (Mapped{Targets: []Target{c.target}}).hidesPool(); got != c.want {
			t.Errorf("%+v: got %v", c.target, got)
		}
	}
}

func FuzzReply(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 400))
	f.Fuzz(func(t *testing.T, data []byte) {
		b := make(reply, dmHeader+len(data))
		_ = b.ask(0, Key{})
		copy(b[dmHeader:], data)
		if len(data) > 4 {
			ne.PutUint32(b[20:], uint32(data[0]))
		}
		if all, _, err := b.list(); err == nil && len(all) > len(data) {
			t.Errorf("got %d devices of %d bytes", len(all), len(data))
		}
		_, _ = b.targets()
		_, _ = b.deps()
		copy(b, data) // a header that lies
		_, _, _ = b.list()
		_, _ = b.targets()
		_, _ = b.deps()
		_ = b.head()
	})
}
