package volopts

import (
	"errors"
	"strings"
)

// CheckName applies LVM's rules for the names of volume groups and volumes.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("empty")
	case len(name) > 127:
		return errors.New("longer than 127 bytes")
	case name[0] == '-':
		return errors.New(quote(name) + " starts with -")
	case name == "." || name == "..":
		return errors.New(quote(name) + " is not a name")
	case !consistsOf(name, "+_.-"):
		return errors.New(quote(name) + " contains other characters than a-z A-Z 0-9 + _ . -")
	}
	return nil
}

// CheckHidden refuses the names that LVM reserves for its hidden volumes (lvm2,
// lib/misc/lvm-string.c): the parts of mirrors, pools, caches, raids.
func CheckHidden(lv string) error {
	for _, prefix := range [...]string{"pvmove", "snapshot"} {
		if strings.HasPrefix(lv, prefix) {
			return errors.New(quote(lv) + " starts with " + prefix + ", which LVM keeps for itself")
		}
	}
	if lv == "lvmlock" {
		return errors.New(quote(lv) + " is lvmlockd's own volume")
	}
	for _, part := range [...]string{
		"_cdata", "_cmeta", "_corig", "_cpool", "_cvol", "_wcorig", "_imeta", "_iorig", "_mimage", "_mlog",
		"_pmspare", "_rimage", "_rmeta", "_tdata", "_tmeta", "_vdata", "_vorigin",
	} {
		if strings.Contains(lv, part) {
			return errors.New(quote(lv) + " holds " + part + ", which LVM keeps for hidden volumes")
		}
	}
	return nil
}
