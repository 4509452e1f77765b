package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/play"
)

const MiB = 1 << 20

// timeout is for what takes a moment, on a machine that is busy with others.
const timeout = time.Minute

// play runs all scenes.
func (d *demo) play() {
	fmt.Printf("flexd looks after the volumes of one node. This is such a node in %s (below: ~),\n", d.Dir)
	fmt.Println(d.ground.volumes + ",")
	fmt.Println("and with kubelet's part played by hand: each call has the arguments that kubelet passes.")
	fmt.Println("KUBELET is ~/kubelet, kubelet's root directory; lvm is flexdriver, where kubelet finds it:")
	fmt.Println("~/plugins/flexd~lvm/lvm.")

	d.discovery()
	d.attached()
	d.expansion()
	d.teardown()
	d.unattached()
	d.killed()
	d.refused()
	d.nothingLeft()
}

var (
	web    = host.Pod{Namespace: "default", Name: "web-0", UID: "0b1f-web"}
	report = host.Pod{Namespace: "default", Name: "report", UID: "77aa-report"}
	batch  = host.Pod{Namespace: "jobs", Name: "batch", UID: "c4d2-batch"}
)

// data returns the volume that two pods share, with kubelet's name for it: a PV's, or the pod's own.
func (d *demo) data(name string) host.Volume {
	return host.Volume{Name: name, FSType: d.shared.fsType, Options: map[string]string{
		"volumegroup": host.VG, "volumeID": "data", "size": fmt.Sprintf("%dm", d.shared.size/MiB)}}
}

func (d *demo) discovery() {
	d.Scene("Kubelet finds the driver")
	a := d.call("Success", "init")
	d.Check(a.Capabilities["attach"], "flexdriver answers without flexd: attach:true, the default")

	d.Say("The controller manager attaches from a machine that has no flexd:")
	a = d.call("Success", "attach", d.data("pv1").Blob(nil), "node-1")
	d.Check(a.Device == "", "it gets Success without a device, and flexd notes no claim")
	d.Check(d.Left() == "", "no process, no mount and no %s so far", d.ground.device)
	d.Must(d.Start())
	d.Say("flexd is started: ~/bin/flexd serve --config ~/flexd.yaml")
}

// stage calls mountdevice as kubelet does.
func (d *demo) stage(v host.Volume, device string) {
	dir := d.GlobalDir(v)
	d.Must(host.Prepare(dir))
	d.call("Success", "mountdevice", dir, device, v.Blob(nil))
	d.Check(host.Mounted(dir), "mounted at kubelet's global directory")
}

// publish calls mount as kubelet does.
func (d *demo) publish(p host.Pod, v host.Volume) string {
	dir := d.PodDir(p, v)
	d.Must(host.Prepare(dir))
	d.call("Success", "mount", dir, v.Blob(&p))
	d.Check(host.Mounted(dir), "mounted for pod %s/%s", p.Namespace, p.Name)
	return dir
}

// unpublish calls unmount or unmountdevice, and removes the directory as kubelet does.
func (d *demo) unpublish(verb, dir string) {
	d.call("Success", verb, dir)
	d.Check(!host.Mounted(dir) && os.Remove(dir) == nil, "unmounted; kubelet can remove the directory")
}

func (d *demo) attached() {
	d.Scene("attach:true: two pods share a volume")
	v := d.data("pv1")
	a := d.call("Success", "attach", v.Blob(nil), "node-1")
	had := d.has("data")
	a = d.call("Success", "waitforattach", a.Device, v.Blob(nil))
	d.device = a.Device
	st, err := os.Stat(a.Device)
	d.Must(err)
	d.Check(!had && st.Mode()&os.ModeDevice != 0, "the missing volume was created: %s is a block device", a.Device)
	d.stage(v, a.Device)
	rw := d.publish(web, v)
	ro := v
	ro.ReadOnly = true
	a = d.call("Success", "waitforattach", d.device, ro.Blob(nil))
	d.Check(a.Device == d.device, "the same device for the second pod")
	rd := d.publish(report, ro)
	d.Must(os.WriteFile(rw+"/greeting", []byte("hello from web-0\n"), 0o644))
	text, err := os.ReadFile(rd + "/greeting")
	d.Must(err)
	d.Print("cat KUBELET/pods/"+report.UID+"/…/pv1/greeting", string(text))
	d.Check(string(text) == "hello from web-0\n", "each pod reads what the other writes")
	err = os.WriteFile(rd+"/greeting", nil, 0o644)
	d.Check(errors.Is(err, unix.EROFS), "the second pod asked for read-only and cannot write: %v", unix.EROFS)
	d.status("data", "mounted")
}

