package lockspace

import (
	"fmt"
	"strconv"
	"strings"
)

// A LockdSpace is the state of a lockspace in lvmlockd.
type LockdSpace struct {
	Type       string // "sanlock" or "dlm"
	HostID     int
	Failed     bool // its start has failed, and lvmlockd will remove it
	Started    bool
	Stopping   bool
	Killed     bool // sanlock has requested to stop using it
	Dropped    bool
	GlobalLock bool // it had the global lock when it was started
}

// ParseLvmlockd reads the output of lvmlockctl --info --dump.
func ParseLvmlockd(out string) (map[string]LockdSpace, error) {
	spaces := map[string]LockdSpace{}
	if !strings.HasPrefix(out, "info=structs ") {
		return nil, fmt.Errorf("lvmlockctl: the output does not parse: %.80q", out)
	}
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "info=ls ") {
			continue
		}
		f := fields(line)
		if name, found := f["vg_name"]; found && name == "" {
			continue // the lockspace of dlm's global lock
		}
		id, err := strconv.Atoi(f["host_id"])
		if err != nil || f["vg_name"] == "" || f["create_done"] == "" {
			return nil, fmt.Errorf("lvmlockctl: the output does not parse: %.80q", line)
		}
		set := func(name string) bool { return f[name] != "" && f[name] != "0" }
		spaces[f["vg_name"]] = LockdSpace{
			Type: f["lm_type"], HostID: id,
			Failed: set("create_fail"), Started: set("create_done"), Stopping: set("thread_stop"),
			Killed: set("kill_vg"), Dropped: set("drop_vg"), GlobalLock: set("sanlock_gl_enabled"),
		}
	}
	return spaces, nil
}

// fields returns the words NAME=VALUE of a text.
func fields(text string) map[string]string {
	all := map[string]string{}
	for word := range strings.FieldsSeq(text) {
		if name, value, ok := strings.Cut(word, "="); ok {
			all[name] = value
		}
	}
	return all
}

// A Sanlock is the state of the daemon sanlock. Its times are seconds of CLOCK_MONOTONIC.
type Sanlock struct {
	Name     string // of this host
	Version  string
	Watchdog bool // it uses wdmd
	Now      int
	Spaces   map[string]Leases // LVM's, by lockspace: "lvm_VG"
}

// Leases is the state of a lockspace in sanlock.
type Leases struct {
	HostID     int
	Path       string // the device that contains them
	List       string // "spaces"; "add" and "rem" = it is being added or removed
	IOTimeout  int
	SectorSize int
	Joined     int // when the host id was acquired
	Renewed    int // the last renewal
	Result     int // of the last renewal, 1 = success
	Dead       bool
	Locks      int      // the number of locks that are held
	Orphans    []string // the locks of a killed lvmlockd, LOCKSPACE:NAME:PATH:OFFSET
}

// ParseSanlock reads the output of sanlock client status -D: blocks with a heading and indented fields.
func ParseSanlock(out string) (Sanlock, error) {
	d := Sanlock{Spaces: map[string]Leases{}}
	bad := func(text string) (Sanlock, error) {
		return Sanlock{}, fmt.Errorf("sanlock client status: the output does not parse: %.80q", text)
	}
	locks, orphans := map[string]int{}, map[string][]string{}
	for _, b := range blocks(out) {
		switch kind, rest, _ := strings.Cut(b.heading, " "); kind {
		case "daemon":
			d.Version, d.Name = b.fields["version_str"], b.fields["our_host_name"]
			d.Watchdog = b.fields["use_watchdog"] == "1"
			if d.Now = b.number("monotime"); b.bad || b.fields["use_watchdog"] == "" {
				return bad(out)
			}
		case "s":
			if !strings.HasPrefix(rest, "lvm_") {
				continue // of other software, such as libvirt
			}
			name, id, path, ok := parseLockspace(rest)
			if !ok {
				return bad(b.heading)
			}
			l := Leases{
				HostID: id, Path: path, List: b.fields["list"],
				IOTimeout: b.number("io_timeout"), SectorSize: b.number("sector_size"),
				Joined:  b.number("acquire_last_success"),
				Renewed: b.number("renewal_last_success"), Result: b.number("renewal_last_result"),
				Dead: b.number("space_dead") != 0 || b.number("killing_pids") != 0,
			}
			if b.bad || l.List == "" {
				return bad(b.heading)
			}
			d.Spaces[name] = l
		case "r":
			name, _, _ := strings.Cut(rest, ":")
			locks[name]++
			lease, _, _ := strings.Cut(rest, " ") // with its version at its end
			if end := strings.LastIndex(lease, ":"); end > 0 && strings.HasSuffix(rest, " ORPHAN") {
				orphans[name] = append(orphans[name], lease[:end])
			}
		}
	}
	for name, l := range d.Spaces {
		l.Locks, l.Orphans = locks[name], orphans[name]
		d.Spaces[name] = l
	}
	if d.Version == "" {
		return bad(out)
	}
	return d, nil
}

