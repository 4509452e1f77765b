package dsw

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/internal/volume"
)

// noteVersion is the version of the notes' format. A note of another version is reported and not
// changed: the mount table has the same information.
const noteVersion = 1

// A Pod is the pod of a published claim, as far as kubelet named it.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// String returns NAMESPACE/NAME, "" if kubelet did not name the pod.
func (p Pod) String() string {
	if p.Name == "" {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

// A Claim is a note in the run directory: kubelet wants, or has, a volume mounted at Dir.
// It has the facts that are not in the mount table.
type Claim struct {
	Version  int          `json:"version"`
	Boot     string       `json:"boot"` // the boot it was written in; notes of another boot are void
	Kind     volume.Kind  `json:"kind"`
	Phase    volume.Phase `json:"phase"`
	Dir      string       `json:"dir"`
	VG       string       `json:"vg"`
	LV       string       `json:"lv"`
	UUID     volume.UUID  `json:"uuid"`
	Pod      *Pod         `json:"pod,omitempty"`
	Name     string       `json:"name,omitempty"` // kubelet's name for the volume
	ReadOnly bool         `json:"readOnly,omitempty"`
	Super    []string     `json:"super"`          // superblock options that were asked for; null = not known
	Since    time.Time    `json:"since"`          // wall clock, for people
	Note     string       `json:"note,omitempty"` // for the operator

	// Subvolume is the id of the btrfs subvolume that flexd has mounted there: the default may have
	// changed since. "" = not known.
	Subvolume string `json:"subvolume,omitempty"`
	// FSID is the fsid of that btrfs, which btrfs replace may move to another device. "" = not known.
	FSID string `json:"fsid,omitempty"`

	// Started is the start of the caller of the newest mount call for the claim, on the boot clock;
	// 0 = not known.
	Started time.Duration `json:"startedBootNanoseconds,omitempty"`
}

// A Lease is a note: the volume stays active until Until, and is deactivated some time later. Until is
// on the boot-time clock, which no one can set.
type Lease struct {
	Version int           `json:"version"`
	Boot    string        `json:"boot"`
	VG      string        `json:"vg"`
	LV      string        `json:"lv"`
	UUID    volume.UUID   `json:"uuid"`
	Name    string        `json:"name,omitempty"` // kubelet's name for the volume, by which EndLease finds it
	Until   time.Duration `json:"untilBootNanoseconds"`
	Since   time.Time     `json:"since"`
}

func (c *Claim) check(boot string) error {
	switch {
	case c.Version != noteVersion:
		return fmt.Errorf("its version is %d, this flexd knows %d", c.Version, noteVersion)
	case c.Kind != volume.Staged && c.Kind != volume.Published:
		return fmt.Errorf("kind %q is not known", c.Kind)
	case c.Phase != volume.Making && c.Phase != volume.Held && c.Phase != volume.Releasing:
		return fmt.Errorf("phase %q is not known", c.Phase)
	case !filepath.IsAbs(c.Dir) || filepath.Clean(c.Dir) != c.Dir:
		return fmt.Errorf("dir %q is not a clean absolute path", c.Dir)
	case c.UUID == "":
		return errors.New("uuid is missing")
	case c.Started < 0:
		return errors.New("startedBootNanoseconds is negative")
	case c.Boot != boot:
		return errOtherBoot
	}
	return nil
}

func (l *Lease) check(boot string) error {
	switch {
	case l.Version != noteVersion:
		return fmt.Errorf("its version is %d, this flexd knows %d", l.Version, noteVersion)
	case l.UUID == "":
		return errors.New("uuid is missing")
	case l.Until < 0:
		return errors.New("untilBootNanoseconds is negative")
	case l.Boot != boot:
		return errOtherBoot
	}
	return nil
}

var errOtherBoot = errors.New("it was written in an earlier boot")

// claimFile returns the file name of a claim's note. It is readable in a listing, and differs for two
// volumes at one directory.
func claimFile(c *Claim) string {
	sum := sha256.Sum256([]byte(c.Dir + "\x00" + string(c.UUID)))
	return fmt.Sprintf("%s-%s-%s.json", c.Kind, plain(filepath.Base(c.Dir), 64), hex.EncodeToString(sum[:6]))
}

func leaseFile(uuid volume.UUID) string {
	file := plain(string(uuid), 128)
	if file != string(uuid) { // another uuid may give the same name
		sum := sha256.Sum256([]byte(uuid))
		file += "-" + hex.EncodeToString(sum[:6])
	}
	return "lease-" + file + ".json"
}

// plain returns the characters of s that are safe in a file name, up to a length.
func plain(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, s)
	return s[:min(len(s), most)]
}

// decode reads one JSON object and nothing else. With strict, unknown keys are refused: they
// would be lost at the next write.
func decode(data []byte, into any, strict bool) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("it is torn or not a note: %w", err)
	}
	if d.More() {
		return errors.New("it has text after the note")
	}
	return nil
}

// readFile reads a regular file of at most limit bytes; anything else is a damagedError. It
// does not wait for the writer of a pipe.
func readFile(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, &damagedError{errors.New("it is not a regular file")}
	case info.Size() > limit:
		return nil, &damagedError{fmt.Errorf("it is %d bytes large", info.Size())}
	}
	return io.ReadAll(f)
}

// write replaces a file atomically. With durable set it is on the disk when write returns;
// notes in /run need not be, since a reboot removes them.
func write(path string, v any, durable bool, midway func(string)) (err error) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if errors.Is(err, fs.ErrNotExist) && !durable && os.MkdirAll(filepath.Dir(path), 0o700) == nil {
		// /run was cleared from outside: later notes are valid.
		f, err = os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp)
		}
	}()
	if _, err = f.Write(append(data, '\n')); err == nil && durable {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if midway != nil {
		midway(path)
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	if durable {
		return syncDir(filepath.Dir(path))
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