// status prints the status table and LVM's report, and checks the state of a volume.
func (d *demo) status(lv, state string) {
	s, err := d.Volume(lv)
	d.Must(err)
	d.table()
	if d.ground.lvm {
		args := []string{"-o", "lv_name,lv_size,lv_active,lv_tags", host.VG}
		out, err := exec.Command("lvs", args...).Output()
		d.Must(err)
		d.Print("lvs "+strings.Join(args, " "), string(out))
	}
	d.Check(string(s.State) == state, "%s/%s is %s", host.VG, lv, state)
}

func (d *demo) table() {
	out, err := d.Status()
	d.Must(err)
	d.Print("flexd status", out)
}

func (d *demo) expansion() {
	d.Scene("The volume is expanded while the pods run")
	dir, size := d.PodDir(web, d.data("pv1")), d.shared.size
	if d.shared.fixed != "" {
		d.Say("(Left out: %s.)", d.shared.fixed)
		return
	}
	if d.shared.why != "" {
		d.Say("(Here %s.)", d.shared.why)
	}
	before := d.df(dir)
	d.call("Success", "expandfs", d.data("pv1").Blob(nil), d.device, dir, host.Bytes(2*size), host.Bytes(size))
	after := d.df(dir)
	d.Check(before < size && after > size && after < 2*size && after-before > size*9/10,
		"device and filesystem have grown from %d to %d MiB, mounted as they were", size/MiB, 2*size/MiB)
	text, err := os.ReadFile(dir + "/greeting")
	d.Check(err == nil && string(text) == "hello from web-0\n", "the file is still there")
}

// df shows a filesystem's size and returns it.
func (d *demo) df(dir string) int64 {
	out, err := exec.Command("df", "-h", dir).CombinedOutput()
	d.Must(err)
	d.Print("df -h "+dir, string(out))
	var st unix.Statfs_t
	d.Must(unix.Statfs(dir, &st))
	return int64(st.Blocks) * int64(st.Frsize)
}

func (d *demo) teardown() {
	d.Scene("Both pods end")
	v := d.data("pv1")
	s, err := d.Volume("data")
	d.Must(err)
	disk := s.Device
	d.unpublish("unmount", d.PodDir(web, v))
	d.unpublish("unmount", d.PodDir(report, v))
	d.unpublish("unmountdevice", d.GlobalDir(v))
	d.Check(host.Exclusive(d.device) == nil, "no process holds the device (kubelet's own check: an exclusive open)")
	d.status("data", "active")
	d.Say("The device stays for a while (lease: %v), so that a new pod finds it ready. Kubelet detaches, which ends that:", d.ground.lease)
	d.call("Success", "detach", v.Name, "node-1")
	d.awaitInactive("data")
	d.status("data", "idle")
	d.Check(d.Left() == "", "%s was released, without a call that asked for it", disk)
}

// awaitInactive waits until flexd has deactivated a device by itself.
func (d *demo) awaitInactive(lv string) {
	for deadline := time.Now().Add(d.ground.lease + timeout); ; time.Sleep(50 * time.Millisecond) {
		d.Must(d.ctx.Err())
		s, err := d.Volume(lv)
		d.Must(err)
		if s.Device == "" {
			return
		}
		if time.Now().After(deadline) {
			panic(play.Broken{Claim: fmt.Sprintf("%s is %s and keeps its device", lv, s.State)})
		}
	}
}

