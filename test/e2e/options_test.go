package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tree returns everything below the directories that a call may change, except the history, which also has
// the refused calls.
func (h *host) tree() string {
	var b strings.Builder
	for _, dir := range []string{h.Root, h.Dir + "/vg0", h.State, h.Dir + "/outside", h.Run + "/notes", h.Run + "/dev"} {
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || strings.HasSuffix(path, ".jsonl") {
				return nil
			}
			i, _ := d.Info()
			text := ""
			if d.Type()&fs.ModeSymlink != 0 {
				text, _ = os.Readlink(path)
			} else if d.Type().IsRegular() {
				text = fmt.Sprint(h.hash(path))
			}
			fmt.Fprintln(&b, path, i.Mode(), text)
			return nil
		})
	}
	fmt.Fprintln(&b, mounts(h.Dir), h.Active(), h.volumes())
	return b.String()
}

// Refusals of options name the key, and nothing is changed.
func TestOptionsAsAttacks(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p := h.vol("victim", "ext4"), podN(1)
	dir := h.PodDir(p, v)
	h.must(os.MkdirAll(dir, 0o750))
	h.must(os.MkdirAll(h.Dir+"/outside/dir", 0o750))
	h.must(os.MkdirAll(h.Root+"/pods/link/volumes", 0o750))
	h.must(os.Symlink(h.Dir+"/outside", h.Root+"/pods/link/volumes/flexd~lvm"))
	h.must(os.Symlink(h.Dir+"/outside/dir", h.Root+"/pods/uid-1/volumes/flexd~lvm/last"))
	h.must(os.WriteFile(h.Dir+"/outside/secret", []byte("host file"), 0o600))
	before := h.tree()

	refused := func(key string, a answer) {
		t.Helper()
		h.refused(a, key)
		if strings.Contains(a.Message, "host file") {
			t.Errorf("it read a file of the host: %s", a)
		}
	}
	long := strings.Repeat("x", 4096)
	for _, name := range []string{"a/b", "..", ".", "-a", "a b", "a\"b", "a'b", "a\nb", "ä", "a\x00b", "a;b", "$(id)", "", long, "../vg0/victim", "snapshot1", "x_tmeta"} {
		for _, key := range []string{"volumeID", "volumegroup"} {
			if key == "volumegroup" && (name == "snapshot1" || name == "x_tmeta") {
				continue
			}
			refused("option "+key, h.call("mount", dir, v.With(key, name).Blob(&p)))
		}
	}
	for _, name := range []string{"a/b", "..", "a\nb", long} {
		w := v
		w.Name = name
		refused("option kubernetes.io/pvOrVolumeName", h.call("mount", dir, w.Blob(&p)))
	}
	for _, o := range []string{
		"-d /etc", "-d" + h.Dir + "/outside", "-E root_owner=0:0", "-E test_fs", "-J device=/dev/vda", "-J location=0", "-L a/b", "-L cloudimg-rootfs", "-qL x", "--label=x", "-O journal_dev", "-F", "-z /tmp/undo",
		"-l /etc/passwd", "-U clear", "-m 0 /dev/vda", "/dev/vda", "-- /dev/vda", "-b 1024;id", "-b\t1024", "-b 1024\n-d /etc", "-m=0", "-m 51", "-b 1000", "-n", "-S", "--help", "-T $(id)", long + long,
	} {
		refused("option mkfsOptions", h.call("mount", dir, v.With("mkfsOptions", o).Blob(&p)))
	}
	xfs := v
	xfs.FSType = "xfs"
	for _, o := range []string{"-p /etc/passwd", "-l logdev=/dev/vda", "-r rtdev=/dev/vda", "-d file,name=/etc/passwd", "-c options=/etc/passwd", "-f", "-d size=1g", "-m uuid=x"} {
		refused("option mkfsOptions", h.call("mount", dir, xfs.With("mkfsOptions", o).Blob(&p)))
	}
	btrfs := v
	btrfs.FSType = "btrfs"
	for _, o := range []string{"-r /etc", "--rootdir /etc", "-f", "/dev/vda", "-d raid1"} {
		refused("option mkfsOptions", h.call("mount", dir, btrfs.With("mkfsOptions", o).Blob(&p)))
	}
	for _, o := range []string{
		"loop", "remount", "bind", "X-mount.mkdir", "x-systemd.automount", "journal_path=/etc/passwd", "journal_dev=1", "noload", "errors=panic", "logdev=/dev/vda",
		"subvol=/", "nouuid", "context=x", "noatime,,nodev", "noatime nodev", "noatime\nnodev", "noatime;nodev", "noatime,strictatime", "ro,rw", "source=/dev/vda", "uid=0", "quota=/etc", "usrjquota=x", "sb=1", "abort", "test_dummy_encryption", "dax", "suid", "dev", long + long,
	} {
		refused("option mountOptions", h.call("mount", dir, v.With("mountOptions", o).Blob(&p)))
	}
	for _, o := range []string{"-1", "0", "1Gi ", "1e30", "99999999999999999999", "0x10", "1Gi;id", "Inf", long} {
		refused("option size", h.call("mount", dir, v.With("size", o).Blob(&p)))
	}
	for _, o := range []string{"ext3", "vfat", "ext4 -o x", "../ext4", "EXT4", "auto", "nfs"} {
		w := v
		w.FSType = o
		refused("option kubernetes.io/fsType", h.call("mount", dir, w.Blob(&p)))
	}
	refused("option device", h.call("mount", dir, v.With("device", "/dev/vda").Blob(&p)))
	refused("option kubernetes.io/readwrite", h.call("mount", dir, v.With("kubernetes.io/readwrite", "maybe").Blob(&p)))

	// JSON that is no flat object of strings.
	for blob, key := range map[string]string{
		`[]`: "options", `"x"`: "options", `null`: "options", `{`: "options", ``: "options", `{}{}`: "options", `{} x`: "options", "\xef\xbb\xbf{}": "options", "{\"a\":\"\xff\"}": "UTF-8",
		`{}`: "option volumegroup", `{"volumegroup":"vg0"}`: "option volumeID",
		`{"volumegroup":"vg0","volumegroup":"vg1","volumeID":"a"}`:            "volumegroup",
		`{"volumegroup":"vg0","volumeID":1}`:                                  "option volumeID",
		`{"volumegroup":"vg0","volumeID":null}`:                               "option volumeID",
		`{"volumegroup":"vg0","volumeID":["a"]}`:                              "option volumeID",
		`{"volumegroup":{"a":"b"},"volumeID":"a"}`:                            "option volumegroup",
		`{"volumegroup":"vg0","volumeID":"a","mountOptions":{"ro":true}}`:     "option mountOptions",
		`{"volumegroup":"vg0","volumeID":"a","x":"` + long + `"}`:             "option x",
		`{"volumegroup":"vg0","volumeID":"a","` + long + `":"y"}`:             "option ",
		`{"volumegroup":"vg0","volumeID":"a","a\nb":"y"}`:                     "option ",
		`{"volumegroup":"vg0","VolumeID":"a"}`:                                "option VolumeID",
		`{"volumegroup":"vg0","volumeID":"a","kubernetes.io/fsType":true}`:    "option kubernetes.io/fsType",
		`{"volumegroup":"vg0","volumeID":"a","kubernetes.io/secret/pw":true}`: "option kubernetes.io/secret/pw",
	} {
		refused(key, h.call("mount", dir, blob))
		refused(key, h.call("waitforattach", "", blob))
	}

	// The largest argument that can be: Linux takes 128 KiB. What is larger
	// never becomes a process, so the socket has to say it.
	huge := `{"volumegroup":"vg0","volumeID":"a","x":"` + strings.Repeat("x", 128<<10-100) + `"}`
	refused("option x", h.call("mount", dir, huge))
	c, _ := h.command(nil, "mount", dir, huge+huge)
	if err := c.Run(); !errors.Is(err, syscall.E2BIG) {
		t.Errorf("256 KiB: %v", err)
	}
	if a := h.raw(`{"v":1,"id":"abc","verb":"mount","args":["` + dir + `","` + strings.Repeat("x", 10*mib) + `"]}`); !strings.Contains(a, `"Failure"`) || len(a) > 2000 {
		t.Errorf("10 MiB: %.300s", a)
	}

	// Directories.
	for dir, words := range map[string][]string{
		h.Dir + "/outside/dir":                      {"outside kubelet's directories", "kubeletRoots"},
		h.Root + "/pods/link/volumes/flexd~lvm/dir": {"leads to " + h.Dir + "/outside/dir", "outside kubelet's directories"},
		h.Root + "/pods/uid-1/volumes/flexd~lvm/no": {"does not exist"},
		h.Root + "/pods/uid-1/../../outside/dir":    {"argument 1 of mount (directory)", "clean"},
		"relative":                                  {"argument 1 of mount (directory)", "absolute"},
		"":                                          {"argument 1 of mount (directory)", "empty"},
		"/":                                         {"argument 1 of mount (directory)"},
		h.Root:                                      {"outside kubelet's directories"},
		dir + "\n":                                  {"argument 1 of mount (directory)"},
		"-o":                                        {"argument 1 of mount (directory)"},
		"/" + strings.Repeat("x/", 4000):            {"argument 1 of mount (directory)"},
		"/etc":                                      {"outside kubelet's directories"},
		"/proc/self/cwd":                            {"outside kubelet's directories"},
	} {
		if strings.Contains(strings.Join(words, ""), "does not exist") {
			continue // below: it prepares the volume
		}
		h.refused(h.call("mount", dir, v.Blob(&p)), words...)
		for _, verb := range []string{"unmount", "unmountdevice"} {
			a := h.call(verb, dir)
			h.refused(a, strings.ReplaceAll(words[0], "of mount", "of "+verb))
		}
	}
	h.refused(h.call("mount", h.Root+"x/pods/a/volumes/flexd~lvm/victim", v.Blob(&p)), "outside kubelet's directories")
	for _, args := range [][]string{
		{"mount"}, {"mount", dir}, {"mount", dir, v.Blob(&p), "more"}, {"unmount"}, {"unmount", dir, dir}, {"expandfs", v.Blob(nil), "", dir, "-5", "0"},
		{"expandfs", v.Blob(nil), "", dir, "1e9", "0"}, {"attach", v.Blob(nil), "a/b"}, {"detach", "..", node}, {"waitforattach", "a\nb", v.Blob(nil)},
	} {
		h.refused(h.call(args...), args[0])
	}
	if after := h.tree(); after != before {
		t.Errorf("something was changed:\nbefore:\n%s\nafter:\n%s", before, after)
	}
	for _, v := range h.list().Volumes {
		if v.State != "refused" {
			t.Errorf("status: %+v", v)
		}
	}

	// A symlink as the last part, and a directory that is not there: found only
	// when the mount is to land, and nothing lands.
	h.refused(h.call("mount", h.Root+"/pods/uid-1/volumes/flexd~lvm/last", v.Blob(&p)), "vg0/victim: mount", "symlink")
	h.refused(h.call("mount", h.Root+"/pods/uid-1/volumes/flexd~lvm/no", v.Blob(&p)), "vg0/victim: mount", "does not exist")
	if m := mounts(h.Dir); len(m) != 0 {
		t.Errorf("mounted: %q", m)
	}
}

