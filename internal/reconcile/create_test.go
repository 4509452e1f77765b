package reconcile

import (
	"context"
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/dsw"
	"github.com/flexd/flexd/internal/volume"
)

// creator is a provider that makes a volume, or says why not.
type creator struct {
	Provider
	err   error
	there bool // afterwards, whoever has made it, and active
}

func (p *creator) LookUp(_ context.Context, name volume.Name) (volume.LV, error) {
	lv := volume.LV{Name: name, Presence: volume.Absent}
	if p.there {
		lv.Presence, lv.UUID = volume.Present, "u"
	}
	return lv, nil
}

func (p *creator) Create(context.Context, string, volume.Name, int64) error { return p.err }

func (p *creator) Device(context.Context, volume.LV) (volume.Device, error) {
	return volume.Device{Activity: volume.Active}, nil
}

// Ensure that a volume that somebody else has made between a call's look and
// flexd's own attempt is used and gets no lease, which would end its being
// active, that one of flexd's gets one, and that what is not there is an error.
func TestAVolumeThatWasMadeMeanwhileIsUsed(t *testing.T) {
	log := logrus.New()
	log.SetLevel(logrus.PanicLevel)
	for _, row := range []struct {
		creator
		leases int
	}{
		{creator{err: fs.ErrExist, there: true}, 0},
		{creator{there: true}, 1},
		{creator{err: fs.ErrExist}, 0},
	} {
		records, err := dsw.OpenRecords(t.TempDir(), "boot", func() time.Duration { return time.Hour })
		if err != nil {
			t.Fatal(err)
		}
		store, err := dsw.Open(t.TempDir(), "boot")
		if err != nil {
			t.Fatal(err)
		}
		n := New(Parts{Config: &config.Config{RunDir: t.TempDir(), Lease: time.Hour}, Log: logrus.NewEntry(log), Records: records, Store: store,
			Boot: func() time.Duration { return time.Hour }})
		n.stop(ErrStopping) // no lane runs
		vg := &config.VolumeGroup{Name: "vg0", Create: true, Namespaces: []string{"*"}}
		c := &call{ctx: t.Context(), Request: dsw.Request{Call: volume.Call{Size: 1 << 20}}}
		err = n.create(t.Context(), c, vg, volume.Name{VG: "vg0", LV: "a"}, &row.creator)
		if row.there && err != nil || !row.there && !errors.Is(err, fs.ErrExist) {
			t.Errorf("%+v: %v", row, err)
		}
		if got := len(store.Leases()); got != row.leases {
			t.Errorf("%+v: %d leases", row, got)
		}
	}
}
