package dsw

// An index finds notes by a field, so that no call searches all of them.
type index[Note any] map[string]map[*Note]bool

func (x index[Note]) add(key string, n *Note) {
	if x[key] == nil {
		x[key] = map[*Note]bool{}
	}
	x[key][n] = true
}

func (x index[Note]) remove(key string, n *Note) {
	if delete(x[key], n); len(x[key]) == 0 {
		delete(x, key)
	}
}

// copies returns copies of the notes with that key.
func (x index[Note]) copies(key string) (found []Note) {
	for n := range x[key] {
		found = append(found, *n)
	}
	return found
}
