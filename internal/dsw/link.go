package dsw

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/flexd/flexd/internal/volume"
)

// LinkDevices keeps a link to each record in dir, named after the device of its volume: udev's rule
// finds it by the properties of the device. A volume for which device returns "" gets no link. Links
// to missing records are removed.
func (r *Records) LinkDevices(dir string, device func(volume.UUID) string) error {
	r.linkDir, r.device = dir, device
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		path := filepath.Join(dir, file.Name())
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(path)
		}
	}
	r.mu.Lock()
	all := slices.Concat(slices.Collect(maps.Values(r.groups))...)
	r.mu.Unlock()
	made := false
	for _, uuid := range all {
		now, err := r.linkDevice(uuid)
		if err != nil {
			return err
		}
		made = made || now
	}
	if !made {
		return nil
	}
	return syncDir(dir)
}

// linkDevice makes the link of a record, if there is none yet. It is not durable.
func (r *Records) linkDevice(uuid volume.UUID) (made bool, err error) {
	if r.linkDir == "" || r.device(uuid) == "" {
		return false, nil
	}
	to, err := filepath.Rel(r.linkDir, r.File(uuid))
	if err != nil {
		return false, err
	}
	link := filepath.Join(r.linkDir, r.device(uuid))
	if err = os.Symlink(to, link); errors.Is(err, fs.ErrNotExist) { // another program has removed the directory
		if err = os.MkdirAll(r.linkDir, 0o700); err == nil {
			err = os.Symlink(to, link)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	return err == nil, err
}
