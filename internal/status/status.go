// Package status has the JSON documents of the status socket and the tables that `flexd
// status` prints from them. The JSON is stable: fields are added, never renamed, and their
// meaning does not change. The reconciler fills the documents from its last observation.
package status

import "time"

// A State is the state of a volume.
type State string

// The states, most urgent first. Waiting and Working are shown with the step and its age.
const (
	Stuck     State = "stuck"     // a child does not end; the volume is parked
	Failed    State = "failed"    // the last operation failed and is still wanted, or flexd retries it
	Refused   State = "refused"   // flexd knows the volume only from a call that it refused
	Uncertain State = "uncertain" // the volume could not be observed
	Missing   State = "missing"   // a claim is held but its mount is gone (claimed-missing), or the volume is
	Faulty    State = "faulty"    // mounted, and its filesystem, cache or thin pool has failed
	Orphaned  State = "orphaned"  // mounted, but no pod uses it any more
	Full      State = "full"      // mounted, and its filesystem has no free space or no free inode
	Waiting   State = "waiting"   // a step must wait, for another host for example, and is tried again
	Working   State = "working"
	Mounted   State = "mounted"
	Active    State = "active" // has a device, is not mounted
	Idle      State = "idle"   // known, no device
)

// A Volume is one line of the table.
type Volume struct {
	VG         string    `json:"vg"`
	LV         string    `json:"lv"`
	UUID       string    `json:"uuid"`
	Size       int64     `json:"size"` // bytes, 0 = unknown
	State      State     `json:"state"`
	Step       string    `json:"step,omitempty"`     // the running step, or the one that must wait
	StepSince  time.Time `json:"stepSince,omitzero"` // since when
	Waiting    *Wait     `json:"waiting,omitempty"`  // why the step must wait
	Device     string    `json:"device,omitempty"`
	Filesystem string    `json:"filesystem,omitempty"` // ext4, xfs, btrfs

	FilesystemSize       int64     `json:"filesystemSize,omitempty"` // bytes, as are the next two; 0 = not mounted, or not known
	FilesystemUsed       int64     `json:"filesystemUsed,omitempty"`
	FilesystemFree       int64     `json:"filesystemFree,omitempty"` // without the space reserved for root
	Inodes               uint64    `json:"inodes,omitempty"`         // 0 = the filesystem makes them as needed
	InodesUsed           uint64    `json:"inodesUsed,omitempty"`
	FilesystemObservedAt time.Time `json:"filesystemObservedAt,omitzero"` // when these were read

	Pods  []Pod  `json:"pods"`
	Error *Error `json:"error,omitempty"` // the last error, until something succeeds
}

// A Pod is one user of a volume.
type Pod struct {
	Namespace string `json:"namespace,omitempty"` // empty if there is no note of the mount
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid"`
	Dir       string `json:"dir"`
	ReadOnly  bool   `json:"readOnly"`
}

// A Wait is a step that cannot succeed yet, and is tried again while calls wait for it.
type Wait struct {
	Step   string    `json:"step"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"` // with the remedy
	Holder *Holder   `json:"holder,omitempty"`
}

// A Holder is another host that has the volume active.
type Holder struct {
	HostID  int       `json:"hostID,omitempty"`
	Host    string    `json:"host,omitempty"`
	Since   time.Time `json:"since,omitzero"`   // when this node saw it first
	Lease   string    `json:"lease"`            // live, failing, dead, unknown
	Renewed time.Time `json:"renewed,omitzero"` // when its lease was renewed last
	FreeAt  time.Time `json:"freeAt,omitzero"`  // when the volume can be taken over if the host is dead
}

