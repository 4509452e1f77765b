//go:build vm

package faults

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
)

// message sends one to a target of device-mapper: dmsetup would be a process for
// each.
func message(device, text string) error {
	f, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	const header = 312 // of struct dm_ioctl; a sector and the text follow
	b := make([]byte, header+8+len(text)+1)
	binary.NativeEndian.PutUint32(b[0:], 4)
	binary.NativeEndian.PutUint32(b[12:], uint32(len(b)))
	binary.NativeEndian.PutUint32(b[16:], header)
	copy(b[48:], device)
	copy(b[header+8:], text)
	const targetMessage = 3<<30 | header<<16 | 0xfd<<8 | 14
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), targetMessage, uintptr(unsafe.Pointer(&b[0]))); errno != 0 {
		return errno
	}
	return nil
}

// No space is left: in a group, among the data of a thin pool, among its metadata. It is
// reported, no pod gets a partial volume, and operations that need no space continue.
func TestNoSpace(t *testing.T) {
	pool := func(name string) string {
		return fmt.Sprintf("lvcreate -qq -y -L 32M --poolmetadatasize 2M --errorwhenfull y -T other/%s -V 128M -n in-%[1]s", name)
	}
	l := newLab(t, patient, create("near", "40M", host.Disks()[1]), pool("data"), pool("meta"))
	l.mkfs("ext4", "near")
	l.ok(l.mount("near"))
	for _, lv := range []string{"in-data", "in-meta"} {
		// Else the kernel zeroes inode tables later, a quarter of the pool.
		l.sh("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0", "/dev/other/"+lv)
		l.ok(l.mount("other/" + lv))
	}

	v := volumeOf("large")
	v.Options["size"] = "6Gi"
	l.must(os.MkdirAll(l.PodDir(podOf("large"), v), 0o750))
	pod := podOf("large")
	l.refused(l.call("mount large", "mount", l.PodDir(pod, v), v.Blob(&pod)), "no space in volume group "+host.VG, "free")
	if names := l.sh("lvs", "--noheadings", "-o", "lv_name", host.VG); strings.Contains(names, "large") {
		t.Errorf("half a volume is left: %s", names)
	}

	f, err := os.Create(l.dir("other/in-data") + "/large")
	l.must(err)
	fill := func(percent int64) error {
		for range 100 {
			if _, err := f.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
			if err := f.Sync(); err != nil {
				return err
			}
			if l.used("other-data-tpool") >= percent {
				return nil
			}
		}
		return nil
	}
	l.must(fill(85))
	l.sh("lvchange", "-q", "--addtag", "seen", "other/data") // else flexd looks after half a minute
	reported(l, "in-data", "% of the pool's data are used: lvextend -L +SIZE other/data")
	err = fill(101)
	f.Close()
	if err == nil {
		t.Fatal("100 MB fit into a pool of 32")
	}
	for n := 1000; message("other-meta-tpool", fmt.Sprint("create_thin ", n)) == nil; n++ {
		if n > 3000 {
			t.Fatal("the metadata do not fill")
		}
	}
	for i := range 16 { // a volume that needs new extents fails now
		os.WriteFile(fmt.Sprintf("%s/%d", l.dir("other/in-meta"), i), make([]byte, 1<<20), 0o644)
	}
	reported(l, "in-data", "the pool is full")
	reported(l, "in-meta", "the pool's metadata is full")
	l.refused(l.mount("other/in-meta", "another"), "the pool's metadata is full", "lvextend --poolmetadatasize")
	l.refused(l.mount("other/in-data", "another"), "thin pool other/data: the pool is full", "lvextend -L +SIZE other/data")
	l.ok(l.unmount("near"))
	l.ok(l.mount("near"))

	l.sh("lvextend", "-q", "-L", "+96M", "other/data")
	l.ok(l.unmount("other/in-data"))
	l.ok(l.mount("other/in-data")) // fsck has mended it
	l.ok(l.unmount("other/in-data"))
	l.ok(l.unmount("other/in-meta"))
	l.ok(l.unmount("near"))
}

// used says how many percent of a thin pool's data are.
func (l *lab) used(pool string) int64 {
	l.Helper()
	// 0 65536 thin-pool 1 12/512 300/512 - rw ...
	f := strings.Fields(l.sh("dmsetup", "status", pool))
	if len(f) < 6 {
		l.Fatalf("%s: %q", pool, f)
	}
	var blocks, all int64
	_, err := fmt.Sscanf(f[5], "%d/%d", &blocks, &all)
	l.must(err)
	return 100 * blocks / all
}

// reported waits until status reports a pool.
func reported(l *lab, lv, words string) {
	l.Helper()
	l.within(soon, lv+": its pool is reported", func() string {
		list := l.list()
		for _, p := range list.Pools {
			if "in-"+p.Name == lv && strings.Contains(p.Problem+p.Warning, words) {
				l.T.Log(p.Name, p.Problem+p.Warning)
				return ""
			}
		}
		return fmt.Sprintf("%+v", list.Pools)
	})
}