// Arg returns the lockspace as an argument of sanlock's commands.
func (l Leases) Arg(name string) string {
	return fmt.Sprintf("%s:%d:%s:0", name, l.HostID, strings.ReplaceAll(l.Path, ":", `\:`))
}

// A block is a heading and the indented fields below it.
type block struct {
	heading string
	fields  map[string]string
	bad     bool // a number did not parse
}

func blocks(out string) (all []*block) {
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		switch name, value, ok := strings.Cut(strings.TrimSpace(line), "="); {
		case !strings.HasPrefix(line, " "):
			all = append(all, &block{heading: line, fields: map[string]string{}})
		case ok && len(all) > 0:
			all[len(all)-1].fields[name] = value
		}
	}
	return all
}

// number returns a field that must be present.
func (b *block) number(name string) int {
	n, err := strconv.Atoi(b.fields[name])
	b.bad = b.bad || err != nil
	return n
}

// parseLockspace splits NAME:HOSTID:PATH:OFFSET, which may be followed by more words.
// sanlock escapes a colon in the path.
func parseLockspace(s string) (name string, hostID int, path string, ok bool) {
	s, _, _ = strings.Cut(s, " ")
	name, s, ok = strings.Cut(s, ":")
	id, s, ok2 := strings.Cut(s, ":")
	end := strings.LastIndex(s, ":")
	hostID, err := strconv.Atoi(id)
	if !ok || !ok2 || end < 0 || err != nil {
		return "", 0, "", false
	}
	return name, hostID, strings.ReplaceAll(s[:end], `\:`, ":"), true
}

// A host is the state of a host of a lockspace in this node's sanlock.
type host struct {
	Generation uint64
	Timestamp  uint64 // 0 = it has left
	IOTimeout  int
	LastLive   int // when sanlock last saw a renewal, or first saw the host
}

// parseHosts reads the output of sanlock client host_status -D, by host id.
func parseHosts(out string) (map[int]host, error) {
	all := map[int]host{}
	for _, b := range blocks(out) {
		h := host{
			Generation: uint64(b.number("owner_generation")),
			Timestamp:  uint64(b.number("timestamp")), IOTimeout: b.number("io_timeout"), LastLive: b.number("last_live"),
		}
		id := b.number("owner_id")
		number, _, _ := strings.Cut(b.heading, " ")
		if n, err := strconv.Atoi(number); err != nil || b.bad {
			return nil, fmt.Errorf("sanlock client host_status: the output does not parse: %.80q", b.heading)
		} else if id == n {
			all[id] = h
		}
	}
	return all, nil
}

// parseWdmd reads the output of wdmd -d: the seconds until each client expires.
func parseWdmd(out string) (map[string]int, error) {
	clients := map[string]int{}
	ok := false
	for line := range strings.Lines(out) {
		w := strings.Fields(line)
		ok = ok || strings.HasPrefix(line, "wdmd ") && len(w) > 1
		if len(w) < 4 || w[0] != "client" || w[2] != "name" {
			continue
		}
		value := func(name string) int {
			for i := 3; i+1 < len(w); i++ {
				if w[i] == name {
					n, _ := strconv.Atoi(w[i+1])
					return n
				}
			}
			return 0
		}
		clients[w[3]] = value("expire") - value("now")
	}
	if !ok {
		return nil, fmt.Errorf("wdmd: the output does not parse: %.80q", out)
	}
	return clients, nil
}
