package host

// volumes are a node's one volume group: where it is, and how it goes.
type volumes interface {
	// Has says whether the group has a volume of that name.
	Has(lv string) (bool, error)

	prepare() error             // makes the group
	config() string             // its lines of the configuration that say where it is
	devices() ([]string, error) // the paths of its active volumes
	release()                   // makes them inactive, as far as that goes now
	remove() error              // the group itself, which has no device any more
}
