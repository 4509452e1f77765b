package reconcile

import (
	"context"
	"errors"
	"io/fs"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/flex"
	"github.com/flexd/flexd/internal/volume"
)

// madeMeanwhile is a provider in which somebody else was faster.
type madeMeanwhile struct {
	Provider
	there bool
}

func (p *madeMeanwhile) LookUp(_ context.Context, name volume.Name) (volume.LV, error) {
	lv := volume.LV{Name: name, Presence: volume.Absent}
	if p.there {
		lv.Presence, lv.UUID = volume.Present, "u"
	}
	return lv, nil
}

func (p *madeMeanwhile) Create(context.Context, string, volume.Name, int64) error { return fs.ErrExist }

func (p *madeMeanwhile) Device(context.Context, volume.LV) (volume.Device, error) {
	return volume.Device{Activity: volume.Inactive}, nil
}

// Ensure that a volume that another call has made between a call's look and its
// own attempt is simply used, and that what is not there is an error.
func TestAVolumeThatWasMadeMeanwhileIsUsed(t *testing.T) {
	log := logrus.New()
	log.SetLevel(logrus.PanicLevel)
	records, err := dsw.OpenRecords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := New(Parts{Config: &config.Config{RunDir: t.TempDir()}, Log: logrus.NewEntry(log), Records: records})
	defer n.stop(errStopping)
	vg := &config.VolumeGroup{Name: "vg0", Create: true, Namespaces: []string{"*"}}
	for _, there := range []bool{true, false} {
		c := &call{ctx: t.Context(), opts: flex.Options{Size: 1 << 20}}
		err := n.create(c, vg, volume.Name{VG: "vg0", LV: "a"}, &madeMeanwhile{there: there})
		if there && err != nil || !there && !errors.Is(err, fs.ErrExist) {
			t.Errorf("there %t: %v", there, err)
		}
	}
}
