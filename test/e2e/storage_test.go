package e2e

import (
	"crypto/sha256"
	"io"
	"os"

	testhost "github.com/flexd/flexd/test/host"
)

// A storage has a host's volumes: files and loop devices or, with the tag vm, the volume groups of a virtual
// machine. Its methods use an administrator's tools; volumes are named vg/lv.
type storage interface {
	testhost.Volumes // by these names

	// group makes an empty volume group, and returns what the configuration says
	// of where it is.
	group(vg string) string

	// missing is that of a group that is not there, and how a refusal calls it.
	missing(vg string) (config, called string)

	// volume makes a volume that is blank but for what fill, if any, writes to
	// the path it is given. It is not active then.
	volume(name string, size int64, fill func(path string))
	volumes() []string
	extend(name string, size int64)

	// open calls f with a path that has the volume's bytes, flexd not using it.
	open(name string, f func(path string))

	// device is the path by which a refusal names a volume to its owner.
	device(name string) string
	deactivate(name string)
	remove(name string) // one that is not active
}

// hash is of all bytes of a file or a device.
func (h *host) hash(path string) [32]byte {
	h.t.Helper()
	f, err := os.Open(path)
	h.must(err)
	defer f.Close()
	s := sha256.New()
	_, err = io.Copy(s, f)
	h.must(err)
	return [32]byte(s.Sum(nil))
}

// bytes are all of a file or a device.
func (h *host) bytes(path string) []byte {
	h.t.Helper()
	b, err := os.ReadFile(path)
	h.must(err)
	return b
}

// content is what is in a volume.
func (h *host) content(name string) (all []byte) {
	h.t.Helper()
	h.open(name, func(path string) { all = h.bytes(path) })
	return all
}

// zero applies the owner's remedy: it overwrites the volume with zeros.
func (h *host) zero(name string) {
	h.t.Helper()
	h.open(name, func(path string) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		h.must(err)
		defer f.Close()
		size, err := f.Seek(0, io.SeekEnd)
		h.must(err)
		for at := int64(0); at < size; at += mib {
			_, err := f.WriteAt(make([]byte, min(mib, size-at)), at)
			h.must(err)
		}
		h.must(f.Sync())
	})
}