func (d *demo) unattached() {
	d.Scene("attach:false: kubelet only calls mount, for two pods at the same time")
	init := filepath.Dir(d.Driver) + "/.lvm.init.json"
	d.Must(os.WriteFile(init, []byte(`{"attach": false}`), 0o644))
	d.Print("cat "+init, `{"attach": false}`)
	a := d.call("Success", "init")
	d.Check(!a.Capabilities["attach"], "a file beside the executable says how this node attaches")

	v := d.data("data")
	pods := []host.Pod{web, report}
	answers, took := make([]host.Answer, 2), make([]time.Duration, 2)
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i, p := range pods {
		d.Must(host.Prepare(d.PodDir(p, v)))
		both.Go(func() {
			started := time.Now()
			answers[i], errs[i] = d.Call(d.ctx, "mount", d.PodDir(p, v), v.Blob(&p))
			took[i] = time.Since(started)
		})
	}
	both.Wait()
	for i, p := range pods {
		d.Must(errs[i])
		d.Answered(answers[i], took[i], []string{"mount", d.PodDir(p, v), v.Blob(&p)})
	}
	d.Check(answers[0].Status == "Success" && answers[1].Status == "Success", "two calls at the same time, one volume, one device")
	text, err := os.ReadFile(d.PodDir(web, v) + "/greeting")
	d.Must(err)
	d.Check(string(text) == "hello from web-0\n", "the file from before is there: never formatted twice")
	d.Must(os.WriteFile(d.PodDir(report, v)+"/reply", []byte("hello from report\n"), 0o644))
	text, err = os.ReadFile(d.PodDir(web, v) + "/reply")
	d.Must(err)
	d.Check(string(text) == "hello from report\n", "each pod reads what the other writes")
	d.table()
}

// killed kills flexd in the middle of a call, while other pods run.
func (d *demo) killed() {
	d.Scene("kill -9 in the middle of a call")
	d.Say("A pod wants a new volume. As soon as flexd is making its filesystem, flexd is killed.")
	open, err := os.OpenFile(d.PodDir(web, d.data("data"))+"/log", os.O_CREATE|os.O_RDWR, 0o644)
	d.Must(err)
	defer open.Close()
	for try := 1; ; try++ {
		v := host.Volume{Name: "scratch", FSType: "ext4", Options: map[string]string{
			"volumegroup": host.VG, "volumeID": fmt.Sprintf("scratch%d", try), "size": d.ground.scratch,
			"mkfsOptions": "-E lazy_itable_init=0,lazy_journal_init=0"}}
		if d.killedDuring(v, open) {
			return
		}
		if try == 5 {
			panic(play.Broken{Claim: "flexd is too fast for this scene: no call was caught in its middle"})
		}
		d.Say("(mkfs had ended before flexd was killed: repeated with another volume)")
	}
}

