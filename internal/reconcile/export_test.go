package reconcile

// TablesKept returns how many lanes keep a mount table. No goroutine of the node may run.
func (n *Node) TablesKept() (kept int) {
	for _, l := range n.allLanes() {
		if l.table != nil {
			kept++
		}
	}
	return kept
}