// raw sends a line to the driver socket and returns the answer.
func (h *host) raw(line string) string {
	h.t.Helper()
	c, err := net.Dial("unix", h.DriverSocket())
	h.must(err)
	defer c.Close()
	go c.Write([]byte(line + "\n")) // it may not be read to its end
	s, _ := bufio.NewReader(c).ReadString('\n')
	return s
}

// Allowed options reach mkfs and the mount.
func TestOptionsThatHold(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	v, p, q := h.vol("tuned", "ext4").With("mkfsOptions", "-b 1024 -m 0", "mountOptions", "noatime,commit=17,nosuid"), podN(1), podN(2)
	h.ok(h.up(noAttach, v, p))
	info, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(info)) {
		if strings.Contains(line, h.PodDir(p, v)) && (!strings.Contains(line, "noatime") || !strings.Contains(line, "nosuid") || !strings.Contains(line, "commit=17")) {
			t.Errorf("%s", line)
		}
	}
	if out := h.sh("blkid", "-p", "-o", "export", h.story("tuned").Device); strings.Contains(out, "LABEL=") || !strings.Contains(out, "BLOCK_SIZE=1024") {
		t.Errorf("%s", out)
	}
	if s := h.story("tuned"); len(s.Refused) != 0 {
		t.Errorf("status: %q would be refused", s.Refused)
	}
	// The superblock is everybody's, the mount is the pod's own.
	h.refused(h.up(noAttach, v.With("mountOptions", "commit=18"), q), "vg0/tuned: mount", "mount options", "commit=18", "commit=17")
	h.refused(h.up(noAttach, v.With("mountOptions", ""), q), "mount options", "commit=17")
	h.ok(h.up(noAttach, v.With("mountOptions", "commit=17,noexec"), q))
	h.end(noAttach, v, p, q)
	// One that the kernel does not take is the kernel's word.
	w := h.vol("odd", "ext4").With("mountOptions", "data=journal,delalloc")
	h.refused(h.up(noAttach, w, p), "vg0/odd: mount", "invalid argument")
}