// An Error is the last error.
type Error struct {
	Step    string    `json:"step"`
	Code    string    `json:"code,omitempty"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
	CallID  string    `json:"callID,omitempty"`
	Next    time.Time `json:"next,omitzero"` // when flexd itself retries
}

// A VolumeDetail is everything about one volume.
type VolumeDetail struct {
	Volume
	Claims   []Claim     `json:"claims"`
	Lease    *Lease      `json:"lease,omitempty"`
	Calls    []Call      `json:"calls"`    // waiting now
	Observed []Fact      `json:"observed"` // in reading order
	Plan     []string    `json:"plan"`     // the steps that would be taken now
	Refused  []string    `json:"refused"`  // the refusals of the current plan, with reasons
	Stuck    *Child      `json:"stuck,omitempty"`
	History  []Operation `json:"history"` // newest first, bounded

	Findings []Finding `json:"disagreements"`

	RefusedCalls []RefusedCall `json:"refusedCalls"` // the newest first
}

// A Claim is one of kubelet's directories for a mount of the volume.
type Claim struct {
	Kind    string    `json:"kind"` // staged, published
	Phase   string    `json:"phase"`
	Dir     string    `json:"dir"`
	Since   time.Time `json:"since"` // when it entered the phase
	Mounted bool      `json:"mounted"`
	Pod     *Pod      `json:"pod,omitempty"`
	Name    string    `json:"name,omitempty"` // kubelet's name for the volume
	Note    string    `json:"note,omitempty"` // "claimed-missing", "adopted from the mount table", "release failed: ..."
}

// A Lease keeps the volume active for a while without a claim.
type Lease struct {
	Until time.Time `json:"until"`
	Live  bool      `json:"live"`
}

// A Call is a FlexVolume call that waits.
type Call struct {
	ID       string    `json:"id"`
	Verb     string    `json:"verb"`
	Dir      string    `json:"dir,omitempty"`
	Since    time.Time `json:"since"`
	Deadline time.Time `json:"deadline"`
}

// A Fact is one observation in words: Name "device", Value "/dev/loop3 (7:3), 64.0 MiB, read-write".
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// A Child is a process that does not end.
type Child struct {
	Step  string    `json:"step"`
	Pid   int       `json:"pid"`
	Wchan string    `json:"wchan,omitempty"`
	Since time.Time `json:"since"`
	Hint  string    `json:"hint"` // the remedy
}

// An Operation is one step that was done.
type Operation struct {
	Step    string    `json:"step"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Error   string    `json:"error,omitempty"`
	CallIDs []string  `json:"callIDs,omitempty"`
}

// A List is the answer of GET /v1/volumes.
type List struct {
	Node     string   `json:"node"`
	Version  string   `json:"version"`
	Volumes  []Volume `json:"volumes"`  // sorted by VG, LV
	Problems []string `json:"problems"` // of the node, not of a volume: unreadable notes, a mount table that cannot be read

	Findings   []Finding `json:"disagreements"` // as seen last, sorted by VG, LV
	Goroutines int       `json:"goroutines"`    // of flexd itself, for measurements
	Pools      []Pool    `json:"pools"`         // the thin pools of claimed volumes, as seen last
	Groups     []Group   `json:"groups"`        // the configured volume groups, sorted by name

	RefusedCalls []RefusedCall `json:"refusedCalls"` // the newest first
}

// A RefusedCall is the last failed call for a volume and a directory, until a later call for
// these succeeds.
type RefusedCall struct {
	VG      string    `json:"vg"` // "" = the call does not name it, as are the next two
	LV      string    `json:"lv"`
	Dir     string    `json:"dir,omitempty"`
	Pod     *Pod      `json:"pod,omitempty"`
	Verb    string    `json:"verb"`
	Code    string    `json:"code"`
	Message string    `json:"message"`
	First   time.Time `json:"first"` // since when calls have failed with this message
	Last    time.Time `json:"last"`
	Count   int       `json:"count"`
	CallID  string    `json:"callID"` // of the last one
	Answer  string    `json:"answer"` // the id in kubelet's event
}

// A Finding is a contradiction between the metadata, the kernel's devices, the mount
// table and flexd's claims about a volume.
type Finding struct {
	Class         string    `json:"class"` // see internal/join
	VG            string    `json:"vg"`
	LV            string    `json:"lv"`
	UUID          string    `json:"uuid"`
	Dir           string    `json:"dir,omitempty"` // the mount point, or the copied file, that it is about
	Message       string    `json:"message"`
	Hint          string    `json:"hint"` // the remedy
	Informational bool      `json:"informational"`
	Since         time.Time `json:"since"` // when flexd saw it first
}

// Orphans is the answer of GET /v1/orphans: the orphans that `flexd release` can release.
type Orphans struct {
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Unknown string    `json:"unknown,omitempty"` // why the processes of pods are unknown
	Orphans []Orphan  `json:"orphans"`           // sorted by VG, LV
	Refused []Refusal `json:"refused"`           // targets that nothing is released for
}

// An Orphan is a mount, a claim or a device that no pod seems to need any more.
type Orphan struct {
	Finding
	Plan     []string `json:"plan"`               // the steps that would be taken now
	Refused  string   `json:"refused,omitempty"`  // why the release would be refused
	Released bool     `json:"released,omitempty"` // `flexd release --yes` has released it
	Error    string   `json:"error,omitempty"`    // why the release failed
}

// A Refusal is the reason why a target has nothing to release.
type Refusal struct {
	Target  string `json:"target"`
	Message string `json:"message"`
}

// A Pool is a thin pool with a claimed volume.
type Pool struct {
	VG            string    `json:"vg"`
	Name          string    `json:"name"`
	Active        bool      `json:"active"`   // the rest is known only then
	DataUsed      int64     `json:"dataUsed"` // bytes, as are the next
	DataTotal     int64     `json:"dataTotal"`
	MetadataUsed  int64     `json:"metadataUsed"`
	MetadataTotal int64     `json:"metadataTotal"`
	Mode          string    `json:"mode"`              // the kernel's word: rw, ro, out_of_data_space, Fail, Error
	Warning       string    `json:"warning,omitempty"` // it is fuller than the configured threshold
	Problem       string    `json:"problem,omitempty"` // it is full, or has failed
	Seen          time.Time `json:"seen"`              // when
}

