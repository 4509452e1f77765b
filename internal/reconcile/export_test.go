package reconcile

// TablesKept says how many lanes keep a mount table alive. It is for a node whose
// goroutines have ended.
func (n *Node) TablesKept() (kept int) {
	for _, l := range n.allLanes() {
		if l.table != nil {
			kept++
		}
	}
	return kept
}
