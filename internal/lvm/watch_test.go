package lvm

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/volume"
)

// A message reports the device with its number, and only events of disks count.
func FuzzUevent(f *testing.F) {
	f.Add([]byte("x\x00ACTION=remove\x00SUBSYSTEM=block\x00MAJOR=253\x00MINOR=3\x00DEVNAME=dm-3"))
	f.Add([]byte("x\x00ACTION=change\x00SUBSYSTEM=block\x00MAJOR=8\x00MINOR=0\x00DEVNAME=sda\x00RESIZE=1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e := parseUevent(b)
		number := strings.Split(e.number, ":")
		if ours := bytes.Contains(b, []byte("SUBSYSTEM=block")); !ours && e != (uevent{}) {
			t.Errorf("%q: %+v", b, e)
		}
		if e.what != nothingOfOurs && (!bytes.Contains(b, []byte(number[0])) || !bytes.Contains(b, []byte(number[len(number)-1]))) {
			t.Errorf("%q: %+v", b, e)
		}
	})
}

func TestUevent(t *testing.T) {
	for s, want := range map[string]uevent{
		"change@/devices/virtual/block/dm-3\x00ACTION=change\x00SUBSYSTEM=block\x00MAJOR=253\x00MINOR=3\x00DEVNAME=dm-3\x00": {deviceChanged, "253:3", false},
		"x\x00ACTION=remove\x00SUBSYSTEM=block\x00MAJOR=253\x00MINOR=3\x00DEVNAME=dm-3":                                      {deviceChanged, "253:3", true},
		"x\x00ACTION=add\x00SUBSYSTEM=block\x00MAJOR=253\x00MINOR=3\x00DEVNAME=dm-3":                                         {nothingOfOurs, "253:3", false},
		"x\x00ACTION=add\x00SUBSYSTEM=block\x00MAJOR=8\x00MINOR=0\x00DEVNAME=sda":                                            {diskChanged, "8:0", false},
		"x\x00ACTION=change\x00SUBSYSTEM=block\x00MAJOR=8\x00MINOR=0\x00DEVNAME=sda":                                         {nothingOfOurs, "8:0", false},
		"x\x00ACTION=add\x00SUBSYSTEM=net\x00INTERFACE=eth0":                                                                 {},
		"": {},
	} {
		if got := parseUevent([]byte(s)); got != want {
			t.Errorf("%q: got %+v", s, got)
		}
	}
}

// An event that a process sends, to the group or to flexd's socket, has no effect. The kernel's events
// arrive.
func TestForgedUevent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root only")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // this thread ends with its namespace, where no udev receives what is sent
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("a network namespace: %v", err)
			return
		}
		open := func(groups uint32) (int, uint32) {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
			if err == nil {
				err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups})
			}
			a, err2 := unix.Getsockname(fd)
			if err != nil || err2 != nil {
				t.Error(err, err2)
				runtime.Goexit()
			}
			return fd, a.(*unix.SockaddrNetlink).Pid
		}
		events, port := open(1)
		defer unix.Close(events)
		sender, _ := open(0)
		defer unix.Close(sender)
		arrived := func() unix.Sockaddr {
			fds := []unix.PollFd{{Fd: int32(events), Events: unix.POLLIN}}
			for {
				if n, err := unix.Poll(fds, 10_000); err == unix.EINTR {
					continue
				} else if n != 1 {
					t.Errorf("nothing arrived: %v", err)
					return nil
				}
				_, from, err := unix.Recvfrom(events, make([]byte, 1), unix.MSG_PEEK)
				if err != nil {
					t.Error(err)
				}
				return from
			}
		}

		w := watch{p: &Provider{}, changedDevices: map[string]time.Time{}, groups: map[string]bool{}}
		const device = "change@/devices/virtual/block/dm-3\x00ACTION=change\x00SUBSYSTEM=block\x00MAJOR=253\x00MINOR=3\x00DEVNAME=dm-3\x00"
		const disk = "add@/devices/sda\x00ACTION=add\x00SUBSYSTEM=block\x00MAJOR=8\x00MINOR=0\x00DEVNAME=sda\x00"
		for _, to := range []*unix.SockaddrNetlink{{Family: unix.AF_NETLINK, Groups: 1}, {Family: unix.AF_NETLINK, Pid: port}, {Family: unix.AF_NETLINK, Pid: port, Groups: 1}} {
			for _, message := range []string{device, disk} {
				if err := unix.Sendto(sender, []byte(message), 0, to); err != nil {
					t.Errorf("to %+v: %v", to, err)
				}
			}
			arrived()
			w.uevents(events)
			if len(w.changedDevices)+len(w.groups)+len(w.gone) > 0 {
				t.Errorf("an event sent to %+v was believed: %v, %v, %v", to, w.changedDevices, w.groups, w.gone)
			}
		}

		if err := os.WriteFile("/sys/devices/virtual/mem/null/uevent", []byte("change"), 0); err != nil {
			t.Logf("no event of the kernel: %v", err)
			return
		}
		if from := arrived(); !fromKernel(from) {
			t.Errorf("the kernel's event is from %+v", from)
		}
	}()
	<-done
}

// Ensure that a change is reported with the time of its event: a lane that has looked since need not look
// again.
func TestWatchReportsTimes(t *testing.T) {
	f, p := newFake(t, 0)
	uuids := []volume.UUID{fakeUUID(0), fakeUUID(1), fakeUUID(2)}
	for i, uuid := range uuids[:2] {
		f.devices[dmUUID(uuid)] = devmapper.Mapped{Name: fmt.Sprint("vg0-v", i), UUID: dmUUID(uuid), Number: fmt.Sprint("253:", i)}
	}
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	var got map[volume.UUID]time.Time
	w := &watch{p: p, devices: map[string]devmapper.Mapped{}, groups: map[string]bool{}, changed: func(vg string, volumes map[volume.UUID]time.Time) {
		if vg != "vg0" {
			t.Errorf("it reports a change in %q", vg)
		}
		got = volumes
	}}
	w.changedDevices = map[string]time.Time{"253:0": at(1), "253:1": at(3)}
	w.gone = []goneDevice{{f.devices[dmUUID(uuids[0])], at(4)}, {devmapper.Mapped{Name: "vg0-v2", UUID: dmUUID(uuids[2])}, at(2)}}
	w.report()
	if want := map[volume.UUID]time.Time{uuids[0]: at(4), uuids[1]: at(3), uuids[2]: at(2)}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	// A part of a volume may be of any volume of the group.
	got, w.gone = nil, []goneDevice{{devmapper.Mapped{Name: "vg0-v2-real", UUID: dmUUID(uuids[2]) + "-real"}, at(2)}}
	if w.report(); got != nil {
		t.Errorf("got %v", got)
	}
}
