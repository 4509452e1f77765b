package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/lvm"
	"github.com/flexd/flexd/internal/volume"
	"github.com/sirupsen/logrus"
)

// renameNotes completes the identities in notes of an earlier version, which lack the
// volume group's uuid. If that is unknown, the notes do not change, and nothing is done to
// their volume.
func renameNotes(store *dsw.Store, volumes *lvm.Provider, lanes string, log *logrus.Entry) {
	groups := map[volume.UUID]string{}
	for _, c := range store.All() {
		groups[c.UUID] = c.VG
	}
	for _, l := range store.Leases() {
		groups[l.UUID] = l.VG
	}
	for old, vg := range groups {
		if !lvm.IsUUID(old) || old.Earlier() != "" {
			continue
		}
		now, err := volumes.Identity(old, vg)
		if err == nil && now == "" {
			continue // it has no device: its notes are not needed
		}
		if err == nil {
			err = os.Rename(filepath.Join(lanes, string(old)), filepath.Join(lanes, string(now))) // a living child holds it
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = store.Rename(old, now)
		}
		if err != nil {
			log.WithError(err).WithField("uuid", old).Warn("a note of an earlier version was not changed: nothing is done to its volume; its mounts are known from the mount table")
		}
	}
}