func (d *demo) killedDuring(v host.Volume, open *os.File) bool {
	dir, lv := d.PodDir(batch, v), v.Options["volumeID"]
	d.Must(host.Prepare(dir))
	var a host.Answer
	var err error
	args := []string{"mount", dir, v.Blob(&batch)}
	started, answered := time.Now(), make(chan struct{})
	go func() {
		defer close(answered)
		a, err = d.Call(d.ctx, args...)
	}()
	step, table := "", ""
	for pause := time.Duration(0); step == ""; {
		select {
		case <-answered:
			d.Must(err)
			d.call("Success", "unmount", dir)
			return false
		case <-time.After(pause):
		}
		asked := time.Now()
		if s, err := d.Volume(lv); err == nil && s.Step == "mkfs" {
			step = s.Step
		}
		pause = 4 * time.Since(asked) // on one processor, asking without a pause is all that happens
	}
	table, terr := d.Status()
	pid := d.Pid()
	kerr := d.Signal(syscall.SIGKILL)
	select {
	case <-answered:
		d.Must(err)
		d.Must(d.Start())
		d.call("Success", "unmount", dir)
		return false
	default:
	}
	d.Must(terr)
	d.Must(kerr)
	d.Print("flexd status", table)
	d.Print(fmt.Sprintf("kill -9 %d", pid), "")
	_, err1 := open.WriteString("still here\n")
	d.Check(err1 == nil && open.Sync() == nil, "flexd is dead, and other pods are not affected: a write and fsync in the volume of pod web-0")
	time.Sleep(300 * time.Millisecond)
	select {
	case <-answered:
		panic(play.Broken{Claim: "flexdriver answered without a daemon: " + a.Text})
	default:
	}
	d.Check(true, "kubelet's call still waits: flexdriver tries to reach flexd again")
	d.Say("flexd is started again.")
	d.Must(d.Start())
	select {
	case <-answered:
	case <-time.After(timeout):
		panic(play.Broken{Claim: fmt.Sprintf("the call got no answer within %v of the restart", timeout)})
	}
	d.Must(err)
	d.Answered(a, time.Since(started), args)
	d.Check(a.Status == "Success", "the same flexdriver process gets its answer")
	d.Check(host.Mounted(dir), "mounted for pod %s/%s", batch.Namespace, batch.Name)
	d.scratch = lv
	out, serr := d.Status(host.VG + "/" + lv)
	d.Must(serr)
	d.Print("flexd status "+host.VG+"/"+lv, out)
	s, serr := d.Volume("data")
	d.Must(serr)
	d.Check(len(s.Pods) == 2 && s.State == "mounted", "the volume of the other pods is known as before")
	return true
}

// refused shows that data is never formatted over.
func (d *demo) refused() {
	d.Scene("A device with data is not formatted")
	v := host.Volume{Name: "old", FSType: "ext4", Options: map[string]string{"volumegroup": host.VG, "volumeID": "old", "size": "16m"}}
	a := d.call("Success", "waitforattach", "", v.Blob(nil))
	d.Say("A user keeps the only copy of data there, without a filesystem:")
	const treasure, at = "the only copy of the family photos", 3*MiB + 4096
	f, err := os.OpenFile(a.Device, os.O_RDWR, 0)
	d.Must(err)
	_, werr := f.WriteAt([]byte(treasure), at)
	d.Must(errors.Join(werr, f.Sync(), f.Close()))
	before := d.sum(a.Device)
	dir := d.PodDir(batch, v)
	d.Must(host.Prepare(dir))
	device := a.Device
	a = d.call("Failure", "mount", dir, v.Blob(&batch))
	after := d.sum(device)
	d.Check(strings.Contains(a.Message, fmt.Sprintf("offset %d ", at)), "refused; the message says where data was found")
	d.Check(!host.Mounted(dir) && os.Remove(dir) == nil, "nothing is mounted; kubelet can remove the directory")
	d.Check(after == before, "no byte was changed: sha256 %s… before and after", before[:16])
	s, err := d.Volume("old")
	d.Must(err)
	d.table()
	d.Check(s.Error != nil, "`flexd status` shows the same")
}

// sum is a checksum of a device's whole content.
func (d *demo) sum(device string) string {
	out, err := exec.Command("sha256sum", device).Output()
	d.Must(err)
	return string(out)
}

func (d *demo) nothingLeft() {
	d.Scene("The pods end")
	v := d.data("data")
	d.unpublish("unmount", d.PodDir(web, v))
	d.call("Success", "unmount", d.PodDir(web, v))
	d.Check(true, "a repeated call gets the same answer")
	d.unpublish("unmount", d.PodDir(report, v))
	d.unpublish("unmount", d.PodDir(batch, host.Volume{Name: "scratch"}))
	d.Say("When the leases end, flexd deactivates the devices.")
	for _, lv := range []string{"data", d.scratch, "old"} {
		d.awaitInactive(lv)
	}
	d.status("data", "idle")
	d.Must(d.Signal(syscall.SIGTERM))
	left := d.Left()
	d.Check(left == "", "flexd is stopped: no mount, no %s, no process is left%s", d.ground.device, left)
}
