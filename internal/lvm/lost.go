package lvm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/devmapper"
	"github.com/flexd/flexd/internal/run"
	"github.com/flexd/flexd/internal/volume"
)

// lockVolume is the volume with the locks of a shared group, which sanlock has open.
const lockVolume = "lvmlock"

// removeDeadline is short: the commands only change device-mapper, and read no disk.
const removeDeadline = 5 * time.Second

// RemoveUnused removes every device of a volume group that nothing has open, without LVM: with
// lost locks its commands wait for the group's disks or are refused. It returns the volumes
// that are still active.
func RemoveUnused(ctx context.Context, runner run.Runner, dm DM, vg string) ([]volume.Used, error) {
	before := -1
	var failed error
	for {
		devices, err := groupDevices(dm, vg)
		if err != nil {
			return nil, err
		}
		var unused []string
		for _, m := range devices {
			if m.Open == 0 {
				unused = append(unused, m.Name)
			}
		}
		if len(unused) == 0 {
			return used(devices), nil // also if another process has removed devices whose removal failed here
		}
		if len(devices) == before { // otherwise repeat: parts of removed volumes are unused now
			return used(devices), failed
		}
		before = len(devices)
		failed = removeDevices(ctx, runner, unused)
	}
}

// removeDevices removes devices by their names in device-mapper. It does not wait for udev, which
// may itself wait for a disk.
func removeDevices(ctx context.Context, runner run.Runner, names []string) error {
	if len(names) == 0 {
		return nil
	}
	_, err := runner.Run(ctx, run.Cmd{Step: "deactivate", Argv: append([]string{"dmsetup", "remove", "--noudevsync"}, names...), Deadline: removeDeadline, Mutates: true})
	return err
}

// groupDevices returns the devices of a group, except that of lockVolume.
func groupDevices(dm DM, vg string) (all []devmapper.Mapped, err error) {
	list, err := dm.List()
	if err != nil {
		return nil, err
	}
	for _, m := range list {
		name, _, ok := parseDMName(m.Name)
		if !ok || name.VG != vg || name.LV == lockVolume || !strings.HasPrefix(m.UUID, "LVM-") {
			continue
		}
		if m, err = dm.Device(devmapper.Key{UUID: m.UUID}); err == nil {
			all = append(all, m)
		} else if !errors.Is(err, devmapper.ErrNoDevice) {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return all, nil
}

// used returns the volumes of devices, or the hidden volumes if there are no others.
func used(devices []devmapper.Mapped) (all []volume.Used) {
	for _, hidden := range []bool{false, true} {
		for _, m := range devices {
			name, layer, _ := parseDMName(m.Name)
			if hidden == (layer != "" || isPart(name.LV)) {
				uuid, _ := parseDMUUID(m.UUID)
				all = append(all, volume.Used{Name: name, UUID: uuid, Open: m.Open})
			}
		}
		if len(all) > 0 {
			break
		}
	}
	return all
}

// RemoveUnused removes the devices of a group that nothing has open.
func (p *Provider) RemoveUnused(ctx context.Context, vg string) ([]volume.Used, error) {
	return RemoveUnused(ctx, p.Runner, p.DM, vg)
}