// Secrets that kubelet passes to mount appear nowhere.
func TestSecrets(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const secret = "aHVzaC1odXNo" // base64, as kubelet sends it
	p := podN(1)
	with := func(v vol) vol {
		return v.With("kubernetes.io/secret/password", secret, "kubernetes.io/secret/"+strings.ToLower(secret), "x")
	}
	stop, sampled := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { sampled <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			time.Sleep((pace - 1) * time.Millisecond) // one processor is all that some machines have
			for pid, args := range h.Processes() {
				if strings.HasPrefix(args, h.Driver) {
					continue // kubelet's own doing
				}
				n++
				environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
				if strings.Contains(args+string(environ), secret) {
					t.Errorf("process %d: %s", pid, args)
				}
			}
		}
	}()
	v := with(h.vol("a", "ext4"))
	h.ok(h.up(noAttach, v, p))
	answers := []answer{
		h.call("mount", h.PodDir(podN(2), v), v.Blob(&p)), // no such directory
		h.call("mount", h.PodDir(p, v), v.With("size", "x").Blob(&p)),
		h.call("mount", h.PodDir(p, v), v.With("password", secret).Blob(&p)),
		h.call("mount", h.PodDir(p, v), strings.TrimSuffix(v.Blob(&p), "}")),
		h.call("mount", h.PodDir(p, v), strings.Replace(v.Blob(&p), `"`+secret+`"`, `["`+secret+`"]`, 1)),
		h.call("mount", h.PodDir(p, v), strings.Replace(v.Blob(&p), `"`+secret+`"`, `"`+secret+`\q"`, 1)),
		h.call("mount", v.Blob(&p), h.PodDir(p, v)),
		h.call("mount", v.Blob(&p)),
		h.call("unmount", v.Blob(&p)),
		h.call("nonsense", v.Blob(&p)),
		h.call("mount", h.PodDir(p, v), v.With("volumegroup", "vg1").Blob(&p)),
		h.call("waitforattach", v.Blob(&p), v.Blob(&p)),
	}
	for i, a := range answers {
		if a.ok() && i < 9 && i != 9 {
			t.Errorf("%d: %s", i, a)
		}
		if strings.Contains(a.Message, secret) {
			t.Errorf("the answer: %s", a)
		}
	}
	h.kill() // the notes of a flexd that dies
	look := func() {
		for _, dir := range []string{h.Run, h.State, h.Log} {
			filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() {
					if b, _ := os.ReadFile(path); strings.Contains(string(b), secret) || strings.Contains(path, secret) {
						t.Errorf("%s has it", path)
					}
				}
				return nil
			})
		}
	}
	look()
	h.start()
	for _, text := range []string{h.show(), h.show("-o", "json"), h.show("vg0/a"), h.show("vg0/a", "-o", "json")} {
		if strings.Contains(text, secret) {
			t.Errorf("status:\n%s", text)
		}
	}
	h.end(noAttach, v, p)
	look()
	close(stop)
	if n := <-sampled; n < 5 {
		t.Errorf("only %d looks at processes", n)
	}
}

// The blob equals encoding/json's encoding of a map, as kubelet's does.
func TestBlob(t *testing.T) {
	var m map[string]string
	if err := json.Unmarshal([]byte((&host{}).vol("a", "ext4").Blob(nil)), &m); err != nil || m["kubernetes.io/fsType"] != "ext4" {
		t.Error(m, err)
	}
}
