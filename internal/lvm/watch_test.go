package lvm

import "testing"

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
