package flexvolume

import (
	"errors"
	"strconv"
	"strings"

	"github.com/flexd/flexd/internal/spelling"
	"github.com/flexd/flexd/internal/volopts"
)

// The keys of a volume's options. The first three are those of the well-known
// LVM script driver.
const (
	KeyVG           = "volumegroup"  // the volume group
	KeyLV           = "volumeID"     // the logical volume
	KeySize         = "size"         // see volopts.ParseSize
	KeyMkfsOptions  = "mkfsOptions"  // words for mkfs, see volopts.ParseMkfs
	KeyMountOptions = "mountOptions" // comma separated, see volopts.ParseMount
)

// The keys kubelet adds.
const (
	keyFSType     = "kubernetes.io/fsType"
	keyReadWrite  = "kubernetes.io/readwrite"
	keyName       = "kubernetes.io/pvOrVolumeName"
	keyPodName    = "kubernetes.io/pod.name"
	keyNamespace  = "kubernetes.io/pod.namespace"
	keyPodUID     = "kubernetes.io/pod.uid"
	keyAccount    = "kubernetes.io/serviceAccount.name"
	keyFSGroup    = "kubernetes.io/mounterArgs.FsGroup"
	keyFSGroupOld = "kubernetes.io/fsGroup"
	keyKubelet    = "kubernetes.io/"        // prefix of other keys, which are ignored: newer kubelets may add some
	keySecret     = "kubernetes.io/secret/" // #nosec G101 -- a key; its values are ignored
)

// Options are the options of a pod or a PV, with kubelet's data about the pod, typed and
// checked against allow-lists.
type Options struct {
	VG          string   // "" = not given
	LV          string   // "" = not given
	Size        int64    // bytes, 0 = not given
	FSType      string   // ext4, xfs, btrfs, or "": the existing one
	ReadOnly    bool     // ro from kubelet or in mountOptions
	Name        string   // kubelet's name of the volume
	Pod         Pod      // mount only
	MkfsOptions []string // arguments for mkfs: checked flags and values
	Attrs       []string // per-mount attributes such as noatime, sorted, without ro (ReadOnly)
	Super       []string // superblock options, sorted, without duplicates
}

// A Pod is the pod that a volume is mounted for.
type Pod struct {
	Name      string
	Namespace string
	UID       string
}

// ParseOptions reads the flat JSON object of strings that kubelet passes. Errors
// name the key; they never quote the value of a secret, or of an unknown key. With an
// error, the options have only the valid names of the volume and of the pod.
func ParseOptions(blob string) (Options, error) {
	if len(blob) > MaxLine {
		return Options{}, errors.New("options: longer than 1 MiB")
	}
	var o Options
	var wrong error // the first error
	var size, mkfs, mount string
	p := scanner{s: blob}
	// set stores a valid name.
	set := func(into *string, value string, check func(string) error) error {
		err := check(value)
		if err == nil {
			*into = value
		}
		return err
	}
	err := p.object(func(key string) error {
		if p.peek() != '"' {
			return keyError(key, "its value is not a string")
		}
		value, err := p.str()
		if err != nil {
			return keyError(key, err.Error())
		}
		switch key {
		case KeyVG:
			err = set(&o.VG, value, volopts.CheckName)
		case KeyLV:
			if err = set(&o.LV, value, volopts.CheckName); err == nil {
				err = volopts.CheckHidden(value)
			}
		case KeySize:
			size = value
		case KeyMkfsOptions:
			mkfs = value
		case KeyMountOptions:
			mount = value
		case keyFSType:
			o.FSType = value
			switch value {
			case "", "ext4", "xfs", "btrfs":
			default:
				err = errors.New(quote(value) + " is not one of " + strings.Join(volopts.FSTypes(), ", "))
			}
		case keyReadWrite:
			switch value {
			case "ro":
				o.ReadOnly = true
			case "rw", "":
			default:
				err = errors.New(quote(value) + " is neither ro nor rw")
			}
		case keyName:
			err = set(&o.Name, value, checkComponent)
		case keyPodName:
			err = set(&o.Pod.Name, value, checkComponent)
		case keyNamespace:
			err = set(&o.Pod.Namespace, value, checkComponent)
		case keyPodUID:
			err = set(&o.Pod.UID, value, checkComponent)
		case keyAccount:
			err = checkComponent(value)
		case keyFSGroup, keyFSGroupOld:
			err = checkGroup(value)
		default:
			if !strings.HasPrefix(key, keyKubelet) {
				keys := []string{KeyVG, KeyLV, KeySize, KeyMkfsOptions, KeyMountOptions}
				err = errors.New("unknown; flexd knows " + strings.Join(keys, ", ") + spelling.Suggest(key, keys))
			}
		}
		if err != nil && wrong == nil {
			wrong = keyError(key, err.Error())
		}
		return nil
	})
	if err == nil {
		err = p.end()
	}
	names := Options{VG: o.VG, LV: o.LV, Name: o.Name, Pod: o.Pod}
	switch _, named := err.(*optionError); {
	case wrong != nil:
		return names, wrong
	case named:
		return names, err
	case err != nil:
		return names, errors.New("options: " + err.Error())
	}
	// These depend on the filesystem, whose key may come last.
	if size != "" {
		if o.Size, err = volopts.ParseSize(size); err != nil {
			return names, keyError(KeySize, err.Error())
		}
	}
	if o.MkfsOptions, err = volopts.ParseMkfs(o.FSType, mkfs); err != nil {
		return names, keyError(KeyMkfsOptions, err.Error())
	}
	m, err := volopts.ParseMount(o.FSType, mount)
	if err != nil {
		return names, keyError(KeyMountOptions, err.Error())
	}
	o.Attrs, o.Super = m.Attrs, m.Super
	o.ReadOnly = o.ReadOnly || m.ReadOnly
	return o, nil
}

// An optionError names the key of the option that was refused.
type optionError struct{ key, why string }

func (e *optionError) Error() string { return "option " + e.key + ": " + e.why }

func keyError(key, why string) error {
	if strings.HasPrefix(key, keySecret) { // the key itself is not secret
		why = "malformed"
	}
	if !isWord(key, "-_./") {
		key = quote(key)
	}
	return &optionError{key, why}
}

func (o *Options) needVolume() error {
	switch {
	case o.VG == "":
		return keyError(KeyVG, "missing")
	case o.LV == "":
		return keyError(KeyLV, "missing")
	}
	return nil
}

func checkComponent(s string) error {
	if s != "" && (!IsComponent(s) || len(s) > 253) {
		return errors.New(quote(s) + " is not a name")
	}
	return nil
}

func checkGroup(s string) error {
	if s == "" {
		return nil
	}
	if _, err := strconv.ParseUint(s, 10, 32); err != nil || s[0] == '+' {
		return errors.New(quote(s) + " is not a group id")
	}
	return nil
}
