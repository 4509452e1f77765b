package volume

var verbNames = [...]string{
	Check: "check", Activate: "activate", Stage: "stage", Publish: "publish", Release: "release", Expand: "expand",
	Reclaim: "reclaim", Create: "create", Find: "find", Exists: "exists", EndLease: "end lease",
}

// String names a verb in the messages of failed tests. The product prints none.
func (v Verb) String() string { return verbNames[v] }