// The states of a Group.
const (
	GroupOK       = "ok"
	GroupFull     = "full"     // no volume can be created for lack of space, or beyond a limit
	GroupUnusable = "unusable" // LVM changes nothing in it: a disk is missing, it is exported ...
	GroupMissing  = "missing"  // it does not exist
	GroupUnknown  = "unknown"  // it cannot be read, or has not been yet
)

// GroupStates has all of them.
var GroupStates = []string{GroupOK, GroupFull, GroupUnusable, GroupMissing, GroupUnknown}

// The states of a ThinPool.
const (
	PoolOK       = "ok"
	PoolFull     = "full"
	PoolFailed   = "failed"
	PoolInactive = "inactive" // its usage is not known
)

// A Group is the space of a volume group, as observed last.
type Group struct {
	Name          string     `json:"name"`
	Provider      string     `json:"provider"`
	Directory     string     `json:"directory,omitempty"` // of its files
	Size          int64      `json:"size"`                // bytes, as are the next two
	Free          int64      `json:"free"`
	LargestVolume *int64     `json:"largestVolume,omitempty"` // that flexd would create now; nil = it creates none there
	State         string     `json:"state"`
	Error         string     `json:"error,omitempty"`     // why it has that state
	ObservedAt    time.Time  `json:"observedAt,omitzero"` // zero = never
	Disks         []Disk     `json:"disks"`               // sorted by device
	ThinPools     []ThinPool `json:"thinPools"`           // sorted by name
	Locks         *Locks     `json:"locks,omitempty"`     // nil = it is not shared with other nodes
}

// Locks are the locks of a Group that nodes share, on this node.
type Locks struct {
	Type       string    `json:"type,omitempty"` // "sanlock" or "dlm"
	State      string    `json:"state"`
	Since      time.Time `json:"since,omitzero"`   // of the state
	Reason     string    `json:"reason,omitempty"` // why they are not started, or the problem of started ones
	HostID     int       `json:"hostID,omitempty"`
	HostName   string    `json:"hostName,omitempty"`
	IOTimeout  float64   `json:"ioTimeout,omitempty"` // seconds
	Renewed    time.Time `json:"renewed,omitzero"`
	Watchdog   string    `json:"watchdog,omitempty"`
	ObservedAt time.Time `json:"observedAt,omitzero"`
}

// A Disk is a physical volume of LVM, or the filesystem with the directory of a group.
type Disk struct {
	Device  string `json:"device"` // "" = it is missing
	Size    int64  `json:"size"`
	Free    int64  `json:"free"`
	Problem string `json:"problem,omitempty"` // why new volumes get no space on it
}

// A ThinPool is a thin pool of a Group.
type ThinPool struct {
	Name         string `json:"name"`
	State        string `json:"state"`
	Size         int64  `json:"size"` // bytes, as are the next three
	Used         int64  `json:"used"`
	MetadataSize int64  `json:"metadataSize"`
	MetadataUsed int64  `json:"metadataUsed"`
	Warning      string `json:"warning,omitempty"` // it is fuller than the configured threshold
	Problem      string `json:"problem,omitempty"` // it is full, or has failed
}

// The verdicts of a Check.
const (
	Agree    = "agree"
	Disagree = "disagree" // there are disagreements, even if some facts are unknown
	Unknown  = "unknown"  // no disagreement is known, but some facts are unknown
)

// A Check is the answer of GET /v1/check: a new look at metadata, devices, mounts and claims.
type Check struct {
	Node     string    `json:"node"`
	Version  string    `json:"version"`
	Verdict  string    `json:"verdict"`
	Groups   []Checked `json:"groups"`        // as configured
	Findings []Finding `json:"disagreements"` // sorted by VG, LV
	Problems []string  `json:"problems"`      // notes and format records that cannot be read or written

	RefusedCalls []RefusedCall `json:"refusedCalls"` // the newest first; they are not disagreements
}

// Judge returns the verdict.
func (c Check) Judge() string {
	verdict := Agree
	if len(c.Problems) > 0 {
		verdict = Unknown
	}
	for _, g := range c.Groups {
		if g.Unknown != "" {
			verdict = Unknown
		}
	}
	for _, d := range c.Findings {
		if !d.Informational {
			return Disagree
		}
	}
	return verdict
}

// A Checked is a volume group that was checked.
type Checked struct {
	VG       string  `json:"vg"`
	Provider string  `json:"provider"`
	Unknown  string  `json:"unknown,omitempty"` // the unknown facts, and the reason
	Volumes  int     `json:"volumes"`           // in the metadata, without LVM's own
	Active   int     `json:"active"`            // that have a device
	Seconds  float64 `json:"seconds"`           // that the look took
}
